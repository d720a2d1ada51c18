"""Whose request comes next. Connections that have sent several requests take turns, one request at a time."""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

REQUESTS_PER_PASS: Final = 32
"""How many requests are served before the event loop looks at its sockets again."""


HEAVY_BYTES: Final = 128 << 10
"""A connection is heavy if its last request and answer together were larger, or if it was never served."""


class TakesTurns(Protocol):
    @property
    def is_heavy(self) -> bool: ...

    def take_turn(self) -> None:
        """Serves at most one request. Asks for another turn if more requests may be there."""
        ...


class Turns:
    """A queue of connections. A connection that has sent a thousand requests is served as often as one that has sent
    two.

    A request that arrives on a light connection without a backlog does not queue. Its connection serves it when it
    arrives, which is between two passes. So it waits for at most one pass, whatever the others have sent. A pass serves
    one heavy connection, since a single fetch of 50 MiB takes as long as hundreds of small requests. Who was never
    served counts as heavy, so that new connections cannot keep out those that behave well.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._light: deque[TakesTurns] = deque()
        self._heavy: deque[TakesTurns] = deque()
        self._pass_comes = False

    def add(self, connection: TakesTurns) -> None:
        """The connection must not be in the queue."""
        (self._heavy if connection.is_heavy else self._light).append(connection)
        self._ask_for_pass()

    def _ask_for_pass(self) -> None:
        if not self._pass_comes:
            self._pass_comes = True
            self._call_soon(self._pass)

    def _pass(self) -> None:
        try:
            if self._heavy:
                self._heavy.popleft().take_turn()
            for _ in range(REQUESTS_PER_PASS - 1):
                if not self._light:
                    break
                self._light.popleft().take_turn()
        finally:  # A bug in one turn must not keep the others waiting for ever.
            self._pass_comes = False
            if self._light or self._heavy:
                self._ask_for_pass()
