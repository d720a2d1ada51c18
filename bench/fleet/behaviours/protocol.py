"""The events and actions that pass between a behaviour and its driver (a Locust user, or the simulator).

A behaviour has channels, numbered from 0. A channel has at most one connection, with at most one request in flight. It
is independent of the other channels, and is not connected before the first Connect that names it. A driver calls
``step`` once for each event, one event at a time, and carries out the returned actions in order. Both sides follow
these rules:

- ``Started`` comes first, and only once. Until ``Finished`` the behaviour always waits for something on some channel:
  after Connect for Connected or ConnectFailed, after Request for ResponseReceived, TimedOut or Disconnected, after Wake
  for Woken.
- After ``TimedOut`` the connection is still open. The behaviour returns Disconnect itself, and the driver never
  delivers a response that arrives later. No Disconnected event follows the behaviour's own Disconnect.
- Connect closes the channel's earlier connection. Wake replaces an earlier Wake of its channel. A Woken
  that is no longer awaited (because Stopping came first) is ignored.
- ``Stopping`` may come once, at any time after Started, and means that the load ends. Producers finish what is in
  flight, and fetchers poll until they are quiet. Both then return Finished, after ``drain_us`` at the latest.
- ``Leaving`` may come instead of ``Stopping``. The client then ends as soon as what is in flight has ended.
- ``close(now)`` may replace all of that and ends the behaviour at once. It returns the rows of what is still open;
  operations end as ``info``. The behaviour is not stepped again.

A behaviour draws random numbers only from the ``Chance`` that its driver derives for it from the run's seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from reference_broker.client.partitions import TopicPartition as TopicPartition
from reference_broker.ports.node_ports import Now as Now
from reference_broker.ports.node_ports import RandomSource
from reports.rows import HistoryRow as HistoryRow


class Address(NamedTuple):
    """The address that a node advertises in Metadata. In the simulator a host is any name that it knows."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of each behaviour."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The requested connection is open."""

    channel: int = 0


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """The connection could not be opened."""

    reason: str  # one word for the history: refused, timeout or unreachable
    channel: int = 0


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """The response to the request in flight."""

    body: object  # a value of wire.fetch or wire.produce, or of kio's latest class
    request_bytes: int = 0  # size of the frame with its length prefix; 0 in the simulator, which encodes nothing
    response_bytes: int = 0  # likewise
    channel: int = 0


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No response within the request's timeout."""

    channel: int = 0


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The peer or the network closed the connection, or the bytes that came were not the protocol's."""

    reason: str
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Woken:
    """The time of the channel's last Wake has come."""

    channel: int = 0


@dataclass(frozen=True, slots=True)
class Stopping:
    """The load phase is over."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """This client ends while others continue. Its assignments end now, even if it has not caught up."""


FleetEvent: TypeAlias = (
    Started | Connected | ConnectFailed | ResponseReceived | TimedOut | Disconnected | Woken | Stopping | Leaving
)


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the connection. After ``timeout_us`` ConnectFailed("timeout") follows."""

    address: Address
    timeout_us: int
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the channel's connection, whatever is in flight."""

    channel: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Send one request."""

    api_key: int
    api_version: int
    client_id: str  # goes into the request header; interceptors count by it
    body: object  # belongs to the receiver from now on, and the behaviour never changes it
    timeout_us: int
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Wake:
    """Deliver Woken when ``now.mono_us`` reaches ``at_us``, or at once if that time has passed."""

    at_us: int
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """Rows for the history, in order."""

    rows: tuple[HistoryRow, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The behaviour has ended. The driver closes its connections."""


FleetAction: TypeAlias = Connect | Disconnect | Request | Wake | Record | Finished


class Behaviour(Protocol):
    """One logical client."""

    @property
    def process(self) -> str:
        """The name of the client, which is unique in the run. It is the history's ``process`` and the client ID."""
        ...

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        """Take one event and return the actions to carry out now, in order."""
        ...

    def close(self, now: Now) -> list[HistoryRow]:
        """End the behaviour at once and return the rows of what is still open."""
        ...


@dataclass(frozen=True, slots=True)
class Versions:
    """The API versions that a fleet speaks. They are the newest that both sides know, negotiated once for a run.
    -1: the broker does not have the API, and the fleet can do without."""

    fetch: int = 17
    produce: int = 13
    metadata: int = 13
    list_offsets: int = 10
    init_producer_id: int = 5
    create_topics: int = 7
    delete_topics: int = 6
    incremental_alter_configs: int = 1
    describe_configs: int = 4
    update_features: int = 2
    offset_commit: int = 9
    offset_fetch: int = 9
    find_coordinator: int = 6
    join_group: int = 9
    heartbeat: int = 4
    leave_group: int = 5
    sync_group: int = 5


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings that all behaviours share."""

    bootstrap: tuple[Address, ...]
    versions: Versions = Versions()
    connect_timeout_us: int = 2_000_000
    request_timeout_us: int = 3_000_000
    """The time comes on top of what the request allows the broker to wait."""
    backoff_us: int = 50_000
    """The first wait after a failure. It doubles up to ``max_backoff_us``, with up to 20 % of jitter."""
    max_backoff_us: int = 1_000_000
    drain_us: int = 15_000_000
    """Limit of a behaviour's time after Stopping."""
    dial: Mapping[Address, Address] = field(default_factory=dict)
    """The address of a proxy to connect to, by the address that the node behind it advertises."""


T = TypeVar("T")


class Chance(RandomSource, Protocol):
    """The methods that behaviours use. ``random.Random`` has them."""

    def randbytes(self, n: int, /) -> bytes:
        """Return ``n`` random bytes."""
        ...

    def choice(self, seq: Sequence[T], /) -> T:
        """Draw one element of ``seq``, which is not empty."""
        ...

    def choices(self, population: Sequence[T], weights: Sequence[float], /) -> list[T]:
        """Draw one element with these weights, and return it in a list."""
        ...

    def sample(self, population: Sequence[T], k: int, /) -> list[T]:
        """Draw ``k`` different elements."""
        ...
