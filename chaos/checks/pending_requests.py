"""Requests whose responses a check awaits."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from chaos.checks.history import without_node
from reference_broker.core.events import Reply, Request

T = TypeVar("T")


class PendingRequests(Generic[T]):
    """A check's values for pending requests, by node and connection, then by correlation ID."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], dict[int, T]] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, node_id: int, request: Request, kept: T) -> None:
        of_connection = self._pending.get((node_id, request.connection))
        if of_connection is None:
            self._pending[node_id, request.connection] = {request.correlation_id: kept}
        else:
            of_connection[request.correlation_id] = kept

    def pop(self, node_id: int, reply: Reply) -> T | None:
        """Remove and return what was kept of the request that this is the reply to."""
        kept = self._pending.get((node_id, reply.connection))
        return None if kept is None else kept.pop(reply.correlation_id, None)

    def get(self, node_id: int, request: Request) -> T | None:
        """Return what was kept of the request, if it still waits."""
        kept = self._pending.get((node_id, request.connection))
        return None if kept is None else kept.get(request.correlation_id)

    def of_connection(self, node_id: int, connection: int) -> Sequence[T]:
        """Return what was kept of the connection's requests that still wait."""
        return list(self._pending.get((node_id, connection), {}).values())

    def of_node(self, node_id: int) -> Sequence[T]:
        """Return what was kept of the node's requests that still wait."""
        return [each for (of_node, _), kept in self._pending.items() if of_node == node_id for each in kept.values()]

    def all(self) -> Sequence[tuple[int, T]]:
        """Return what was kept of all requests that still wait, each with its node."""
        return [(node_id, each) for (node_id, _), kept in self._pending.items() for each in kept.values()]

    def closed(self, node_id: int, connection: int) -> None:
        self._pending.pop((node_id, connection), None)

    def restarted(self, node_id: int) -> None:
        self._pending = without_node(self._pending, node_id)
