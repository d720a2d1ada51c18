"""Whose request comes next. Connections that have sent several requests take turns, one request at a time."""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from time import thread_time
from typing import Final, Protocol

REQUESTS_PER_PASS: Final = 128
"""How many requests are served before the event loop looks at its sockets again."""
PASS_S: Final = 0.005
"""A pass that has taken so much processor time serves no more requests, but for the first of each queue."""
HEAVY_BYTES: Final = 128 << 10
"""A connection is heavy if its last requests and their answers were larger."""


class Queue(Enum):
    """What is known of a connection's next request."""

    NEW = auto()
    """It is the connection's first one, and is small."""
    LIGHT = auto()
    HEAVY = auto()


class TakesTurns(Protocol):
    closed: bool

    @property
    def queue(self) -> Queue: ...

    def take_turn(self) -> None:
        """Serves at most one request. Asks for another turn if more requests may be there."""
        ...


class Turns:
    """Three queues of connections. A connection that has sent a thousand requests is served as often as one that has
    sent two.

    A request that arrives on a light connection without a backlog does not queue. Its connection serves it when it
    arrives, which is between two passes. So it waits for at most one pass, whatever the others have sent. A pass serves
    one heavy connection, since a single large fetch takes as long as hundreds of small requests. The rest of it is
    shared by new connections and light ones: neither a flood of new ones nor a thousand backlogs keep the others out.
    Every pass serves at least one connection of each queue, even if the first of them takes the whole time of the pass.
    """

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock_s: Callable[[], float] = thread_time
    ) -> None:
        self._call_soon = call_soon
        self._clock_s = clock_s
        self._queues: dict[Queue, deque[TakesTurns]] = {each: deque() for each in Queue}
        self._pass_comes = False

    def add(self, connection: TakesTurns) -> None:
        """The connection must not be in a queue."""
        self._queues[connection.queue].append(connection)
        self._ask_for_pass()

    def _ask_for_pass(self) -> None:
        if not self._pass_comes:
            self._pass_comes = True
            self._call_soon(self._pass)

    def _pass(self) -> None:
        heavy, new, light = self._queues[Queue.HEAVY], self._queues[Queue.NEW], self._queues[Queue.LIGHT]
        ends_s = self._clock_s() + PASS_S
        try:
            for each in (heavy, new, light):
                self._serve_next(each)
            for number in range(REQUESTS_PER_PASS - 3):
                first, second = (light, new) if number % 2 else (new, light)
                if self._clock_s() >= ends_s or not (self._serve_next(first) or self._serve_next(second)):
                    break
        finally:  # A bug in one turn must not keep the others waiting for ever.
            self._pass_comes = False
            if any(self._queues.values()):
                self._ask_for_pass()

    def _serve_next(self, queue: deque[TakesTurns]) -> bool:
        """Passes over connections that closed while they waited. Returns whether one was served."""
        while queue:
            connection = queue.popleft()
            if not connection.closed:
                connection.take_turn()
                return True
        return False
