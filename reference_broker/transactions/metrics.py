"""What a transaction coordinator counts, under Kafka's names. Kafka has no gauge of the partitions that load."""

from reference_broker.metrics.metrics import Metrics

_COORDINATOR = ("kafka.server", "transaction-coordinator-metrics")
_SENDER = ("kafka.coordinator.transaction", "TransactionMarkerChannelManager")


class TransactionMetrics:
    """The parts of the coordinator count here themselves."""

    def __init__(self, metrics: Metrics) -> None:
        self.loading = metrics.gauge(*_COORDINATOR, "num-partitions", state="loading")
        self.load_time_ms = metrics.histogram(*_COORDINATOR, "partition-load-time")
        self.waiting_completions = metrics.gauge(*_SENDER, "LogAppendRetryQueueSize")
        """Transactions whose completion could not be written and is written again soon."""
        self.waiting_markers = metrics.gauge(*_SENDER, "UnknownDestinationQueueSize")
        """Markers that are asked for again soon, because their leader is not known or did not take them."""
