"""The partitions of one coordinator's topic that this node leads (Kafka's CoordinatorRuntime, its shards).

A partition that this node begins to lead is loaded first. Until that is done its clients receive
COORDINATOR_LOAD_IN_PROGRESS. A partition that this node no longer leads is dropped at once.

The load reads up to the end of the log, not only to the high watermark, since records of the former coordinator above
it may still be replicated. Damaged records and records of other kinds are skipped, with a note for each damaged one:
one bad record must not cost all others of the partition. Where the log itself cannot be read on, the partition is
refused, because what follows is not known. A disk error may pass, so the partition is loaded again later.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.log.unified_log import OffsetOutOfRange, UnifiedLog
from reference_broker.metrics.metrics import Gauge, Histogram
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import COORDINATOR_RECORDS_PER_SLICE, Sliced, SliceQueue
from reference_broker.records.batch import BatchHeader, InvalidRecords, checked, iterate
from reference_broker.records.record import MAX_PLAIN_BYTES, Record, read_records
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode


class CoordinatorShard:
    """One partition of a coordinator's topic: loaded, then served, then closed when another node leads it. A partition
    whose log cannot be read is refused. Subclasses have what the partition stores."""

    def __init__(self, led: Partition) -> None:
        self.led = led
        self.index = led.index
        self.is_loaded = False
        """Whether the content of the partition is served."""
        self.is_refused = False
        """Whether the log cannot be read, so that the content is unknown."""
        self.is_led = True
        """Whether this node leads the partition, as far as it knows."""
        self.loaded_end = 0
        """The end of the log when it was loaded. The former coordinator may have acknowledged any record below it."""

    def close(self) -> None:
        """Mark the partition as led by another node. Its content here is stale from now on."""
        self.is_led = self.is_loaded = False

    def validate(self) -> None:
        """Assert the invariants. This is expensive, so only tests and the simulator call it."""


CHUNK_BYTES = 128 * 1024
"""Bytes of one read of the log."""

Skipped = Callable[[int, str], None]
"""Called with each damaged record: its offset (-1 if unknown) and what is wrong with it."""


class Playback(Protocol):
    """Replays the records of one partition for its coordinator (Kafka's CoordinatorPlayback)."""

    def replay(self, header: BatchHeader, record: Record, end_offset: int) -> None:
        """Replay the next record of the log, which may be a control record. ``end_offset`` is one past it. A damaged
        batch may give its records any offsets; ``end_offset`` never goes back, and stays inside the log. Raise
        DamagedRecord."""
        ...

    def batch_replayed(self) -> None:
        """Called after some records, and after the last one."""
        ...

    def restore(self, skipped: Skipped) -> Sliced[None]:
        """Build the state to serve, when all records are read."""
        ...


@dataclass(slots=True)
class Loading:
    """One load of a partition. It ends early if another node leads the partition by then."""

    ports: Ports
    shard: CoordinatorShard
    playback: Playback
    records: int = 0
    skipped: int = 0
    _end_offset: int = 0
    """One past the last record that was replayed."""

    def run(self) -> Sliced[None]:
        """Raise InvalidRecords and DiskError where the log cannot be read on."""
        for header_and_record in self._records(self.shard.led.log):
            if header_and_record is None:
                yield
                continue
            self._replay(*header_and_record)
            self.records += 1
            if self.records % COORDINATOR_RECORDS_PER_SLICE == 0:
                self.playback.batch_replayed()
                yield
                if not self.shard.is_led:  # Decision coordinator-load
                    return
        self.shard.loaded_end = self.shard.led.log.log_end_offset
        self.playback.batch_replayed()
        yield from self.playback.restore(self._skip)
        if self.shard.is_led and self.skipped:
            where = ("partition", self.shard.led.log.directory)
            self.ports.note("coordinator_loaded_in_part", where, ("skipped", self.skipped))

    def _records(self, log: UnifiedLog) -> Iterator[tuple[BatchHeader, Record] | None]:
        """Yield each record, and None after each chunk. Ends early once another node leads the partition, since its
        files may be gone. Raise InvalidRecords and DiskError where the log cannot be read on."""
        offset = log.log_start_offset
        while self.shard.is_led and offset < log.log_end_offset:
            try:
                chunk = log.read(max(offset, log.log_start_offset), CHUNK_BYTES, log.log_end_offset)
            except OffsetOutOfRange:
                return
            if not chunk:
                return
            view = memoryview(chunk)
            for position, header in iterate(view):
                offset = header.last_offset + 1
                try:
                    checked(view, position, len(view))
                    for record in read_records(view[position : position + header.size_bytes], MAX_PLAIN_BYTES):
                        yield header, record
                except InvalidRecords as invalid:
                    self._skip(header.base_offset, invalid.message)
            yield None

    def _replay(self, header: BatchHeader, record: Record) -> None:
        self._end_offset = min(max(self._end_offset, record.offset + 1), self.shard.led.log.log_end_offset)
        try:  # Decision coordinator-record
            self.playback.replay(header, record, self._end_offset)
        except DamagedRecord as damaged:
            self._skip(record.offset, str(damaged))

    def _skip(self, offset: int, reason: str) -> None:
        self.skipped += 1
        directory = self.shard.led.log.directory
        self.ports.note("coordinator_record_skipped", ("partition", directory), ("offset", offset), ("reason", reason))


RELOAD_US = 1_000_000
"""The delay before a partition is loaded again whose load ended with a disk error."""

P = TypeVar("P", bound=CoordinatorShard)


class Coordinator(Protocol[P]):
    """The coordinator that owns the partitions."""

    def new_shard(self, partition: Partition) -> P:
        """Return the state of a partition that this node begins to lead, with nothing loaded."""
        ...

    def new_playback(self, shard: P) -> Playback:
        """Return the playback that replays the records while the partition is loaded."""
        ...

    def loaded(self, shard: P) -> None:
        """Called when the partition is loaded, and served from now on."""
        ...

    def unloaded(self, shard: P) -> None:
        """Called when a partition that was served is closed."""
        ...


class CoordinatorShards(Generic[P]):
    """The led partitions of ``topic``. Implements ``replication.partitions.LeadershipListener``."""

    def __init__(
        self,
        ports: Ports,
        topic: str,
        coordinator: Coordinator[P],
        loading: Gauge,
        load_time_ms: Histogram,
        prefix: str,
    ) -> None:
        self._ports = ports
        self._topic = topic
        self._coordinator = coordinator
        self._by_index: dict[int, P] = {}
        self._loads = SliceQueue(ports)
        self._loading = loading
        """Number of partitions that are being loaded."""
        self._load_time_ms = load_time_ms
        self._prefix = prefix
        """The first part of the names of the notes."""

    # --- what is led --------------------------------------------------------------------------------------------------

    def find(self, index: int) -> P | Error:
        """Return the partition, or NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        shard = self._by_index.get(index)
        if shard is None or shard.is_refused:
            return ErrorCode.not_coordinator
        # Decision coordinator-partition-state
        return shard if shard.is_loaded else ErrorCode.coordinator_load_in_progress

    def active(self) -> Sequence[P]:
        """Return every loaded partition, by index."""
        return [self._by_index[index] for index in sorted(self._by_index) if self._by_index[index].is_loaded]

    def is_loading(self) -> bool:
        """Return whether a partition that is led here is not loaded yet."""
        return any(not each.is_loaded and not each.is_refused for each in self._by_index.values())

    def __bool__(self) -> bool:
        return bool(self._by_index)

    def validate(self) -> None:
        """Assert the invariants. This walks over everything stored, so only tests and the simulator call it."""
        for index, each in self._by_index.items():
            assert each.index == index, f"partition {each.index} is led as {index}"
            assert each.is_led, f"partition {index} is led and closed"
            each.validate()

    # --- roles --------------------------------------------------------------------------------------------------------

    def leads(self, partition: Partition) -> None:
        """Load a partition that this node leads. Called again with each newer state: a new epoch of the same leader
        loads nothing, since no other node has written."""
        if partition.topic != self._topic:
            return
        shard = self._by_index.get(partition.index)
        if shard is not None and shard.led is partition:
            return
        if shard is not None:
            self._drop(shard)
        self._start_loading(partition)

    def stops_leading(self, partition: Partition) -> None:
        """Drop a partition that another node leads. Pending acknowledgements of its records have failed already."""
        shard = self._by_index.get(partition.index) if partition.topic == self._topic else None
        if shard is not None and shard.led is partition:
            del self._by_index[partition.index]
            self._drop(shard)

    def _start_loading(self, partition: Partition) -> None:
        shard = self._coordinator.new_shard(partition)
        self._by_index[partition.index] = shard
        if partition.log.log_end_offset == partition.log.log_start_offset:
            self._serve(shard, 0)
            return
        self._loading.value += 1
        self._loads.add(self._load(shard, self._ports.now().mono_us))

    def _load(self, shard: P, began_us: int) -> Sliced[None]:
        loading = Loading(self._ports, shard, self._coordinator.new_playback(shard))
        try:
            yield from loading.run()
        except (InvalidRecords, DiskError) as failure:
            if shard.is_led:
                self._load_failed(shard, failure)
        else:
            if shard.is_led:
                self._loading.value -= 1
                self._load_time_ms.record((self._ports.now().mono_us - began_us) // 1000)
                self._serve(shard, loading.records)

    def _load_failed(self, shard: P, failure: InvalidRecords | DiskError) -> None:
        """If the log itself cannot be read on, clients receive NOT_COORDINATOR, as in Kafka, until another replica
        leads the partition. A disk error may pass, for instance a lack of file descriptors, so the load is retried.
        Until then clients receive COORDINATOR_LOAD_IN_PROGRESS. Unlike Kafka, which serves the partition only after the
        next change of leader."""
        self._ports.note("coordinator_load_failed", ("partition", shard.led.log.directory), ("reason", str(failure)))
        if isinstance(failure, DiskError):  # Decision failed-coordinator-load
            later(self._ports, RELOAD_US, lambda: self._reload(shard))
        else:
            shard.is_refused = True
            self._loading.value -= 1

    def _reload(self, shard: P) -> None:
        if self._by_index.get(shard.index) is shard:
            self._drop(shard)
            self._start_loading(shard.led)

    def _serve(self, shard: P, records: int) -> None:
        shard.is_loaded = True
        self._ports.note(f"{self._prefix}_loaded", ("partition", shard.index), ("records", records))
        self._coordinator.loaded(shard)

    def _drop(self, shard: P) -> None:
        was_loaded = shard.is_loaded
        shard.close()
        if was_loaded:
            self._coordinator.unloaded(shard)
        elif not shard.is_refused:
            self._loading.value -= 1
        self._ports.note(f"{self._prefix}_unloaded", ("partition", shard.index))
