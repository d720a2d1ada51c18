"""States of remote segments (KIP-405): what nodes store and delete in each of them.

The states are read from the committed records of ``__remote_log_metadata``, without the broker's code: Kafka's schemas
RemoteLogSegmentMetadataRecord, RemoteLogSegmentMetadataUpdateRecord and RemotePartitionDeleteMetadataRecord, all in
version 0, behind a frame of three varints (frame version, API key, version). CustomMetadata, which Kafka leaves to
plug-ins, begins with the leader epoch of the writer (int32). In the record of a segment the number of the copy within
that epoch follows (int32), in that of an update the state that the writer knew (int8, -1 if any state will do).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from chaos.checks.check import Check, CheckContext, Inspection, Kind
from chaos.checks.log.batches import batches_of, producing_of, read_batches, records_in
from chaos.checks.log.durable_claims import simulated
from chaos.checks.log.log_folders import (
    StoredSegment,
    index_contradictions,
    index_gaps,
    offset_in,
    replayed,
    segment_of,
    snapshot_rows,
    transaction_rows,
)
from chaos.checks.tier.segment_objects import NEEDED
from reference_broker.core.events import Effect, Event, Note, StoreCall
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC, uuid_text

if TYPE_CHECKING:
    from reference_broker.core.node import Node

COPY_STARTED, COPY_FINISHED, DELETE_STARTED, DELETE_FINISHED = range(4)
STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
NEXT: Mapping[int, tuple[int, ...]] = {
    COPY_STARTED: (COPY_FINISHED, DELETE_STARTED),
    COPY_FINISHED: (DELETE_STARTED,),
    DELETE_STARTED: (DELETE_FINISHED,),
    DELETE_FINISHED: (),
}
"""KIP-405, RemoteLogSegmentState. A repeated record changes nothing."""
PARTITION_DELETE_STARTED = 1
_SEGMENT, _UPDATE, _PARTITION_DELETE = 0, 1, 2
LOG_START = "log-start-offset-checkpoint"
SKIPPED = "remote_log_record_skipped"
"""Note of a node that could not read a record."""
_ANY_STATE = -1
_NO_INDEX_GAPS = 1 << 31


class _Fields:
    """The fields of a record, in the flexible encoding."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, layout: str) -> int:
        (value,) = Struct(f">{layout}").unpack_from(self._data, self._at)
        self._at += Struct(f">{layout}").size
        return int(value)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def compact(self) -> bytes:
        return self.take(max(self.varint() - 1, 0))

    def tags(self) -> dict[int, bytes]:
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}


class _Partition(NamedTuple):
    name: str
    topic_id: bytes
    number: int

    @property
    def directory(self) -> str:
        return f"{self.name}-{self.number}"


@dataclass(frozen=True, slots=True)
class RemoteRecord:
    """One record. ``epoch`` is -1 in that of a partition's deletion, and ``segment_id`` is empty."""

    partition: _Partition
    segment_id: str
    broker_id: int
    state: int
    epoch: int = -1
    known_as: int = _ANY_STATE
    attempt: int = 0
    start_offset: int = -1
    end_offset: int = -1
    max_timestamp_ms: int = -1
    size_bytes: int = 0
    leader_epochs: tuple[tuple[int, int], ...] = ()
    has_transaction_index: bool = False
    begins: bool = False
    """whether it is the record of a segment"""


def record_of(value: bytes) -> RemoteRecord | None:
    """Return the record, or None for one of another kind."""
    fields = _Fields(value)
    _, kind, _ = fields.varint(), fields.varint(), fields.varint()
    if kind not in (_SEGMENT, _UPDATE, _PARTITION_DELETE):
        return None
    partition = _Partition(fields.compact().decode(), fields.take(16), fields.number("i"))
    fields.tags()
    if kind == _PARTITION_DELETE:
        broker_id, _ = fields.number("i"), fields.number("q")
        return RemoteRecord(partition, "", broker_id, fields.number("b"))
    segment_id = uuid_text(fields.take(16))
    fields.tags()
    if kind == _UPDATE:
        broker_id, _, custom = fields.number("i"), fields.number("q"), _Fields(fields.compact())
        epoch, known_as = custom.number("i"), custom.number("b")
        return RemoteRecord(partition, segment_id, broker_id, fields.number("b"), epoch, known_as)
    start, end, broker_id = fields.number("q"), fields.number("q"), fields.number("i")
    max_timestamp_ms, _ = fields.number("q"), fields.number("q")
    epochs = tuple((fields.number("i"), fields.number("q"), fields.tags()) for _ in range(fields.varint() - 1))
    size_bytes, custom = fields.number("i"), _Fields(fields.compact())
    state, lacks_transactions = fields.number("b"), fields.tags().get(0, b"\0")
    return RemoteRecord(
        partition,
        segment_id,
        broker_id,
        state,
        custom.number("i"),
        attempt=custom.number("i"),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=max_timestamp_ms,
        size_bytes=size_bytes,
        leader_epochs=tuple((epoch, first) for epoch, first, _ in epochs),
        has_transaction_index=lacks_transactions == b"\0",
        begins=True,
    )


@dataclass(slots=True)
class _Remote:
    """One remote segment. ``stored`` are its objects when its deletion began."""

    started: RemoteRecord
    state: int = COPY_STARTED
    stored: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        first = self.started
        return f"{first.partition.directory} from {first.start_offset} to {first.end_offset + 1} ({first.segment_id})"


@dataclass(slots=True)
class _Known:
    """The segments of one partition."""

    directory: str
    """of the log with its records"""
    newest_epoch: int = -1
    last_attempt: int = 0
    delete_state: int = -1
    """-1: it is not deleted"""
    raised: list[tuple[int, int]] = field(default_factory=list)
    """offset and leader epoch of each record with a newer epoch than those before it"""

    def epoch_at(self, offset: int) -> int:
        """Return the newest leader epoch of the records before the offset, -1 if there are none."""
        at = bisect_left(self.raised, (offset, -1))
        return self.raised[at - 1][1] if at else -1


class RemoteSegmentStates(Check):
    """listed-when-stored: objects and metadata of a remote segment follow one another as in KIP-405.

    - Only the leader of a leader epoch writes records with it, and only the writer of COPY_SEGMENT_STARTED stores
      objects, after that record is committed.
    - When COPY_SEGMENT_FINISHED takes effect, all objects are stored, and they and the fields of the record are exactly
      what the batches of the log object give (P-11).
    - An object is deleted only once DELETE_SEGMENT_STARTED is committed, or the partition's deletion has started. An
      object of no known segment is garbage.
    - Objects of a segment below the log start are deleted only once that log start is durable (E-7). Otherwise a power
      loss restores the older log start, and the records from there on are lost.
    - When DELETE_SEGMENT_FINISHED takes effect, no object remains that existed when the deletion began. A former leader
      may store one late.

    A record of a former leader, and one whose writer knew another state, has no effect (P-11). So each node knows the
    newest leader epoch of the records that it has read; physical: a node may have skipped damaged ones. E-7: if
    committed records of the metadata topic may be lost, nothing is judged any more. Physical: a node notes that it
    leads only where a partition has several replicas.
    """

    guarantee = "listed-when-stored"
    inspection = Inspection.ONLY_THOROUGH
    acts_on: ClassVar[tuple[Kind, ...]] = (StoreCall, SKIPPED)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        context.replicas.on_logs_touched.append(self.logs_touched)
        self._read: dict[str, int] = {}
        """by directory: the offset up to which committed records were read"""
        self._partitions: dict[tuple[bytes, int], _Known] = {}
        self._segments: dict[str, _Remote] = {}
        self._calls: list[StoreCall] = []
        self._has_lost = False
        self._has_skipped: set[int] = set()
        """nodes that have skipped a damaged record"""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        node_id, remote_log = node.broker.node_id, node.broker.remote_log
        if remote_log is None or self.context.alone or self._has_lost or node_id in self._has_skipped:
            return
        metadata: Any = remote_log.metadata
        for key, watched in metadata._watched.items():
            known = self._partitions.get(key)
            if known is None or watched.next_offset > self._read.get(known.directory, 0):
                continue
            self.evidence += 1
            wanted, newest = known.epoch_at(watched.next_offset), watched.segments.newest_epoch
            if newest != wanted:
                self.violated(
                    at_us,
                    f"{watched.topic}-{key[1]}: node {node_id} has read the records before {watched.next_offset}, and "
                    f"takes {newest} for their newest leader epoch, which is {wanted} (P-11)",
                )

    # --- metadata ---------------------------------------------------------------------------------------------------

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        for log in touched:
            if log.directory.startswith(REMOTE_LOG_METADATA_TOPIC) and not log.is_offline and not self._has_lost:
                self._follow(at_us, node, log)

    def _follow(self, at_us: int, node: "Node", log: UnifiedLog) -> None:
        read = self._read.get(log.directory, 0)
        led = any(each.log is log for each in node.broker.partitions.by_id.values()) if log.high_watermark < read else 0
        if (led and log.log_end_offset < read) or log.local_log_start_offset > read:
            self._has_lost = True  # Physical: its only replica lost its power.
        elif log.high_watermark > read:
            self._read[log.directory] = log.high_watermark
            for header, batch in read_batches(log, read, log.high_watermark):
                for each in () if header.control else records_in(batch):
                    record = None if each.value is None else record_of(each.value)
                    if record is not None and each.offset >= read:
                        self._apply(at_us, record, log.directory, each.offset)

    def _apply(self, at_us: int, record: RemoteRecord, directory: str, offset: int) -> None:
        partition = record.partition
        known = self._partitions.setdefault((partition.topic_id, partition.number), _Known(directory))
        if not record.segment_id:
            known.delete_state = max(known.delete_state, record.state)
            return
        led = self.context.replicas.leaders
        leaders = led.get((partition.directory, record.epoch), set())
        is_noted = any(name == partition.directory and epoch <= record.epoch for name, epoch in led)
        if is_noted and record.broker_id not in leaders:
            self.violated(
                at_us,
                f"{partition.directory}: node {record.broker_id} wrote {STATES[record.state]} of {record.segment_id} "
                f"in leader epoch {record.epoch}, which {sorted(leaders) or 'nobody'} led",
            )
        if record.epoch < known.newest_epoch:
            return
        if record.epoch > known.newest_epoch:
            known.newest_epoch, known.last_attempt = record.epoch, 0
            known.raised.append((offset, record.epoch))
        if record.begins:
            if record.segment_id not in self._segments and record.attempt > known.last_attempt:
                known.last_attempt = record.attempt
                if known.delete_state < 0:
                    self._segments[record.segment_id] = _Remote(record)
                    if record.state != COPY_STARTED:
                        self.violated(at_us, f"{partition.directory}: {record.segment_id} begins as {record.state}")
            return
        segment = self._segments.get(record.segment_id)
        if segment is not None and record.state in NEXT[segment.state] and known.delete_state < 0:
            is_of_copy = record.state != COPY_FINISHED or record.epoch == segment.started.epoch
            if is_of_copy and record.known_as in (_ANY_STATE, segment.state):
                segment.state = record.state
                self._moved(at_us, segment)

    def _moved(self, at_us: int, segment: _Remote) -> None:
        self.evidence += 1
        objects = self._objects(segment)
        if segment.state == COPY_FINISHED:
            for wrong in differences(segment.started, {key.rpartition(".")[2]: data for key, data in objects.items()}):
                self.violated(at_us, f"{segment.named} is finished, and {wrong}")
        elif segment.state == DELETE_STARTED:
            segment.stored = tuple(objects)
        elif segment.state == DELETE_FINISHED:
            left = [key for key in segment.stored if key in objects]
            if left:
                self.violated(at_us, f"{segment.named} is deleted, and {', '.join(left)} are left")

    def _objects(self, segment: _Remote) -> dict[str, bytes]:
        started = segment.started
        folder = f"{started.partition.directory}-{uuid_text(started.partition.topic_id)}"
        start = f"{folder}/{started.start_offset:020d}-{started.segment_id}."
        kinds = (*NEEDED, "txnindex")
        return {start + kind: self.context.tier[start + kind] for kind in kinds if start + kind in self.context.tier}

    # --- objects ----------------------------------------------------------------------------------------------------

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self._calls = [effect for effect in effects if type(effect) is StoreCall]
        if any(type(effect) is Note and effect.what == SKIPPED for effect in effects):
            self._has_skipped.add(node.broker.node_id)
        if self._calls:
            self.context.replicas.after_event(node, self._judge_calls)

    def _judge_calls(self, at_us: int, node: "Node") -> None:
        for call in self._calls if not self._has_lost and not self.context.alone else ():
            name, operation = type(call.operation).__name__, call.operation
            if name in ("Put", "PutFile"):
                self._judge_put(at_us, node, str(operation[0]))
            elif name == "Delete":
                for key in operation[0]:
                    self._judge_delete(at_us, node, str(key))

    def _judge_put(self, at_us: int, node: "Node", key: str) -> None:
        segment, node_id = self._segments.get(_segment_id(key)), node.broker.node_id
        self.evidence += 1
        if segment is None:
            self.violated(at_us, f"node {node_id} stores {key}, and no COPY_SEGMENT_STARTED of it is committed")
        elif segment.started.broker_id != node_id:
            self.violated(at_us, f"node {node_id} stores {key}, whose copy node {segment.started.broker_id} began")

    def _judge_delete(self, at_us: int, node: "Node", key: str) -> None:
        segment = self._segments.get(_segment_id(key))
        if segment is None:
            return
        self._judge_start(at_us, node, segment)
        if segment.state in (DELETE_STARTED, DELETE_FINISHED):
            return
        partition = segment.started.partition
        if self._partitions[partition.topic_id, partition.number].delete_state < PARTITION_DELETE_STARTED:
            self.violated(
                at_us, f"node {node.broker.node_id} deletes {key} of {segment.named}, which is {STATES[segment.state]}"
            )

    def _judge_start(self, at_us: int, node: "Node", segment: _Remote) -> None:
        disk, end = simulated(node.broker.disk), segment.started.end_offset + 1
        directory = segment.started.partition.directory
        log = next((each for each in node.logs() if each.directory == directory), None)
        if disk is None or log is None or log.is_offline or log.log_start_offset < end:
            return
        self.evidence += 1
        # A durable file that is to replace the checkpoint counts: a start puts it in place.
        paths = [f"{directory}/{LOG_START}{suffix}" for suffix in ("", ".new")]
        files = [disk.read(path, 0, disk.size(path)) for path in paths if disk.survives(path)]
        start = max((offset_in({LOG_START: data}, LOG_START) for data in files), default=0)
        if start < end:
            self.violated(
                at_us,
                f"node {node.broker.node_id} deletes objects of {segment.named}, and a power loss may take the log "
                f"start from {log.log_start_offset} back to {start}",
            )


def _segment_id(key: str) -> str:
    """Return the ID in ``<folder>/<20-digit base offset>-<segment ID>.<kind>``."""
    return key.rpartition("/")[2].rpartition(".")[0][21:]


def differences(record: RemoteRecord, objects: Mapping[str, bytes]) -> Sequence[str]:
    """Return how a finished copy differs from what its log object gives."""
    missing = [kind for kind in NEEDED if kind not in objects]
    if missing:
        return [f"its {', '.join(missing)} are not stored"]
    segment = segment_of(record.start_offset, objects["log"])
    largest = max((producing_of(batch.data).largest_ms for batch in segment.batches), default=-1)
    wanted = len(objects["log"]), segment.whole, record.end_offset + 1, largest
    recorded = record.size_bytes, record.size_bytes, segment.next_offset, record.max_timestamp_ms
    wrong = []
    if recorded != wanted:
        wrong.append(f"its size, its whole batches, its end and its largest timestamp are {wanted}, and not {recorded}")
    wrong += _epoch_differences(record, segment)
    files = {f"{record.start_offset:020}.{kind}": data for kind, data in objects.items()}
    wrong += [*index_contradictions(files, segment), *index_gaps(files, segment, _NO_INDEX_GAPS)]
    if snapshot_rows(objects["snapshot"]) is None:
        wrong.append("its snapshot of producers is not whole")
    return wrong + _transaction_differences(record, segment, objects.get("txnindex"))


def _epoch_differences(record: RemoteRecord, segment: StoredSegment) -> list[str]:
    """An epoch begins where its first batch is. If the log begins inside the segment, the first one counts for all
    that is before."""
    changes: dict[int, int] = {}
    for batch in segment.batches:
        changes.setdefault(batch.identity.epoch, batch.identity.base_offset)
    epochs = dict(record.leader_epochs)
    is_known = epochs.items() <= {**changes, record.leader_epochs[0][0]: record.start_offset}.items()
    if not is_known or list(epochs) != list(changes)[len(changes) - len(epochs) :]:
        return [f"its leader epochs are {changes}, and not {epochs}"]
    return []


def _transaction_differences(record: RemoteRecord, segment: StoredSegment, data: bytes | None) -> list[str]:
    """Each transaction that begins and is aborted in the segment has an entry, and each entry an abort marker there."""
    if record.has_transaction_index != (data is not None):
        return [f"its index of transactions is {'missing' if data is None else 'stored'}"]
    rows = transaction_rows(data or b"")
    if rows is None:
        return ["its index of transactions has no whole entries"]
    indexed = {(row.producer_id, row.first_offset, row.marker_offset) for row in rows}
    aborted = replayed(batch.data for batch in segment.batches).aborted
    wanted = {(each.producer_id, each.first_offset, each.marker_offset) for each in aborted}
    missing = wanted - indexed
    markers = {batch.base_offset for each in segment.batches for batch, _ in batches_of(each.data) if batch.control}
    strange = [each for each in indexed if each[2] not in markers]
    return [f"its index of transactions lacks {sorted(missing)} and has {strange}"] if missing or strange else []
