"""A whole consumer, alone or as a member of a group. There is no I/O here.

The consumer sends on *channels*. Each channel is a connection of its own with one request in flight. The channels are
``metadata``, ``group``, ``commit``, ``committed``, and ``node-<ID>`` for each leader. A driver runs this loop, with
times of one monotonic clock in microseconds:

    consumer = GroupConsumer(ConsumerConfig(...))
    loop:
        for channel, request in consumer.next_requests(now): ... send it to request.to on that channel ...
        consumer.responded(channel, now, body)         # or failed(channel, now)
        for event in consumer.take_events(): ...    # events of group_events; after Revoked call consumer.release()
        consumer.take_records(500)
        wait for a response, but not beyond consumer.wake_at_us

With ``metadata_epoch`` the consumer speaks KIP-232's drafts to the nodes that announce them. It drops metadata that
is older than the last accepted (spec M-5) and commits with the epoch (M-6). It does not consume before the metadata has
reached the committed epochs (M-10).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from reference_broker.client.consumer_observer import ConsumerObserver, PositionReset
from reference_broker.client.consumer_partitions import ConsumerRecord, HeldPartitions, Phase
from reference_broker.client.group_membership import Assigned, GroupConfig, GroupEvent, GroupMembership, Lost, Revoked
from reference_broker.client.group_requests import (
    DRAFT_VERSION,
    PAGE_VERSION,
    GroupCoordinator,
    GroupRequest,
    GroupVersions,
    MemberIdentity,
)
from reference_broker.client.leader_fetches import FetchSettings, LeaderFetches
from reference_broker.client.metadata_cache import EpochGuards, MetadataCache, NodeAddress
from reference_broker.client.metadata_refresher import MetadataRefresher, MetadataSource
from reference_broker.client.offset_commits import Committed, CommittedOffsets, Fetched, OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error, ErrorCode

METADATA_CHANNEL: Final = "metadata"
GROUP_CHANNEL: Final = "group"
COMMIT_CHANNEL: Final = "commit"
COMMITTED_CHANNEL: Final = "committed"
_NODE_CHANNEL: Final = "node-"
FIRST_METADATA_WITH_TOPIC_IDS: Final = 10
"""The first version of Metadata whose responses name topics by IDs, too (KIP-516)."""
_RETRIED_BY_A_MEMBER: Final = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.rebalance_in_progress,
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_instance_id,
    ErrorCode.request_timed_out,
)
"""Errors of a fetch of committed offsets that a member does not report as failures. The membership deals with them, or
they pass by themselves."""


class ChannelRequest(NamedTuple):
    """A request, and the channel on which to send it."""

    channel: str
    request: GroupRequest


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The configuration of one consumer. Durations are microseconds.

    ``metadata_epoch`` (KIP-232) and ``fetch.leader_epochs`` (KIP-320) each work without the other.
    """

    bootstrap: tuple[NodeAddress, ...]
    group: GroupConfig | None = None
    """None for a consumer without a group."""
    metadata_epoch: bool = True
    """Whether KIP-232's mechanism is on."""
    fetch: FetchSettings = field(default_factory=FetchSettings)
    metadata_version: int = 13
    metadata_max_age_us: int = 300_000_000
    backoff_us: int = 100_000
    request_timeout_us: int = 5_000_000
    commit_deadline_us: int = 60_000_000
    """Time for which a commit is retried."""
    metadata_source: MetadataSource | None = None
    """Chooses the node that gets the Metadata request. With None, nodes take turns."""

    def __post_init__(self) -> None:
        """:raises ValueError: the settings contradict each other."""
        if self.fetch.tombstone_horizon and self.metadata_version < FIRST_METADATA_WITH_TOPIC_IDS:
            raise ValueError(
                f"tombstone_horizon needs topic IDs: set metadata_version to {FIRST_METADATA_WITH_TOPIC_IDS} or more"
            )

    @property
    def draft_version(self) -> int:
        """The version of KIP-232's drafts. Without leader epochs, topic IDs and an instance ID it is the page's."""
        is_static = self.group is not None and self.group.instance_id is not None
        needs_more = self.fetch.leader_epochs or self.fetch.tombstone_horizon or is_static
        return DRAFT_VERSION if needs_more else PAGE_VERSION


@dataclass(slots=True)
class GroupConsumer:
    """A whole consumer. The caller calls ``subscribe`` or ``assign`` first, then runs the loop at the top of this
    file."""

    config: ConsumerConfig
    observer: ConsumerObserver = field(default_factory=ConsumerObserver)
    """The observer of everything that the consumer requests, receives and does."""
    metadata: MetadataRefresher = field(init=False)
    coordinator: GroupCoordinator | None = field(init=False, default=None)
    membership: GroupMembership | None = field(init=False, default=None)
    partitions: HeldPartitions = field(init=False)
    _fetches: LeaderFetches = field(init=False)
    _draft_versions: GroupVersions = field(default_factory=GroupVersions)
    """The group's versions at a coordinator that knows the drafts."""
    _committing: CommittedOffsets | None = None
    _placing: CommittedOffsets | None = None
    _events: list[GroupEvent] = field(default_factory=list)
    _topics: tuple[str, ...] = ()
    _looked_up: tuple[str, ...] = ()
    _requested_topics: tuple[str, ...] = ()
    """The topics of the last request for metadata."""

    def __post_init__(self) -> None:
        config = self.config
        cache = MetadataCache(guards=EpochGuards(config.fetch.leader_epochs, config.metadata_epoch))
        self.metadata = MetadataRefresher(
            config.bootstrap,
            cache,
            config.metadata_epoch,
            config.metadata_version,
            config.backoff_us,
            config.metadata_max_age_us,
            config.request_timeout_us,
            draft_version=config.draft_version,
            source=config.metadata_source,
            observer=self.observer,
        )
        self.partitions = HeldPartitions(observer=self.observer)
        self._fetches = LeaderFetches(config.fetch, self.partitions, self.metadata, config.backoff_us, self.observer)
        if config.group is not None:
            self.coordinator = GroupCoordinator(
                config.group.group_id, config.group.versions, config.backoff_us, config.request_timeout_us
            )
            self._draft_versions = config.group.versions.with_metadata_epoch(config.draft_version)
            self._committing = CommittedOffsets(self.coordinator)
            self._placing = CommittedOffsets(self.coordinator)

    # -- calls of the application ---------------------------------------------------------------------------------

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join the group with these topics, or change the topics of a member."""
        group = self.config.group
        assert group is not None, "a consumer without a group cannot subscribe"
        assert self.coordinator is not None, "a group without a coordinator's place"
        self._topics = topics
        self.metadata.want_at_once()
        if self.membership is None:
            self.membership = GroupMembership(group, self.coordinator)
        self.membership.subscribe(topics)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, without membership. It may still use the group's committed offsets."""
        assert self.membership is None, "a member's partitions are assigned by its group"
        wanted = tuple(partitions)
        self.partitions.drop([each for each in self.partitions.held if each not in wanted])
        self.partitions.add(wanted)
        self._topics = tuple(dict.fromkeys(each.topic for each in wanted))
        self.metadata.want_at_once()

    def look_up(self, topic: str) -> None:
        """Request the metadata of this topic, too, from now on."""
        self._looked_up = (*self._looked_up, topic)
        self.metadata.want_at_once()

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Read an assigned partition from that offset on, without a lookup of its committed offset. ``leader_epoch`` is
        that of the record before it, or -1 if unknown."""
        self.partitions.seek(partition, offset, leader_epoch)

    def seek_by_policy(self, partition: TopicPartition) -> None:
        """Read an assigned partition from where the reset policy says, as if it had no committed offset."""
        self.partitions.begin_reset(partition, "no_offset")

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Until ``resume`` these partitions are not fetched and their records not given out. They stay assigned."""
        self.partitions.set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue with paused partitions."""
        self.partitions.set_paused(partitions, False)

    @property
    def unplaced(self) -> list[TopicPartition]:
        """The assigned partitions whose starting position was neither looked up nor set by a seek."""
        return self.partitions.in_phase(Phase.UNPLACED)

    @property
    def resetting(self) -> dict[TopicPartition, int]:
        """The partitions whose position is being reset, each with its former position or -1. They wait for the reset
        policy's offset. If the policy is ``none`` they wait for ``seek``."""
        return {each: self.partitions.held[each].given for each in self.partitions.in_phase(Phase.RESETTING)}

    def position(self, partition: TopicPartition) -> int:
        """The offset after the last record given out, or -1 while the partition has no position."""
        held = self.partitions.held[partition]
        return held.given if held.phase is Phase.READING else -1

    def committed(self, partition: TopicPartition) -> int:
        """The offset of an assigned partition that is known to be committed, or -1."""
        return self.partitions.held[partition].committed

    @property
    def has_records(self) -> bool:
        """Whether ``take_records`` would return any records."""
        return self.partitions.has_records

    @property
    def identity(self) -> MemberIdentity:
        """The identity with which offsets are committed."""
        if self.membership is not None:
            return self.membership.identity
        return MemberIdentity(self.config.group.group_id if self.config.group is not None else "")

    def metadata_epoch(self) -> int:
        """Return the epoch of the last accepted metadata, or -1 before any (spec M-12)."""
        return self.metadata.cache.metadata_epoch

    def has_reached(self, min_metadata_epoch: int) -> bool:
        """Return whether the last accepted metadata has at least this epoch (spec M-12)."""
        return self.metadata.has_reached(min_metadata_epoch)

    def want_epoch(self, min_metadata_epoch: int) -> None:
        """Request metadata at once, and repeatedly until its epoch has reached this one. -1 ends that."""
        if not self.has_reached(min_metadata_epoch):
            self.metadata.want_at_once()
        self.metadata.min_metadata_epoch = min_metadata_epoch

    def commit(self, now_us: int, offsets: Mapping[TopicPartition, OffsetToCommit] | None = None) -> bool:
        """Begin to commit these offsets. Without ``offsets`` it commits what was given out of all partitions. Returns
        False, and does nothing, while another commit is under way."""
        assert self._committing is not None, "a consumer without a group cannot commit"
        if self._committing.busy:
            return False
        chosen = offsets if offsets is not None else self.read_so_far(self.partitions.held)
        self._committing.commit(chosen, self.identity, now_us + self.config.commit_deadline_us)
        self.observer.commit_begun(tuple(chosen))
        return True

    def read_so_far(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetToCommit]:
        """Return the offsets to commit of these partitions, with the epoch of the last accepted metadata (M-6)."""
        return self.partitions.read_so_far(partitions, self.metadata_epoch())

    def take_commit(self, now_us: int) -> Committed | None:
        """Return the result of the last commit, once."""
        if self._committing is None:
            return None
        result = self._committing.take_result()
        assert not isinstance(result, Fetched), "a fetch on the channel of commits"
        if result is not None:
            self.observer.committed(result)
            for partition, error in result.errors.items():
                if not error:
                    self.partitions.note_committed(partition, result.offsets[partition].offset)
        if result is not None and result.group_error and self.membership is not None:
            self.membership.apply_error(now_us, result.group_error, result.sent_as)
            self._collect()
        return result

    def take_events(self) -> list[GroupEvent]:
        """Return the membership's events in order. Assigned and Lost are already applied. After Revoked the caller
        must call ``release``."""
        events, self._events = self._events, []
        return events

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Release revoked partitions, except those that were assigned again meanwhile."""
        assert self.membership is not None, "only a member's partitions are revoked"
        self.partitions.drop_revoked(partitions)
        if not self.partitions.has_revoked:
            self.membership.release()

    def leave(self) -> None:
        """Leave the group. The events Revoked and Left follow."""
        if self.membership is not None:
            self.membership.leave()
            self._collect()

    def end_fetches(self) -> None:
        """Fetch nothing more and close the fetch sessions, so that the brokers need not keep them (F-8)."""
        self._fetches.leaves = True

    @property
    def has_ended_fetches(self) -> bool:
        """Whether all fetch sessions were closed, or abandoned."""
        return self._fetches.has_left

    @property
    def is_away(self) -> bool:
        """Whether the member has stepped out."""
        return self.membership is not None and self.membership.is_away

    def step_out(self) -> None:
        """Leave the group until ``come_back``, because the application does not poll in time. What it owned is
        lost."""
        if self.membership is not None:
            self.membership.step_out()
            self._collect()

    def come_back(self) -> None:
        """Join again, because the application polls again."""
        if self.membership is not None:
            self.membership.come_back()

    def take_records(self, max_records: int) -> list[ConsumerRecord]:
        """Return records of all partitions. They count as read from now on."""
        return self.partitions.give(max_records)

    def take_resets(self) -> list[PositionReset]:
        """Return the positions that moved without reading or seeking since the last call."""
        resets, self.partitions.resets = self.partitions.resets, []
        return resets

    def take_missed_tombstones(self) -> list[TopicPartition]:
        """Return the partitions that are read from the start of the log again since the last call, because tombstones
        may have been missed. The application must forget what it has made of their records (H-3). Partitions that it
        has released meanwhile are omitted."""
        return self.partitions.take_missed_tombstones()

    def take_failures(self) -> list[Error | int]:
        """Return the errors since the last call that no retry cures, of partitions and of fetches of offsets. The
        member's own error is ``membership.failure``."""
        failures, self._fetches.failures = self._fetches.failures, []
        return failures

    # -- the loop -----------------------------------------------------------------------------------------------

    def next_requests(self, now_us: int, placing: bool = True) -> list[ChannelRequest]:
        """Return what to send now. For each request exactly one of ``responded`` and ``failed`` must follow. With
        ``placing`` False no position is looked up, since the application may still seek."""
        found: list[ChannelRequest] = []
        self._choose_versions()
        watched = self.membership.watched_topics if self.membership is not None else ()
        topics = tuple(dict.fromkeys((*self._topics, *self._looked_up, *watched)))
        request = self.metadata.next_request(now_us, topics)
        self._requested_topics = topics if request is not None else self._requested_topics
        self._add(found, METADATA_CHANNEL, request)
        if self.membership is not None:
            self._add(found, GROUP_CHANNEL, self.membership.next_request(now_us))
            self._collect()
        if self._committing is not None:
            self._add(found, COMMIT_CHANNEL, self._committing.next_request(now_us))
        if placing:
            self._begin_placing(now_us)
        if self._placing is not None:
            self._add(found, COMMITTED_CHANNEL, self._placing.next_request(now_us))
            self._placed(now_us)  # The fetch of committed offsets may have passed its deadline.
        return found + self.next_fetches(now_us)

    def next_fetches(self, now_us: int) -> list[ChannelRequest]:
        """Replace ``next_requests`` once nothing else shall be sent: after ``end_fetches`` it returns only what closes
        sessions."""
        return [
            ChannelRequest(f"{_NODE_CHANNEL}{node}", request) for node, request in self._fetches.next_requests(now_us)
        ]

    def next_heartbeats(self, now_us: int) -> list[ChannelRequest]:
        """Replace ``next_requests`` while the application is busy elsewhere. Returns only requests that keep its
        membership or end it."""
        found: list[ChannelRequest] = []
        if self.membership is not None:
            self._add(found, GROUP_CHANNEL, self.membership.next_heartbeat(now_us))
            self._collect()
        return found

    @property
    def wake_at_us(self) -> int | None:
        """The time at which ``next_requests`` may return something even if no response or call comes before. None means
        that it waits for something other than time."""
        due = [] if self.metadata.is_requesting else [self.metadata.due_at_us]
        parts = (self.membership, self._committing, self._placing, self._fetches)
        due += [at for part in parts if part is not None and (at := part.wake_at_us) is not None]
        return min(due, default=None)

    def responded(self, channel: str, now_us: int, body: object) -> None:
        """Apply the response to the channel's request."""
        if channel == METADATA_CHANNEL:
            if self.metadata.responded(now_us, body):
                self._learn_metadata(now_us)
        elif channel == GROUP_CHANNEL:
            assert self.membership is not None, "a response to no member"
            self.membership.responded(now_us, body)
            self._collect()
        elif channel == COMMIT_CHANNEL:
            assert self._committing is not None, "a response to no commit"
            self._committing.responded(now_us, body)
        elif channel == COMMITTED_CHANNEL:
            assert self._placing is not None, "a response to no fetch of offsets"
            self._placing.responded(now_us, body)
            self._placed(now_us)
        else:
            self._fetches.responded(int(channel.removeprefix(_NODE_CHANNEL)), now_us, body)

    def failed(self, channel: str, now_us: int) -> None:
        """Record that the channel's request got no response."""
        if channel == METADATA_CHANNEL:
            self.metadata.failed(now_us)
        elif channel == GROUP_CHANNEL:
            assert self.membership is not None, "a failure of no member"
            self.membership.failed(now_us)
            self._collect()
            self.metadata.try_another()
        elif channel in (COMMIT_CHANNEL, COMMITTED_CHANNEL):
            part = self._committing if channel == COMMIT_CHANNEL else self._placing
            assert part is not None, "a failure of no operation on offsets"
            part.failed(now_us)
            self.metadata.try_another()
        else:
            self._fetches.failed(int(channel.removeprefix(_NODE_CHANNEL)), now_us)

    def _add(self, requests: list[ChannelRequest], channel: str, request: GroupRequest | None) -> None:
        if request is not None:
            if request.to is None:
                request = replace(request, to=self.metadata.any_node())
            requests.append(ChannelRequest(channel, request))

    def _choose_versions(self) -> None:
        coordinator, group = self.coordinator, self.config.group
        if coordinator is not None and group is not None:
            drafts = coordinator.node is not None and self.metadata.speaks_drafts(coordinator.node)
            coordinator.versions = self._draft_versions if drafts else group.versions

    # -- metadata and the group ---------------------------------------------------------------------------------

    def _learn_metadata(self, now_us: int) -> None:
        """Apply new metadata to partitions and membership. It is requested again while a topic does not exist or a
        partition has no leader."""
        self._learn_counts()
        self.partitions.learn_epoch(self.metadata_epoch())
        cache = self.metadata.cache
        missing = cache.missing(self.partitions.held) or any(topic not in cache.topics for topic in self._topics)
        self.metadata.done(now_us, not self.partitions.is_waiting and not missing)
        if self.membership is not None and self.membership.wanted_topics:
            self.metadata.want_at_once()

    def _learn_counts(self) -> None:
        """Pass the numbers of partitions to the membership, if the request named every topic that the group's leader
        must know."""
        if self.membership is not None and all(
            topic in self._requested_topics for topic in self.membership.wanted_topics
        ):
            topics = (*self._topics, *self.membership.watched_topics)
            known = self.metadata.cache.topics
            self.membership.learn_partitions(
                {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}
            )

    def _collect(self) -> None:
        """Apply the membership's events to the partitions and keep them for the application. Revoked partitions are
        only marked: the application releases them."""
        assert self.membership is not None, "events of no member"
        for event in self.membership.take_events():
            if isinstance(event, Revoked):
                self.partitions.revoke(event.partitions)
            elif isinstance(event, Assigned):
                self.partitions.drop_revoked(event.partitions)
                self.partitions.add(event.partitions)
            elif isinstance(event, Lost):
                self.partitions.drop(event.partitions)
            self._events.append(event)
            self.observer.group_event(event)
        if self.membership.wanted_topics and not self.metadata.stale:
            self.metadata.want_at_once()

    def _begin_placing(self, now_us: int) -> None:
        if self._placing is None:
            for partition in self.unplaced:
                self.seek_by_policy(partition)
        elif self.unplaced and not self._placing.busy:
            unplaced = self.partitions.take_unplaced()
            self._placing.fetch(unplaced, self.identity, now_us + self.config.commit_deadline_us)
            self.observer.offsets_wanted(unplaced)

    def _placed(self, now_us: int) -> None:
        assert self._placing is not None, "no group"
        result = self._placing.take_result()
        if not isinstance(result, Fetched):
            return
        self.observer.offsets_fetched(result)
        if result.error:
            if self.membership is not None:
                self.membership.apply_error(now_us, result.error, result.sent_as)
                self._collect()
            if self.membership is None or result.error not in _RETRIED_BY_A_MEMBER:
                self._fetches.failures.append(result.error)
            return
        self.partitions.learn_committed(result.offsets, self.metadata_epoch())
        if self.partitions.is_waiting:
            self.metadata.want(now_us)
