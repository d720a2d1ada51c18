"""How much is received between two looks at the sockets."""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

COUNTED_FROM_BYTES: Final = 32 << 10
"""Smaller pieces are not counted: they are requests, and most are served at once."""
MOST_BYTES: Final = 4 << 20
"""Taking a MiB of an unfinished frame costs about a millisecond."""
PIECE_BYTES: Final = 256 << 10
"""uvloop receives no more at once."""


class Receives(Protocol):
    closed: bool

    def hold_back(self) -> None:
        """Stops receiving."""
        ...

    def receive_on(self) -> None: ...


class Intake:
    """When hundreds of peers send large frames at the same time, those beyond MOST_BYTES take turns to be received.

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
        self._ask_for_turn()
        if self._bytes > MOST_BYTES:
            connection.hold_back()
            self._held_back.append(connection)

    def _ask_for_turn(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_comes = False
        self._bytes = 0
        for _ in range(min(len(self._held_back), MOST_BYTES // PIECE_BYTES)):
            connection = self._held_back.popleft()
            if not connection.closed:
                connection.receive_on()
        if self._held_back:
            self._ask_for_turn()
