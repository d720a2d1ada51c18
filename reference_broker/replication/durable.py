"""``flush.messages``, for what clients append and for what a follower appends and then tells its leader that it has."""

from collections.abc import Callable, Sequence
from functools import partial

from reference_broker.log.config import UNBOUNDED
from reference_broker.log.durability import SyncPoint
from reference_broker.log.partition_log import PartitionLog
from reference_broker.raft.ports import Ports


def must_be_durable(log: PartitionLog) -> bool:
    """``flush.messages`` (log.flush.interval.messages): so many records may be unsynced, not one more."""
    return log.config.flush_messages < UNBOUNDED and log.appended_since_sync >= log.config.flush_messages


def sync_then(ports: Ports, logs: Sequence[PartitionLog], done: Callable[[], None]) -> None:
    """Calls ``done`` when all that was appended so far to ``logs`` is durable."""
    points = [(log, log.sync_point()) for log in logs]
    ports.sync(tuple(path for _, point in points for path in point.paths), partial(_synced, points, done))


def _synced(points: Sequence[tuple[PartitionLog, SyncPoint]], done: Callable[[], None]) -> None:
    for log, point in points:
        log.mark_synced(point)
    done()
