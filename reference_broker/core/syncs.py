"""Which bytes are durable: one sync in flight per file, later requests for that file coalesce into the next."""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.core.events import Effect, Sync


@dataclass(slots=True)
class _Request:
    """One ``sync`` call: ``missing`` counts the files whose sync has not completed."""

    missing: int
    done: Callable[[], None]


@dataclass(slots=True)
class Syncs:
    """``in_flight`` maps a token to the files that its Sync covers. Each file is in at most one of them.

    ``flying`` holds, by file, the requests that the running sync completes; ``waiting`` those of the next sync.
    """

    effects: list[Effect]
    in_flight: dict[int, tuple[str, ...]] = field(default_factory=dict)
    flying: dict[str, list[_Request]] = field(default_factory=dict)
    waiting: dict[str, list[_Request]] = field(default_factory=dict)
    last: int = 0

    def request(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        """Calls ``done`` when every byte appended so far to ``paths`` is durable; at once if there is no path."""
        if not paths:
            done()
            return
        request = _Request(len(paths), done)
        fresh = []
        for path in paths:
            if path in self.flying:  # That sync may have started before our bytes: wait for the one after it.
                self.waiting.setdefault(path, []).append(request)
            else:
                self.flying[path] = [request]
                fresh.append(path)
        self._start(fresh)

    def synced(self, token: int) -> None:
        """The driver finished the Sync with this token."""
        paths = self.in_flight.pop(token)
        completed = [request for path in paths for request in self.flying.pop(path)]
        again = []
        for path in paths:
            later = self.waiting.pop(path, None)
            if later is not None:
                self.flying[path] = later
                again.append(path)
        self._start(again)
        for request in completed:
            request.missing -= 1
            if request.missing == 0:
                request.done()

    def _start(self, paths: list[str]) -> None:
        if paths:
            self.last += 1
            self.in_flight[self.last] = tuple(paths)
            self.effects.append(Sync(self.last, tuple(paths)))
