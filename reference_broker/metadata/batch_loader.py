"""From committed batches to published images: transactions are seen whole, at their End, or never (KIP-868).

Batches come in the order of the log, also in the middle of a transaction; ``flush`` publishes what is complete. Records
that stand before a Begin are published before the transaction opens; while one is open nothing is. An End makes its
records part of the next publication; an Abort leaves only the new offset, in an empty delta.
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
    """``image``: the last published. ``loaded``: the last record taken, published or not.

    ``in_transaction``: a Begin was taken and not its End or Abort; then ``delta`` holds that transaction's records,
    else what ``flush`` will publish.
    """

    image: MetadataImage
    publish: Publish
    splits_at_epochs: bool = False
    """A metadata epoch ends a publication, so that its image is its record's, for the controller that sends it."""
    in_transaction: bool = False
    loaded: Provenance = field(init=False)
    delta: MetadataDelta = field(init=False)

    def __post_init__(self) -> None:
        self.reset(self.image)

    def reset(self, image: MetadataImage) -> None:
        """Starts anew from a snapshot: an open transaction is forgotten, since a snapshot holds no part of one."""
        self.image = image
        self.loaded = image.provenance
        self.delta = MetadataDelta(image)
        self.in_transaction = False

    def load(self, batch: MetadataBatch) -> None:
        """Takes one committed batch (without records: a control batch). Raises MetadataFault for markers that cannot
        follow, before anything of the batch is taken, and for records that cannot."""
        self._check_markers(batch.markers)
        for index, record in enumerate(batch.records):
            if batch.markers and isinstance(record, MARKERS):
                self._mark(record, batch, index)
            else:
                replay(self.delta, record)
        self.loaded = batch.provenance
        if self.splits_at_epochs and self.delta.metadata_epoch is not None:
            self.flush()

    def flush(self) -> None:
        """Publishes what was taken since the last time; nothing while a transaction is open."""
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

    def _check_markers(self, markers: tuple[MetadataRecord, ...]) -> None:
        is_open = self.in_transaction
        for marker in markers:
            begins = isinstance(marker, BeginTransactionRecord)
            if begins and is_open:
                raise MetadataFault("a metadata transaction begins inside another")
            if not begins and not is_open:
                raise MetadataFault(f"{type(marker).__name__} without a transaction")
            is_open = begins
