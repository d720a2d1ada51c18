"""How far a follower truncates a log that diverged from its leader's (KIP-101, KIP-279, KIP-595's DivergingEpoch)."""

from reference_broker.log.partition_log import PartitionLog
from reference_broker.wire.fetch import EpochEndOffset

UNDEFINED = -1


def truncation_offset(log: PartitionLog, leader: EpochEndOffset) -> int:
    """The offset at which ``log`` must end, at most.

    ``leader`` is the largest epoch of the leader's log that is not above the one that the follower named, with its end
    in that log. A follower that does not know this epoch truncates to the end of the largest epoch below it that it
    knows, and asks again. If the leader knows no such epoch, the follower keeps what is committed.
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
