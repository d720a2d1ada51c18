"""The library's own requests to nodes, over Kafka's protocol."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from crucible_kafka.library.errors import CallerGone, CrucibleTimeout
from crucible_kafka.library.inside_node import LIBRARY_CLIENT_ID
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import VERSIONS

FIRST_PAUSE_S: Final = 0.002
LONGEST_PAUSE_S: Final = 0.05

caller_is_gone: ContextVar[Callable[[], bool] | None] = ContextVar("caller_is_gone", default=None)
"""Whether nobody is left who would get the result. Each wait of this thread then ends with CallerGone."""

ResultT = TypeVar("ResultT")


def request(address: str, api_key: int, body: object, limit_s: float, version: int | None = None) -> Any:
    """Send one request on a connection of its own, and return the response's body. Raise TransportError."""
    host, _, port = address.rpartition(":")
    limit_us = int(limit_s * 1e6)
    with Connection.open(host, int(port), limit_us, LIBRARY_CLIENT_ID) as connection:
        return connection.call(api_key, VERSIONS[api_key][1] if version is None else version, body, limit_us)


def wait_for(look: Callable[[], "ResultT | None"], what: Callable[[], str], limit_s: float) -> ResultT:
    """Call ``look`` until it returns something other than None, and return that. Raise CrucibleTimeout, whose message
    has ``what()``, and CallerGone."""
    is_gone = caller_is_gone.get()
    deadline = time.monotonic() + limit_s
    pause_s = FIRST_PAUSE_S
    while True:
        found = look()
        if found is not None:
            return found
        if time.monotonic() >= deadline:
            raise CrucibleTimeout(f"After {limit_s:g} s, {what()}")
        if is_gone is not None and is_gone():
            raise CallerGone(f"Nobody waits any more, and {what()}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


__all__ = ["TransportError", "caller_is_gone", "request", "wait_for"]
