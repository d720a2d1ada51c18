"""Whose request comes next: connections take turns, one request at a time."""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from time import thread_time
from typing import Final, Protocol

LIGHT_S: Final = 0.016
"""How much processor time LIGHT requests and those of nodes get in one turn of the event loop, with those that are
served when they arrive. A pass gives them half of it at least."""
PASS_S: Final = 0.004
"""How much NEW requests and backlogs get, and how much FETCH gets."""
HEAVY_BYTES: Final = 128 << 10
"""A connection is heavy if its last requests and their answers were larger."""


class Queue(Enum):
    """What is known of a connection's next request."""

    NODE = auto()
    """It comes from another node."""
    LIGHT = auto()
    """It is the only one of its connection, and came when there was no time for it."""
    FETCH = auto()
    """It is the only one of its connection, and begins to fetch. It may ask for all records of a topic."""
    NEW = auto()
    """It is the connection's first one, and asks for the versions, as clients do first. That takes no time."""
    BACKLOG = auto()
    """It is another first one, or came while earlier ones of its connection were waiting or were served."""
    HEAVY = auto()


class Loop(Protocol):
    """What this file needs of an event loop."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...


class TakesTurns(Protocol):
    closed: bool

    @property
    def must_wait(self) -> bool:
        """Whether its memory budget is full."""
        ...

    def take_turn(self) -> None:
        """Serves at most one request. Asks for another turn if more requests may be there."""
        ...


class Turns:
    """Queues of connections. One that has sent a thousand requests is served as often as one that has sent two.

    A client that waits for each answer before it asks again has no backlog. Its request is served when it arrives
    (``may_serve_now``), as long as such requests have taken less than LIGHT_S in this turn of the event loop, and none
    waits from before. Further ones queue as LIGHT, and a pass serves them before others: so they wait for each other,
    in their order, and for no backlog.

    A pass comes once in a turn of the event loop. Nodes and LIGHT requests share what arrivals left of LIGHT_S. NEW
    ones and backlogs share PASS_S. So neither a flood of new connections nor a thousand backlogs keep the others out.
    Then come large requests: one pass serves FETCH for PASS_S, and the next one serves a single HEAVY connection, since
    one large fetch takes as long as hundreds of small requests. At least one of each queue is served, even if the first
    of them takes the whole time.
    """

    def __init__(self, loop: Loop, clock_s: Callable[[], float] = thread_time) -> None:
        self._loop = loop
        self._clock_s = clock_s
        self._queues: dict[Queue, deque[TakesTurns]] = {each: deque() for each in Queue}
        self._pass_comes = False
        self._is_held_up = False
        self._large = Queue.FETCH
        """FETCH or HEAVY: the one that comes first in the next pass."""
        self._turn_goes_on = False
        self._arrivals_end_s: float | None = None
        """The processor time at which LIGHT_S is over for this turn. None before its first arrival."""

    def may_serve_now(self) -> bool:
        """Whether a request that has just arrived on a light connection is served before the next pass.

        The event loop calls back for all sockets that are readable before it runs what ``call_soon`` was given. So that
        ends the turn. (uvloop's ``time`` cannot tell turns apart: it goes on while sockets are called back.)
        """
        if not self._turn_goes_on:
            self._turn_goes_on = True
            self._loop.call_soon(self._end_turn)
            self._arrivals_end_s = None
        if self._queues[Queue.LIGHT]:
            return False
        if self._arrivals_end_s is None:
            self._arrivals_end_s = self._clock_s() + LIGHT_S
            return True
        return self._clock_s() < self._arrivals_end_s

    def _end_turn(self) -> None:
        self._turn_goes_on = False

    def add(self, connection: TakesTurns, queue: Queue) -> None:
        """The connection must not be in a queue."""
        self._queues[queue].append(connection)
        self._ask_for_pass()

    def memory_is_free(self) -> None:
        """A pass that could serve nobody, because the memory budget was full, is made up for. Before the next pass
        others may come and take the memory."""
        if self._is_held_up:
            self._is_held_up = not self._serve()

    def _ask_for_pass(self) -> None:
        if not self._pass_comes:
            self._pass_comes = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        try:
            self._is_held_up = not self._serve()
        finally:  # A bug in one turn must not keep the others waiting for ever.
            self._pass_comes = False
            if any(self._queues.values()):
                self._ask_for_pass()

    def _serve(self) -> bool:
        """Returns whether anybody was served."""
        now_s, arrivals_end_s, self._arrivals_end_s = self._clock_s(), self._arrivals_end_s, None
        light_ends_s = now_s + LIGHT_S if arrivals_end_s is None else max(arrivals_end_s, now_s + LIGHT_S / 2)
        return (
            self._share(Queue.NODE, Queue.LIGHT, light_ends_s)
            | self._share(Queue.NEW, Queue.BACKLOG, self._clock_s() + PASS_S)
            | self._serve_large()
        )

    def _serve_large(self) -> bool:
        """The queue that comes first the next time is the other one."""
        for _ in range(2):
            queue, self._large = self._large, Queue.HEAVY if self._large is Queue.FETCH else Queue.FETCH
            if (
                self._serve_next(Queue.HEAVY)
                if queue is Queue.HEAVY
                else self._share(queue, None, self._clock_s() + PASS_S)
            ):
                return True
        return False

    def _share(self, one: Queue, other: Queue | None, ends_s: float) -> bool:
        was_served = False
        while self._serve_next(one) | (other is not None and self._serve_next(other)):
            was_served = True
            if self._clock_s() >= ends_s:
                break
        return was_served

    def _serve_next(self, queue: Queue) -> bool:
        """Passes over connections that closed while they waited. Returns whether one was served."""
        waiting = self._queues[queue]
        while waiting:
            connection = waiting[0]
            if not connection.closed and connection.must_wait:
                return False
            waiting.popleft()
            if not connection.closed:
                connection.take_turn()
                return True
        return False
