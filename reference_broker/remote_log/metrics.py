"""Metrics of the remote tier (Kafka's RemoteStorageMetrics)."""

from dataclasses import dataclass

from reference_broker.metrics.metrics import Counter, Gauge, Metrics

_DOMAIN, _KIND = "kafka.server", "BrokerTopicMetrics"


@dataclass(frozen=True, slots=True)
class RemoteLogMetrics:
    """Kafka also has each of them by topic. Here they are for all topics together."""

    copied_bytes: Counter
    copy_requests: Counter
    copy_errors: Counter
    copy_lag_bytes: Gauge
    """Number of bytes of closed segments that are not listed yet, over the partitions that are led here."""
    copy_lag_segments: Gauge
    fetched_bytes: Counter
    fetch_requests: Counter
    fetch_errors: Counter
    auxiliary_requests: Counter
    auxiliary_errors: Counter
    delete_requests: Counter
    delete_errors: Counter
    metadata_count: Gauge
    """Number of known segments that may have objects, over the partitions that are led here."""
    size_bytes: Gauge
    """Bytes of the segments that are listed."""
    delete_lag_bytes: Gauge
    """Bytes of the segments that are due to be deleted."""
    delete_lag_segments: Gauge

    @staticmethod
    def of(metrics: Metrics) -> "RemoteLogMetrics":
        def meter(name: str) -> Counter:
            return metrics.counter(_DOMAIN, _KIND, name)

        return RemoteLogMetrics(
            meter("RemoteCopyBytesPerSec"),
            meter("RemoteCopyRequestsPerSec"),
            meter("RemoteCopyErrorsPerSec"),
            metrics.gauge(_DOMAIN, _KIND, "RemoteCopyLagBytes"),
            metrics.gauge(_DOMAIN, _KIND, "RemoteCopyLagSegments"),
            meter("RemoteFetchBytesPerSec"),
            meter("RemoteFetchRequestsPerSec"),
            meter("RemoteFetchErrorsPerSec"),
            meter("BuildRemoteLogAuxStateRequestsPerSec"),
            meter("BuildRemoteLogAuxStateErrorsPerSec"),
            meter("RemoteDeleteRequestsPerSec"),
            meter("RemoteDeleteErrorsPerSec"),
            metrics.gauge(_DOMAIN, _KIND, "RemoteLogMetadataCount"),
            metrics.gauge(_DOMAIN, _KIND, "RemoteLogSizeBytes"),
            metrics.gauge(_DOMAIN, _KIND, "RemoteDeleteLagBytes"),
            metrics.gauge(_DOMAIN, _KIND, "RemoteDeleteLagSegments"),
        )
