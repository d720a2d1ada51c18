"""Turns committed batches into published images. A transaction becomes visible as a whole at its End, or never
(KIP-868).

Batches come in the order of the log, and one may end in the middle of a transaction. ``flush`` publishes what is
complete. Records before a Begin are published before the transaction opens, and nothing is published while it is open.
An End makes the transaction's records part of the next publication. An Abort discards them and leaves only the new
offset, in an empty delta.
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
from reference_broker.quorum.offset_and_epoch import Provenance

Publish: TypeAlias = Callable[[MetadataDelta, MetadataImage, bool], None]
"""(delta, image, whether the image ends where a batch ends)."""


@dataclass(slots=True)
class MetadataBatchLoader:
    """``image`` is the last published one. ``loaded`` is the last record that was replayed, published or not.

    ``in_transaction`` says that a Begin was replayed, but not its End or Abort. ``delta`` then holds the records of
    that transaction, and otherwise what ``flush`` will publish.
    """

    image: MetadataImage
    publish: Publish
    splits_at_epochs: bool = False
    """Whether the record of a metadata epoch ends a publication. The controller that sends an epoch to brokers needs
    the image as of exactly that record."""
    in_transaction: bool = False
    loaded: Provenance = field(init=False)
    delta: MetadataDelta = field(init=False)

    def __post_init__(self) -> None:
        self.reset(self.image)

    def reset(self, image: MetadataImage) -> None:
        """Starts again from a snapshot. An open transaction is forgotten, because a snapshot holds no part of one."""
        self.image = image
        self.loaded = image.provenance
        self.delta = MetadataDelta(image)
        self.in_transaction = False

    def load(self, batch: MetadataBatch) -> None:
        """Replays one committed batch. A control batch has no records.

        Raises MetadataFault for a record that cannot follow the ones before it. For a transaction marker that cannot
        follow, it does so before anything of the batch is replayed.
        """
        markers = batch.markers
        self._check_markers(markers)
        for index, record in enumerate(batch.records):
            if markers and isinstance(record, MARKERS):
                self._mark(record, batch, index)
            else:
                replay(self.delta, record)
        self.loaded = batch.provenance
        if self.splits_at_epochs and self.delta.metadata_epoch is not None:
            self.flush()

    def flush(self) -> None:
        """Publishes what was replayed since the last publication, but nothing while a transaction is open."""
        if not self.in_transaction:
            self._publish(self.loaded, aligned=True)

    def _mark(self, marker: MetadataRecord, batch: MetadataBatch, index: int) -> None:
        if isinstance(marker, BeginTransactionRecord):
            if index:
                offset = batch.provenance.offset - len(batch.records) + index
                self._publish(replace(batch.provenance, offset=offset), aligned=False)
            else:
                self._publish(self.loaded, aligned=True)
            self.in_transaction = True
            return
        self.in_transaction = False
        if isinstance(marker, AbortTransactionRecord):
            self.delta = MetadataDelta(self.image)

    def _publish(self, provenance: Provenance, aligned: bool) -> None:
        if provenance.offset <= self.image.provenance.offset:
            return
        delta = self.delta
        self.image = delta.build(provenance)
        self.delta = MetadataDelta(self.image)
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
