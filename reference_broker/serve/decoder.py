"""Decodes requests, large ones in slices, and hands those to the driver."""

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from reference_broker.core.events import Request
from reference_broker.serve.connection import Connection
from reference_broker.serve.log_lines import describe_bug
from reference_broker.serve.requests import begins_at_once, decode, decode_in_slices
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.items import LARGE_FRAME_BYTES, SLICE_BYTES

if TYPE_CHECKING:
    from reference_broker.serve.driver import Driver


class Decoder:
    """``versions`` holds the least and greatest version served, by API key."""

    def __init__(self, driver: "Driver", versions: Mapping[int, tuple[int, int]]) -> None:
        self._driver = driver
        self._versions = versions

    def decoded(self, connection: Connection, frame: memoryview) -> Request | None:
        if len(frame) <= LARGE_FRAME_BYTES:
            return decode(connection.number, frame, self._versions)
        slices = decode_in_slices(connection.number, frame, self._versions)
        begins = not self._driver.slices or begins_at_once(frame)
        if begins:
            try:
                next(slices)
            except StopIteration as end:
                request: Request = end.value
                return request
        self._driver.slices.add(connection, self._decode_later(connection, slices), len(frame), has_begun=begins)
        return None

    def _decode_later(
        self, connection: Connection, slices: Generator[None, None, Request]
    ) -> Generator[None, None, None]:
        """Goes on with a large request, and gives it to the node at the end."""
        while not (connection.closed or connection.closing or self._driver.has_ended):
            connection.making_bytes += SLICE_BYTES
            self._driver.memory.changed(connection)
            try:
                next(slices)
            except StopIteration as end:
                self._take_late(connection, end.value)
                return
            except ProtocolError as broken:
                self._driver.close(connection, str(broken))
                return
            except Exception as bug:
                self._driver.close(connection, f"our codec failed: {describe_bug(bug)}")
                return
            yield

    def _take_late(self, connection: Connection, request: Request) -> None:
        """Nobody above catches what is raised here."""
        try:
            self._driver.note_sender(connection, request)
            self._driver.handle(request)
        except ProtocolError as broken:
            self._driver.close(connection, str(broken))
        except Exception as bug:
            self._driver.close(connection, f"our code failed: {describe_bug(bug)}")
