"""Fetch responses: which partitions and records a response must have, and which it must not have.

``fetch_model.py`` says what each request asked for and what its session holds.
"""

from dataclasses import dataclass, field

from chaos.checks.batches import batches_of, read_batches, record_count
from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer, Named, Wish
from chaos.checks.replica_view import ReplicaCheck
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import PartitionData

NO_REPLICA = -1


def selects(answer: Answer) -> bool:
    """Whether the node sends consumers to followers, and the client names a rack."""
    return bool(answer.asked.rack and answer.node.broker.config.replica_selector_class)


def in_rack(answer: Answer, node_id: int) -> bool:
    found = answer.node.broker.controller.image.brokers.get(node_id)
    return found is not None and not found.fenced and found.rack == answer.asked.rack


def may_be_read(answer: Answer, partition: Partition, offset: int) -> list[int]:
    """Returns the followers to which the leader may send the client that asks for this offset."""
    if not selects(answer) or in_rack(answer, answer.node.broker.node_id):
        return []
    followers = partition.followers
    if followers is None:
        return []
    return [
        node_id
        for node_id, state in followers.states.items()
        if node_id in followers.isr
        and in_rack(answer, node_id)
        and state.log_start_offset <= offset <= state.log_end_offset
    ]


LOOKS_AT_ONCE = 64
"""So many partitions of a session are looked at for each answer."""


@dataclass(slots=True)
class _Turns:
    """``answers`` counts a session's answers. No partition waits for longer than since ``counted_from``. ``most`` is
    the largest number of partitions that the session has had, and ``number`` that of its last request."""

    answers: int = 0
    counted_from: int = 0
    most: int = 0
    number: int = 0


class NoStarvation(Check):
    guarantee = "no-starvation"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        # F-15 and G-7 speak of sessions. G-6: an answer that is told again is no other one.
        if answer.session_id == 0 or answer.repeated:
            return
        wishes = answer.asked.wishes
        turns = answer.session.kept(_Turns)
        turns.answers += 1
        turns.most = max(turns.most, len(wishes))
        if answer.asked.is_first and answer.asked.number != turns.number + 1:
            turns.counted_from = turns.answers  # G-7: numbers that got no answer may have been a partition's turns.
        turns.number = answer.asked.number
        for named, data in answer.data.items():
            if named in wishes and (data.records or data.error_code or data.diverging_epoch is not None):
                wishes[named].fed_at = turns.answers
        if turns.answers % max(1, len(wishes) // LOOKS_AT_ONCE) == 0:
            for named, wish in wishes.items():
                self._look(at_us, answer, named, wish, turns)

    def _look(self, at_us: int, answer: Answer, named: Named, wish: Wish, turns: _Turns) -> None:
        partition = answer.served(named)
        if partition is None or may_be_read(answer, partition, wish.offset):
            wish.fed_at = 0  # KIP-392: the client is to read elsewhere.
            return
        log = partition.log
        # a reader of committed records is told nothing above the last stable offset.
        end = log.last_stable_offset if answer.asked.reads_committed else log.high_watermark
        # Physical: records of the remote tier come when the store gives them, which may take long or fail.
        if not log.local_log_start_offset <= wish.offset < end:
            wish.fed_at = 0
            return
        wish.fed_at = max(wish.fed_at or turns.answers, turns.counted_from)
        left_out = turns.answers - wish.fed_at
        if left_out >= turns.most and next(read_batches(log, wish.offset, end), None) is not None:
            # Physical: where a cleaner has taken all that is left up to the end, the log holds no batch there.
            self.violated(
                at_us,
                f"{answer.client_id}, session {answer.session_id}: {partition.topic}-{partition.index} has data from "
                f"{wish.offset} to {end}, but {left_out} answers in a row left it out, in a "
                f"session of {turns.most} partitions",
            )
            wish.fed_at = turns.answers


class NoEmptyAnswer(Check):
    """no-starvation within one partition: an answer that has batches has a record, if one follows that its reader may
    read (F-16, KIP-74).

    A cleaner keeps batches without records. Kafka's protocol guide counts the records of a batch in its header, and
    clients take an answer without any for one whose next record is too large for it.
    """

    guarantee = "no-starvation"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            sent = list(batches_of(bytes(data.records or b"")))
            if not sent or any(record_count(batch) for _, batch in sent):
                continue
            partition = answer.served(named)
            begin = sent[-1][0].last_offset + 1
            end = data.last_stable_offset if answer.asked.reads_committed else data.high_watermark
            if partition is None or begin < partition.log.local_log_start_offset:
                continue  # Physical: the following records are in the remote tier, which may be away.
            follows = (each for each, batch in read_batches(partition.log, begin, end) if record_count(batch))
            record = next(follows, None)
            if record is not None and record.last_offset < end:
                self.violated(
                    at_us,
                    f"{answer.client_id} was sent no record of {partition.topic}-{partition.index}, only batches "
                    f"without records up to {begin - 1}, although {record.named} follows below {end}",
                )


ERROR, NEWS, DATA, ELSEWHERE = "has an error", "has changed", "has data", "has a preferred read replica"


@dataclass(slots=True)
class _Session:
    """``answers`` counts its answers. ``first_told`` are the partitions of the first answer to its last request, and
    ``changed_since`` are those that changed before that request was answered again. ``idle_epochs`` has the leader
    epochs in which partitions were last seen without data."""

    answers: int = 0
    first_told: dict[Named, None] = field(default_factory=dict)
    changed_since: dict[Named, None] = field(default_factory=dict)
    idle_epochs: dict[Named, int] = field(default_factory=dict)


class IncrementalExact(Check):
    """incremental-answer-exact: an incremental answer holds each line that is due, and no line that nothing justifies.

    Final revision (F-14): a partition is told if and only if its high watermark or log start differs from what was last
    told, or it has data within the limits, or it has an error, a diverging epoch or a preferred replica. After an
    error, and of a new partition, the next state is told in any case. F-16: if there is any data, the answer has some.
    Sessions of followers are judged, too.

    First revision (G-5, G-6): what has changed is told. An answer that is told again holds all partitions of the first
    one.

    Any other line is known to be due only if it was due after the event of an earlier answer already. Physical: one
    event may change a partition after it has made an answer. In sessions of more than 64 partitions due lines are
    looked for after every P/64 answers, since more would cost too much.
    """

    guarantee = "incremental-answer-exact"
    needs_one_node = True
    judges_followers = True

    def answered(self, at_us: int, answer: Answer) -> None:
        if answer.session_id == 0:
            return  # F-7: the session is closed. F-4, F-5: there is none.
        session = answer.session.kept(_Session)
        if answer.asked.incremental:
            for named, data in answer.data.items():
                self._justified(at_us, answer, session, named, data)
            if answer.repeated:
                self._told_again(at_us, answer, session)
        session.answers += 1
        if not answer.repeated:
            session.first_told = dict.fromkeys(answer.data) if answer.asked.incremental else {}
            session.changed_since = {}
        for named, data in answer.data.items():
            wish = answer.asked.wishes.get(named)
            if wish is not None:
                told = None if data.error_code else (data.high_watermark, data.log_start_offset)
                if answer.repeated and (named not in session.first_told or told != wish.told):
                    session.changed_since[named] = None
                wish.told = told
                wish.served = wish.served or bool(data.records)
                wish.owed = ""
        if session.answers % max(1, len(answer.asked.wishes) // LOOKS_AT_ONCE) == 0:
            self._look_for_due(at_us, answer, session)

    # Each line is justified

    def _justified(self, at_us: int, answer: Answer, session: _Session, named: Named, data: PartitionData) -> None:
        wish = answer.asked.wishes.get(named)
        if wish is None:
            self._tell(at_us, answer, named, "is not in the session, and was told")
            return
        if data.records or data.error_code or data.diverging_epoch or data.preferred_read_replica != NO_REPLICA:
            return
        if wish.told != (data.high_watermark, data.log_start_offset):
            return
        if answer.asked.is_first and not self._is_unchanged_in_first(answer, session, named, wish):
            return
        self._tell(at_us, answer, named, f"was told again, without records, and with {wish.told} as before")

    @staticmethod
    def _is_unchanged_in_first(answer: Answer, session: _Session, named: Named, wish: Wish) -> bool:
        """G-5: data that was left out, a change of the log's end, or an offset that was named makes a partition dirty.
        G-6: so does the first answer, if it is told again. What changes after the first answer to N has the number
        N+1 (G-5). So a second answer to N tells it, and the answer to N+1 tells it once more."""
        partition = answer.led(named)
        is_read_up = partition is not None and wish.offset >= partition.log.log_end_offset
        is_new = answer.repeated or named in answer.asked.named or named in session.changed_since
        # While another node led there was an error to send, and a dirty number only grows (G-5).
        is_led_on = partition is not None and session.idle_epochs.get(named) == partition.leader_epoch
        return is_read_up and is_led_on and not is_new and 0 < session.answers == wish.idle_at

    def _told_again(self, at_us: int, answer: Answer, session: _Session) -> None:
        for named in session.first_told:
            wish = answer.asked.wishes.get(named)
            # G-4: of a partition that a full request has put there anew, nothing has been told.
            if wish is not None and wish.told is not None and named not in answer.data:
                self._tell(at_us, answer, named, "was told by the first answer to this request, and not by the second")

    # Each due line is there

    def _look_for_due(self, at_us: int, answer: Answer, session: _Session) -> None:
        sent_bytes = sum(len(data.records or b"") for data in answer.data.values())
        for named, wish in answer.asked.wishes.items():
            partition = answer.served(named)
            owed = self._owed(answer, wish, partition)
            lacks = answer.asked.incremental and not answer.repeated and named not in answer.data
            if lacks and wish.told is None and not answer.asked.is_first:
                self._tell(
                    at_us,
                    answer,
                    named,
                    "is new or had an error in the previous response, and is missing now",
                )
            elif lacks and owed and owed == wish.owed and self._has_room(answer, wish, partition, sent_bytes):
                self._tell(at_us, answer, named, f"{owed}, and was not told; last told: {wish.told}")
            wish.owed = owed
            if partition is not None and wish.offset >= partition.log.log_end_offset:
                wish.idle_at = session.answers
                session.idle_epochs[named] = partition.leader_epoch

    @staticmethod
    def _owed(answer: Answer, wish: Wish, partition: Partition | None) -> str:
        """Returns why the next answer must tell the partition, or nothing if it need not."""
        if partition is None or wish.leader_epoch not in (-1, partition.leader_epoch):
            return ERROR
        log = partition.log
        if answer.asked.by_follower and wish.offset < log.local_log_start_offset:
            return ERROR  # KIP-405: a follower begins where the local records begin.
        # Unlike Kafka (card of Fetch): above the high watermark a session may hear of a replica only when that moves.
        if wish.offset <= log.high_watermark and may_be_read(answer, partition, wish.offset):
            return ELSEWHERE
        if not log.log_start_offset <= wish.offset <= log.log_end_offset:
            return ERROR
        # Physical: records of the remote tier come when the store gives them, which may take long or fail.
        has_data = log.local_log_start_offset <= wish.offset < _end(answer, partition)
        if answer.asked.is_first and has_data:
            # G-5: news of a partition with data wait with it. G-3: the client has processed what was sent.
            return "" if wish.served else DATA
        if wish.told != (log.high_watermark, log.log_start_offset):
            return NEWS
        # of records above the last stable offset a reader of committed ones is told nothing.
        is_stable = not answer.asked.reads_committed or log.last_stable_offset == log.high_watermark
        return DATA if has_data and is_stable else ""

    @staticmethod
    def _has_room(answer: Answer, wish: Wish, partition: Partition | None, sent_bytes: int) -> bool:
        """Returns whether the limits leave room for the line. Only records need any (F-15, G-5)."""
        if wish.owed != DATA or partition is None:
            return True
        batch = b""
        for _, data in read_batches(partition.log, wish.offset, _end(answer, partition)):
            batch = batch or data
            if record_count(data):  # A fetch reads past batches that the cleaner has emptied.
                batch = data
                break
        if not batch:
            return False  # Physical: the log holds no record there any more (compaction).
        left = answer.asked.max_bytes - sent_bytes
        # G-5: what the limit leaves out is due in the next answer, so only an answer without records is known to err.
        has_left = not answer.asked.is_first and len(batch) <= wish.max_bytes <= left
        return has_left or not sent_bytes  # F-16.

    def _tell(self, at_us: int, answer: Answer, named: Named, what: str) -> None:
        topic = named[0] if isinstance(named[0], str) else named[0].hex()
        who = f"{answer.client_id}, session {answer.session_id}, answer to {answer.asked.number}"
        self.violated(at_us, f"{who}: {topic}-{named[1]} {what}")


def _end(answer: Answer, partition: Partition) -> int:
    """Followers read beyond the high watermark."""
    return partition.log.log_end_offset if answer.asked.by_follower else partition.log.high_watermark


class FullAnswerExact(Check):
    """unrequested-partition for full answers: they hold the partitions that the request names, and no others (F-5,
    G-4).
    """

    guarantee = "unrequested-partition"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        if answer.asked.incremental:
            return
        for named in answer.data:
            if named not in answer.asked.wishes:
                topic = named[0] if isinstance(named[0], str) else named[0].hex()
                self.violated(
                    at_us,
                    f"{answer.client_id} was answered about {topic}-{named[1]}, which its full request did not name",
                )


class NoUncommittedRead(Check):
    """no-uncommitted-read: a client is sent no record beyond the high watermark of the replica that serves it.

    This holds at a leader and, since a follower's high watermark is never ahead of what is committed, at a follower
    from which consumers read (KIP-392).
    """

    guarantee = "no-uncommitted-read"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            partition = answer.served(named) if data.records else None
            if partition is None or not data.records:
                continue
            last = max((batch.last_offset for batch, _ in batches_of(bytes(data.records))), default=-1)
            if last >= partition.log.high_watermark:
                self.violated(
                    at_us,
                    f"{answer.client_id} was sent offset {last} of {partition.topic}-{partition.index}; the high "
                    f"watermark there is {partition.log.high_watermark}",
                )


class StaleLeaderEpochFenced(Check):
    """stale-leader-epoch-fenced: a fetch with another leader epoch than the leader's gets an error and no data
    (KIP-320).

    A follower that serves a consumer compares the leader epoch that it follows (KIP-392).

    This holds also if the fetch does not name the partition, but its session holds it from an earlier fetch (F-13).
    """

    guarantee = "stale-leader-epoch-fenced"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            wish = answer.asked.wishes.get(named)
            if wish is None or data.error_code or wish.leader_epoch < 0:
                continue
            partition = answer.served(named)
            if partition is not None and wish.leader_epoch != partition.leader_epoch:
                self.violated(
                    at_us,
                    f"{answer.client_id} asked for {partition.topic}-{partition.index} in leader epoch "
                    f"{wish.leader_epoch} and was answered in {partition.leader_epoch}",
                )


class ReadReplicaEligible(ReplicaCheck):
    """read-replica-eligible: a consumer is sent only to a follower that is in sync, in its rack, and holds its offset.

    The answer that names a preferred read replica has no records (KIP-392). The follower's own log is looked at, too:
    the leader knows only what the follower has told. Of offsets that are not committed nothing is required there, since
    another leader may have made the follower truncate them.
    """

    guarantee = "read-replica-eligible"

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            partition, wish = answer.led(named), answer.asked.wishes.get(named)
            if data.preferred_read_replica != NO_REPLICA and wish is not None and partition is not None:
                wrong = self._wrong(answer, partition, data, wish.offset)
                if wrong:
                    self.violated(
                        at_us,
                        f"{answer.client_id} was sent to node {data.preferred_read_replica} for offset {wish.offset} "
                        f"of {partition.topic}-{partition.index}: {wrong}",
                    )

    def _wrong(self, answer: Answer, partition: Partition, data: PartitionData, offset: int) -> str:
        node_id = data.preferred_read_replica
        if not selects(answer) or not in_rack(answer, node_id):
            return f"it does not stand in the rack {answer.asked.rack!r}"
        if in_rack(answer, answer.node.broker.node_id):
            return "the leader stands in the client's rack itself"
        if partition.followers is None or node_id not in partition.followers.isr:
            return "it is not in sync"
        if data.records:
            return "records were sent all the same"
        return self._lacks(partition, node_id, offset)

    def _lacks(self, partition: Partition, node_id: int, offset: int) -> str:
        """Says what the follower's log lacks."""
        known = self.replicas.partitions.get((partition.topic_id, partition.index))
        copy = None if known is None else known.copies.get(node_id)
        # Physical: unsynced bytes that were lost with the power are told when the node registers (E-4).
        if known is None or copy is None or copy.log is None or node_id in known.eligible.tainted:
            return ""
        if copy.held.end_offset < min(offset, known.committed_end):
            return f"its log ends at {copy.held.end_offset}"
        return ""
