"""Metrics of led partitions, under Kafka's names (ReplicaManager).

They are counted at each change, so that reading them does not walk over the partitions.
"""

from reference_broker.metrics.metrics import Gauge, Metrics
from reference_broker.replication.partitions import Partition

DOMAIN, KIND = "kafka.server", "ReplicaManager"

_LED, _UNDER_REPLICATED, _UNDER_MIN_ISR, _AT_MIN_ISR = 1, 2, 4, 8


class ReplicaMetrics:
    """``isr_shrinks`` and ``isr_expands`` count this node's proposals that were applied.

    It does not matter whether the answer or the metadata told that first. ``failed_isr_updates`` counts refusals, one
    for each partition and attempt.
    """

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
        self.isr_shrinks = metrics.counter(DOMAIN, KIND, "IsrShrinksPerSec")
        self.isr_expands = metrics.counter(DOMAIN, KIND, "IsrExpandsPerSec")
        self.failed_isr_updates = metrics.counter(DOMAIN, KIND, "FailedIsrUpdatesPerSec")

    def count(self, partition: Partition) -> None:
        """Counts a led partition whose in-sync replicas, replicas or ``min.insync.replicas`` may have changed."""
        self._change(partition, _standing(partition))

    def discount(self, partition: Partition) -> None:
        """This node no longer leads the partition."""
        self._change(partition, 0)

    def _change(self, partition: Partition, standing: int) -> None:
        before = partition.standing
        if before == standing:
            return
        partition.standing = standing
        for bit, gauge in self._gauges.items():
            gauge.value += bool(standing & bit) - bool(before & bit)


def _standing(partition: Partition) -> int:
    """Judges the committed in-sync replicas. The wanted minimum is capped at the number of replicas."""
    followers = partition.followers
    replicas, isr = (1, 1) if followers is None else (len(followers.states) + 1, len(followers.isr))
    wanted = min(partition.log.config.min_insync_replicas, replicas)
    standing = _LED
    if isr < replicas:
        standing |= _UNDER_REPLICATED
    if isr < wanted:
        standing |= _UNDER_MIN_ISR
    elif isr == wanted:
        standing |= _AT_MIN_ISR
    return standing
