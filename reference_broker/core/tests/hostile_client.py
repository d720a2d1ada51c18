"""A client of a node in memory that sends frames: its requests are decoded, and the responses encoded.

The cost of a request is what a node would spend on it: processor time of each slice of work, and memory.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time_ns
from tracemalloc import get_traced_memory, reset_peak, start, stop
from typing import Any

from reference_broker.apis.tests.messages import message_from
from reference_broker.core.events import Effect, Event
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.ports.node_ports import Now
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import body_class, decode_request, decode_response, encode_request, encode_response


@dataclass(slots=True)
class Cost:
    """The cost at a node: processor time of its longest slice of work, number of slices, and peak memory above the
    initial use."""

    longest_ms: float = 0.0
    slices: int = 0
    peak_bytes: int = 0


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection, which looks at all objects of the tests and is no work of the node."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def slices_of(world: NodeWorld) -> Iterator[Cost]:
    """Measure the slices of the node's own work. Decoding and encoding are work of the driver."""
    cost = Cost()
    handle = world.node.handle

    def measured(now: Now, event: Event) -> Sequence[Effect]:
        before = process_time_ns()
        effects = handle(now, event)
        cost.longest_ms = max(cost.longest_ms, (process_time_ns() - before) / 1e6)
        cost.slices += 1
        return effects

    world.node.handle = measured  # type: ignore[method-assign]
    try:
        with no_collection():
            yield cost
    finally:
        del world.node.handle


@contextmanager
def memory_of() -> Iterator[Cost]:
    """Measure memory, which makes everything several times slower."""
    cost = Cost()
    start()
    before, _ = get_traced_memory()
    reset_peak()
    try:
        yield cost
    finally:
        cost.peak_bytes = get_traced_memory()[1] - before
        stop()


class HostileClient:
    """A client whose requests have a connection each."""

    def __init__(self, world: NodeWorld) -> None:
        self.world = world
        self._connections = 1000

    def request(self, api_key: int, version: int, **values: Any) -> Any:
        """Send a request of the class of the highest version, filled with ``values``, in the layout of ``version``."""
        return self.send(api_key, version, message_from(body_class(api_key, "request"), values))

    def send(self, api_key: int, version: int, body: object) -> Any:
        """Send a body, and return the response's body. It is None if the connection was closed instead."""
        return self.frame(api_key, version, b"".join(encode_request(api_key, version, 9, "client", body))[4:])

    def frame(self, api_key: int, version: int, frame: bytes) -> Any:
        """Send a frame, which comes without its length."""
        view = memoryview(frame)
        header, offset = read_request_header(view)
        assert (header.api_key, header.api_version) == (api_key, version)
        body = decode_request(api_key, version, view, offset)
        self._connections += 1
        number = self.world.send(api_key, version, body, self._connections)
        self.world.settle()
        if self._connections in self.world.closed:
            return None
        reply = self.world.replies[number]
        encoded = memoryview(b"".join(encode_response(api_key, reply.api_version, 9, reply.body)))[4:]
        return decode_response(api_key, reply.api_version, encoded)[1]
