"""A connection as the driver and its parts see it: it keeps what is sent."""

from collections.abc import Sequence
from typing import Any, cast

from reference_broker.serve.connection import CLOSED, CLOSING, OPEN
from reference_broker.serve.driver import Driver


class FakeConnection:
    listener = ""
    peer = "peer"

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.life = OPEN
        self.number = -1
        self.of_node = False
        self.has_request = False
        """Whether a request waits for ``done``. Tests set it."""
        self.making_bytes = 0
        self.sent = b""
        assert driver.opened(cast(Any, self))

    def admitted(self, number: int) -> None:
        self.number = number

    def count_as_node(self) -> None:
        self._driver.memory.forget(self)
        self.of_node = True
        self._driver.memory.changed(self)

    def count_decoded(self, size_bytes: int) -> None:
        self.making_bytes += size_bytes
        self._driver.memory.changed(self)

    def count_response(self, size_bytes: int) -> None:
        self.making_bytes = size_bytes
        self._driver.memory.changed(self)

    def send(self, buffers: Sequence[bytes]) -> None:
        self.sent += b"".join(buffers)

    def done(self) -> None:
        self.has_request = False
        self.making_bytes = 0

    def close(self) -> None:
        self.life = CLOSING

    abort = close

    def lose(self) -> None:
        """The transport is closed."""
        self.life = CLOSED
        self._driver.closed(cast(Any, self))

    # what the memory budget calls

    def held_bytes(self) -> int:
        return self.making_bytes

    def waits_since_s(self) -> None:
        return None

    def evict(self, reason: str) -> int:
        raise AssertionError(reason)
