"""State of idempotent producers in a log: from its batches, from snapshots, and until it expires.

Source: Kafka's ProducerSnapshot schema (version 1, CRC-32C over the bytes behind it), KIP-98 and KIP-890 for the
effects of a batch and a marker.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from crc32c import crc32c

from chaos.checks.check import Check, CheckContext, Inspection, ProducerCheck
from chaos.checks.log.batches import (
    BatchIdentity,
    Producing,
    batches_of,
    last_sequence_of,
    producing_of,
    read_batches,
    records_in,
)
from chaos.checks.log.producer_view import (
    EndedTransaction,
    LoggedBatch,
    LoggedProducer,
    LogProducers,
    ProducedBatch,
    lone_batch_in,
    lone_batch_offsets,
)
from chaos.checks.pending_requests import PendingRequests
from chaos.interceptor.watched_disk import WatchedDisk
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.replication.partitions import Partition
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)

if TYPE_CHECKING:
    from reference_broker.core.node import Node


_HEAD = Struct(">hIi")
"""Version, CRC and number of producers."""
_CRC_FROM = 6
_ROW = Struct(">qhiqiqiq")
"""Producer ID, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of the open
transaction."""
_VERSION = 1


class ProducerState(NamedTuple):
    """The state of one producer."""

    epoch: int
    last_sequence: int
    """-1 without a batch of the epoch, as ``last_offset``"""
    last_offset: int
    timestamp_ms: int
    coordinator_epoch: int
    """-1 without a marker"""
    open_from: int
    """first offset of the open transaction, -1 without one"""
    silence_ms: int = 0
    """longest time without a batch since its last marker; a snapshot does not have it"""

    @property
    def in_snapshot(self) -> tuple[int, int, int, int, int, int]:
        """Return the part of it that a snapshot has."""
        return self[:6]


def read_snapshot(data: bytes) -> dict[int, ProducerState]:
    """Return the producers by their IDs. Raise ValueError for any other file."""
    if len(data) < _HEAD.size:
        raise ValueError(f"it has only {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or crc != crc32c(data[_CRC_FROM:]) or len(data) != _HEAD.size + count * _ROW.size:
        raise ValueError(f"version {version}, {count} producers in {len(data)} bytes, or a CRC that does not fit")
    rows = (_ROW.unpack_from(data, _HEAD.size + number * _ROW.size) for number in range(count))
    return {row[0]: ProducerState(row[1], row[2], row[3], row[5], row[6], row[7]) for row in rows}


def replayed(known: Mapping[int, ProducerState], batch: bytes, place: BatchIdentity) -> dict[int, ProducerState]:
    """Return the state after the next whole batch, which is at ``place``."""
    producing = producing_of(batch)
    producer_id, epoch, sequence = last_sequence_of(batch)
    if producer_id < 0:
        return dict(known)
    before = known.get(producer_id, ProducerState(-1, -1, -1, -1, -1, -1))
    if place.control:
        coordinator_epoch = _coordinator_epoch(batch)
        if coordinator_epoch is None:
            return dict(known)
        kept = (-1, -1) if epoch > before.epoch else (before.last_sequence, before.last_offset)
        newest = max(coordinator_epoch, before.coordinator_epoch)
        return {**known, producer_id: ProducerState(epoch, *kept, producing.largest_ms, newest, -1)}
    open_from = before.open_from
    if producing.is_transactional and open_from < 0:
        open_from = place.base_offset
    written = ProducerState(
        epoch, sequence, place.last_offset, producing.largest_ms, before.coordinator_epoch, open_from
    )
    silence_ms = max(before.silence_ms, producing.largest_ms - before.timestamp_ms) if producer_id in known else 0
    return {**known, producer_id: written._replace(silence_ms=silence_ms)}


def _coordinator_epoch(batch: bytes) -> int | None:
    """A marker's key is its version and its type: 0 for an abort, 1 for a commit. Its value is its version and the
    coordinator's epoch (EndTxnMarker)."""
    record = next(records_in(batch), None)
    if record is None or record.key is None or record.key[2:4] not in (b"\x00\x00", b"\x00\x01"):
        return None
    return int.from_bytes((record.value or b"")[2:6], signed=True)


CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
"""Kafka's name of the mark."""


class ProducersReplayed(Check):
    """producers-replayed: a log's state of a producer is that of the producer's newest batch (P-1, P-4, P-12).

    A start reads it from a snapshot and the batches behind it. So epoch, last sequence and last offset must be those of
    the batch, whatever happens to the snapshot's file. The check reads them from the bytes of the log.

    Only logs that began with a snapshot are judged, once each. Producers without a batch in the log are omitted: their
    batches were deleted or cleaned away, or are in the remote tier only. So are producers with a marker after their
    last batch, which may have raised the epoch.
    """

    guarantee = "producers-replayed"
    inspection = Inspection.ONLY_THOROUGH

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._judged: set[tuple[int, int, str]] = set()

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        partitions = node.broker.partitions
        for partition in (*partitions.by_name.values(), *partitions.followed.values()):
            place = node.broker.node_id, incarnation, partition.log.directory
            if partition.log.recovered.snapshot and place not in self._judged:
                self._judged.add(place)
                self._judge(at_us, node.broker.node_id, partition)

    def _judge(self, at_us: int, node_id: int, partition: Partition) -> None:
        log = partition.log
        newest: dict[int, tuple[int, int, int]] = {}
        for batch, data in read_batches(log, log.local_log_start_offset, log.log_end_offset):
            producer_id, epoch, sequence = last_sequence_of(data)
            if batch.control:
                newest.pop(producer_id, None)
            elif producer_id >= 0:
                newest[producer_id] = epoch, sequence, batch.last_offset
        for producer_id, wanted in newest.items():
            producer = log.producers.by_id.get(producer_id)
            if producer is None:
                continue  # It was idle for too long (P-7), which forgotten-producer-refused judges.
            offset = producer.batch_metadata[-1].last_offset if producer.batch_metadata else -1
            known = producer.producer_epoch, producer.last_sequence, offset
            if known != wanted:
                self.violated(
                    at_us,
                    f"{log.directory} on node {node_id}, which began with {log.recovered.snapshot}: of producer "
                    f"{producer_id} it knows epoch, last sequence and last offset {known}, and its last batch has "
                    f"{wanted}",
                )


EMPTIED = "truncated_fully"
"""Note of a follower that has emptied a log."""


class ProducersEqualReplay(ProducerCheck):
    """producers-replayed: on leaders and followers a log's producers and its aborted transactions are those of a replay
    of all its batches (P-1, P-4, P-6, X-5, X-13).

    The check compares the epoch, the last five batches, the time and the coordinator epoch of each producer, its open
    transaction, and the index of aborted transactions. After an event it compares the producers that the event touched,
    and after a start or a truncation all of them. Where records are gone, a replay of the remaining log is correct,
    too:

    - P-7: a producer without an open transaction may be unknown after its expiration. If it comes back, its earlier
      batches may be unknown.
    - P-12: batches below the local log start cannot be replayed without a snapshot.
    - X-11: the cleaner removes batches and markers, and lowers timestamps. The newest batch of a producer stays.

    A follower that empties its log to begin where its leader's does forgets all producers before it
    (ProducerStateManager.truncateFullyAndStartAt).
    """

    guarantee = "producers-replayed"
    acts_on = (EMPTIED,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.producers.on_log_replayed.append(self.log_replayed)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Note and effect.what == EMPTIED:
                fields = dict(effect.fields)
                log = next((each for each in node.logs() if each.directory == fields["partition"]), None)
                if log is not None:
                    self._judge_emptied(at_us, node, log, int(fields["offset"]))

    def _judge_emptied(self, at_us: int, node: "Node", log: UnifiedLog, offset: int) -> None:
        self.evidence += 1
        for producer_id, (_, batches, *_, open_from) in log.producers.by_id.items():
            last = max((each.last_offset for each in batches), default=open_from)
            if 0 <= last < offset:
                self.violated(
                    at_us,
                    f"{log.directory} on node {node.broker.node_id} was emptied to begin at {offset}, and it knows "
                    f"producer {producer_id} from offset {last} (P-1)",
                )

    def log_replayed(
        self, at_us: int, node: "Node", producers: LogProducers, new: Sequence[ProducedBatch] | None
    ) -> None:
        log = producers.log
        known: Mapping[int, tuple[Any, ...]] = log.producers.by_id
        if new is None:
            producer_ids: Iterable[int] = {**dict.fromkeys(producers.states), **dict.fromkeys(known)}
            since = log.local_log_start_offset
        elif new:
            producer_ids = dict.fromkeys(batch.producer_id for batch in new)
            since = next((batch.offset for batch in new if batch.commits is False), log.log_end_offset)
        else:
            return
        for producer_id in producer_ids:
            self.evidence += 1
            wanted, stored = producers.states.get(producer_id), known.get(producer_id)
            if stored != wanted:
                wrong = self._difference(node.broker.node_id, producers, producer_id, stored, wanted)
                if wrong:
                    self._report(at_us, node, producers, f"producer {producer_id}: {wrong}")
        if new is None and producers.known_from == 0 and log.producers.open_transactions != producers.open:
            self._report(
                *(at_us, node, producers),
                f"it has open transactions {log.producers.open_transactions}, and its batches have {producers.open}",
            )
        if since < log.log_end_offset and not log.is_offline:
            self._judge_index(at_us, node, producers, since)

    def _report(self, at_us: int, node: "Node", producers: LogProducers, explanation: str) -> None:
        self.violated(at_us, f"{producers.log.directory} on node {node.broker.node_id}: {explanation}")

    def _difference(
        self, node_id: int, producers: LogProducers, producer_id: int, known: Any, wanted: LoggedProducer | None
    ) -> str:
        """Return how a log's producer differs from its replay, or nothing if it may."""
        log = producers.log
        if wanted is None:
            return "" if producers.known_from else "the log knows it, and has no batch of it"
        if known is None:
            idle_ms = self.producers.idle_ms(node_id, log)
            if wanted.open_from < 0 and wanted.timestamp_ms <= idle_ms:
                producers.idle.add(producer_id)
                return ""
            is_gone = last_offset_of(producers, producer_id) < log.local_log_start_offset
            return "" if is_gone and wanted.open_from < 0 else f"it is unknown, and a replay gives {wanted}"
        is_idle = producer_id in producers.idle
        if (producers.is_whole and not is_idle) or not may_differ(producers, is_idle, known, wanted):
            return f"the log has {tuple(known)}, and a replay gives {wanted}"
        return ""

    def _judge_index(self, at_us: int, node: "Node", producers: LogProducers, since: int) -> None:
        """X-5: the index has each aborted transaction whose marker is at ``since`` or behind it."""
        log = producers.log
        if log.config.is_compacted:
            since = max(since, producers.cleaned_end)
        if since >= log.log_end_offset:
            return
        with WatchedDisk.unwatched():
            entries = [tuple(each) for each in log.segments.aborted_between(since, log.log_end_offset)]
        indexed = [entry for entry in entries if entry[2] >= since]
        ended = producers.ended
        wanted = [
            (each.producer_id, each.first_offset, each.marker, each.stable_end)
            for each in ended[bisect_left(ended, since, key=_marker_of) :]
            if not each.commits
        ]
        if not producers.is_whole:  # The first offset and the stable end may be of transactions that are gone.
            missing = {(each[0], each[2]) for each in wanted} - {(entry[0], entry[2]) for entry in indexed}
            indexed, wanted = [], [each for each in wanted if (each[0], each[2]) in missing]
        self.evidence += len(wanted)
        if indexed != wanted:
            self._report(
                *(at_us, node, producers),
                f"its index has the aborted transactions {indexed} (producer ID, first offset, marker, stable end), "
                f"and the batches from {since} on have {wanted}",
            )


def _marker_of(transaction: EndedTransaction) -> int:
    return transaction.marker


def last_offset_of(producers: LogProducers, producer_id: int) -> int:
    return max((batch.offset for batch in producers.batches if batch.producer_id == producer_id), default=-1)


def may_differ(producers: LogProducers, is_idle: bool, known: Any, wanted: LoggedProducer) -> bool:
    """Return whether a log from which records are gone, or whose producer may have expired, may know this of it."""
    epoch, batches, timestamp_ms, coordinator_epoch, open_from = known
    log, is_partial = producers.log, producers.known_from > 0
    if epoch != wanted.epoch:
        return False
    if open_from != wanted.open_from and not (is_partial and 0 <= open_from < producers.known_from):
        return False
    if log.config.is_compacted:
        return _places(batches[-1:]) == _places(wanted.batches[-1:]) or (is_partial and not wanted.batches)
    if timestamp_ms != wanted.timestamp_ms:
        return False
    if coordinator_epoch != wanted.coordinator_epoch and is_partial == (coordinator_epoch < wanted.coordinator_epoch):
        return False
    if is_partial and len(batches) >= len(wanted.batches):
        return tuple(batches[len(batches) - len(wanted.batches) :]) == wanted.batches
    if is_idle or is_partial:
        return bool(batches) and wanted.batches[-len(batches) :] == tuple(batches)
    here = [batch for batch in wanted.batches if batch.offset >= log.local_log_start_offset]
    least = max(len(here), bool(wanted.batches))
    return len(batches) >= least and (not batches or wanted.batches[-len(batches) :] == tuple(batches))


def _places(batches: Sequence[LoggedBatch]) -> list[tuple[int, ...]]:
    """Return the sequence numbers and the offsets of batches, without their times."""
    return [batch[:4] for batch in batches]


PRODUCE = 0
ALL_REPLICAS = -1
_Place: TypeAlias = tuple[bytes, int]
"""ID of the topic, and index."""
_Sent: TypeAlias = tuple[int, int, int]
"""Producer ID, epoch and first sequence of a batch."""


class SequencesFollow(ProducerCheck):
    """duplicate: a log takes a producer's batches in the order of their sequence numbers, and each of them once
    (KIP-98, P-6, X-6).

    A batch has the epoch of the producer and the next sequence (0 follows 2^31 - 1), or a greater epoch and sequence 0.
    So a repeated batch is not appended, and its acknowledgement has the offset of the first one. A marker has neither a
    smaller epoch than the producer, nor a smaller coordinator epoch than the last marker: such a marker gets
    TRANSACTION_COORDINATOR_FENCED.

    P-5, P-7: a producer that may have expired may begin at any sequence if the policy accepts that, and otherwise at 0.
    So may one whose batches are all below the local log start, since a start without a snapshot cannot know it (P-12).
    Batches that a coordinator writes for a producer have no sequence (-1).

    Physical: a follower copies what the leader's cleaner has left, so in a compacted topic a sequence may skip others.
    It copies without a check of its own, so a producer may also have expired by the clock of the node that led.
    """

    guarantee = "duplicate"
    acts_on = (PRODUCE, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.producers.on_batch_appended.append(self.batch_appended)
        self.producers.on_log_replayed.append(self.log_replayed)
        self._pending = PendingRequests[dict[tuple[str | bytes, int], _Sent]]()
        self._acked: dict[LogProducers, list[tuple[_Sent, int]]] = {}
        """batch and offset of the acknowledgements that are not judged yet, which is when the log is read"""

    def batch_appended(
        self, at_us: int, node: "Node", producers: LogProducers, known: LoggedProducer | None, batch: ProducedBatch
    ) -> None:
        self.evidence += 1
        is_idle = batch.producer_id in producers.idle
        wrong = _wrong_step(producers, known, batch, is_idle)
        if wrong and not is_idle and self._was_idle_on_leader(producers, known, batch):
            wrong = _wrong_step(producers, known, batch, True)
        if wrong:
            self.violated(
                at_us,
                f"{producers.log.directory} on node {node.broker.node_id} has at offset {batch.offset} a "
                f"{'batch' if batch.commits is None else 'marker'} of producer {batch.producer_id} with {wrong}",
            )

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
            # Physical: a power loss may have taken what this node had acknowledged and not synced.
            for producers in [known for known in self._acked if self._is_of(node_id, known)]:
                del self._acked[producers]
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and isinstance(event.body, ProduceRequest):
            sent = dict(_sent_in(event.body))
            if sent:
                self._pending.add(node_id, event, sent)
        for effect in effects:
            if type(effect) is Reply and isinstance(effect.body, ProduceResponse):
                sent = self._pending.pop(node_id, effect) or {}
                for topic in effect.body.responses if sent else ():
                    for partition in topic.partitions:
                        batch = sent.get((topic.topic or bytes(topic.topic_id), partition.partition))
                        if batch is not None and partition.error_code == 0:
                            self._acknowledged(at_us, node, topic, partition, batch)

    def _is_of(self, node_id: int, producers: LogProducers) -> bool:
        return self.producers.logs.get((node_id, producers.log.directory)) is producers

    def _was_idle_on_leader(self, producers: LogProducers, known: LoggedProducer | None, batch: ProducedBatch) -> bool:
        """Return whether a producer may have expired on the node that appended its batch as the leader (P-7)."""
        if known is None or known.open_from >= 0:
            return False
        directory = producers.log.directory
        leaders = self.context.replicas.leaders.get((directory, batch.leader_epoch), ())
        logs = {leader: self.producers.logs.get((leader, directory)) for leader in leaders}
        return any(
            led is not None and known.timestamp_ms <= self.producers.idle_ms(leader, led.log)
            for leader, led in logs.items()
        )

    def _acknowledged(
        self, at_us: int, node: "Node", topic: ProduceTopicResponse, response: ProducePartitionResponse, sent: _Sent
    ) -> None:
        partitions, index, offset = node.broker.partitions, response.partition, response.base_offset
        topic_id = partitions.topic_ids.get(topic.topic, b"") if topic.topic else bytes(topic.topic_id)
        if offset < 0:
            self.violated(
                at_us,
                f"node {node.broker.node_id} acknowledged producer {sent[0]}, epoch {sent[1]}, sequence {sent[2]} to "
                f"partition {index} of {topic.topic or topic_id.hex()}, and no offset (protocol guide, Produce)",
            )
            return
        partition = partitions.by_id.get((topic_id, index))
        if partition is not None:
            producers = self.producers.logs.get((node.broker.node_id, partition.log.directory))
            if producers is not None and producers.log is partition.log and offset >= producers.known_from:
                self._acked.setdefault(producers, []).append((sent, offset))

    def log_replayed(
        self,
        at_us: int,
        node: "Node",
        producers: LogProducers,
        new: Sequence[ProducedBatch] | None,  # noqa: ARG002
    ) -> None:
        for sent, offset in self._acked.pop(producers, ()) if self._acked else ():
            self.evidence += 1
            at = bisect_left(producers.batches, offset, key=_offset_of)
            logged = producers.batches[at] if at < len(producers.batches) else None
            if logged is None or (logged.offset, *_identity_of(logged)) != (offset, *sent):
                self.violated(
                    at_us,
                    f"{producers.log.directory}: node {node.broker.node_id} acknowledged producer {sent[0]}, epoch "
                    f"{sent[1]}, sequence {sent[2]} at offset {offset}, and the log has there {logged}",
                )


class AcksReplicated(Check):
    """no-acked-lost (E-7, P-6): a batch is acknowledged with acks=all once the leader's high watermark has passed it.

    That holds for the retry of a batch, too: it may be in the leader's log without being replicated.
    """

    guarantee = "no-acked-lost"
    needs_one_node = True
    acts_on = (PRODUCE, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[dict[tuple[str | bytes, int], int]]()
        """number of offsets of each batch that is alone in its partition's part of the request"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and isinstance(event.body, ProduceRequest) and event.body.acks == ALL_REPLICAS:
            sent = {
                (topic.topic or bytes(topic.topic_id), partition.partition): count
                for topic in event.body.topics
                for partition in topic.partitions
                if (count := lone_batch_offsets(partition.records)) > 0
            }
            self._pending.add(node_id, event, sent)
        for effect in effects:
            if type(effect) is Reply and isinstance(effect.body, ProduceResponse):
                counts = self._pending.pop(node_id, effect) or {}
                for topic in effect.body.responses if counts else ():
                    for partition in topic.partitions:
                        count = counts.get((topic.topic or bytes(topic.topic_id), partition.partition), 0)
                        if count and partition.error_code == 0:
                            self._judge(at_us, node, topic, partition, count)

    def _judge(
        self, at_us: int, node: "Node", topic: ProduceTopicResponse, response: ProducePartitionResponse, count: int
    ) -> None:
        partitions = node.broker.partitions
        topic_id = partitions.topic_ids.get(topic.topic, b"") if topic.topic else bytes(topic.topic_id)
        partition = partitions.by_id.get((topic_id, response.partition))
        if response.base_offset < 0:
            self.violated(
                at_us,
                f"node {node.broker.node_id} acknowledged a batch to partition {response.partition} of "
                f"{topic.topic or topic_id.hex()} with acks=all, and no offset (protocol guide, Produce)",
            )
            return
        if partition is None:
            return  # It leads the partition no more, and what it knew then was right.
        self.evidence += 1
        end, high_watermark = response.base_offset + count, partition.log.high_watermark
        if end > high_watermark:
            self.violated(
                at_us,
                f"{partition.log.directory}: node {node.broker.node_id} acknowledged offsets {response.base_offset} to "
                f"{end - 1} with acks=all, and its high watermark is {high_watermark}",
            )


def _wrong_step(producers: LogProducers, known: LoggedProducer | None, batch: ProducedBatch, is_idle: bool) -> str:
    """Return what makes a batch one that cannot follow on what the log knows of its producer. ``is_idle`` means that
    the producer may have expired."""
    log, epoch, first = producers.log, batch.epoch, batch.first_sequence
    is_sure = not is_idle and (known is not None or producers.known_from == 0)
    if known is not None and is_sure and epoch < known.epoch:
        return f"epoch {epoch}, after epoch {known.epoch}"
    if batch.commits is not None:
        is_older = known is not None and is_sure and batch.coordinator_epoch < known.coordinator_epoch
        last = known.coordinator_epoch if known is not None else -1
        return f"coordinator epoch {batch.coordinator_epoch}, after {last}" if is_older else ""
    if first < 0:
        return ""
    accepts = log.config.unknown_producer_id_policy == "accept"
    last = known.batches[-1].last_sequence if known is not None and known.batches and epoch == known.epoch else -1
    expected = (last + 1) % (1 << 31)
    if first == expected or (first == 0 and not is_sure):
        return ""
    if first > expected and "compact" in log.config.cleanup_policy:
        return ""
    newest = known.batches[-1].offset if known is not None and known.batches else -1
    may_be_unknown = known is None or not is_sure or newest < log.local_log_start_offset
    if may_be_unknown and (accepts or producers.known_from > 0 or first == 0):
        return ""
    return f"epoch {epoch} and sequence {first}, and sequence {expected} is next"


def _sent_in(body: ProduceRequest) -> Iterator[tuple[tuple[str | bytes, int], _Sent]]:
    """Yield the batches of a request that have a sequence, if each is alone in its partition's part."""
    for topic in body.topics:
        for partition in topic.partitions:
            batch = lone_batch_in(partition.records)
            if batch is not None:
                yield (topic.topic or bytes(topic.topic_id), partition.partition), batch


def _offset_of(batch: ProducedBatch) -> int:
    return batch.offset


def _identity_of(batch: ProducedBatch) -> _Sent:
    return batch.producer_id, batch.epoch, batch.first_sequence


class ProducersKeptAtStop(Check):
    """producers-kept-at-stop: a node that has stopped cleanly leaves in each log with producers a snapshot of them at
    the log's end (P-3). The check reads the names of the files.
    """

    guarantee = "producers-kept-at-stop"
    inspection = Inspection.AFTER_EVENTS
    needs_one_node = True

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if not node.stopped:
            return
        with WatchedDisk.unwatched():
            lacking = list(_without_snapshot(node)) if node.broker.disk.exists(CLEAN_SHUTDOWN) else []
        for lack in lacking:
            self.violated(at_us, f"node {node.broker.node_id} stopped in good order, and {lack}")


def _without_snapshot(node: "Node") -> Iterator[str]:
    for log in node.logs():
        end = log.log_end_offset
        if log.producers.by_id and f"{end:020d}.snapshot" not in node.broker.disk.list(log.directory):
            yield f"{log.directory} has no snapshot of producers at its end, offset {end}"


UNKNOWN_PRODUCER_ID = 59
REJECT = "reject"


@dataclass(slots=True)
class _Producer:
    """The state of a producer ID in one partition."""

    sent_ms: int
    """largest timestamp of its batches and of the times at which they were sent"""
    acked_ms: int = -1
    """timestamp of its last batch that was acknowledged, -1 if there is none"""
    acked_at: int = -1
    """offset of that batch, -1 if there is none"""


class _PendingBatch(NamedTuple):
    """A batch in a Produce request that waits for its response."""

    place: _Place
    batch: Producing
    overdue_ms: int
    """time since the producer's previous batch when this one came: 0 if the node may still know that one, -1 if there
    was none"""


class ForgottenProducerRefused(Check):
    """forgotten-producer-refused: an unknown producer must begin at sequence 0, and only idle producers expire.

    P-7: an ID expires when ``producer.id.expiration.ms`` have passed since its last record, by the node's wall clock
    and the record's timestamp. Kafka checks for such IDs every ``producer.id.expiration.check.interval.ms``, which a
    steady clock measures, so an ID may be known until the wall clock has shown the expiration for as long. P-5: a batch
    of an unknown ID with another sequence than 0 is rejected with UNKNOWN_PRODUCER_ID, if that is the policy.

    The check knows each producer's batches from the requests, and what the wall clock showed at each of them. An ID
    must be unknown if it was never used, or if its newest batch had expired at all requests of the last interval and at
    one before it. It must be known if a younger batch was acknowledged and is still in the leader's log. Batches of
    transactions are omitted, because an open transaction keeps its producer.
    """

    guarantee = "forgotten-producer-refused"
    acts_on = (PRODUCE, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._producers: dict[tuple[_Place, int], _Producer] = {}
        self._pending = PendingRequests[dict[tuple[str | bytes, int], _PendingBatch]]()
        """by node and connection, by correlation ID, and by the partition as the request names it"""
        self._clocks: dict[int, list[tuple[int, int]]] = {}
        """by node: when Produce requests came (us, steady clock), and what the wall clock showed (ms), oldest first"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
            self._clocks.pop(node_id, None)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and isinstance(event.body, ProduceRequest):
            interval_us = node.broker.config.producer_id_expiration_check_interval_ms * 1000
            clocks = self._clocks.setdefault(node_id, [])
            clocks.append((at_us, node.broker.now.wall_ms))
            while len(clocks) > 1 and clocks[1][0] <= at_us - interval_us:
                del clocks[0]
            has_interval = clocks[0][0] <= at_us - interval_us
            batches = dict(self._read(node, event.body, min(shown for _, shown in clocks) if has_interval else -1))
            self._pending.add(node_id, event, batches)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == PRODUCE:
                forgotten = self._pending.pop(node_id, effect) or {}
                if isinstance(effect.body, ProduceResponse):
                    for topic in effect.body.responses:
                        for response in topic.partitions:
                            batch = forgotten.get((topic.topic or bytes(topic.topic_id), response.partition))
                            if batch is not None:
                                self._judge(at_us, node, batch, response)

    def _read(
        self, node: "Node", body: ProduceRequest, shown_ms: int
    ) -> Iterator[tuple[tuple[str | bytes, int], _PendingBatch]]:
        """Yield the batches of producers with an ID, if each is alone in its partition's part of the request.
        ``shown_ms`` is the least that the wall clock has shown in the last interval, or -1 if that is not known."""
        led, wall_ms = node.broker.partitions, node.broker.now.wall_ms
        expiration_ms = node.broker.config.producer_id_expiration_ms
        for topic in body.topics:
            for each in topic.partitions:
                named = topic.topic or bytes(topic.topic_id), each.partition
                partition = led.by_name.get((topic.topic, named[1])) or led.by_id.get((topic.topic_id, named[1]))
                batches = [producing_of(data) for _, data in batches_of(bytes(each.records or b""))]
                if partition is None:
                    continue  # Physical: a node that does not lead it appends nothing.
                place = partition.topic_id, partition.index
                for batch in batches:
                    known = self._producers.get((place, batch.producer_id))
                    sent_ms = max(batch.largest_ms, wall_ms, -1 if known is None else known.sent_ms)
                    if len(batches) == 1 and batch.producer_id >= 0 and not batch.is_transactional:
                        is_overdue = known is not None and shown_ms - known.sent_ms >= expiration_ms
                        overdue_ms = -1 if known is None else (wall_ms - known.sent_ms if is_overdue else 0)
                        yield named, _PendingBatch(place, batch, overdue_ms)
                    if known is None:
                        self._producers[place, batch.producer_id] = _Producer(sent_ms)
                    else:
                        known.sent_ms = sent_ms

    def _judge(self, at_us: int, node: "Node", pending: _PendingBatch, response: ProducePartitionResponse) -> None:
        config, wall_ms = node.broker.config, node.broker.now.wall_ms
        batch, producer = pending.batch, self._producers[pending.place, pending.batch.producer_id]
        who = f"producer {batch.producer_id} with sequence {batch.first_sequence}"
        if response.error_code == UNKNOWN_PRODUCER_ID:
            age_ms = wall_ms - producer.acked_ms
            partition = node.broker.partitions.by_id.get(pending.place)
            is_held = partition is not None and _holds(partition, producer.acked_at, batch.producer_id)
            if is_held and age_ms < config.producer_id_expiration_ms:
                self.violated(at_us, f"{who} was called unknown {age_ms} ms after its last record")
            elif batch.first_sequence == 0:
                self.violated(at_us, f"{who} was called unknown, and may begin at 0")
        elif response.error_code == 0:
            if batch.first_sequence > 0 and config.crucible_unknown_producer_id_policy == REJECT:
                if pending.overdue_ms < 0:
                    self.violated(at_us, f"{who} was accepted, and the partition had no records of it")
                elif pending.overdue_ms:
                    self.violated(
                        at_us,
                        f"{who} was accepted {pending.overdue_ms} ms after its last batch, and the clock had shown "
                        f"{config.producer_id_expiration_ms} ms for "
                        f"{config.producer_id_expiration_check_interval_ms} ms",
                    )
            if response.base_offset >= 0:
                producer.acked_ms, producer.acked_at = batch.largest_ms, response.base_offset


def _holds(partition: Partition, offset: int, producer_id: int) -> bool:
    """Return whether the log still has this producer's batch at this offset. Records that are only in the remote tier
    were committed (P-11), so no truncation removes them."""
    log = partition.log
    if log.log_start_offset <= offset < log.local_log_start_offset:
        return True
    if not log.log_start_offset <= offset < log.log_end_offset:
        return False
    batch = next(read_batches(log, offset, log.log_end_offset), None)
    return batch is not None and batch[0].base_offset == offset and producing_of(batch[1]).producer_id == producer_id
