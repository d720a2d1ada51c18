"""A batch of the metadata log whose record values are decoded."""

from dataclasses import dataclass, replace

from reference_broker.metadata.record_codec import decode
from reference_broker.metadata.records import MARKERS, MetadataRecord
from reference_broker.quorum.metadata_log import LogBatch
from reference_broker.quorum.values import Provenance


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """Records that were appended together. ``provenance`` is that of the last one."""

    records: tuple[MetadataRecord, ...]
    provenance: Provenance
    size_bytes: int = 0

    @property
    def markers(self) -> list[MetadataRecord]:
        """The transaction markers among the records."""
        return [record for record in self.records if isinstance(record, MARKERS)]

    def after(self, offset: int) -> "MetadataBatch":
        """The batch without its records up to ``offset``."""
        first = self.provenance.offset - len(self.records) + 1
        return replace(self, records=self.records[offset + 1 - first :]) if self.records and first <= offset else self


def decoded(batch: LogBatch) -> MetadataBatch:
    """Decodes the values of a batch. Raises MetadataFault for a value that is no metadata record."""
    return MetadataBatch(tuple(decode(value) for value in batch.values), batch.provenance, batch.size_bytes)
