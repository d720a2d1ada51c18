"""When appended bytes are made durable: flush.messages, flush.ms, and after a segment rolled.

By default Kafka, and so this broker, leaves it to the operating system; a rolled segment is synced all the same, so
that a crash need not scan it again.
"""

from collections.abc import Callable, Sequence
from functools import partial

from reference_broker.apis.broker import Broker
from reference_broker.log.config import UNBOUNDED
from reference_broker.log.durability import SyncPoint
from reference_broker.model.partitions import Partition


def sync_then(broker: Broker, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
    """Calls ``done`` when everything appended so far to ``partitions`` is durable."""
    missing = len(partitions)

    def synced(partition: Partition, point: SyncPoint) -> None:
        nonlocal missing
        if not partition.deleted:  # Else its directory's name may be another topic's by now.
            partition.log.mark_synced(point)
        missing -= 1
        if missing == 0:
            done()

    for partition in partitions:
        point = partition.log.sync_point()
        broker.outside.sync(point.paths, partial(synced, partition, point))


def sync_in_background(broker: Broker, partition: Partition) -> None:
    """Nobody waits for it."""
    sync_then(broker, [partition], _nobody_waits)


def plan_timed_flush(broker: Broker, partition: Partition) -> None:
    """``flush.ms``: the first unsynced append starts the time, one timer for each partition."""
    flush_ms = partition.log.config.flush_ms
    if flush_ms >= UNBOUNDED or partition.flush_planned:
        return
    partition.flush_planned = True
    broker.outside.set_timer(broker.now.mono_us + flush_ms * 1000, partial(_flush, broker, partition))


def _flush(broker: Broker, partition: Partition) -> None:
    partition.flush_planned = False
    if not partition.deleted:
        sync_in_background(broker, partition)


def _nobody_waits() -> None:
    """The sync changes what a crash would lose, and answers no one."""
