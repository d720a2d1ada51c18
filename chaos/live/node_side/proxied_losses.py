"""Responses that Toxiproxy shall lose: the node holds them until a toxic is on the clients' link, and sends them then.

1. A rule hits a response (fault ``response_lost_by_proxy``). It is held here, and the runner reads its row.
2. The runner adds the toxic and orders ``toxic = true``. The held responses are sent, and the toxic swallows them and
   closes their connections.
3. When these are closed, one line of evidence says which responses that were. The runner removes the toxic and orders
   ``toxic = false``.

From the first hold to the end all other responses to clients wait too, because a toxic cannot tell responses apart.
"""

import asyncio
from collections.abc import Callable, Sequence

from chaos.hooks.trace import PassiveHook
from chaos.live.node_side.evidence import LOST_BY_PROXY, Evidence
from reference_broker.core.events import Closed, Effect, Event, Reply
from reference_broker.ports.node_ports import Now
from reports.rows import FaultRow

CLOSE_LIMIT_S = 1.0
"""A response whose connection is still open after this time has passed, whatever the toxic should have done."""


class ProxiedLosses(PassiveHook):
    """``send`` sends a reply without passing the hooks again. This hook comes behind the interceptor's."""

    def __init__(self, send: Callable[[Reply], None], evidence: Evidence) -> None:
        self._send = send
        self._evidence = evidence
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[int, tuple[FaultRow, Reply]] = {}  # by connection; a connection has one response at a time
        self._sent: dict[int, FaultRow] = {}
        self._lost: list[FaultRow] = []
        self._others: list[Reply] = []
        self._is_poisoned = False
        self._is_over = False

    # In the node's thread.

    def hold(self, row: FaultRow, reply: Reply) -> None:
        """Takes a response that a rule has hit. ``row`` is the evidence of that hit."""
        self._loop = asyncio.get_running_loop()
        if self._is_over:
            self._send(reply)
        else:
            self._held[reply.connection] = (row, reply)

    def before(self, now: Now, event: Event) -> Sequence[Event]:  # noqa: ARG002
        if isinstance(event, Closed):
            self._held.pop(event.connection, None)  # Its client has left by itself.
            row = self._sent.pop(event.connection, None)
            if row is not None:
                self._lost.append(row)
                self._report_if_done()
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        if not self._held and not self._is_poisoned:
            return effects
        passed: list[Effect] = []
        for effect in effects:
            waits = isinstance(effect, Reply) and effect.tag.role == "client"
            (self._others if waits else passed).append(effect)  # type: ignore[arg-type]
        return passed

    # Orders of the runner, in a thread of their own.

    def toxic(self, is_on: bool) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._toxic_added if is_on else self._toxic_removed)

    def disarm(self) -> None:
        """Notes that the load is over. Nothing is held any more."""
        self._is_over = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._release_all)

    def _toxic_added(self) -> None:
        assert self._loop is not None
        self._is_poisoned = True
        held, self._held = self._held, {}
        for connection, (row, reply) in held.items():
            self._sent[connection] = row
            self._send(reply)
        self._loop.call_later(CLOSE_LIMIT_S, self._no_longer, list(held))
        self._report_if_done()

    def _no_longer(self, connections: Sequence[int]) -> None:
        if any(self._sent.pop(each, None) is not None for each in connections):
            self._report_if_done()

    def _report_if_done(self) -> None:
        if self._is_poisoned and not self._sent:
            lost, self._lost = self._lost, []
            self._evidence.tell(LOST_BY_PROXY, [[row.name, row.hit, row.client_id] for row in lost])

    def _toxic_removed(self) -> None:
        self._is_poisoned = False
        self._release_all()

    def _release_all(self) -> None:
        """Sends what waits behind the toxic. Responses that rules have hit since then are held on, unless the load is
        over."""
        if self._is_poisoned:
            return
        others, self._others = self._others, []
        for reply in others:
            self._send(reply)
        if self._is_over:
            held, self._held = self._held, {}
            for _, reply in held.values():
                self._send(reply)
