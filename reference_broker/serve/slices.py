"""Large requests are decoded, and large answers encoded, a few milliseconds at a time."""

from collections.abc import Callable, Hashable, Iterator
from typing import Final, Protocol

OLDEST_EACH: Final = 8
"""One slice of so many goes to the work that came first. So small pieces without end do not keep a large one out."""


class Owner(Hashable, Protocol):
    """A connection, as its work sees it."""

    of_node: bool
    """Whether another node is at the other end."""


class Slices:
    """Work that waits. One slice of one piece of work is done before the event loop looks at its sockets again,
    whatever the number of pieces.

    The pieces do not take turns, since then all of them would be nearly complete at once, with all their memory. The
    work of nodes comes first, then the smaller piece. Sizes are compared by their power of two. Of one power, the
    piece that has begun comes first. So there is one unfinished piece of each power at most, and together they are less
    than twice as large as the largest. The piece that came first gets some slices, too (OLDEST_EACH).
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
        """``work`` yields after each slice. It must not raise. ``has_begun`` says that it holds memory already. A
        connection has one request at a time, and so one piece of work."""
        self._added += 1
        self._pieces[owner] = Piece(work, not owner.of_node, size_bytes, self._added, has_begun)
        self._ask_for_step()

    def drop(self, owner: Owner) -> None:
        """The connection is gone. Lets go of what its work holds."""
        self._pieces.pop(owner, None)

    def _ask_for_step(self) -> None:
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
                self._ask_for_step()

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
