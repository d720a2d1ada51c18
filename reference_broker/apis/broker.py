"""What an API handler works on: the node's state, and the few verbs that reach outside it.

A handler is ``handle(broker, call, body) -> object | None``: the response body now, or None after it has kept
``call`` to respond later (parked fetch, write that waits for a sync). Handlers never touch events or effects.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.apis.records.producer_ids import ProducerIds
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.controller import Controller
from reference_broker.controller.metadata_replica import MetadataReplica
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.metadata.cache import EMPTY_CACHE, MetadataCache
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metrics.metrics import Metrics
from reference_broker.metrics.traffic import Traffic
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.now import Now
from reference_broker.quorum.quorum import Quorum
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replication import Replication
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.wire.drafts import UpdateMetadataRequest1000


@dataclass(slots=True)
class Broker:
    """The state of one node. ``now`` is the instant of the event being handled, set by the core."""

    node_id: int
    config: BrokerConfig
    now: Now
    disk: Disk
    outside: Ports
    """What the core does for handlers, as effects: timers, syncs, requests to other nodes, notes."""
    metrics: Metrics
    partitions: Partitions
    replica: MetadataReplica
    """Its part in the metadata quorum; what is in it exists once the node is listening."""
    fetch_sessions: FetchSessionCache
    replication: Replication
    groups: GroupCoordinator
    """Consumer groups and their committed offsets, as far as this node coordinates them."""
    metadata: MetadataCache = EMPTY_CACHE
    """What clients are told about the cluster; fed by ``apis.metadata.metadata_feed``, or by UpdateMetadata."""
    producer_ids: ProducerIds = field(default_factory=ProducerIds)
    metadata_updates: deque[tuple["Call", UpdateMetadataRequest1000]] = field(default_factory=deque)
    """UpdateMetadata that was not answered yet; the first is being applied."""
    topic_answers: dict[str, object] = field(default_factory=dict)
    """What Metadata said of a topic, by name, while the topic stays as it is (``apis.metadata.k03_metadata``)."""
    served: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Least and greatest version of each API that it serves, by API key."""
    traffic: Traffic = field(init=False)

    def __post_init__(self) -> None:
        self.traffic = Traffic.of(self.metrics)

    @property
    def controller(self) -> Controller:
        return self.replica.controller

    @property
    def quorum(self) -> Quorum:
        return self.replica.quorum

    @property
    def loader(self) -> MetadataLoader:
        return self.replica.loader

    @property
    def snapshots(self) -> SnapshotStore:
        return self.replica.store


class Call(Protocol):
    """One request being answered."""

    connection: int
    client_id: str
    client_host: str
    """From where it came, as groups tell it of their members; empty for a request of this node's own."""
    api_version: int
    closed: bool
    """Answered already, or the connection is gone: responding is no error and does nothing."""

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:
        """Answers the request; None: no frame is sent (produce with acks=0), the request is done.

        ``api_version``: of the answer, where it is not the request's (ApiVersions for an unknown version).
        """
        ...

    def close(self, reason: str) -> None:
        """Ends the connection instead of answering: the peer broke the protocol."""
        ...

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Calls ``forget`` if the connection closes before the answer."""
        ...
