"""When appended bytes are made durable: flush.messages, flush.ms, and after a segment rolled.

By default Kafka, and so this broker, leaves it to the operating system; a rolled segment is synced all the same, so
that a crash need not scan it again. The work is done by ``replication.durable``.
"""

from collections.abc import Callable, Sequence

from reference_broker.apis.broker import Broker
from reference_broker.replication import durable
from reference_broker.replication.partitions import Partition


def sync_then(broker: Broker, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
    """Calls ``done`` when everything appended so far to ``partitions`` is durable."""
    durable.sync_led_then(broker.outside, partitions, done)


def sync_in_background(broker: Broker, partition: Partition) -> None:
    """Nobody waits for it."""
    durable.sync_led_then(broker.outside, [partition], durable.nobody_waits)


def plan_timed_flush(broker: Broker, partition: Partition) -> None:
    """``flush.ms``: the first unsynced append starts the time, one timer for each partition."""
    durable.plan_timed_flush(broker.outside, partition)
