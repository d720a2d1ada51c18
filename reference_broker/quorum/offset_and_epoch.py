"""A position in the metadata log. It names a snapshot, or the end of a log."""

from dataclasses import dataclass
from typing import NamedTuple

METADATA_TOPIC_ID = (1).to_bytes(16, "big")
"""The topic ID of ``__cluster_metadata``, which Kafka fixes (Uuid.METADATA_TOPIC_ID)."""


class OffsetAndEpoch(NamedTuple):
    """``offset`` is exclusive (an end offset). ``epoch`` is that of the last record below it."""

    offset: int
    epoch: int

    @property
    def age(self) -> tuple[int, int]:
        """Orders positions as Kafka's OffsetAndEpoch does: by the epoch, then by the offset. A longer log has the
        greater one."""
        return self.epoch, self.offset


@dataclass(frozen=True, slots=True)
class Provenance:
    """Describes the last record of a batch or of an image: its offset, its epoch and the timestamp of its batch. All
    are -1 for an empty log."""

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1


NOWHERE = Provenance()
"""The provenance of something that holds no record yet."""
