from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.fetch_model import FETCH
from chaos.checks.surroundings import Surroundings
from reference_broker.core.events import Event, Request
from reference_broker.metrics.metrics import Counter, Gauge
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FEW_SESSIONS = 16
"""If there are more sessions than this, their partitions are counted only in the thorough comparison, because to count
them after each event takes too long. The number of sessions and of evictions is compared after each event."""

_Numbers = tuple[Gauge, Gauge, Counter]


class MetricsExact(Check):
    """metrics-exact: after each event the three session metrics show the true numbers (F-21)."""

    guarantee = "metrics-exact"
    needs_one_node = True
    rows = ("session_evicted",)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._evictions: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[int, int], _Numbers] = {}
        self._sessions: dict[int, int] = {}

    def trace(self, row: TraceRow) -> None:
        if row.what == "session_evicted":
            key = (row.node, row.incarnation)
            self._evictions[key] = self._evictions.get(key, 0) + 1

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        node_id = node.broker.node_id
        key = (node_id, incarnation)
        numbers = self._numbers.get(key)
        if numbers is None:
            numbers = self._numbers[key] = session_metrics(node)
        sessions = node.broker.fetch_sessions.sessions
        count, evictions = len(sessions), self._evictions.get(key, 0)
        if numbers[0].value != count or numbers[2].value != evictions:
            found = (numbers[0].value, numbers[2].value)
            self.violated(at_us, f"metrics say (sessions, evictions) = {found}, there are {(count, evictions)}")
        fetched = type(event) is Request and event.api_key == FETCH and event.tag.role == "client"
        touched = fetched or event is None or self._sessions.get(node_id) != count
        if thorough or (touched and count <= FEW_SESSIONS):
            self._sessions[node_id] = count
            partitions = sum(len(session.partitions) for session in sessions.values())
            if numbers[1].value != partitions:
                self.violated(at_us, f"metrics say {numbers[1].value} cached partitions, there are {partitions}")


def session_metrics(node: "Node") -> _Numbers:
    """Returns sessions, cached partitions and evictions as the node's registry shows them."""
    metrics, kind = node.broker.metrics, "FetchSessionCache"
    return (
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchSessions"),
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchPartitionsCached"),
        metrics.counter("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec"),
    )
