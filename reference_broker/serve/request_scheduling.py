"""Fair scheduling within one turn of the event loop: of requests, received bytes and large messages.

``RequestHistory`` chooses the queue of a connection's next request, and ``RequestScheduler`` serves the queues.
``ReceiveBudget`` bounds the bytes that are received. ``LargeMessages`` decodes large requests, and encodes large
responses, a few milliseconds at a time.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum, auto
from time import thread_time
from typing import Final, Protocol

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.frames import FrameReader

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


SMALL_QUEUES: Final = (Queue.LIGHT, Queue.NEW)
"""The queues of requests that are small, as their responses are."""


class Past(Enum):
    """What a connection has requested so far."""

    NOTHING = auto()
    SMALL_FETCHES = auto()
    """It has sent a Fetch, and no request or response was heavy since."""
    OTHER = auto()


# Plain names, since Python 3.11 calls a function for ``Past.OTHER``.
_NOTHING, _SMALL_FETCHES, _OTHER = Past


class RequestHistory:
    """The past requests of a connection. Its next one is likely to be like them, so they choose its queue."""

    __slots__ = ("_past", "_weight_bytes")

    def __init__(self) -> None:
        self._past = Past.NOTHING
        self._weight_bytes = 0
        """Size of the last request and its response, or half of the previous value, if that is more. So one small
        request between two large ones does not make the connection light."""

    @property
    def is_empty(self) -> bool:
        return self._past is _NOTHING

    def requested(self, size_bytes: int, is_fetch: bool) -> None:
        self._weight_bytes = max(size_bytes, self._weight_bytes >> 1)
        if is_fetch:
            self._past = _SMALL_FETCHES
        elif self._past is _NOTHING:
            self._past = _OTHER

    def responded(self, size_bytes: int) -> None:
        """``size_bytes`` is the size of the last request and its response."""
        if self._weight_bytes < size_bytes:
            self._weight_bytes = size_bytes
            if size_bytes > HEAVY_BYTES:
                self._past = _OTHER

    def is_short(self, reader: FrameReader) -> bool:
        """Return whether the next request is likely to be served in little time: its connection was served before,
        nothing about it was large, and it does not begin to fetch now. A first fetch may request all records of a
        topic."""
        is_light = self._past is not _NOTHING and self._weight_bytes <= HEAVY_BYTES >= reader.buffered_bytes
        if not is_light or self._past is _SMALL_FETCHES:
            return is_light
        return not reader.has_frame() or reader.api_key() != ApiKey.FETCH

    def queue_of_next(self, reader: FrameReader, has_waited: bool) -> Queue:
        """Return the queue of a client's next request, which ``reader`` has. ``has_waited`` says whether the request,
        or a part of it, waited for an earlier one.

        A connection that begins with a fetch may begin with the largest response of all. Clients begin with
        ApiVersions.
        """
        if max(self._weight_bytes, reader.buffered_bytes) > HEAVY_BYTES:
            return Queue.HEAVY
        if self._past is not _NOTHING:
            if has_waited:
                return Queue.BACKLOG
            return Queue.LIGHT if self.is_short(reader) else Queue.FETCH
        api_key = reader.api_key()
        if api_key == ApiKey.FETCH:
            return Queue.HEAVY
        return Queue.NEW if api_key == ApiKey.API_VERSIONS else Queue.BACKLOG


class Loop(Protocol):
    """The part of an event loop that ``RequestScheduler`` needs."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...


class Schedulable(Protocol):
    def must_wait(self, queue: Queue) -> bool:
        """Return whether its request must stay in its queue, since its memory budget is full."""
        ...

    def take_turn(self) -> bool:
        """Serve at most one request, and queue for another turn if there may be more. Return False if the connection
        has closed meanwhile, so that the next one takes the turn."""
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
            if connection.must_wait(queue):
                return False
            waiting.popleft()
            if connection.take_turn():
                return True
        return False


COUNTED_FROM_BYTES: Final = 32 << 10
"""Smaller pieces are not counted: they are requests, and most are served at once."""
MAX_BYTES: Final = 4 << 20
"""Taking a MiB of an unfinished frame costs about a millisecond."""
PIECE_BYTES: Final = 256 << 10
"""uvloop receives no more at once."""


class Receives(Protocol):
    def pause_receiving(self) -> None: ...

    def resume_receiving(self) -> None:
        """Receive again, unless the connection has closed meanwhile."""
        ...


class ReceiveBudget:
    """When hundreds of peers send large frames at the same time, those beyond MAX_BYTES take turns to be received.

    A few that send at full speed are never paused.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._bytes = 0
        self._paused: deque[Receives] = deque()
        self._turn_comes = False

    def took(self, connection: Receives, size_bytes: int) -> None:
        """The connection received a piece, and may be paused now. It must not be paused already."""
        self._bytes += size_bytes
        self._schedule_turn()
        if self._bytes > MAX_BYTES:
            connection.pause_receiving()
            self._paused.append(connection)

    def _schedule_turn(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_comes = False
        self._bytes = 0
        for _ in range(min(len(self._paused), MAX_BYTES // PIECE_BYTES)):
            self._paused.popleft().resume_receiving()
        if self._paused:
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
