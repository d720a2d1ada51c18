"""Syncs that ``flush.messages`` and ``flush.ms`` require.

A follower syncs what it appended before its next fetch confirms those records.
"""

from collections.abc import Callable, Sequence
from functools import partial

from reference_broker.log.config import UNBOUNDED
from reference_broker.log.durability import SyncPoint
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.node_ports import Ports, later
from reference_broker.replication.partitions import Partition


def must_sync(log: UnifiedLog) -> bool:
    """Whether the log has reached ``flush.messages`` (log.flush.interval.messages) unsynced records."""
    return log.config.flush_messages < UNBOUNDED and log.appended_since_sync >= log.config.flush_messages


def leader_end(log: UnifiedLog) -> int:
    """Return how far the leader's own log counts for the high watermark: up to its end or, where ``flush.messages``
    requires a sync, as far as it is durable, since records that were read must survive a power loss."""
    return log.synced_offset if must_sync(log) else log.log_end_offset  # Decision leader-end


def advance_only_replica(log: UnifiedLog) -> bool:
    """Move the high watermark of a partition with one replica: it waits for no other. Return whether it moved.

    Call this after an append, a sync and a change of settings, as ``Leaders`` advances partitions with several
    replicas."""
    return log.advance_high_watermark(leader_end(log))


def sync_then(ports: Ports, logs: Sequence[UnifiedLog], done: Callable[[], None]) -> None:
    """Call ``done`` when everything appended so far to ``logs`` is synced."""
    points = [(log, log.sync_point()) for log in logs]
    ports.sync(tuple(path for _, point in points for path in point.paths), partial(_synced, points, done))


def plan_timed_flush(ports: Ports, partition: Partition) -> None:
    """Plan the sync of ``flush.ms``: the first unsynced append starts a timer, one for each partition."""
    flush_ms = partition.log.config.flush_ms
    if flush_ms >= UNBOUNDED or partition.flush_planned:
        return
    partition.flush_planned = True
    later(ports, flush_ms * 1000, partial(_flush, ports, partition))


def _flush(ports: Ports, partition: Partition) -> None:
    partition.flush_planned = False
    if not partition.is_removed:
        sync_led_then(ports, [partition], nobody_waits)


def sync_led_then(ports: Ports, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
    """Call ``done`` when everything appended so far to led ``partitions`` is synced. Their high watermarks may have
    waited for it."""
    missing = len(partitions)

    def synced(partition: Partition, point: SyncPoint) -> None:
        nonlocal missing
        if not partition.is_removed:  # After deletion the directory may belong to another topic.
            partition.log.mark_synced(point)
            if partition.followers is not None:
                partition.synced()
            elif advance_only_replica(partition.log):
                partition.changed()
        missing -= 1
        if missing == 0:
            done()

    for partition in partitions:
        point = partition.log.sync_point()
        ports.sync(point.paths, partial(synced, partition, point))


def nobody_waits() -> None:
    """The completion of a sync that no request waits for."""


def _synced(points: Sequence[tuple[UnifiedLog, SyncPoint]], done: Callable[[], None]) -> None:
    for log, point in points:
        log.mark_synced(point)
    done()
