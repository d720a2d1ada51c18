"""Turns committed batches into published images. A transaction becomes visible as a whole at its End, or never
(KIP-868).

Batches come in the order of the log, and one may end in the middle of a transaction. ``flush`` publishes what is
complete. Records before a Begin are published before the transaction opens, and nothing is published while it is open.
An End makes the transaction's records part of the next publication. An Abort discards them and leaves only the new
offset, in an empty delta.

A batch is replayed as a whole before anything of it is published, because readers may see no part of a batch that
turns out to be damaged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from reference_broker.metadata.batch import MetadataBatch
from reference_broker.metadata.delta import MetadataDelta, MetadataFault
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import (
    MARKERS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    MetadataRecord,
)
from reference_broker.metadata.replay import replay
from reference_broker.quorum.values import Provenance

Publish: TypeAlias = Callable[[MetadataDelta, MetadataImage, bool], None]
"""(delta, image, whether the image ends where a batch ends)."""


@dataclass(slots=True)
class MetadataBatchLoader:
    """``image`` is the last published one. ``loaded`` is the last record that was replayed, published or not.

    ``in_transaction`` says that a Begin was replayed, but not its End or Abort. ``delta`` then holds the records of
    that transaction, and otherwise what ``flush`` will publish. ``_staged`` holds what the batch that is being replayed
    leads to before its own end.

    After a MetadataFault only ``reset`` may be called: ``delta`` may hold a part of the damaged batch.
    """

    image: MetadataImage
    publish: Publish
    splits_at_epochs: bool = False
    """Whether the record of a metadata epoch ends a publication. The controller that sends an epoch to brokers needs
    the image as of exactly that record."""
    in_transaction: bool = False
    loaded: Provenance = field(init=False)
    delta: MetadataDelta = field(init=False)
    _staged: list[tuple[MetadataDelta, MetadataImage, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset(self.image)

    def reset(self, image: MetadataImage) -> None:
        """Starts again from a snapshot. An open transaction is forgotten, because a snapshot holds no part of one."""
        self.image = image
        self.loaded = image.provenance
        self.delta = MetadataDelta(image)
        self.in_transaction = False
        self._staged.clear()

    def load(self, batch: MetadataBatch) -> None:
        """Replays one committed batch. A control batch has no records.

        Raises MetadataFault for a record that cannot follow the ones before it. Nothing of the batch is published then.
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
            self.delta.build(self.loaded)  # A missing partition shows only here. Nothing of the batch is told yet.
        self._tell()
        if self.splits_at_epochs and self.delta.metadata_epoch is not None:
            self.flush()

    def flush(self) -> None:
        """Publishes what was replayed since the last publication, but nothing while a transaction is open. Raises
        MetadataFault, and publishes nothing, if no image can be built of it."""
        if not self.in_transaction:
            self._publish(self.loaded, aligned=True)

    def _mark(self, marker: MetadataRecord, batch: MetadataBatch, index: int) -> None:
        if isinstance(marker, BeginTransactionRecord):
            if index:
                offset = batch.provenance.offset - len(batch.records) + index
                self._stage(replace(batch.provenance, offset=offset), aligned=False)
            else:
                self._stage(self.loaded, aligned=True)
            self.in_transaction = True
            return
        self.in_transaction = False
        if isinstance(marker, AbortTransactionRecord):
            self.delta = MetadataDelta(self.delta.image)

    def _publish(self, provenance: Provenance, aligned: bool) -> None:
        self._stage(provenance, aligned)
        self._tell()

    def _stage(self, provenance: Provenance, aligned: bool) -> None:
        """Builds the image up to ``provenance``, which ``_tell`` publishes."""
        delta = self.delta
        if provenance.offset > delta.image.provenance.offset:
            image = delta.build(provenance)
            self.delta = MetadataDelta(image)
            self._staged.append((delta, image, aligned))

    def _tell(self) -> None:
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
