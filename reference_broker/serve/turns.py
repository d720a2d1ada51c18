"""Whose request comes next. Connections that have sent several requests take turns, one request at a time."""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

REQUESTS_PER_PASS: Final = 32
"""How many requests are served before the event loop looks at its sockets again."""


class TakesTurns(Protocol):
    def take_turn(self) -> None:
        """Serves at most one request. Asks for another turn if more requests may be there."""
        ...


class Turns:
    """A queue of connections. A connection that has sent a thousand requests is served as often as one that has sent
    two.

    A request that arrives on a connection without a backlog does not queue. Its connection serves it when it arrives,
    which is between two passes. So it waits for at most one pass, whatever the others have sent.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[TakesTurns] = deque()
        self._pass_comes = False

    def add(self, connection: TakesTurns) -> None:
        """The connection must not be in the queue."""
        self._waiting.append(connection)
        self._ask_for_pass()

    def _ask_for_pass(self) -> None:
        if not self._pass_comes:
            self._pass_comes = True
            self._call_soon(self._pass)

    def _pass(self) -> None:
        for _ in range(REQUESTS_PER_PASS):
            if not self._waiting:
                break
            self._waiting.popleft().take_turn()
        self._pass_comes = False
        if self._waiting:
            self._ask_for_pass()
