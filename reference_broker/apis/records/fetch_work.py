"""The work of one fetch on its session, in slices.

Nearly always the first slice is all of it, so the fetch is answered, or waits, in the event that it came with. If more
is left, the fetch is ``at_work`` until it waits or everything is settled. This is what may happen in between:

* The session's next request comes: it is handled when the work is over, as if it had arrived then. So no request finds
  a session half changed. A fetch of the first revision that is sent again finds the first one answered, or waiting
  (G-3).
* A partition changes, is deleted, or gets another leader: all that were looked at hear of it. Before the answer begins
  the partition is looked at again. Later it keeps its mark for the next answer, and is looked at again if it has yet to
  be read. So what an answer says of a partition was true at some moment after the request came, and what it does not
  say follows. Nothing in a fetch relates one partition to another.
* The connection closes before the answer: a draft is dropped. A session takes up what the request names, since it has
  accepted it. Nothing is sent, so every mark stays.
* The session is closed or evicted: the fetch is refused, or was answered before, and its work ends.
* A follower's progress counts when its partition is looked at, as of the time at which the session accepted the
  request. Until the request's partitions are named, a partition that it names counts as fetched at its older offset.
  That is what the follower had just before, and the difference is no more than a request that is under way for longer.
  Where a named partition failed, its progress did not count. So the follower is told of that, also if the partition is
  well by now: it names a partition again only after an error, or when its offset has moved.
* A bug closes the session, since nobody knows which marks are left. Its fetcher begins anew.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasFetchSessions, HasOutside
from reference_broker.apis.sliced import contained_slices
from reference_broker.ports.timing import Slices, later, run_slices
from reference_broker.sessions.fetch_session import FetchSession, Waiter
from reference_broker.sessions.slices import Work

_OVER = object()


class WorkNeeds(HasFetchSessions, HasOutside, Protocol):
    """What the work of a fetch uses of its broker."""


@dataclass(slots=True, eq=False)
class FetchWork(Waiter, ABC):
    """``then`` are the session's requests that came meanwhile. ``gone`` says that the session was closed or evicted."""

    broker: WorkNeeds
    call: Call
    session: FetchSession
    at_work: bool = field(default=False, init=False)
    then: list[Callable[[], None]] | None = field(default=None, init=False)
    gone: bool = field(default=False, init=False)

    def add_next(self, request: Callable[[], None]) -> None:
        """The session's next request comes when this work is over."""
        self.then = [*(self.then or ()), request]

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether it will be answered later, so that its session keeps it."""

    @abstractmethod
    def listen(self) -> None:
        """From now on all that were looked at, and will be, are told of changes."""

    def run(self, begin: Callable[[Self], Work]) -> None:
        """Does the first slice of the work now, and what is left in later events."""
        try:
            work = begin(self)
            if not work or next(work, _OVER) is _OVER:
                return
            self.at_work = True
            self.session.waiter = self
            self.listen()
        except Exception:
            self._failed()
            raise
        later(self.broker.outside, 0, lambda: run_slices(self.broker.outside, self._goes_on(work)))

    def _goes_on(self, work: Slices) -> Slices:
        is_complete = False

        def to_its_end() -> Slices:
            nonlocal is_complete
            yield from work
            is_complete = True

        steps = contained_slices(self.call, to_its_end())
        while not self._is_void() and next(steps, _OVER) is not _OVER:
            yield
        self.at_work = False
        if not is_complete or self._is_void():
            self._failed()
        elif not self.is_waiting:
            self.session.waiter = None
        following, self.then = self.then, None
        for request in following or ():
            later(self.broker.outside, 0, request)

    def _is_void(self) -> bool:
        """Whether its session is over, or its connection while there is no session."""
        return self.gone or (self.call.closed and not self.session.session_id)

    def _failed(self) -> None:
        """The work is void, or a bug ended it in the middle."""
        if not self.gone:
            self.session.waiter = None
            self.broker.fetch_sessions.close(self.session.session_id, "a fetch of it failed")
            self.broker.fetch_sessions.release(self.session)

    def go_on_in(self, draft: FetchSession) -> None:
        """The session will be closed, which is not to end this fetch."""
        self.session.waiter = None
        draft.contact_us = self.session.contact_us
        self.session = draft
        if self.at_work:
            draft.waiter = self
