"""A place in the metadata log: the name of a snapshot, or the end of a log."""

from typing import NamedTuple

METADATA_TOPIC_ID = (1).to_bytes(16, "big")
"""Of ``__cluster_metadata``, fixed by Kafka (Uuid.METADATA_TOPIC_ID)."""


class OffsetAndEpoch(NamedTuple):
    """``offset`` is exclusive (an end offset); ``epoch``: of the last record below it."""

    offset: int
    epoch: int
