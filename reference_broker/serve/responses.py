"""Encodes responses for their connections: large ones in several steps."""

from typing import TYPE_CHECKING

from reference_broker.core.events import Reply
from reference_broker.ports.slicing import Sliced
from reference_broker.serve.connection import DISCARDING, OPEN, Connection
from reference_broker.serve.log_lines import LogLines, describe_bug
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import (
    empty_response,
    encode_response,
    encode_response_in_slices,
    has_error_code,
    items_of_response,
)
from reference_broker.wire.primitives import Buffers
from reference_broker.wire.request_limits import ITEM_BYTES, LARGE_RESPONSE_ITEMS, MIN_ITEM_BYTES

if TYPE_CHECKING:
    from reference_broker.serve.driver import Driver


class Responses:
    """Carries out Reply effects."""

    def __init__(self, driver: "Driver", log: LogLines) -> None:
        self._driver = driver
        self._log = log

    def send(self, reply: Reply) -> None:
        connection = self._driver.connections.get(reply.connection)
        if connection is None:
            return  # It closed meanwhile, or a hook sent the request on a connection of its own.
        if reply.body is None or connection.life is DISCARDING:
            connection.done()
            return
        try:
            items = items_of_response(reply.api_key, reply.api_version, reply.body)
        except Exception as bug:
            self._send(connection, reply, self._encode_error_instead(reply, bug))
            return
        if items > LARGE_RESPONSE_ITEMS:
            connection.count_response(items * ITEM_BYTES)
            work = self._encode_later(connection, reply)
            self._driver.large_messages.add(connection, work, items * MIN_ITEM_BYTES, has_begun=True)
        else:
            self._send(connection, reply, self._encoded(reply))

    def _encode_later(self, connection: Connection, reply: Reply) -> Sliced[None]:
        encoding = encode_response_in_slices(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
        while connection.life is OPEN and not self._driver.has_ended:
            try:
                next(encoding)
            except StopIteration as end:
                self._send(connection, reply, end.value)
                return
            except Exception as bug:
                self._send(connection, reply, self._encode_error_instead(reply, bug))
                return
            yield

    def _send(self, connection: Connection, reply: Reply, buffers: Buffers | None) -> None:
        if buffers is None:
            self._driver.close(connection, "a response could not be encoded")
            return
        connection.send(buffers)
        if self._driver.meter is not None:
            self._driver.meter.sent(reply, sum(len(each) for each in buffers))
        connection.done()

    def _encoded(self, reply: Reply) -> Buffers | None:
        try:
            return encode_response(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
        except Exception as bug:
            return self._encode_error_instead(reply, bug)

    def _encode_error_instead(self, reply: Reply, bug: Exception) -> Buffers | None:
        """Encode UNKNOWN_SERVER_ERROR instead of a response that cannot be encoded. None if the API has no field for
        that error."""
        key, version = reply.api_key, reply.api_version
        self._log.limited("error", "response_not_encoded", api=api_name(key), version=version, reason=describe_bug(bug))
        if not has_error_code(key, version):
            return None
        instead = empty_response(key, version, ErrorCode.unknown_server_error)
        return encode_response(key, version, reply.correlation_id, instead)
