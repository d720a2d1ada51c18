"""What is measured of led partitions, under Kafka's names (ReplicaManager): kept by counting at each change, not by
walking over the partitions when somebody asks."""

from reference_broker.metrics.metrics import Gauge, Metrics
from reference_broker.replication.partitions import Partition

DOMAIN, KIND = "kafka.server", "ReplicaManager"

_LED, _UNDER_REPLICATED, _UNDER_MIN_ISR, _AT_MIN_ISR = 1, 2, 4, 8


class ReplicaMetrics:
    """``isr_shrinks`` and ``isr_expands``: proposals of this node's that were applied, whether its answer or the
    metadata told it first. ``failed_isr_updates``: refusals, one for each partition and attempt."""

    __slots__ = ("_gauges", "failed_isr_updates", "isr_expands", "isr_shrinks")

    def __init__(self, metrics: Metrics) -> None:
        names = {
            _LED: "LeaderCount",
            _UNDER_REPLICATED: "UnderReplicatedPartitions",
            _UNDER_MIN_ISR: "UnderMinIsrPartitionCount",
            _AT_MIN_ISR: "AtMinIsrPartitionCount",
        }
        self._gauges: dict[int, Gauge] = {bit: metrics.gauge(DOMAIN, KIND, name) for bit, name in names.items()}
        metrics.gauge(DOMAIN, KIND, "OfflineReplicaCount")
        # It stays 0: without its only directory a node ends.
        self.isr_shrinks = metrics.counter(DOMAIN, KIND, "IsrShrinksPerSec")
        self.isr_expands = metrics.counter(DOMAIN, KIND, "IsrExpandsPerSec")
        self.failed_isr_updates = metrics.counter(DOMAIN, KIND, "FailedIsrUpdatesPerSec")

    def count(self, partition: Partition) -> None:
        """It is led here; its in-sync replicas, its replicas or ``min.insync.replicas`` may be others now."""
        self._change(partition, _standing(partition))

    def discount(self, partition: Partition) -> None:
        """It is led here no more."""
        self._change(partition, 0)

    def _change(self, partition: Partition, standing: int) -> None:
        before = partition.standing
        if before == standing:
            return
        partition.standing = standing
        for bit, gauge in self._gauges.items():
            gauge.value += bool(standing & bit) - bool(before & bit)


def _standing(partition: Partition) -> int:
    """By the committed in-sync replicas. No more of them can be asked for than there are replicas."""
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
