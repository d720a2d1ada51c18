"""What the parts of a node may ask of the core: the time, timers, syncs, requests to other nodes, lines of the
trace, calls of the object store.

``core/node.py`` implements ``StorePorts`` and turns the calls into effects.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, overload

from reference_broker.ports.chance import RandomSource
from reference_broker.ports.channels import Channel
from reference_broker.ports.disk import Disk
from reference_broker.ports.now import Now
from reference_broker.ports.store import Delete, Get, ListObjects, Put, PutFile, StoredObject, StoreFailure

Done = Callable[[], None]


class Ports(Protocol):
    """The calls by which a part of a node reaches the outside. Each callback runs in an event of its own, except that
    of ``at_end``, and that of ``sync`` without paths, which runs at once."""

    def now(self) -> Now:
        """The instant of the event being handled."""
        ...

    def set_timer(self, deadline_us: int, fire: Done) -> int:
        """Calls ``fire`` once, at or after the deadline on the monotonic clock. Returns a number for
        ``cancel_timer``."""
        ...

    def cancel_timer(self, timer: int) -> None:
        """Cancels a timer, so that its ``fire`` is not called. An unknown or fired number is no error."""
        ...

    def at_end(self, step: Done) -> None:
        """Calls ``step`` when all else of the event being handled is done, before the next event."""
        ...

    def sync(self, paths: tuple[str, ...], done: Done) -> None:
        """Calls ``done`` when all bytes appended so far to ``paths`` are durable."""
        ...

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        """Adds a line to the trace."""
        ...

    def send(
        self,
        peer: int,
        channel: Channel,
        api_key: int,
        api_version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Done,
    ) -> None:
        """Sends a request to another node. Exactly one of the two callbacks follows. ``failed`` means that the channel
        broke or was refused, or that no reply came in time."""
        ...


class StorePorts(Ports, Protocol):
    """``Ports`` for the parts that use the object store."""

    @overload
    def store(
        self, operation: Get, done: Callable[[bytes], None], failed: Callable[[StoreFailure], None], /
    ) -> None: ...

    @overload
    def store(
        self,
        operation: ListObjects,
        done: Callable[[tuple[StoredObject, ...]], None],
        failed: Callable[[StoreFailure], None],
        /,
    ) -> None: ...

    @overload
    def store(
        self,
        operation: Put | PutFile | Delete,
        done: Callable[[None], None],
        failed: Callable[[StoreFailure], None],
        /,
    ) -> None:
        """Asks the object store. Exactly one of the two callbacks follows, in a later event. A node that ends in good
        order hears of no more answers."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the parts of the quorum, the metadata and the controller on one node are given. Each part has a ``random``
    of its own."""

    node_id: int
    disk: Disk
    ports: Ports
    random: RandomSource

    @property
    def now_us(self) -> int:
        """The instant of the event being handled, on the monotonic clock."""
        return self.ports.now().mono_us

    def after(self, delay_us: int, fire: Done) -> int:
        """Calls ``fire`` after the delay, in an event of its own. Returns a number for ``cancel_timer``."""
        return self.ports.set_timer(self.now_us + delay_us, fire)
