"""The calls by which the parts of a node reach the core: the time, random numbers, timers, syncs, requests to other
nodes, lines of the trace, calls of the object store.

``core/effect_ports.py`` implements ``StorePorts`` and turns the calls into effects. Nothing in the deterministic part
reads a clock, and it draws random numbers only from a ``RandomSource``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, overload

from reference_broker.ports.disk import Disk
from reference_broker.ports.store import Delete, Get, ListObjects, Put, PutFile, StoredObject, StoreFailure


class Now(NamedTuple):
    """One instant as the driver saw it."""

    mono_us: int
    """Monotonic time in microseconds, with an arbitrary origin, for deadlines and waits."""
    wall_ms: int
    """Unix time in milliseconds, which may step either way, for timestamps and expiry."""


class RandomSource(Protocol):
    """The methods that the broker needs of a generator. ``random.Random`` has them too. ``core.randomness`` gives each
    purpose a generator of its own."""

    def getrandbits(self, k: int, /) -> int:
        """Return ``k`` random bits as an integer."""
        ...

    def randrange(self, start: int, stop: int | None = None, /) -> int:
        """Return an integer with ``start`` <= it < ``stop``, or 0 <= it < ``start`` if ``stop`` is None. Raise
        ValueError if there is no such integer."""
        ...

    def randint(self, a: int, b: int, /) -> int:
        """Return an integer from ``a`` to ``b``, both included."""
        ...

    def shuffle(self, x: list[Any], /) -> None:
        """Put the list into a random order."""
        ...


class Channel(IntEnum):
    """One purpose of requests to another node. Each channel is a connection of its own, so the long polls of one
    channel do not delay the requests of another."""

    RAFT = 0
    """Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch of the metadata log, FetchSnapshot."""
    CONTROLLER = 1
    """A broker's registration and heartbeats, sent to the active controller."""
    REPLICA = 2
    """A follower's requests to the leaders of its partitions: Fetch, ListOffsets."""
    FORWARD = 3
    """A broker's other requests to the active controller, for itself (producer IDs, changes of in-sync replicas) or for
    its clients. Their responses may wait for long changes of the metadata, and must not delay heartbeats."""
    METADATA = 4
    """UpdateMetadata, from the active controller to each live broker. A slow broker delays no other."""
    MARKERS = 5
    """WriteTxnMarkers, from a transaction coordinator to the leaders of partitions. They wait for replication."""
    VERIFICATION = 6
    """AddPartitionsToTxn, from the leaders of partitions to transaction coordinators. Producers wait for it."""
    REMOTE_LOG_READ = 7
    """Fetch and ListOffsets of ``__remote_log_metadata``. The fetches wait there for news."""
    REMOTE_LOG_WRITE = 8
    """Produce to ``__remote_log_metadata``. It waits for replication."""


Done = Callable[[], None]


class Ports(Protocol):
    """The calls by which a part of a node reaches the outside. Each callback runs in an event of its own, except that
    of ``at_end``, and that of ``sync`` without paths, which runs at once."""

    def now(self) -> Now:
        """The instant of the event being handled."""
        ...

    def set_timer(self, deadline_us: int, fire: Done) -> int:
        """Call ``fire`` once, at or after the deadline on the monotonic clock. Return a number for
        ``cancel_timer``."""
        ...

    def cancel_timer(self, timer: int) -> None:
        """Cancel a timer, so that its ``fire`` is not called. An unknown or fired number is ignored."""
        ...

    def at_end(self, step: Done) -> None:
        """Call ``step`` when all else of the event being handled is done, before the next event."""
        ...

    def sync(self, paths: tuple[str, ...], done: Done) -> None:
        """Call ``done`` when all bytes appended so far to ``paths`` are durable."""
        ...

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        """Add a line to the trace."""
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
        """Send a request to another node. Exactly one of the two callbacks follows. ``failed`` means that the channel
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
        """Call the object store. Exactly one of the two callbacks follows, in a later event, unless the node
        shuts down before that."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The ports, the disk and the random numbers of one node, for a part of its quorum, metadata or controller. Each
    part has a ``random`` of its own."""

    node_id: int
    disk: Disk
    ports: Ports
    random: RandomSource

    @property
    def now_us(self) -> int:
        """The instant of the event being handled, on the monotonic clock."""
        return self.ports.now().mono_us

    def after(self, delay_us: int, fire: Done) -> int:
        """Call ``fire`` after the delay, in an event of its own. Return a number for ``cancel_timer``."""
        return self.ports.set_timer(self.now_us + delay_us, fire)


def later(ports: Ports, delay_us: int, fire: Done) -> int:
    """Call ``fire`` once, ``delay_us`` from now. Return the number of the timer."""
    return ports.set_timer(ports.now().mono_us + delay_us, fire)
