"""Cuts one direction of a connection into frames, which keep their length in front.

``wire.frames`` has the broker's own reader. This one is for passing on: it gives the bytes as they came, shows the
start of a frame that has not arrived whole, and gives back what is no frame.
"""

from typing import Final, TypeAlias

LENGTH_BYTES: Final = 4
MOST_FRAME_BYTES: Final = 100 << 20
"""What Kafka takes unless it is told otherwise (``socket.request.max.bytes``)."""

Bytes: TypeAlias = bytes | memoryview


class NoFrameError(Exception):
    """What comes next is no frame of Kafka's. The message says why."""


class FrameCutter:
    """Holds what has arrived and was not taken. A length alone reserves no memory."""

    __slots__ = ("_at", "_data", "_most_bytes")

    def __init__(self, most_bytes: int = MOST_FRAME_BYTES) -> None:
        self._most_bytes = most_bytes
        self._data: bytes | bytearray = b""
        self._at = 0
        """How much of ``_data`` was taken."""

    def feed(self, data: bytes) -> None:
        if self._at == len(self._data):
            self._data, self._at = data, 0
        elif isinstance(self._data, bytearray):
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[self._at :])
            self._data += data
            self._at = 0

    @property
    def arrived_bytes(self) -> int:
        return len(self._data) - self._at

    def size(self) -> int | None:
        """Returns the size of the next frame with its length, or None while that is not known. Raises NoFrameError."""
        if self.arrived_bytes < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._data[self._at : self._at + LENGTH_BYTES], "big", signed=True)
        if not 0 <= length <= self._most_bytes:
            raise NoFrameError(f"a frame of {length} bytes; the limit is {self._most_bytes}")
        return LENGTH_BYTES + length

    def start(self, most_bytes: int) -> bytes:
        """Returns a copy of the first bytes that have arrived."""
        return bytes(self._data[self._at : self._at + most_bytes])

    def take(self, size: int) -> Bytes:
        """Returns the next ``size`` bytes, which must have arrived. They stay as they are."""
        data, start = self._data, self._at
        end = start + size
        assert end <= len(data), "more was taken than has arrived"
        if isinstance(data, bytes):
            self._at = end
            return data if size == len(data) else memoryview(data)[start:end]
        whole = memoryview(data).toreadonly()  # The bytes move to the taker; what follows is small, and moves out.
        self._data, self._at = bytes(whole[end:]), 0
        return whole[start:end]

    def rest(self) -> Bytes:
        """Takes everything that has arrived."""
        return self.take(self.arrived_bytes)
