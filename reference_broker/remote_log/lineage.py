"""The leader epochs of a log, which say to which of its offsets a remote segment's records belong."""

from reference_broker.log.partition_log import PartitionLog
from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteSegment


def lineage_of(log: PartitionLog) -> LeaderEpochStarts:
    """Each leader epoch with the offset at which it began, as the log knows them."""
    return tuple(zip(log.epochs.epochs, log.epochs.starts, strict=True))


def common_end(segment: RemoteSegment, lineage: LeaderEpochStarts, log_end_offset: int) -> int:
    """One past the last offset that the segment shares with a log of these leader epochs.

    After an unclean election the segment may hold records that the log lost. They are not read.
    Those before the log's start are gone as well, but they do not hide the rest.
    """
    starts = [start for _, start in lineage]
    ends = {epoch: end for (epoch, _), end in zip(lineage, [*starts[1:], log_end_offset], strict=True)}
    for epoch, start, end in segment.epoch_ranges():
        if ends.get(epoch, start) < end and not (starts and end <= starts[0]):
            return max(ends.get(epoch, start), start)
    return segment.next_offset
