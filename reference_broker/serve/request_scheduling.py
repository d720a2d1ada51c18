"""Fair scheduling within one turn of the event loop: of requests, received bytes and large messages.

``RequestScheduler`` orders the requests of connections, and ``ReceiveBudget`` bounds the bytes that are received.
``LargeMessages`` decodes large requests, and encodes large responses, a few milliseconds at a time.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum, auto
from time import thread_time
from typing import Final, Protocol

LIGHT_S: Final = 0.016
"""Processor time of LIGHT requests and those of nodes in one turn of the event loop, including those that are served
when they arrive. A pass gives them half of it at least."""
PASS_S: Final = 0.004
"""Processor time of NEW requests and backlogs, and of FETCH, in one turn of the event loop."""
HEAVY_BYTES: Final = 128 << 10
"""A connection is heavy if its last requests and their responses were larger."""


class Queue(Enum):
    """The queues of connections, by their next request."""

    NODE = auto()
    """The request comes from another node."""
    LIGHT = auto()
    """The request is the only one of its connection, and came when there was no time for it."""
    FETCH = auto()
    """The request is the only one of its connection, and begins to fetch. It may request all records of a topic."""
    NEW = auto()
    """The request is the connection's first one, an ApiVersions request, with which clients begin. It takes no time."""
    BACKLOG = auto()
    """The request is another first one, or came while earlier ones of its connection were waiting or were served."""
    HEAVY = auto()


class Loop(Protocol):
    """The part of an event loop that ``RequestScheduler`` needs."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...


class Schedulable(Protocol):
    closed: bool

    @property
    def must_wait(self) -> bool:
        """Whether its memory budget is full."""
        ...

    def take_turn(self) -> None:
        """Serve at most one request. Queue for another turn if there may be more requests."""
        ...


class RequestScheduler:
    """Queues of connections. One that has sent a thousand requests is served as often as one that has sent two.

    A client that waits for each response before its next request has no backlog. Its request is served when it arrives
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
        self._queues: dict[Queue, deque[Schedulable]] = {each: deque() for each in Queue}
        self._pass_comes = False
        self._is_held_up = False
        self._large = Queue.FETCH
        """FETCH or HEAVY: the one that comes first in the next pass."""
        self._turn_goes_on = False
        self._arrivals_end_s: float | None = None
        """The processor time at which LIGHT_S is over for this turn. None before its first arrival."""

    def may_serve_now(self) -> bool:
        """Return whether a request that has just arrived on a light connection is served before the next pass.

        The event loop calls back for all sockets that are readable before it runs what ``call_soon`` was given. So that
        ends the turn. (uvloop's ``time`` cannot distinguish turns: it goes on while sockets are called back.)
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

    def add(self, connection: Schedulable, queue: Queue) -> None:
        """The connection must not be in a queue."""
        self._queues[queue].append(connection)
        self._schedule_pass()

    def memory_is_free(self) -> None:
        """Repeat a pass that could serve nobody because the memory budget was full. Before the next pass others may
        come and take the memory."""
        if self._is_held_up:
            self._is_held_up = not self._serve()

    def _schedule_pass(self) -> None:
        if not self._pass_comes:
            self._pass_comes = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        try:
            self._is_held_up = not self._serve()
        finally:  # A bug in one turn must not keep the others waiting for ever.
            self._pass_comes = False
            if any(self._queues.values()):
                self._schedule_pass()

    def _serve(self) -> bool:
        """Return whether anybody was served."""
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
        """Serve the first connection that has not closed meanwhile. Return whether one was served."""
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


COUNTED_FROM_BYTES: Final = 32 << 10
"""Smaller pieces are not counted: they are requests, and most are served at once."""
MAX_BYTES: Final = 4 << 20
"""Taking a MiB of an unfinished frame costs about a millisecond."""
PIECE_BYTES: Final = 256 << 10
"""uvloop receives no more at once."""


class Receives(Protocol):
    closed: bool

    def hold_back(self) -> None:
        """Stop receiving."""
        ...

    def receive_on(self) -> None: ...


class ReceiveBudget:
    """When hundreds of peers send large frames at the same time, those beyond MAX_BYTES take turns to be received.

    A few that send at full speed are never held back.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._bytes = 0
        self._held_back: deque[Receives] = deque()
        self._turn_comes = False

    def took(self, connection: Receives, size_bytes: int) -> None:
        """The connection received a piece, and may be held back now. It must not be held back already."""
        self._bytes += size_bytes
        self._schedule_turn()
        if self._bytes > MAX_BYTES:
            connection.hold_back()
            self._held_back.append(connection)

    def _schedule_turn(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_comes = False
        self._bytes = 0
        for _ in range(min(len(self._held_back), MAX_BYTES // PIECE_BYTES)):
            connection = self._held_back.popleft()
            if not connection.closed:
                connection.receive_on()
        if self._held_back:
            self._schedule_turn()


OLDEST_EACH: Final = 8
"""Every eighth step goes to the oldest work, so that small pieces without end do not keep a large one out."""


class Owner(Hashable, Protocol):
    """The owner of a piece of work: a connection."""

    of_node: bool
    """Whether another node is at the other end."""


class LargeMessages:
    """Large messages that are being decoded or encoded, a piece of work for each. One step of one piece is done before
    the event loop polls its sockets again, whatever the number of pieces.

    The pieces do not take turns, since then all of them would be nearly complete at once, with all their memory. The
    work of nodes comes first, then the smaller piece. Sizes are compared by their power of two. Of one power, the
    piece that has begun comes first. So there is one unfinished piece of each power at most, and together they are less
    than twice as large as the largest. The piece that came first gets some steps, too (OLDEST_EACH).
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._pieces: dict[Owner, Piece] = {}
        """Oldest first."""
        self._added = 0
        self._steps = 0
        self._step_comes = False

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, owner: Owner, work: Iterator[None], size_bytes: int, has_begun: bool = False) -> None:
        """``work`` yields after each step. It must not raise. ``has_begun`` says that it holds memory already. A
        connection has one request at a time, and so one piece of work."""
        self._added += 1
        self._pieces[owner] = Piece(work, not owner.of_node, size_bytes, self._added, has_begun)
        self._schedule_step()

    def drop(self, owner: Owner) -> None:
        """Drop the work of a connection that is gone."""
        self._pieces.pop(owner, None)

    def _schedule_step(self) -> None:
        if not self._step_comes:
            self._step_comes = True
            self._call_soon(self._step)

    def _step(self) -> None:
        self._step_comes = False
        if not self._pieces:
            return
        self._steps += 1
        owner = next(iter(self._pieces)) if self._steps % OLDEST_EACH == 0 else min(self._pieces, key=self._rank)
        piece = self._pieces[owner]
        is_over = True
        try:
            for _ in piece.work:
                is_over = False
                break
        finally:  # A bug in one piece of work must not hold up the others.
            if not is_over:
                piece.begins()
            elif self._pieces.get(owner) is piece:
                del self._pieces[owner]
            if self._pieces:
                self._schedule_step()

    def _rank(self, owner: Owner) -> tuple[bool, int, int, int]:
        return self._pieces[owner].rank


class Piece:
    """The piece of the lowest ``rank`` comes first."""

    __slots__ = ("rank", "work")

    def __init__(self, work: Iterator[None], of_client: bool, size_bytes: int, number: int, has_begun: bool) -> None:
        self.work = work
        self.rank = (of_client, size_bytes.bit_length(), size_bytes, number)
        if has_begun:
            self.begins()

    def begins(self) -> None:
        of_client, power, _, number = self.rank
        self.rank = (of_client, power, 0, number)
