"""The counters of a node's traffic, named as Kafka's BrokerTopicMetrics. They are looked up once and updated on the hot
path."""

from dataclasses import dataclass

from reference_broker.metrics.metrics import Counter, Metrics


@dataclass(frozen=True, slots=True)
class Traffic:
    bytes_in: Counter
    bytes_out: Counter
    messages_in: Counter
    failed_produce_requests: Counter
    failed_fetch_requests: Counter

    @staticmethod
    def of(metrics: Metrics) -> "Traffic":
        def meter(name: str) -> Counter:
            return metrics.counter("kafka.server", "BrokerTopicMetrics", name)

        return Traffic(
            meter("BytesInPerSec"),
            meter("BytesOutPerSec"),
            meter("MessagesInPerSec"),
            meter("FailedProduceRequestsPerSec"),
            meter("FailedFetchRequestsPerSec"),
        )
