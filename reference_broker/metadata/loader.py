"""Turns the committed part of the metadata log into published images.

The leader publishes from its committed log, as its followers do. A part of the batches is loaded in each event, so a
new high watermark or snapshot may arrive in between.

A transaction becomes visible as a whole at its End, or never (KIP-868). Batches come in the order of the log, and one
may end in the middle of a transaction. ``MetadataBatchLoader.flush`` publishes what is complete. Records before a Begin
are published before the transaction opens, and nothing is published while it is open. An End makes the transaction's
records part of the next publication. An Abort discards them and leaves only the new offset, in an empty delta.

A batch is replayed as a whole before anything of it is published, because readers may see no part of a batch that
turns out to be damaged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.records import (
    MARKERS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataFault,
    MetadataRecord,
    decode,
)
from reference_broker.metadata.snapshots import load_snapshot
from reference_broker.ports.node_ports import NodeContext, Ports
from reference_broker.ports.slicing import LOADED_RECORDS_PER_SLICE, Sliced, run_slices
from reference_broker.quorum.metadata_log import LogBatch, MetadataLog
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.values import OffsetAndEpoch, Provenance
from reference_broker.records.batch import InvalidRecords


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """Records that were appended together."""

    records: tuple[MetadataRecord, ...]
    provenance: Provenance
    """The provenance of the last record."""
    size_bytes: int = 0

    @property
    def markers(self) -> list[MetadataRecord]:
        """The transaction markers among the records."""
        return [record for record in self.records if isinstance(record, MARKERS)]

    def after(self, offset: int) -> "MetadataBatch":
        """Return the batch without its records up to ``offset``."""
        first = self.provenance.offset - len(self.records) + 1
        return replace(self, records=self.records[offset + 1 - first :]) if self.records and first <= offset else self


def decoded(batch: LogBatch) -> MetadataBatch:
    """Decode the values of a batch. Raise MetadataFault for a value that is no metadata record."""
    return MetadataBatch(tuple(decode(value) for value in batch.values), batch.provenance, batch.size_bytes)


UNKNOWN = 0
_KINDS: dict[type, str] = {
    BeginTransactionRecord: "begin",
    EndTransactionRecord: "end",
    AbortTransactionRecord: "abort",
}


def kind_of(markers: list[MetadataRecord], in_transaction: bool) -> str:
    """Return the kind of a batch. Its first marker makes it a begin, end or abort. Without a marker it is a batch if it
    is in a transaction, and otherwise single."""
    if markers:
        return _KINDS[type(markers[0])]
    return "batch" if in_transaction else "single"


@dataclass(slots=True)
class BatchNotes:
    """Writes a line of the trace for each committed batch. The line says which part of a transaction the batch is. A
    fault can be triggered at such a line."""

    ports: Ports
    number: int = -1
    """The number of batches of the open transaction so far, or -1 outside of one."""
    of: int = UNKNOWN
    """The number of batches that the open transaction will have, if known."""
    expected: dict[int, int] = field(default_factory=dict)
    """The number of batches of a transaction that this node appended as leader, by the offset of its Begin."""

    def expect(self, begin_offset: int, batches: int) -> None:
        """Note how many batches a transaction will have. Only one such note is kept, because the transaction of an
        earlier leadership may never have been committed."""
        self.expected = {begin_offset: batches}

    def reset(self) -> None:
        self.number = -1
        self.expected.clear()

    def committed(self, batch: MetadataBatch) -> None:
        """Write the line of a batch. A control batch gets none, because it is not metadata."""
        if not batch.records:
            return
        offset = batch.provenance.offset
        markers = batch.markers
        kind = kind_of(markers, self.number >= 0)
        if kind == "begin":
            self.number, self.of = 0, self.expected.pop(offset, UNKNOWN)
        elif kind == "batch":
            self.number += 1
        number, of = (1, 1) if kind == "single" else (self.number, self.of)
        self.ports.note("metadata_committed", ("offset", offset), ("kind", kind), ("number", number), ("of", of))
        if markers and not isinstance(markers[-1], BeginTransactionRecord):
            self.number = -1


Publish: TypeAlias = Callable[[MetadataDelta, MetadataImage, bool], None]
"""(delta, image, whether the image ends where a batch ends)."""


@dataclass(slots=True)
class MetadataBatchLoader:
    """Turns committed batches into published images.

    After a MetadataFault only ``reset`` may be called: ``delta`` may contain a part of the damaged batch.
    """

    image: MetadataImage
    """The last published image."""
    publish: Publish
    splits_at_epochs: bool = False
    """Whether the record of a metadata epoch ends a publication. The controller that sends an epoch to brokers needs
    the image as of exactly that record."""
    in_transaction: bool = False
    """A Begin was replayed, but not its End or Abort."""
    loaded: Provenance = field(init=False)
    """The last record that was replayed, published or not."""
    delta: MetadataDelta = field(init=False)
    """The records of the open transaction, or what ``flush`` will publish."""
    _staged: list[tuple[MetadataDelta, MetadataImage, bool]] = field(default_factory=list)
    """The images that end inside the batch that is being replayed."""

    def __post_init__(self) -> None:
        self.reset(self.image)

    def reset(self, image: MetadataImage) -> None:
        """Restart from a snapshot. An open transaction is dropped, because a snapshot has no part of one."""
        self.image = image
        self.loaded = image.provenance
        self.delta = MetadataDelta(image)
        self.in_transaction = False
        self._staged.clear()

    def load(self, batch: MetadataBatch) -> None:
        """Replay one committed batch. A control batch has no records.

        Raise MetadataFault for a record that cannot follow the ones before it. Nothing of the batch is published then.
        """
        markers = batch.markers
        self._check_markers(markers)
        for index, record in enumerate(batch.records):
            if markers and isinstance(record, MARKERS):
                self._mark(record, batch, index)
            else:
                replay(self.delta, record)
        self.loaded = batch.provenance
        if self._staged and not self._staged[-1][2]:
            self.delta.build(self.loaded)  # A missing partition shows only here. Nothing of the batch is published yet.
        self._publish_staged()
        if self.splits_at_epochs and self.delta.metadata_epoch is not None:  # Decision metadata-epoch-published-alone
            self.flush()

    def flush(self) -> None:
        """Publish what was replayed since the last publication, but nothing while a transaction is open. Raise
        MetadataFault, and publishes nothing, if no image can be built of it."""
        if not self.in_transaction:  # Decision metadata-flush-in-transaction
            self._publish(self.loaded, aligned=True)

    def _mark(self, marker: MetadataRecord, batch: MetadataBatch, index: int) -> None:
        if isinstance(marker, BeginTransactionRecord):
            if index:  # Decision metadata-transaction-begins-in-batch
                offset = batch.provenance.offset - len(batch.records) + index
                self._stage(replace(batch.provenance, offset=offset), aligned=False)
            else:
                self._stage(self.loaded, aligned=True)
            self.in_transaction = True
            return
        self.in_transaction = False
        if isinstance(marker, AbortTransactionRecord):  # Decision metadata-transaction-aborted
            self.delta = MetadataDelta(self.delta.image)

    def _publish(self, provenance: Provenance, aligned: bool) -> None:
        self._stage(provenance, aligned)
        self._publish_staged()

    def _stage(self, provenance: Provenance, aligned: bool) -> None:
        """Build the image up to ``provenance``, which ``_publish_staged`` publishes."""
        delta = self.delta
        if provenance.offset > delta.image.provenance.offset:
            image = delta.build(provenance)
            self.delta = MetadataDelta(image)
            self._staged.append((delta, image, aligned))

    def _publish_staged(self) -> None:
        if self._staged:
            staged, self._staged = self._staged, []
            for delta, self.image, aligned in staged:
                self.publish(delta, self.image, aligned)

    def _check_markers(self, markers: list[MetadataRecord]) -> None:
        is_open = self.in_transaction
        for marker in markers:
            begins = isinstance(marker, BeginTransactionRecord)
            if begins and is_open:
                raise MetadataFault("a metadata transaction begins inside another")
            if not begins and not is_open:
                raise MetadataFault(f"{type(marker).__name__} without a transaction")
            is_open = begins


Listener: TypeAlias = Callable[[MetadataDelta, MetadataImage], None]


@dataclass(slots=True, eq=False)
class MetadataLoader:
    """Loads the committed part of the metadata log, and publishes its images.

    If an event finds that the log is damaged, it raises MetadataFault and the node must end. All batches before the
    damaged one are published then, and nothing of that one.
    """

    _node: NodeContext
    _log: MetadataLog
    _store: SnapshotStore
    last_offset: int = -1
    """The offset of the last committed record that was replayed, published or not, or -1 if there is none."""
    on_progress: Callable[[], None] = lambda: None
    """Called at the end of each event of loading, after all listeners have what was published."""
    on_loaded: Callable[[OffsetAndEpoch, int], None] = lambda _snapshot, _latency_us: None
    """Called when a snapshot is loaded, with the time that this took."""
    on_published: Callable[[MetadataImage, int], None] = lambda _image, _record_bytes: None
    """Called after each publication that ends where a batch ends, with the image and the size of the batches since the
    last call. Other publications cannot become a snapshot."""
    _batches: MetadataBatchLoader = field(init=False)
    _notes: BatchNotes = field(init=False)
    _listeners: list[Listener] = field(default_factory=list)
    _high_watermark: int = 0
    """Everything below it is committed."""
    _record_bytes: int = 0
    """The size of the batches since the last ``on_published``."""
    _scheduled: bool = False
    """Whether ``_load_some`` comes in a later event."""
    _reloading: Sliced[None] | None = None
    """The load of a snapshot that replaced the log, None if there is none."""

    def __post_init__(self) -> None:
        self._batches = MetadataBatchLoader(EMPTY_IMAGE, self._publish)
        self._notes = BatchNotes(self._node.ports)

    @property
    def image(self) -> MetadataImage:
        """The image that was last published. It contains whole transactions only."""
        return self._batches.image

    @property
    def in_transaction(self) -> bool:
        """Whether ``last_offset`` is inside a transaction."""
        return self._batches.in_transaction

    @property
    def end_offset(self) -> int:
        """The end of the metadata log, committed or not."""
        return self._log.end_offset

    def subscribe(self, listener: Listener) -> None:
        """Add a listener. From the next publication on it gets every delta and the image after it. Listeners are
        called in the order of their subscription."""
        self._listeners.append(listener)

    def expect(self, begin_offset: int, batches: int) -> None:
        """Note for the trace how many batches a transaction will have. The leader that appends it knows."""
        self._notes.expect(begin_offset, batches)

    def load(self) -> Sliced[None]:
        """Load the newest snapshot at start, and publish nothing. Raise StartRefused if it is damaged."""
        newest = self._store.latest
        if newest is not None:  # Decision loaded-from-snapshot
            self._replace_image(newest, (yield from self._loading(newest)))

    def split_at_epochs(self, wanted: bool) -> None:
        """Set whether the record of a metadata epoch ends a publication."""
        self._batches.splits_at_epochs = wanted

    def catch_up(self, high_watermark: int) -> None:
        """Replay all batches below ``high_watermark``: some now, and the others in events of their own."""
        self._high_watermark = max(self._high_watermark, high_watermark)
        if not self._scheduled and self._reloading is None:
            self._load_some()

    def reload(self, snapshot: OffsetAndEpoch) -> None:
        """Load a snapshot that has replaced the log, and publish the difference to it. If a newer snapshot arrives
        meanwhile, it is loaded instead."""
        if self._reloading is not None:  # Decision reload-superseded
            self._reloading.close()
        self._reloading = self._reload(snapshot)
        self._high_watermark = max(self._high_watermark, snapshot.offset)
        run_slices(self._node.ports, self._reloading)

    def _reload(self, snapshot: OffsetAndEpoch) -> Sliced[None]:
        image = yield from self._loading(snapshot)
        self._reloading = None
        before = self.image
        self._replace_image(snapshot, image)
        self._publish(MetadataDelta.between(before, image), image, True)
        self._load_some()

    def _loading(self, snapshot: OffsetAndEpoch) -> Sliced[MetadataImage]:
        started_us = self._node.now_us
        image = yield from load_snapshot(self._node.disk, snapshot)
        self.on_loaded(snapshot, self._node.now_us - started_us)
        return image

    def _load_some(self) -> None:
        self._scheduled = False
        if self._reloading is not None:
            return
        try:
            self._take_batches()
            self._batches.flush()
        except (MetadataFault, InvalidRecords) as fault:
            raise MetadataFault(
                f"The metadata log is damaged in or after the batch that ends at offset {self._publish_undamaged()} "
                f"({fault}): restore it from a copy."
            ) from fault
        self.on_progress()
        if self.last_offset + 1 < self._high_watermark:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._node.after(0, self._load_some)

    def _take_batches(self) -> None:
        taken = 0
        before = self.last_offset
        if before + 1 >= self._high_watermark:
            return
        for coded in self._log.batches(before + 1, self._high_watermark):
            batch = decoded(coded)
            self._batches.load(batch)
            self._take_note(batch)
            taken += len(batch.records) + 1
            if taken >= LOADED_RECORDS_PER_SLICE:
                break
        if self.last_offset == before:
            raise MetadataFault(f"there is no batch at offset {before + 1}")

    def _publish_undamaged(self) -> int:
        """Read again what is not published, now batch by batch up to the damage, and publish it. Returns the offset of
        the last record before the damage.

        The batches of one event have one delta. After a fault it may contain a part of the damaged batch, and a
        missing partition shows only when an image is built of it.
        """
        batches = self._batches
        published = batches.image.provenance.offset
        batches.reset(batches.image)
        before, whole = -2, published
        try:
            while before < whole < self._high_watermark - 1:
                before = whole
                for coded in self._log.batches(whole + 1, self._high_watermark):
                    batch = decoded(coded)
                    batches.load(batch.after(published))
                    batches.flush()
                    whole = batch.provenance.offset
        except (MetadataFault, InvalidRecords):
            pass  # This is the damage that the caller reports.
        return whole

    def _take_note(self, batch: MetadataBatch) -> None:
        self.last_offset = batch.provenance.offset
        self._record_bytes += batch.size_bytes
        self._notes.committed(batch)

    def _publish(self, delta: MetadataDelta, image: MetadataImage, aligned: bool) -> None:
        provenance = image.provenance
        self._node.ports.note("metadata_published", ("offset", provenance.offset), ("epoch", provenance.epoch))
        for listener in self._listeners:
            listener(delta, image)
        if aligned:
            record_bytes, self._record_bytes = self._record_bytes, 0
            self.on_published(image, record_bytes)

    def _replace_image(self, snapshot: OffsetAndEpoch, image: MetadataImage) -> None:
        self._batches.reset(image)
        self._notes.reset()
        self.last_offset = snapshot.offset - 1
        self._record_bytes = 0
