"""metrics-exact: the three session metrics say after each event what is so (F-21)."""

from chaos.checks.check import Check
from chaos.trace import TraceRow
from reference_broker.core.events import Event
from reference_broker.core.node import Node

FEW_SESSIONS = 16
"""Up to so many sessions are counted through after every event, more only in the thorough comparison."""


class MetricsExact(Check):
    guarantee = "metrics-exact"

    def __init__(self) -> None:
        super().__init__()
        self._evictions: dict[tuple[int, int], int] = {}

    def trace(self, row: TraceRow) -> None:
        if row.what == "session_evicted":
            key = (row.node, row.incarnation)
            self._evictions[key] = self._evictions.get(key, 0) + 1

    def node(self, at_us: int, incarnation: int, node: Node, event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        cache = node.broker.fetch_sessions
        evictions = self._evictions.get((node.broker.node_id, incarnation), 0)
        counts = read_session_metrics(node)
        found = (counts[0], counts[2])
        wanted = (len(cache.sessions), evictions)
        if found != wanted:
            self.violated(at_us, f"metrics say (sessions, evictions) = {found}, there are {wanted}")
        if thorough or len(cache.sessions) <= FEW_SESSIONS:
            partitions = 0
            for session in cache.sessions.values():
                partitions += len(session.partitions)
            if counts[1] != partitions:
                self.violated(at_us, f"metrics say {counts[1]} cached partitions, there are {partitions}")


def read_session_metrics(node: Node) -> tuple[int, int, int]:
    """(sessions, cached partitions, evictions) as the node's registry shows them."""
    metrics, kind = node.broker.metrics, "FetchSessionCache"
    return (
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchSessions").value,
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchPartitionsCached").value,
        metrics.counter("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec").value,
    )
