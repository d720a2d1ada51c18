"""The aborted transactions of what was read, from the transaction indexes of remote segments.

The marker that ends a transaction may lie in any later segment, remote or local.
"""

from typing import NamedTuple

from reference_broker.log.indexes import Aborted
from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteSegment
from reference_broker.remote_log.metadata.partition_segments import PartitionSegments
from reference_broker.remote_log.objects import ObjectKind
from reference_broker.remote_log.reading.parts import whole
from reference_broker.remote_log.reading.readings import Reading
from reference_broker.remote_log.reading.searching import aborted_from

STEPS_PER_SLICE = 2000
"""How many entries and segments are looked at in one event. They cost some 2 ms."""


class AbortedSoFar(NamedTuple):
    """``is_complete``: no segment after these has a marker of a transaction that began before the end."""

    found: tuple[Aborted, ...]
    is_complete: bool


def aborted_in_segments(
    segments: PartitionSegments,
    first: RemoteSegment,
    lineage: LeaderEpochStarts,
    offset: int,
    end_offset: int,
    local_start_offset: int,
) -> Reading[AbortedSoFar]:
    """The aborted transactions that overlap [offset, end_offset), in ``first`` and the remote segments after it that
    begin before ``local_start_offset``."""
    found: list[Aborted] = []
    segment: RemoteSegment | None = first
    steps = 0
    while segment is not None:
        if segment.has_transaction_index:
            index = yield from whole(segment, ObjectKind.TRANSACTION_INDEX)
            for each in aborted_from(index, offset):
                steps += 1
                if steps % STEPS_PER_SLICE == 0:
                    yield None
                if each.first_offset < end_offset:
                    found.append(each)
                if each.last_stable_offset >= end_offset:
                    return AbortedSoFar(tuple(found), True)
        steps += 1
        if steps % STEPS_PER_SLICE == 0:
            yield None
        segment = segments.after(segment, lineage) if segment.next_offset < local_start_offset else None
    return AbortedSoFar(tuple(found), False)
