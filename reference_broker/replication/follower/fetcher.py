"""Fetchers of followed partitions (Kafka's ReplicaFetcherThread, ReplicaFetcherManager): one for each leader, with one
connection, one fetch session, one request in flight.

A fetch names only what changed since the previous one: an append here, a new partition, another epoch. So 10,000
followed partitions at rest cost one empty request and one empty response every ``replica.fetch.wait.max.ms``.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import Handled, SessionHandler, Wanted, make_session_handler
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.ports.node_ports import Channel, Ports, later
from reference_broker.ports.slicing import FOLLOWED_BYTES_PER_SLICE, FOLLOWED_PARTITIONS_PER_SLICE
from reference_broker.replication.follower.followed import NEVER, Delays, FetchLag, FollowedPartition, backoff_ms
from reference_broker.replication.follower.offset_lookups import LookupRequest, Lookups, Tier, TierStarts
from reference_broker.replication.follower.partition_data_applier import ApplyOutcome, PartitionDataApplier
from reference_broker.replication.syncing import must_sync, sync_then
from reference_broker.wire.apis import DRAFTS, FETCH_FIRST_REVISION_REPLICAS, FETCH_TOMBSTONE_HORIZON, VERSIONS, ApiKey
from reference_broker.wire.fetch import FetchResponse, PartitionData
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.api_versions.v4 import request as request_schema
    from kio.schema.api_versions.v4 import response as response_schema
else:
    request_schema = LazySchema("api_versions.v4.request")
    response_schema = LazySchema("api_versions.v4.response")


NAMED_PER_FETCH = 300
"""A fetch names at most this many new or changed partitions; the others go with the next fetch, which follows at once.

This bounds one event here and one at the leader, where each partition costs some 10 us if all of them may join.
"""
GATHER_US = 1000
"""Partitions usually come many at a time. The first of them waits this long for the others."""
NEW_PARTITIONS_WAIT_MS = 50
"""A fetch that names a partition for the first time waits at most this long for data, since others may soon follow."""

FINAL, FIRST = "final", "first"


def versions_request() -> "request_schema.ApiVersionsRequest":
    return request_schema.ApiVersionsRequest(client_software_name="crucible", client_software_version="1")


def announces(version: int, response: object) -> bool:
    """Whether the leader's response to ApiVersions announces the draft of Fetch with this version."""
    assert isinstance(response, response_schema.ApiVersionsResponse), (
        f"the response to ApiVersions is a {type(response).__name__}"
    )
    draft = DRAFTS[ApiKey.FETCH, version]
    return any(feature.name == draft for feature in response.supported_features)


@dataclass(frozen=True, slots=True)
class ReplicaFetcherContext:
    """What all fetchers of a node share."""

    node_id: int
    config: BrokerConfig
    ports: Ports
    broker_epoch: Callable[[], int]
    """Returns the epoch of this node's registration, -1 before it."""
    applier: PartitionDataApplier
    lag: FetchLag
    tier: Callable[[], Tier | None] = lambda: None


class ReplicaFetcher:
    """The fetches from one leader.

    A fetcher is in one of three states: ``_busy``, waiting for ``_timer`` to send the next request, or idle with
    nothing to fetch.
    """

    def __init__(self, leader_id: int, setting: ReplicaFetcherContext) -> None:
        self.leader_id = leader_id
        self.followed: dict[TopicPartition, FollowedPartition] = {}
        self._setting = setting
        self._must_request_versions = self._wanted_draft != 0
        """Whether ApiVersions must show first which drafts of Fetch the leader serves."""
        self._draft = 0
        """The draft of Fetch that the leader serves and this node wants, or 0."""
        self._handler: SessionHandler = make_session_handler(FINAL)
        self._fetched_broker_epoch = -1
        """The broker epoch in the last fetch."""
        self._changed: dict[TopicPartition, None] = {}
        """Partitions that the next fetch must name, because their entry changed, or forget."""
        self._lookups = Lookups(
            setting.node_id,
            setting.config.replica_socket_timeout_ms,
            setting.applier,
            self._name_in_next_fetch,
            self._delay,
        )
        self._tier_starts = TierStarts(
            setting.node_id,
            setting.config.replica_socket_timeout_ms,
            setting.applier,
            setting.tier,
            self._started_in_tier,
            self._delay,
        )
        self._logs_to_sync: list[UnifiedLog] = []
        """Logs that must be synced before the next fetch: ``flush.messages`` requires it, or they were cut."""
        self._diverged: dict[TopicPartition, PartitionData] = {}
        """The last responses for partitions that diverged and were truncated."""
        backoff_max_ms = setting.config.replica_fetch_backoff_ms
        self._delays = Delays(setting.ports, backoff_max_ms, self._resume, lambda: self._wake(0))
        self._busy = False
        """A request is in flight, or its response is being applied, or a sync comes before the next request."""
        self._timer: int | None = None
        """The timer of the next request, None while busy or idle."""
        self._due_us = 0
        """The time of ``_timer``."""
        self._failures = 0
        """Number of requests in a row without a response."""
        self._ended = False

    # --- followed partitions ---------------------------------------------------------------------------------------

    def follow(self, followed: FollowedPartition) -> None:
        """Fetch the partition from now on, perhaps under another leader epoch, without a pause. The records that a
        start found in its log may have to be durable first."""
        if must_sync(followed.log):
            self._logs_to_sync.append(followed.log)
        self.followed[followed.name] = followed
        followed.resumes_us = followed.errors = 0
        self._begin_fetching(followed)
        self._failures = 0
        self._wake(GATHER_US)

    def drop(self, followed: FollowedPartition) -> None:
        """Fetch the partition no longer, and forget it in the session."""
        if self.followed.get(followed.name) is followed:
            del self.followed[followed.name]
            self._lookups.drop(followed)
            self._tier_starts.drop(followed)
            self._changed[followed.name] = None
            self._wake(GATHER_US)

    def end(self) -> None:
        """Send no request and apply no response from now on, since the node ends."""
        self._ended = True

    # --- requests --------------------------------------------------------------------------------------------------

    def _wake(self, after_us: int) -> None:
        """Plan the next request. An earlier planned time stays, and so does the pause after a failure."""
        if self._busy or self._ended:
            return
        ports = self._setting.ports
        due_us = ports.now().mono_us + after_us
        if self._timer is not None:
            if self._failures > 0 or self._due_us <= due_us:
                return
            ports.cancel_timer(self._timer)
        self._plan(due_us)

    def _plan(self, due_us: int) -> None:
        self._due_us = due_us
        self._timer = self._setting.ports.set_timer(due_us, self._send_next)

    def _send_next(self) -> None:
        """Send the next request: ApiVersions, a lookup, or a fetch. Logs that must be durable are synced first."""
        self._timer = None
        if self._busy or self._ended:
            return
        if self._logs_to_sync:  # Decision next-replica-fetch
            self._busy = True
            self._sync_then_send_next()
            return
        if self.followed and self._must_request_versions:
            self._send(ApiKey.API_VERSIONS, VERSIONS[ApiKey.API_VERSIONS][1], versions_request(), self._handle_versions)
            return
        lookup = self._lookups.next() or self._tier_starts.next()
        if lookup is None:
            self._fetch()
        else:
            self._send(lookup.api_key, VERSIONS[lookup.api_key][1], lookup.body, partial(self._handle_lookup, lookup))

    def _handle_lookup(self, lookup: LookupRequest, response: object) -> None:
        self._busy = False
        if not self._ended:
            lookup.handle_response(response)
            self._send_next()

    def _send(self, api_key: ApiKey, api_version: int, body: object, replied: Callable[[object], None]) -> None:
        self._busy = True
        timeout_ms = self._setting.config.replica_socket_timeout_ms
        self._setting.ports.send(
            self.leader_id, Channel.REPLICA, api_key, api_version, body, timeout_ms, replied, self._failed
        )

    def _failed(self) -> None:
        """Continue after a request without a response, on which the leader may have acted or not."""
        self._busy = False
        self._diverged.clear()
        if self._handler.in_flight is not None:
            self._handler.handle_lost()
        self._must_request_versions = self._wanted_draft != 0
        self._pause()

    def _pause(self) -> None:
        """Send nothing for a while. A leader from which nothing is followed any more gets no further request."""
        if not self.followed:
            self._handler = make_session_handler(self._handler.revision)
            self._changed.clear()
            return
        pause_ms = backoff_ms(self._failures, self._setting.config.replica_fetch_backoff_ms)
        self._failures += 1
        self._plan(self._setting.ports.now().mono_us + pause_ms * 1000)

    # --- drafts of Fetch -------------------------------------------------------------------------------------------

    @property
    def _wanted_draft(self) -> int:
        """The draft of Fetch that this node is configured to send, or 0 for a released version."""
        config = self._setting.config
        if config.fetch_session_revision == FIRST:
            return FETCH_FIRST_REVISION_REPLICAS
        return FETCH_TOMBSTONE_HORIZON if config.crucible_tombstone_horizon_enable else 0

    def _handle_versions(self, response: object) -> None:
        self._busy = self._must_request_versions = False
        draft = self._wanted_draft
        self._draft = draft if announces(draft, response) else 0  # Decision fetch-draft
        if not self._draft:
            self._setting.ports.note("fetch_draft_not_served", ("leader", self.leader_id), ("version", draft))
        revision = FIRST if self._draft == FETCH_FIRST_REVISION_REPLICAS else FINAL
        if revision != self._handler.revision:
            self._handler = make_session_handler(revision)
            self._changed.clear()
            for followed in self.followed.values():
                self._begin_fetching(followed)
        self._send_next()

    # --- fetches ---------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        self._restart_session_if_registered_again()
        changed, forgotten, has_new_partitions = self._take_changes()
        handler, setting = self._handler, self._setting
        if not changed and not handler.partitions:
            return  # Nothing is fetched from this leader now.
        plan = handler.update(changed, forgotten)
        config = setting.config
        wait_ms = config.replica_fetch_wait_max_ms
        if has_new_partitions or self._changed:
            wait_ms = 0 if self._changed else min(wait_ms, NEW_PARTITIONS_WAIT_MS)
        wait_ms = self._delays.shortened(wait_ms)
        version = self._draft or plan.version(VERSIONS[ApiKey.FETCH][1], of_replica=True)
        request = plan.request(
            version,
            wait_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            setting.node_id,
            self._fetched_broker_epoch,
        )
        self._send(ApiKey.FETCH, version, request, self._handle_fetch)

    def _restart_session_if_registered_again(self) -> None:
        """Begin a new fetch session, which names every partition, after this broker was registered again.

        The leader takes a new registration for a restart and forgets this replica's progress. A session would never
        name the partitions at rest again, and they would stay out of sync.
        """
        epoch, before = self._setting.broker_epoch(), self._fetched_broker_epoch
        self._fetched_broker_epoch = epoch
        if epoch != before and self._handler.partitions:  # Decision fetcher-registration
            self._handler = make_session_handler(self._handler.revision)
            self._changed = dict.fromkeys(self.followed)

    def _take_changes(self) -> tuple[dict[TopicPartition, Wanted], list[TopicPartition], bool]:
        """Return the partitions that the next fetch names, those that it forgets, and whether one is named for the
        first time."""
        changed: dict[TopicPartition, Wanted] = {}
        forgotten: list[TopicPartition] = []
        has_new_partitions = False
        max_bytes, cached = self._setting.config.replica_fetch_max_bytes, self._handler.partitions
        # The first revision names all partitions again when one comes or goes, so it sends all changes at once.
        limit = NAMED_PER_FETCH if self._handler.revision == FINAL else len(self._changed)
        for name in list(islice(self._changed, limit)):
            del self._changed[name]
            followed = self.followed.get(name)
            if followed is not None and followed.resumes_us == 0:
                has_new_partitions = has_new_partitions or followed.requested is None
                followed.requested = changed[name] = followed.wanted(max_bytes)
            elif name in cached:
                forgotten.append(name)
        return changed, forgotten, has_new_partitions

    def _handle_fetch(self, response: object) -> None:
        assert isinstance(response, FetchResponse), f"the response to a fetch is a {type(response).__name__}"
        handled: Handled = self._handler.handle_response(response)
        if self._ended:
            return
        if handled.problem is not None:  # Decision replica-session
            self._busy = False
            self._diverged.clear()
            leader = ("leader", self.leader_id)
            self._setting.ports.note("replica_session_lost", leader, ("reason", handled.problem))
            self._pause()
            return
        self._failures = 0
        if self._diverged:
            self._follow_diverged_high_watermarks({name for name, _ in handled.partitions})
        self._apply(iter(handled.partitions))

    def _follow_diverged_high_watermarks(self, responded: Collection[TopicPartition]) -> None:
        """Apply the high watermark that came with a divergence, once the leader finds no divergence any more.

        A leader sends a high watermark once. If nothing else is new, the next response omits the partition (F-14).
        """
        diverged, self._diverged = self._diverged, {}
        for name, data in diverged.items():
            followed = self.followed.get(name)
            if followed is None or name in responded:
                continue
            # Decision diverged-watermark
            if followed.requested == followed.wanted(self._setting.config.replica_fetch_max_bytes):
                applier = self._setting.applier
                change = partial(applier.follow_high_watermark, followed, data)
                if applier.apply_or_retry(followed, change) is not ApplyOutcome.APPLIED:
                    self._delay(followed)
            elif followed.resumes_us == 0:
                self._diverged[name] = data  # The last fetch had no room to name it.

    def _apply(self, partitions: Iterator[tuple[TopicPartition, PartitionData]]) -> None:
        """Apply a response in slices, one slice per event."""
        if self._ended:
            return
        applied_bytes = 0
        for number, (name, data) in enumerate(partitions, 1):
            applied_bytes += len(data.records or b"")
            self._apply_one(name, data)
            if number == FOLLOWED_PARTITIONS_PER_SLICE or applied_bytes >= FOLLOWED_BYTES_PER_SLICE:
                later(self._setting.ports, 0, partial(self._apply, partitions))
                return
        self._sync_then_send_next()

    def _apply_one(self, name: TopicPartition, data: PartitionData) -> None:
        followed = self.followed.get(name)
        if followed is None or not followed.accepts_response():  # Decision replica-data
            return  # The partition is followed differently by now, and the next request names it so.
        outcome = self._setting.applier.apply(followed, data)
        if outcome is ApplyOutcome.APPLIED:
            followed.errors = 0
            if data.diverging_epoch is None:
                self._setting.lag.update(followed, data.high_watermark)
            else:
                self._diverged[name] = data
            if must_sync(followed.log) or followed.log.durability.unsettled_cut:
                self._logs_to_sync.append(followed.log)
            if followed.requested != followed.wanted(self._setting.config.replica_fetch_max_bytes):
                self._changed[name] = None
        elif outcome is ApplyOutcome.OUT_OF_RANGE:
            followed.requested = None
            self._lookups.want_offsets(followed)
        elif outcome is ApplyOutcome.MOVED:
            followed.requested = None
            self._tier_starts.want(followed, data.log_start_offset)
        elif outcome is ApplyOutcome.FENCED:
            followed.resumes_us = NEVER
            self._changed[name] = None
        else:
            self._delay(followed)

    def _sync_then_send_next(self) -> None:
        """Send the next request, after a sync of the logs that must be durable before it."""
        if self._logs_to_sync:
            logs, self._logs_to_sync = self._logs_to_sync, []
            sync_then(self._setting.ports, logs, self._sync_then_send_next)
            return
        self._busy = False
        self._send_next()

    def _delay(self, followed: FollowedPartition) -> None:
        """Remove ``followed`` from the session for a while, so that the fetches of the others wait for data again."""
        self._delays.put(followed)
        self._changed[followed.name] = None

    def _resume(self, followed: FollowedPartition) -> None:
        if self.followed.get(followed.name) is followed:
            self._begin_fetching(followed)

    def _begin_fetching(self, followed: FollowedPartition) -> None:
        """Name the partition in the next fetch as a new one, in whatever state its fetches were."""
        self._lookups.drop(followed)
        self._tier_starts.drop(followed)
        followed.requested = None
        self._changed[followed.name] = None

    def _started_in_tier(self, followed: FollowedPartition) -> None:
        self._name_in_next_fetch(followed)
        self._wake(0)

    def _name_in_next_fetch(self, followed: FollowedPartition) -> None:
        self._changed[followed.name] = None


class ReplicaFetcherManager:
    """The followed partitions of a node, with one ``ReplicaFetcher`` for each leader. Nothing is sent after
    ``halt``."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: BrokerConfig,
        broker_epoch: Callable[[], int],
        high_watermark_moved: Callable[[UnifiedLog], None],
        lag: FetchLag,
        changed: Callable[[FollowedPartition], None] = lambda _: None,
    ) -> None:
        """``broker_epoch`` returns the epoch of this node's registration, -1 before it. ``high_watermark_moved`` gets
        each log whose high watermark followed its leader's, and ``changed`` each partition whose consumers may get
        another response now."""
        applier = PartitionDataApplier(ports, high_watermark_moved, changed)
        self.tier: Tier | None = None
        """The source of the state with which replicas begin behind records in the remote tier, if there is a tier."""
        self._setting = ReplicaFetcherContext(node_id, config, ports, broker_epoch, applier, lag, lambda: self.tier)
        self._fetchers: dict[int, ReplicaFetcher] = {}
        """By leader. A fetcher without partitions stays and costs nothing."""
        self._followed: dict[tuple[bytes, int], FollowedPartition] = {}
        self._halted = False

    @property
    def followed(self) -> int:
        """The number of followed partitions."""
        return len(self._followed)

    def halt(self) -> None:
        """Send and append nothing from now on."""
        self._halted = True
        for fetcher in self._fetchers.values():
            fetcher.end()

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: UnifiedLog) -> None:
        """Fetch the partition from ``state.leader`` from now on. The call is repeated with each newer ``state``."""
        key = (topic.topic_id, index)
        current = self._followed.get(key)
        if current is not None and current.leader_id == state.leader:
            if current.leader_epoch != state.leader_epoch:
                current.leader_epoch = state.leader_epoch
                self._fetchers[current.leader_id].follow(current)
            return
        self.stops_following(*key)
        if self._halted:
            return
        log.forget_empty_epochs()
        self.await_marker(log)
        name = TopicPartition(topic.name, index)
        followed = self._followed[key] = FollowedPartition(name, topic.topic_id, log, state.leader, state.leader_epoch)
        self._fetcher(state.leader).follow(followed)

    def await_marker(self, log: UnifiedLog) -> None:
        """Let the cleaner keep all tombstones of a log that is led elsewhere, or not at all, until a leader sends its
        marker (H-2)."""
        if self._setting.config.crucible_tombstone_horizon_enable:
            log.horizon.follow()

    def stops_following(self, topic_id: bytes, index: int) -> None:
        """Fetch the partition no longer. An unknown partition is ignored."""
        followed = self._followed.pop((topic_id, index), None)
        if followed is not None:
            self._fetchers[followed.leader_id].drop(followed)
            self._setting.lag.drop(followed)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = ReplicaFetcher(leader_id, self._setting)
        return fetcher
