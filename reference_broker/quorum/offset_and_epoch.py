"""A place in the metadata log: the name of a snapshot, or the end of a log."""

from dataclasses import dataclass
from typing import NamedTuple

METADATA_TOPIC_ID = (1).to_bytes(16, "big")
"""Of ``__cluster_metadata``, fixed by Kafka (Uuid.METADATA_TOPIC_ID)."""


class OffsetAndEpoch(NamedTuple):
    """``offset`` is exclusive (an end offset); ``epoch``: of the last record below it."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """The last record of a batch or of an image: its offset and epoch (-1: an empty log), and its batch's time."""

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1


NOWHERE = Provenance()
"""Of what holds no record yet."""
