"""The states of a remote segment and of a deleted partition, and the steps between them (KIP-405's
RemoteLogSegmentState and RemotePartitionDeleteState). A step from a state to itself is allowed: it is an event told
again. A step that is not in the tables changes nothing.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class SegmentState(IntEnum):
    """The number is the one that records carry."""

    COPY_SEGMENT_STARTED = 0
    """Some of its objects may be stored. Nobody reads it."""
    COPY_SEGMENT_FINISHED = 1
    """All its objects are stored, and it is read."""
    DELETE_SEGMENT_STARTED = 2
    """Some of its objects may be gone. Nobody reads it any more."""
    DELETE_SEGMENT_FINISHED = 3
    """All its objects are gone, and it is forgotten."""


class DeleteState(IntEnum):
    """How far the deletion of a partition has come. The number is the one that records carry."""

    DELETE_PARTITION_MARKED = 0
    """Its topic is deleted. Nothing is added any more."""
    DELETE_PARTITION_STARTED = 1
    """Some of its objects may be gone."""
    DELETE_PARTITION_FINISHED = 2
    """All its objects are gone, and it is forgotten."""


NEXT_SEGMENT_STATES: Final[Mapping[SegmentState | None, tuple[SegmentState, ...]]] = {
    None: (SegmentState.COPY_SEGMENT_STARTED,),
    SegmentState.COPY_SEGMENT_STARTED: (
        SegmentState.COPY_SEGMENT_STARTED,
        SegmentState.COPY_SEGMENT_FINISHED,
        SegmentState.DELETE_SEGMENT_STARTED,
    ),
    SegmentState.COPY_SEGMENT_FINISHED: (SegmentState.COPY_SEGMENT_FINISHED, SegmentState.DELETE_SEGMENT_STARTED),
    SegmentState.DELETE_SEGMENT_STARTED: (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED),
    SegmentState.DELETE_SEGMENT_FINISHED: (SegmentState.DELETE_SEGMENT_FINISHED,),
}
"""The states that may follow each state. None: the segment is not known yet."""

NEXT_DELETE_STATES: Final[Mapping[DeleteState | None, tuple[DeleteState, ...]]] = {
    None: (DeleteState.DELETE_PARTITION_MARKED,),
    DeleteState.DELETE_PARTITION_MARKED: (
        DeleteState.DELETE_PARTITION_MARKED,
        DeleteState.DELETE_PARTITION_STARTED,
    ),
    DeleteState.DELETE_PARTITION_STARTED: (
        DeleteState.DELETE_PARTITION_STARTED,
        DeleteState.DELETE_PARTITION_FINISHED,
    ),
    DeleteState.DELETE_PARTITION_FINISHED: (DeleteState.DELETE_PARTITION_FINISHED,),
}
"""The states that may follow each state. None: the partition is not deleted."""
