"""Responses for Toxiproxy to lose. Their sender holds them until a toxic is on the way to the clients.

The sender is a live node, or the frame proxy in front of one.

1. A rule hits a response (fault ``response_lost_by_proxy``). It is held here, and the runner reads its row.
2. The runner adds the toxic and orders ``toxic = true``. The held responses are sent, and the toxic swallows them and
   closes their connections.
3. When these are closed, one line of evidence lists the lost responses. The runner removes the toxic and orders
   ``toxic = false``.

From the first hold to the end all other responses to clients wait too, because a toxic does not distinguish responses.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from reference_broker.core.events import Closed, Effect, Event, Reply
from reference_broker.ports.node_ports import Now
from reports.rows import FaultRow

CLOSE_LIMIT_S = 1.0
"""A response has passed the toxic if its connection is still open after this time."""
LostKeys: TypeAlias = list[tuple[str, int, str]]
"""Fault, hit and client ID of each lost response."""


def pass_none() -> None:
    """Pass nothing, for a sender whose other responses wait here."""


class HeldResponses:
    """Implements core.events.Hooks, for a node: it comes behind the interceptor. All methods but ``toxic`` and
    ``disarm`` are called in the sender's event loop.

    ``send`` sends a reply without passing the hooks again, and ``report_lost`` takes the evidence. ``let_pass`` is
    called when other responses may pass again, for a sender that checks ``waits`` itself.
    """

    def __init__(
        self,
        send: Callable[[Reply], None],
        report_lost: Callable[[LostKeys], None],
        let_pass: Callable[[], None] = pass_none,
    ) -> None:
        self._send = send
        self._report_lost = report_lost
        self._let_pass = let_pass
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[int, tuple[FaultRow, Reply]] = {}  # by connection; a connection has one response at a time
        self._sent: dict[int, FaultRow] = {}
        self._lost: list[FaultRow] = []
        self._others: list[Reply] = []
        self._is_poisoned = False
        self._is_over = False

    def hold(self, row: FaultRow, reply: Reply) -> None:
        """Take a response that a rule has hit. ``row`` is the evidence of that hit."""
        self._loop = asyncio.get_running_loop()
        if self._is_over:
            self._send(reply)
        else:
            self._held[reply.connection] = (row, reply)

    @property
    def waits(self) -> bool:
        """Return whether other responses to clients must wait now."""
        return bool(self._held) or self._is_poisoned

    def closed(self, connection: int) -> None:
        """Note the end of a connection. That of a held response was ended by its client."""
        self._held.pop(connection, None)
        row = self._sent.pop(connection, None)
        if row is not None:
            self._lost.append(row)
            self._report_if_done()

    def before(self, now: Now, event: Event) -> Sequence[Event]:  # noqa: ARG002
        if isinstance(event, Closed):
            self.closed(event.connection)
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        if not self.waits:
            return effects
        passed: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Reply) and effect.tag.role == "client":
                self._others.append(effect)
            else:
                passed.append(effect)
        return passed

    # Commands of the runner, from any thread.

    def toxic(self, is_on: bool) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._toxic_added if is_on else self._toxic_removed)

    def disarm(self) -> None:
        """Note that the load is over. Nothing is held any more."""
        self._is_over = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._release)

    def _toxic_added(self) -> None:
        assert self._loop is not None
        self._is_poisoned = True
        held, self._held = self._held, {}
        for connection, (row, reply) in held.items():
            self._sent[connection] = row
            self._send(reply)
        self._loop.call_later(CLOSE_LIMIT_S, self._expire, list(held))
        self._report_if_done()

    def _expire(self, connections: Sequence[int]) -> None:
        late = [self._sent.pop(connection, None) for connection in connections]
        if any(late):
            self._report_if_done()

    def _report_if_done(self) -> None:
        if self._is_poisoned and not self._sent:
            lost, self._lost = self._lost, []
            self._report_lost([(row.name, row.hit, row.client_id) for row in lost])

    def _toxic_removed(self) -> None:
        self._is_poisoned = False
        self._release()

    def _release(self) -> None:
        """Send what waits behind the toxic. Responses that rules have hit since then are held on, unless the load is
        over."""
        if self._is_poisoned:
            return
        held = {}
        if self._is_over:
            held, self._held = self._held, {}
        others, self._others = self._others, []
        for reply in (*others, *(reply for _, reply in held.values())):
            self._send(reply)
        self._let_pass()
