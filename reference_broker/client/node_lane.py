"""One consumer's requests to one node, one at a time. A request is a ListOffsets that resets positions, or else a
Fetch in a session. There is no I/O here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_broker.client.aborted import READ_COMMITTED, READ_UNCOMMITTED
from reference_broker.client.consumer_requests import (
    EARLIEST,
    FETCH,
    LATEST,
    LIST_OFFSETS,
    list_offsets_request,
    listed_offsets,
)
from reference_broker.client.fetch_plan import FetchPlan, Handled, SessionHandler, Wanted
from reference_broker.client.group_requests import GroupRequest
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import FetchSessionHandler
from reference_broker.wire.apis import FETCH_TOMBSTONE_HORIZON
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import FetchResponse


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Settings of all fetches of a consumer. With ``leader_epochs`` a fetch sends the epochs of the current leader and
    of the last record (KIP-320). Without it both are -1. ``reset`` is the reset policy: earliest, latest or none.
    ``rack`` is where the consumer stands (``client.rack``), so that it may read from a follower there (KIP-392). With
    ``read_committed`` it gets no record of a transaction that is open or aborted (KIP-98). With ``tombstone_horizon``
    it begins again where it may have missed tombstones (H-3). All nodes must serve the draft and name topics by IDs."""

    fetch_version: int = 17
    list_offsets_version: int = 10
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_max_bytes: int = 1 << 20
    reset: str = "earliest"
    leader_epochs: bool = True
    request_timeout_us: int = 5_000_000
    rack: str = ""
    read_committed: bool = False
    tombstone_horizon: bool = False

    @property
    def isolation_level(self) -> int:
        """As Fetch and ListOffsets carry it."""
        return READ_COMMITTED if self.read_committed else READ_UNCOMMITTED

    def version(self, plan: FetchPlan) -> int:
        """Returns the version of a Fetch."""
        return FETCH_TOMBSTONE_HORIZON if self.tombstone_horizon else plan.version(self.fetch_version)


@dataclass(slots=True)
class NodeLane:
    """The state of the requests to one node.

    ``in_flight`` is the API key of the request in flight, or None. ``asked`` holds the position of each partition in
    the Fetch in flight. The answer for a partition whose position has moved since is not used. Nothing is sent before
    ``retry_at_us``. ``has_left`` says that the session was closed, after which nothing else is sent.
    """

    settings: FetchSettings
    handler: SessionHandler = field(default_factory=FetchSessionHandler)
    in_flight: int | None = None
    retry_at_us: int = 0
    asked: dict[TopicPartition, int] = field(default_factory=dict)
    has_left: bool = False

    def list_offsets(self, node: NodeAddress, partitions: Mapping[TopicPartition, int]) -> GroupRequest:
        """Makes ListOffsets. ``partitions`` maps each to its current leader epoch, or to -1 if that is not sent."""
        settings = self.settings
        self.in_flight = LIST_OFFSETS
        timestamp_ms = EARLIEST if settings.reset == "earliest" else LATEST
        body = list_offsets_request(partitions, timestamp_ms, settings.request_timeout_us, settings.isolation_level)
        return GroupRequest(LIST_OFFSETS, settings.list_offsets_version, body, settings.request_timeout_us, node)

    def fetch(self, node: NodeAddress, wanted: Mapping[TopicPartition, Wanted]) -> tuple[GroupRequest, FetchPlan]:
        """Makes a Fetch for exactly these partitions."""
        settings = self.settings
        self.in_flight = FETCH
        self.asked = {where: each.fetch_offset for where, each in wanted.items()}
        plan = self.handler.build(wanted)
        version = settings.version(plan)
        body = plan.request(
            version,
            settings.max_wait_ms,
            settings.min_bytes,
            settings.max_bytes,
            rack=settings.rack,
            isolation_level=settings.isolation_level,
        )
        timeout_us = settings.request_timeout_us + settings.max_wait_ms * 1000
        return GroupRequest(FETCH, version, body, timeout_us, node), plan

    def farewell(self, node: NodeAddress) -> GroupRequest | None:
        """Makes the Fetch that closes the session, once. None if there is no session."""
        plan, self.has_left = None if self.has_left else self.handler.farewell(), True
        if plan is None:
            return None
        self.in_flight, self.asked = FETCH, {}
        version = self.settings.version(plan)
        return GroupRequest(FETCH, version, plan.request(version, 0, 0, 0), self.settings.request_timeout_us, node)

    def listed(self, body: object) -> dict[TopicPartition, tuple[Error | int, int, int]]:
        """Applies the answer to ListOffsets. Returns error, offset and leader epoch by partition."""
        self.in_flight = None
        return listed_offsets(body)

    def fetched(self, response: FetchResponse) -> Handled:
        """Applies the answer to Fetch."""
        self.in_flight = None
        return self.handler.handle_response(response)

    def failed(self, retry_at_us: int) -> None:
        """Notes that the request in flight got no answer."""
        if self.in_flight == FETCH:
            self.handler.handle_lost()
        self.in_flight = None
        self.retry_at_us = retry_at_us
