"""Metrics of led partitions, under Kafka's names (ReplicaManager).

They are counted at each change, so that reading them does not walk over the partitions. Late transactions are the
exception.
"""

from collections.abc import Callable

from reference_broker.metrics.metrics import Gauge, Metrics
from reference_broker.replication.partitions import Partition, Partitions

DOMAIN, KIND = "kafka.server", "ReplicaManager"

_LED, _UNDER_REPLICATED, _UNDER_MIN_ISR, _AT_MIN_ISR = 1, 2, 4, 8


class ReplicaMetrics:
    """The gauges and counters of all led partitions."""

    def __init__(self, metrics: Metrics) -> None:
        names = {
            _LED: "LeaderCount",
            _UNDER_REPLICATED: "UnderReplicatedPartitions",
            _UNDER_MIN_ISR: "UnderMinIsrPartitionCount",
            _AT_MIN_ISR: "AtMinIsrPartitionCount",
        }
        self._gauges: dict[int, Gauge] = {bit: metrics.gauge(DOMAIN, KIND, name) for bit, name in names.items()}
        metrics.gauge(DOMAIN, KIND, "OfflineReplicaCount")
        # It stays 0: a node that loses its only directory ends.
        # This node's proposals that were applied, whether the response or the metadata showed that first.
        self.isr_shrinks = metrics.counter(DOMAIN, KIND, "IsrShrinksPerSec")
        self.isr_expands = metrics.counter(DOMAIN, KIND, "IsrExpandsPerSec")
        # Refused proposals, one for each partition and attempt.
        self.failed_isr_updates = metrics.counter(DOMAIN, KIND, "FailedIsrUpdatesPerSec")

    def count(self, partition: Partition) -> None:
        """Count a led partition whose in-sync replicas, replicas or ``min.insync.replicas`` may have changed."""
        self._change(partition, _standing(partition))

    def discount(self, partition: Partition) -> None:
        """Called when this node no longer leads the partition."""
        self._change(partition, 0)

    def _change(self, partition: Partition, standing: int) -> None:
        before = partition.standing
        if before == standing:
            return
        partition.standing = standing
        for bit, gauge in self._gauges.items():
            gauge.value += bool(standing & bit) - bool(before & bit)


def _standing(partition: Partition) -> int:
    """Classify by the committed in-sync replicas. The wanted minimum is capped at the number of replicas."""
    followers = partition.followers
    replicas, isr = (1, 1) if followers is None else (len(followers.states) + 1, len(followers.isr))
    min_isr = min(partition.log.config.min_insync_replicas, replicas)
    standing = _LED
    if isr < replicas:
        standing |= _UNDER_REPLICATED
    if isr < min_isr:
        standing |= _UNDER_MIN_ISR
    elif isr == min_isr:
        standing |= _AT_MIN_ISR
    return standing


BUFFER_MS = 300_000


def count_late_transactions(
    metrics: Metrics, partitions: Partitions, max_timeout_ms: int, wall_ms: Callable[[], int]
) -> None:
    """PartitionsWithLateTransactionsCount: led partitions whose earliest open transaction should have ended long ago.

    No transaction may be open for longer than ``transaction.max.timeout.ms``. As in Kafka (KIP-664), one is late five
    minutes after that, counted from its producer's last batch. ``kafka-transactions find-hanging`` names it then.

    The partitions are counted when the metrics are read, since whether one is late depends on the time alone. That
    costs some 50 us for 1,000 partitions.
    """
    gauge = metrics.gauge("kafka.server", "ReplicaManager", "PartitionsWithLateTransactionsCount")

    def count() -> None:
        began_before_ms = wall_ms() - max_timeout_ms - BUFFER_MS
        gauge.value = sum(
            0 < each.log.producers.oldest_open_timestamp_ms() < began_before_ms
            for each in partitions.by_name.values()
            if each.followed_leader is None
        )

    metrics.before_reading.append(count)
