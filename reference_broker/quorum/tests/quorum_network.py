"""Links between the nodes of a test: slow, lossy, cut in one or both directions. Requests of one channel keep their
order; a channel breaks as a whole, as connections do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_broker.quorum.tests.quorum_world import Process, World

LATENCY_US = (300, 3_000)


@dataclass
class SentRequest:
    api_key: int
    body: object
    replied: Callable[[object], None]
    failed: Callable[[], None]
    open: bool = True


@dataclass
class Connection:
    """From one node's life to another's. ``queue``: arrived, not begun; ``busy``: one is being answered."""

    source: "Process"
    target: int
    requests: list[SentRequest] = field(default_factory=list)
    queue: list[SentRequest] = field(default_factory=list)
    busy: bool = False
    broken: bool = False


class Network:
    """``cut``: directed pairs that let nothing through. ``loss``: how many of 1000 messages vanish."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.cut: dict[tuple[int, int], bool] = {}
        self.loss = 0
        self.connections: dict[tuple[int, int], Connection] = {}

    def lets(self, source: int, target: int) -> bool:
        return (source, target) not in self.cut

    def heal(self) -> None:
        self.cut.clear()
        self.loss = 0

    def isolate(self, node: int) -> None:
        for other in self.world.ids:
            if other != node:
                self.cut[node, other] = self.cut[other, node] = True

    def send(self, source: "Process", target: int, request: SentRequest, timeout_us: int) -> None:
        key = (source.node_id, target)
        connection = self.connections.get(key)
        if connection is None or connection.broken or connection.source is not source:
            connection = self.connections[key] = Connection(source, target)
        connection.requests.append(request)
        one = connection
        self.world.after(timeout_us, lambda: self._break(one) if request.open else None)
        self._carry(source.node_id, target, lambda: self._arrive(one, request))

    def dropped(self, node: int) -> None:
        """A process died: its connections end; who still lives learns of it if the link lets that through."""
        for (source, target), connection in list(self.connections.items()):
            if node in (source, target) and not connection.broken:
                self._carry(target, source, partial(self._break, connection))

    def _carry(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        random = self.world.random
        if not self.lets(source, target) or random.randrange(1000) < self.loss:
            return
        self.world.after(random.randrange(*LATENCY_US), lambda: arrive() if self.lets(source, target) else None)

    def _arrive(self, connection: Connection, request: SentRequest) -> None:
        if connection.broken:
            return
        target = self.world.processes.get(connection.target)
        if target is None:
            self._carry(connection.target, connection.source.node_id, lambda: self._break(connection))
            return
        connection.queue.append(request)
        self._next(connection, target)

    def _next(self, connection: Connection, target: "Process") -> None:
        if connection.busy or not connection.queue or connection.broken:
            return
        connection.busy = True
        request = connection.queue.pop(0)

        def answer(body: object) -> None:
            self.world.answered(target, connection.source.node_id, request, body)
            connection.busy = False
            self._carry(connection.target, connection.source.node_id, lambda: self._reply(connection, request, body))
            self.world.after(0, lambda: self._next(connection, target))

        target.deliver(lambda: target.serve(request, answer))

    def _reply(self, connection: Connection, request: SentRequest, body: object) -> None:
        if request.open and not connection.broken:
            request.open = False
            connection.requests.remove(request)
            connection.source.deliver(lambda: request.replied(body))

    def _break(self, connection: Connection) -> None:
        if connection.broken:
            return
        connection.broken = True
        lost, connection.requests = connection.requests, []
        for request in lost:
            request.open = False

        def fail() -> None:
            for request in lost:
                request.failed()

        connection.source.deliver(fail)
