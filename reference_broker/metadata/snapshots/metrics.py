"""The metrics of snapshots, under the names of KIP-630 (S-14). It also writes the trace's line for each load."""

from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Ports
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.values import OffsetAndEpoch

DOMAIN, KIND = "kafka.controller", "KafkaController"


class SnapshotMetrics:
    """Measures latencies in milliseconds. Loading is measured from the first slice to the last, and making a snapshot
    from the first slice until it is durable and renamed."""

    def __init__(self, ports: Ports, store: SnapshotStore, metrics: Metrics) -> None:
        self._ports = ports
        self._store = store
        self._generated_ms = metrics.histogram(DOMAIN, KIND, "GenSnapshotLatencyMs")
        self._loaded_ms = metrics.histogram(DOMAIN, KIND, "LoadSnapshotLatencyMs")
        self._size_bytes = metrics.gauge(DOMAIN, KIND, "SnapshotSizeBytes")
        store.on_added = self._show_size
        self._show_size()

    def generated(self, latency_us: int) -> None:
        self._generated_ms.record(latency_us // 1000)

    def _show_size(self) -> None:
        """Sets the size to that of the newest snapshot, or to 0 without one."""
        latest = self._store.latest
        self._size_bytes.value = 0 if latest is None else self._store.size(latest)

    def loaded(self, snapshot: OffsetAndEpoch, latency_us: int) -> None:
        self._loaded_ms.record(latency_us // 1000)
        self._ports.note("snapshot_loaded", ("end_offset", snapshot.offset), ("epoch", snapshot.epoch))
