"""How far a follower's log goes back when it and its leader's parted (KIP-101, KIP-279, KIP-595's DivergingEpoch)."""

from reference_broker.log.partition_log import PartitionLog
from reference_broker.wire.fetch import EpochEndOffset

UNDEFINED = -1


def truncation_offset(log: PartitionLog, leader: EpochEndOffset) -> int:
    """Where ``log`` has to end, at most. ``leader``: the largest epoch of the leader's log that is not above the one
    that the follower named, and where it ended there.

    Where the follower does not know that epoch it goes back to the end of the largest that it knows below it, and
    asks once more. A leader that knows no such epoch leaves what is committed.
    """
    if leader.end_offset == UNDEFINED:
        return log.high_watermark
    if leader.epoch == UNDEFINED:
        return min(leader.end_offset, log.log_end_offset)
    own = log.end_offset_for_epoch(leader.epoch)
    if own.end_offset == UNDEFINED:
        return min(leader.end_offset, log.log_end_offset)
    if own.epoch != leader.epoch:
        return min(own.end_offset, log.log_end_offset)
    return min(leader.end_offset, own.end_offset, log.log_end_offset)
