"""What Fetch responses must contain: partitions and records, and those that they must not have.

``fetch_model.py`` has the partitions of each request and of its session.
"""

from dataclasses import dataclass, field

from chaos.checks.check import FetchCheck
from chaos.checks.log.batches import batches_of, read_batches, record_count
from chaos.checks.sessions.fetch_model import CompletedFetch, PartitionName, WantedPartition
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import PartitionData

NO_REPLICA = -1


# The followers that a leader may name as preferred read replicas (KIP-392, Kafka's RackAwareReplicaSelector)


def selects(fetch: CompletedFetch) -> bool:
    """Return whether the node sends consumers to followers, and the client names a rack."""
    return bool(fetch.request.rack and fetch.node.broker.config.replica_selector_class)


def in_rack(fetch: CompletedFetch, node_id: int) -> bool:
    registered = fetch.node.broker.controller.image.brokers.get(node_id)
    return registered is not None and not registered.fenced and registered.rack == fetch.request.rack


def may_be_read(fetch: CompletedFetch, partition: Partition, offset: int) -> list[int]:
    """Return the followers to which the leader may send the client that requests this offset.

    These are in sync, registered in the client's rack and not fenced, and have reported that their logs have the
    offset. If the leader is in that rack itself, no other node is preferred.
    """
    if not selects(fetch) or in_rack(fetch, fetch.node.broker.node_id):
        return []
    followers = partition.followers
    if followers is None:
        return []
    return [
        node_id
        for node_id, state in followers.states.items()
        if node_id in followers.isr
        and in_rack(fetch, node_id)
        and state.log_start_offset <= offset <= state.log_end_offset
    ]


LOOKS_AT_ONCE = 64
"""Partitions of a session that are compared for each response. More would cost too much."""


@dataclass(slots=True)
class _Turns:
    """The turns of a session's partitions. Responses are counted from 1."""

    responses: int = 0
    counted_from: int = 0
    """number of the response since which a partition may wait at most"""
    most: int = 0
    """largest number of partitions that the session has had"""
    number: int = 0
    """epoch or number of its last request"""


class NoStarvation(FetchCheck):
    """no-starvation: at most P-1 responses in a row omit a partition with data, in a session of P partitions.

    The final revision moves a partition that was served to the end of its list. The first revision begins request N at
    position N modulo the number of partitions (F-15, G-7). By F-16 the first partition in that order is served.

    All partitions of a small session are compared after each response, those of a large one after every P/64 responses,
    so starvation there is found up to P/64 responses later.
    """

    guarantee = "no-starvation"
    needs_one_node = True

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        # F-15 and G-7 are about sessions. G-6: a response that is sent again is the same one.
        if fetch.session_id == 0 or fetch.repeated:
            return
        partitions = fetch.request.partitions
        turns = fetch.session.kept(_Turns)
        turns.responses += 1
        turns.most = max(turns.most, len(partitions))
        if fetch.request.is_first and fetch.request.number != turns.number + 1:
            turns.counted_from = turns.responses  # G-7: numbers without a response may have been a partition's turns.
        turns.number = fetch.request.number
        for named, data in fetch.data.items():
            if named in partitions and (data.records or data.error_code or data.diverging_epoch is not None):
                partitions[named].fed_at = turns.responses
        if turns.responses % max(1, len(partitions) // LOOKS_AT_ONCE) == 0:
            for named, wanted in partitions.items():
                self._look(at_us, fetch, named, wanted, turns)

    def _look(
        self, at_us: int, fetch: CompletedFetch, named: PartitionName, wanted: WantedPartition, turns: _Turns
    ) -> None:
        partition = fetch.served(named)
        if partition is None or may_be_read(fetch, partition, wanted.offset):
            wanted.fed_at = 0  # KIP-392: the client is to read elsewhere.
            return
        log = partition.log
        # a reader of committed records gets nothing above the last stable offset.
        end = log.last_stable_offset if fetch.request.reads_committed else log.high_watermark
        # Physical: records of the remote tier come when the store gives them, which may take long or fail.
        if not log.local_log_start_offset <= wanted.offset < end:
            wanted.fed_at = 0
            return
        wanted.fed_at = max(wanted.fed_at or turns.responses, turns.counted_from)
        omitted = turns.responses - wanted.fed_at
        if omitted >= turns.most and next(read_batches(log, wanted.offset, end), None) is not None:
            # Physical: where a cleaner has removed all records up to the end, the log has no batch there.
            self.violated(
                at_us,
                f"{fetch.client_id}, session {fetch.session_id}: {partition.topic}-{partition.index} has data from "
                f"{wanted.offset} to {end}, but {omitted} responses in a row omitted it, in a "
                f"session of {turns.most} partitions",
            )
            wanted.fed_at = turns.responses


class NoEmptyResponse(FetchCheck):
    """no-starvation within one partition: a response that has batches has a record, if one follows that its reader may
    read (F-16, KIP-74).

    A cleaner may leave a batch without records. A client that gets a response without any record concludes that the
    next record is larger than its limit.
    """

    guarantee = "no-starvation"
    needs_one_node = True

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        for named, data in fetch.data.items():
            records = bytes(data.records or b"")
            if not records or any(record_count(batch) for _, batch in batches_of(records)):
                continue
            sent = list(batches_of(records))
            if not sent:
                continue
            partition = fetch.served(named)
            begin = sent[-1][0].last_offset + 1
            end = data.last_stable_offset if fetch.request.reads_committed else data.high_watermark
            if partition is None or begin < partition.log.local_log_start_offset:
                continue  # Physical: the following records are in the remote tier, which may be away.
            follows = (each for each, batch in read_batches(partition.log, begin, end) if record_count(batch))
            record = next(follows, None)
            if record is not None and record.last_offset < end:
                self.violated(
                    at_us,
                    f"{fetch.client_id} was sent no record of {partition.topic}-{partition.index}, only batches "
                    f"without records up to {begin - 1}, although {record.named} follows below {end}",
                )


ERROR, NEWS, DATA, ELSEWHERE = "has an error", "has changed", "has data", "has a preferred read replica"


@dataclass(slots=True)
class _Session:
    """The state that IncrementalExact keeps of a session."""

    responses: int = 0
    first_sent: dict[PartitionName, int] = field(default_factory=dict)
    """partitions of the first response to its last request, with the leader epoch, -1 if the node did not lead"""
    changed_since: dict[PartitionName, None] = field(default_factory=dict)
    """partitions that changed before the second response to that request"""
    idle_epochs: dict[PartitionName, int] = field(default_factory=dict)
    """leader epochs in which partitions were last seen without data"""


class IncrementalExact(FetchCheck):
    """incremental-response-exact: an incremental response has each partition that is due, and none without a reason.

    Final revision (F-14): a partition is sent if and only if its high watermark or log start differs from what was last
    sent, or it has data within the limits, or it has an error, a diverging epoch or a preferred replica. After an
    error, and for a new partition, the next state is sent in any case. F-16: if data is available, the response has
    some. Sessions of followers are judged, too.

    First revision (G-5, G-6): changed partitions are sent. A resent response has all partitions of the first one.

    A partition counts as omitted only if it was already due after the event of an earlier response. Physical: an event
    may change a partition after it has built its response. In sessions of more than 64 partitions the check compares
    all partitions after every P/64 responses only, to bound its cost.
    """

    guarantee = "incremental-response-exact"
    needs_one_node = True
    judges_followers = True

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        if fetch.session_id == 0:
            return  # F-7: the session is closed. F-4, F-5: there is none.
        session = fetch.session.kept(_Session)
        if fetch.request.incremental:
            for named, data in fetch.data.items():
                self._check_justified(at_us, fetch, session, named, data)
            if fetch.repeated:
                self._check_repeated(at_us, fetch, session)
        session.responses += 1
        if not fetch.repeated:
            session.first_sent = {each: _leader_epoch(fetch, each) for each in fetch.data if fetch.request.incremental}
            session.changed_since = {}
        for named, data in fetch.data.items():
            wanted = fetch.request.partitions.get(named)
            if wanted is not None:
                sent = None if data.error_code else (data.high_watermark, data.log_start_offset)
                is_same = session.first_sent.get(named) == _leader_epoch(fetch, named) and sent == wanted.sent
                if fetch.repeated and not is_same:
                    session.changed_since[named] = None
                wanted.sent = sent
                wanted.served = wanted.served or bool(data.records)
                wanted.due = ""
        if session.responses % max(1, len(fetch.request.partitions) // LOOKS_AT_ONCE) == 0:
            self._check_due(at_us, fetch, session)

    # No partition without a reason

    def _check_justified(
        self, at_us: int, fetch: CompletedFetch, session: _Session, named: PartitionName, data: PartitionData
    ) -> None:
        wanted = fetch.request.partitions.get(named)
        if wanted is None:
            self._report(at_us, fetch, named, "is not in the session, and was sent")
            return
        if data.records or data.error_code or data.diverging_epoch or data.preferred_read_replica != NO_REPLICA:
            return
        if wanted.sent != (data.high_watermark, data.log_start_offset):
            return
        if fetch.request.is_first and not self._is_unchanged_in_first(fetch, session, named, wanted):
            return
        self._report(at_us, fetch, named, f"was sent again, without records, and with {wanted.sent} as before")

    @staticmethod
    def _is_unchanged_in_first(
        fetch: CompletedFetch, session: _Session, named: PartitionName, wanted: WantedPartition
    ) -> bool:
        """Return whether the partition is not dirty.

        G-5: data that was omitted, a change of the log's end, or an offset that was named makes a partition dirty. G-6:
        so does the first response, if it is sent again. What changes after the first response to N has the number N+1
        (G-5). So a second response to N has it, and the response to N+1 has it once more. G-4: nothing has been sent of
        the partitions of a full request.
        """
        partition = fetch.led(named)
        is_read_up = partition is not None and wanted.offset >= partition.log.log_end_offset
        is_new = fetch.repeated or named in fetch.request.named or named in session.changed_since
        is_new = is_new or fetch.may_be_replaced
        # While another node led there was an error to send, and a dirty number only grows (G-5).
        is_led_on = partition is not None and session.idle_epochs.get(named) == partition.leader_epoch
        return is_read_up and is_led_on and not is_new and 0 < session.responses == wanted.idle_at

    def _check_repeated(self, at_us: int, fetch: CompletedFetch, session: _Session) -> None:
        for named in session.first_sent:
            wanted = fetch.request.partitions.get(named)
            # G-4: nothing has been sent of a partition that a full request has added.
            if wanted is not None and wanted.sent is not None and named not in fetch.data:
                self._report(at_us, fetch, named, "was in the first response to this request, and not in the second")

    # Each partition that is due

    def _check_due(self, at_us: int, fetch: CompletedFetch, session: _Session) -> None:
        request, selecting = fetch.request, selects(fetch)
        may_lack = request.incremental and not fetch.repeated
        for named, wanted in request.partitions.items():
            partition = fetch.served(named)
            due = self._due(fetch, wanted, partition, selecting)
            if may_lack and named not in fetch.data:
                if wanted.sent is None and not request.is_first:
                    self._report(
                        at_us,
                        fetch,
                        named,
                        "is new or had an error in the previous response, and is missing now",
                    )
                elif due and due == wanted.due and self._has_room(fetch, wanted, partition):
                    self._report(at_us, fetch, named, f"{due}, and was not sent; last sent: {wanted.sent}")
            wanted.due = due
            if partition is not None and wanted.offset >= partition.log.log_end_offset:
                wanted.idle_at = session.responses
                session.idle_epochs[named] = partition.leader_epoch

    @staticmethod
    def _due(fetch: CompletedFetch, wanted: WantedPartition, partition: Partition | None, selecting: bool) -> str:
        """Return why the next response must have the partition, or nothing if it need not. ``selecting``: ``selects``
        of the fetch."""
        if partition is None or wanted.leader_epoch not in (-1, partition.leader_epoch):
            return ERROR
        log = partition.log
        if fetch.request.by_follower and wanted.offset < log.local_log_start_offset:
            return ERROR  # KIP-405: a follower begins where the local records begin.
        # Unlike Kafka (card of Fetch): above the high watermark a session may be sent a replica only when that moves.
        if selecting and wanted.offset <= log.high_watermark and may_be_read(fetch, partition, wanted.offset):
            return ELSEWHERE
        if not log.log_start_offset <= wanted.offset <= log.log_end_offset:
            return ERROR
        # Physical: records of the remote tier come when the store gives them, which may take long or fail.
        has_data = log.local_log_start_offset <= wanted.offset < _end(fetch, partition)
        if fetch.request.is_first and has_data:
            # G-5: news of a partition with data wait with it. G-3: the client has processed what was sent.
            return "" if wanted.served else DATA
        if wanted.sent != (log.high_watermark, log.log_start_offset):
            return NEWS
        return DATA if has_data else ""

    @staticmethod
    def _has_room(fetch: CompletedFetch, wanted: WantedPartition, partition: Partition | None) -> bool:
        """Return whether the limits leave room for the partition. Only records need any (F-15, G-5)."""
        if wanted.due != DATA or partition is None:
            return True
        sent_bytes = sum(len(data.records or b"") for data in fetch.data.values())
        batch = b""
        for _, data in read_batches(partition.log, wanted.offset, _end(fetch, partition)):
            batch = batch or data
            if record_count(data):  # A fetch reads past batches that the cleaner has emptied.
                batch = data
                break
        if not batch:
            return False  # Physical: the log has no record there any more (compaction).
        left = fetch.request.max_bytes - sent_bytes
        # G-5: what the limit excludes is due in the next response, so only one without records is known to err.
        has_left = not fetch.request.is_first and len(batch) <= wanted.max_bytes <= left
        return has_left or not sent_bytes  # F-16.

    def _report(self, at_us: int, fetch: CompletedFetch, named: PartitionName, what: str) -> None:
        topic = named[0] if isinstance(named[0], str) else named[0].hex()
        who = f"{fetch.client_id}, session {fetch.session_id}, response to {fetch.request.number}"
        self.violated(at_us, f"{who}: {topic}-{named[1]} {what}")


def _leader_epoch(fetch: CompletedFetch, named: PartitionName) -> int:
    partition = fetch.led(named)
    return -1 if partition is None else partition.leader_epoch


def _end(fetch: CompletedFetch, partition: Partition) -> int:
    """Return where the fetcher's data ends. Followers read beyond the high watermark. X-4: a reader of committed
    records is sent nothing above the last stable offset."""
    log = partition.log
    if fetch.request.by_follower:
        return log.log_end_offset
    return log.last_stable_offset if fetch.request.reads_committed else log.high_watermark


class FullResponseExact(FetchCheck):
    """unrequested-partition for full responses: they have no partition that the request does not name (F-5, G-4)."""

    guarantee = "unrequested-partition"
    needs_one_node = True

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        if fetch.request.incremental:
            return
        for named in fetch.data:
            if named not in fetch.request.partitions:
                topic = named[0] if isinstance(named[0], str) else named[0].hex()
                self.violated(
                    at_us,
                    f"{fetch.client_id} got a response about {topic}-{named[1]}, which its full request did not name",
                )


class NoUncommittedRead(FetchCheck):
    """no-uncommitted-read: a client gets no record beyond the high watermark of the replica that serves it.

    This holds for a leader. It also holds for a follower from which consumers read (KIP-392), since its high watermark
    is never beyond the committed records.
    """

    guarantee = "no-uncommitted-read"
    needs_one_node = True

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        for named, data in fetch.data.items():
            partition = fetch.served(named) if data.records else None
            if partition is None or not data.records:
                continue
            last = max((batch.last_offset for batch, _ in batches_of(bytes(data.records))), default=-1)
            if last >= partition.log.high_watermark:
                self.violated(
                    at_us,
                    f"{fetch.client_id} was sent offset {last} of {partition.topic}-{partition.index}; the high "
                    f"watermark there is {partition.log.high_watermark}",
                )


class StaleLeaderEpochFenced(FetchCheck):
    """stale-leader-epoch-fenced: a fetch with another leader epoch than the leader's gets an error and no data
    (KIP-320).

    A follower that serves a consumer compares the leader epoch that it follows (KIP-392).

    This holds also if the fetch does not name the partition, but its session has it from an earlier fetch (F-13).
    """

    guarantee = "stale-leader-epoch-fenced"
    needs_one_node = True

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        for named, data in fetch.data.items():
            wanted = fetch.request.partitions.get(named)
            if wanted is None or data.error_code or wanted.leader_epoch < 0:
                continue
            partition = fetch.served(named)
            if partition is not None and wanted.leader_epoch != partition.leader_epoch:
                self.violated(
                    at_us,
                    f"{fetch.client_id} sent a fetch of {partition.topic}-{partition.index} in leader epoch "
                    f"{wanted.leader_epoch} and got a response in {partition.leader_epoch}",
                )


class ReadReplicaEligible(FetchCheck):
    """read-replica-eligible: a consumer is redirected only to a follower that is in sync, in its rack, and has its
    offset.

    The response that names a preferred read replica has no records (KIP-392). The follower's own log is compared, too:
    the leader knows only what the follower has reported. Nothing is required of offsets that are not committed, since
    another leader may have made the follower truncate them.
    """

    guarantee = "read-replica-eligible"

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        for named, data in fetch.data.items():
            partition, wanted = fetch.led(named), fetch.request.partitions.get(named)
            if data.preferred_read_replica != NO_REPLICA and wanted is not None and partition is not None:
                wrong = self._wrong(fetch, partition, data, wanted.offset)
                if wrong:
                    self.violated(
                        at_us,
                        f"{fetch.client_id} was sent to node {data.preferred_read_replica} for offset {wanted.offset} "
                        f"of {partition.topic}-{partition.index}: {wrong}",
                    )

    def _wrong(self, fetch: CompletedFetch, partition: Partition, data: PartitionData, offset: int) -> str:
        node_id = data.preferred_read_replica
        if not selects(fetch) or not in_rack(fetch, node_id):
            return f"it is not in the rack {fetch.request.rack!r}"
        if in_rack(fetch, fetch.node.broker.node_id):
            return "the leader is in the client's rack itself"
        if partition.followers is None or node_id not in partition.followers.isr:
            return "it is not in sync"
        if data.records:
            return "records were sent all the same"
        return self._lacks(partition, node_id, offset)

    def _lacks(self, partition: Partition, node_id: int, offset: int) -> str:
        """Return what the follower's log lacks, or nothing."""
        known = self.context.replicas.partitions.get((partition.topic_id, partition.index))
        copy = None if known is None else known.copies.get(node_id)
        # Physical: the loss of unsynced bytes with the power is reported when the node registers (E-4).
        if known is None or copy is None or copy.log is None or node_id in known.eligible.tainted:
            return ""
        if copy.held.end_offset < min(offset, known.committed_end):
            return f"its log ends at {copy.held.end_offset}"
        return ""
