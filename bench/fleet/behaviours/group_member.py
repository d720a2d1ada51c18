"""A member of a consumer group: an application that uses the reference client's consumer and records all of it.

A member is assembled from parts. ``GroupConsumer`` of the reference client decides everything about the group,
metadata, positions and fetches. ``ConsumerChannels`` carries its requests, and ``ConsumerHistory`` records them. An
``OffsetKeeper`` stores offsets, and a ``RecordSink`` takes the records. This file is the application: it polls at
intervals, commits, drops revoked partitions, leaves and rejoins.

Clients differ from stock clients only as their ``MemberPlan`` specifies. With ``metadata_epoch`` a client uses the
draft versions of Metadata, OffsetCommit and OffsetFetch and follows M-5, M-6 and M-10. With ``leader_epochs`` it
follows KIP-320: it drops stale metadata of a partition, and its fetches contain the leader epoch. With neither, it
accepts the metadata of any node.

After the load, a member continues until it has caught up. Then it commits and stops without leaving the group, so that
its partitions are not reassigned. Only a member that leaves while others continue sends LeaveGroup. Each member finally
closes its fetch sessions, as Kafka's consumer does.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from bench.fleet.behaviours.client_channels import ConsumerChannels
from bench.fleet.behaviours.consumer_history import NO_OFFSET, ConsumerHistory
from bench.fleet.behaviours.journal import Journal
from bench.fleet.behaviours.member_storage import (
    KafkaOffsets,
    NoOffsets,
    Nowhere,
    OffsetKeeper,
    OutsideOffsets,
    OutsideStore,
    RecordSink,
    TransactionalOffsets,
    View,
)
from bench.fleet.behaviours.protocol import (
    Chance,
    ClientSettings,
    Finished,
    FleetAction,
    FleetEvent,
    HistoryRow,
    Leaving,
    Now,
    Started,
    Stopping,
    TopicPartition,
    Wake,
)
from reference_broker.client.consumer_observer import PositionReset
from reference_broker.client.group_consumer import ConsumerConfig, GroupConsumer
from reference_broker.client.group_membership import (
    COOPERATIVE_PROTOCOLS,
    EAGER_PROTOCOLS,
    Failed,
    GroupConfig,
    Lost,
    MemberState,
    Revoked,
)
from reference_broker.client.group_requests import GroupVersions, MemberIdentity
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.metadata_refresher import MetadataSource
from reference_broker.wire.errors import ErrorCode
from reports.rows import END_OF_RUN_US

ANY_NODE: Final = -1
ALTERNATING: Final = -2


@dataclass(slots=True)
class InTurn:
    """The nodes take turns, in the order of their numbers."""

    turn: int

    def __call__(self, nodes: dict[int, NodeAddress]) -> NodeAddress:
        self.turn += 1
        return nodes[sorted(nodes)[self.turn % len(nodes)]]


def metadata_source(metadata_from: int, random: Chance) -> MetadataSource:
    """Return the choice of the node of which metadata is requested.

    ``metadata_from`` is a node ID, ANY_NODE (one is drawn each time) or ALTERNATING (they take turns). Until nodes are
    known, the bootstrap addresses are numbered in their order.
    """
    choose: Callable[[dict[int, NodeAddress]], NodeAddress]
    if metadata_from >= 0:

        def choose(nodes: dict[int, NodeAddress]) -> NodeAddress:
            return nodes.get(metadata_from) or nodes[min(nodes)]

    elif metadata_from == ALTERNATING:
        choose = InTurn(random.randrange(1 << 16))
    else:

        def choose(nodes: dict[int, NodeAddress]) -> NodeAddress:
            return random.choice([nodes[node] for node in sorted(nodes)])

    def source(known: tuple[NodeAddress, ...], bootstrap: tuple[NodeAddress, ...]) -> NodeAddress:
        return choose({address.node_id: address for address in (*bootstrap, *known)})

    return source


ASSIGNED: Final = "assigned"
PROTOCOLS: Final = ("eager", "cooperative", ASSIGNED)
"""An ``assigned`` client is no member. It reads all partitions of its topics and commits as a simple consumer."""
RESETS: Final = ("earliest", "latest", "none")
"""The client's choice without a committed offset, or if the leader does not have its position (Kafka's
``auto.offset.reset``). With ``none`` it keeps a position that is out of range and fetches again. Without a committed
offset it then begins at offset 0."""
OUTSIDE: Final = "outside"
OFFSETS: Final = ("kafka", OUTSIDE)
IN_TRANSACTIONS: Final = "transactions"
"""The offsets of a worker, which its producer sends as part of transactions."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The plan of one member of a consumer group, or of one ``assigned`` client."""

    process: str
    group: str
    partitions: tuple[TopicPartition, ...]
    """All partitions of the topics to which it subscribes or, if ``assigned``, which it reads."""
    protocol: str = "eager"  # one of PROTOCOLS
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: str = "earliest"  # one of RESETS
    commit_interval_us: int = 500_000
    instance_id: str = ""  # of a static member; empty for a dynamic one
    offsets: str = "kafka"  # outside: ``store`` has each offset with its metadata epoch
    metadata_from: int = ANY_NODE
    """The node of which it requests metadata, ANY_NODE (drawn each time) or ALTERNATING (nodes take turns)."""
    metadata_interval_us: int = 1_000_000
    """Interval between its Metadata requests, even if nothing is wrong."""
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 500
    poll_interval_us: int = 100_000
    max_wait_ms: int = 300
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    partition_max_bytes: int = 1 << 20
    stay_us: int = 0
    """After this time it leaves, forgets all that it knows, and joins again; 0 means that it stays."""
    rack: str = ""
    """It reads from followers in its rack, and tries the leader again after ``metadata_interval_us``."""
    isolation: str = "read_uncommitted"
    view: bool = False
    """It reads from the beginning in each of its lives, and keeps the newest record of each key."""
    tombstone_horizon: bool = False
    """It drops its view of a partition where it may have missed tombstones."""

    @property
    def read_committed(self) -> bool:
        return self.isolation == "read_committed"

    @property
    def store(self) -> str:
        """The name of the store of its outside offsets. Members of a group share one, because they take over from each
        other. An ``assigned`` client has its own."""
        return self.process if self.protocol == ASSIGNED else self.group

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(partition.topic for partition in self.partitions))


TIMER_CHANNEL: Final = 0
"""The channel of the client's timer. It has no connection."""
QUIET_FETCHES: Final = 3
"""A member has caught up with a partition after this many fetches in a row without data or error."""
AWAY_US: Final = 300_000
"""Time for which a member that left stays away, and a refused one waits before it retries."""
SOON_US: Final = 5_000
IDLE_US: Final = 200_000
"""A client looks around after SOON_US at the earliest and after IDLE_US at the latest."""
MAX_POLL_RECORDS: Final = 500


def consumer_config(plan: MemberPlan, settings: ClientSettings, random: Chance) -> ConsumerConfig:
    """Return the reference client's configuration for a plan."""
    version = settings.versions
    versions = GroupVersions(
        version.find_coordinator,
        version.join_group,
        version.sync_group,
        version.heartbeat,
        version.leave_group,
        version.offset_commit,
        version.offset_fetch,
    )
    group = GroupConfig(
        plan.group,
        plan.topics,
        COOPERATIVE_PROTOCOLS if plan.protocol == "cooperative" else EAGER_PROTOCOLS,
        plan.instance_id or None,
        plan.session_timeout_ms * 1000,
        plan.rebalance_timeout_ms * 1000,
        plan.heartbeat_interval_ms * 1000,
        settings.backoff_us,
        settings.request_timeout_us,
        versions,
    )
    fetch = FetchSettings(
        version.fetch,
        version.list_offsets,
        plan.max_wait_ms,
        plan.min_bytes,
        plan.max_bytes,
        plan.partition_max_bytes,
        plan.reset,
        plan.leader_epochs,
        settings.request_timeout_us,
        plan.rack,
        plan.read_committed,
        plan.tombstone_horizon,
    )
    return ConsumerConfig(
        tuple(NodeAddress(number, each.host, each.port) for number, each in enumerate(settings.bootstrap)),
        group,
        plan.metadata_epoch,
        fetch,
        version.metadata,
        plan.metadata_interval_us,
        settings.backoff_us,
        settings.request_timeout_us,
        settings.request_timeout_us,
        metadata_source(plan.metadata_from, random),
    )


@dataclass(slots=True)
class MemberLife:
    """A client from its start to its end. The next life has none of its state."""

    consumer: GroupConsumer
    channels: ConsumerChannels
    offsets: OffsetKeeper
    came_us: int
    commit_at_us: int
    poll_at_us: int = 0
    revoked: deque[Revoked] = field(default_factory=deque)
    """Partitions that are being given up. What has been read of them is processed and committed first."""
    revoked_by_us: int = 0  # the deadline for processing what was read of ``revoked``
    ending_by_us: int = -1  # the time by which its end must be over; -1 before the end has begun
    closing_by_us: int = -1
    """Until then its fetch sessions may be closed and requests in flight may end; -1 before the life is over."""
    leaves: bool = False  # at its end it leaves the group
    returns: bool = False  # another life follows
    committed_last: bool = False  # the last commit before giving up, or before the end, has begun
    begun_us: dict[TopicPartition, int] = field(default_factory=dict)
    """When it began to reread a partition of which it may have missed tombstones."""

    @property
    def is_over(self) -> bool:
        """Whether it is no member any more."""
        membership = self.consumer.membership
        return membership is None or membership.is_over


class GroupMember:
    """Ends after Stopping, once it has caught up with all its partitions. Members may share ``store``."""

    def __init__(
        self,
        plan: MemberPlan,
        settings: ClientSettings,
        random: Chance,
        store: OutsideStore | None = None,
        sink: RecordSink | None = None,
    ) -> None:
        self.member = plan
        self.settings = settings
        self.config = consumer_config(plan, settings, random)
        self.view = View(plan.process, self.config.fetch.isolation_level) if plan.view else None
        self.sink = sink or self.view or Nowhere()
        self.store = store or OutsideStore()
        self._random = random
        self._journal = Journal(plan.process)
        self._history = ConsumerHistory(self._journal, plan.group, self.config.fetch.isolation_level)
        self._channel_numbers = count(TIMER_CHANNEL + 1)
        self._life: MemberLife | None = None
        self._back_at_us = 0
        self._woken_at_us = 0
        self._stopping_at_us = -1
        self._leaving = False
        self._finished = False

    @property
    def process(self) -> str:
        return self.member.process

    @property
    def belongs(self) -> bool:
        """Whether it takes part in the group protocol."""
        return self.member.protocol != ASSIGNED

    @property
    def identity(self) -> MemberIdentity | None:
        """The identity with which offsets are committed now, None while the client is no member."""
        consumer = self._life.consumer if self._life is not None else None
        known = consumer is not None and consumer.membership is not None and consumer.membership.generation >= 0
        return consumer.identity if consumer is not None and known else None

    def restart(self) -> None:
        """End this life at once. The next one resumes at the group's committed offsets."""
        if self._life is not None:
            self._life.ending_by_us, self._life.returns = 0, True

    # -- what a driver calls ------------------------------------------------------------------------------------

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        self._journal.now = now
        if self._finished:
            return []
        if isinstance(event, Started):
            self._life = self._begin()
        elif isinstance(event, Stopping | Leaving):
            self._stopping_at_us, self._leaving = now.mono_us, isinstance(event, Leaving)
            self._history.quiet.clear()
        elif self._life is not None:
            self._life.channels.handle(event)
        self._go_on()
        return self._journal.take_actions()

    def close(self, now: Now) -> list[HistoryRow]:
        self._journal.now, self._finished = now, True
        return self._journal.end_all("unfinished") + self._still_open()

    def _still_open(self) -> list[HistoryRow]:
        return self._history.still_open(self._now_us if self._leaving else END_OF_RUN_US)

    @property
    def _now_us(self) -> int:
        return self._journal.now.mono_us

    @property
    def _is_stopping(self) -> bool:
        return self._stopping_at_us >= 0

    # -- lives --------------------------------------------------------------------------------------------------

    def _begin(self) -> MemberLife:
        consumer = GroupConsumer(self.config, self._history)
        channels = ConsumerChannels(consumer, self._history, self._journal, self.settings, self._channel_numbers)
        offsets: OffsetKeeper = KafkaOffsets(consumer, self.sink)
        if self.member.offsets == IN_TRANSACTIONS:
            offsets = TransactionalOffsets()
        elif self.member.view:
            offsets = NoOffsets(consumer)
        elif self.member.offsets == OUTSIDE:
            offsets = OutsideOffsets(consumer, self.sink, self._history, self.store, self.member.metadata_epoch)
        if self.belongs:
            consumer.subscribe(self.member.topics)
        else:
            consumer.assign(self.member.partitions)
        # Clients that begin at the same time do not commit in step, so chance decides who comes first after a fault.
        commit_at_us = self._now_us + 1 + self._random.randrange(self.member.commit_interval_us)
        return MemberLife(consumer, channels, offsets, self._now_us, commit_at_us)

    def _begin_end(self, life: MemberLife) -> None:
        life.ending_by_us = self._now_us + self.settings.request_timeout_us
        life.returns = not self._is_stopping
        life.leaves = self.belongs and (life.returns or self._leaving)
        if life.leaves:
            life.consumer.leave()

    def _has_ended(self, life: MemberLife) -> bool:
        if life.offsets.busy:
            return False
        if self._now_us >= life.ending_by_us:
            return True
        if life.leaves:
            return life.is_over
        if not life.committed_last:
            life.committed_last = True
            life.offsets.commit(self._now_us, life.consumer.partitions.held)
        return not life.offsets.busy

    def _close(self, life: MemberLife) -> None:
        """Close the fetch sessions once the life has ended (F-8), and wait for what is in flight. If it has left
        the group it waits for fetches only."""
        if life.closing_by_us < 0:
            if not self._has_ended(life):
                return
            life.closing_by_us = self._now_us + self.settings.request_timeout_us
            life.consumer.end_fetches()
        for channel, request in life.consumer.next_fetches(self._now_us):
            life.channels.send(channel, request)
        is_done = life.consumer.has_ended_fetches and (life.leaves or life.channels.is_idle)
        if is_done or self._now_us >= life.closing_by_us:
            self._end(life)

    def _end(self, life: MemberLife) -> None:
        """End this life. A client that returns knows only what was committed or stored."""
        self._life = None
        life.channels.close()
        self._report_view(life)
        if not life.returns:
            self._finish()
            return
        membership = life.consumer.membership
        if membership is None or membership.state is not MemberState.LEFT:
            self._history.cut_off()
        self.sink.drop(life.consumer.partitions.held)
        self._history.forget()
        self._back_at_us = self._now_us + AWAY_US

    def _report_view(self, life: MemberLife) -> None:
        if self.view is not None:
            for partition in life.consumer.partitions.held:
                position = life.consumer.position(partition)
                from_us = life.begun_us.get(partition, life.came_us)
                self._journal.record(*self.view.rows(partition, position, from_us, self._now_us))

    def _finish(self) -> None:
        self._finished = True
        self._journal.record(*self._still_open())
        self._journal.actions.append(Finished())

    # -- the application ----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Do all that can be done now, and set the time to look around again."""
        if self._life is None and (self._now_us >= self._back_at_us or self._is_stopping):
            if self._leaving:
                self._finish()
            else:
                self._life = self._begin()
        if self._life is not None:
            self._live(self._life)
        if not self._finished:
            self._wake_at(self._back_at_us if self._life is None else self._due_at_us(self._life))

    def _live(self, life: MemberLife) -> None:
        """Work until nothing is left to do without waiting."""
        going = True
        while going:
            life.offsets.settle(self._now_us)
            self._forget_missed(life)
            going = self._advance(life)
            if self._life is not life or life.closing_by_us >= 0:
                return
            for channel, request in life.consumer.next_requests(self._now_us, life.offsets.places):
                life.channels.send(channel, request)
            going = self._handle_events(life) or going

    def _forget_missed(self, life: MemberLife) -> None:
        """Forget what was made of records whose tombstones may have been missed (H-3)."""
        missed = life.consumer.take_missed_tombstones()
        if missed:
            self.sink.drop(missed)
            life.begun_us.update(dict.fromkeys(missed, self._now_us))

    def _handle_events(self, life: MemberLife) -> bool:
        """Handle the membership's events, and return whether there were any."""
        events = life.consumer.take_events()
        for event in events:
            if isinstance(event, Revoked):
                life.revoked.append(event)
                life.revoked_by_us = self._now_us + self.settings.request_timeout_us
            elif isinstance(event, Lost):
                self.sink.drop(event.partitions)
            elif isinstance(event, Failed):
                life.ending_by_us, life.returns = self._now_us, True
        return bool(events)

    def _advance(self, life: MemberLife) -> bool:
        """Take the next step, and return whether it may allow another one at once."""
        if life.revoked:
            return self._give_up(life, life.revoked[0])
        if life.ending_by_us >= 0:
            self._close(life)
            return False
        if self._is_time_to_end(life):
            self._begin_end(life)
            return True
        self._work(life)
        return False

    def _give_up(self, life: MemberLife, revoked: Revoked) -> bool:
        """Give up revoked partitions once they are committed. Nothing is read meanwhile."""
        held = [partition for partition in revoked.partitions if partition in life.consumer.partitions.held]
        waits = self.sink.holds(held) and self._now_us < life.revoked_by_us
        if waits or life.offsets.busy:
            return False
        if not life.committed_last:
            life.committed_last = True
            life.offsets.commit(self._now_us, held)
        if life.offsets.busy:
            return False
        life.committed_last = False
        life.revoked.popleft()
        self.sink.drop(revoked.partitions)
        self._history.released(revoked)
        life.consumer.release(revoked.partitions)
        return True

    def _is_time_to_end(self, life: MemberLife) -> bool:
        if not self._is_stopping:
            return self._has_share(life) and 0 < self.member.stay_us <= self._now_us - life.came_us
        late = self._now_us - self._stopping_at_us >= self.settings.drain_us
        return self._leaving or late or self._has_caught_up(life)

    @staticmethod
    def _has_share(life: MemberLife) -> bool:
        """Return whether it is no member, or a stable one. If it left while it joins, the others would wait for its
        session's end."""
        membership = life.consumer.membership
        return membership is None or membership.state is MemberState.STABLE

    def _has_caught_up(self, life: MemberLife) -> bool:
        if not self._has_share(life):
            return False
        consumer, held = life.consumer, life.consumer.partitions.held
        quiet = all(self._history.quiet.get(each, 0) >= QUIET_FETCHES for each in held)
        return quiet and not consumer.has_records and not self.sink.holds(held)

    def _work(self, life: MemberLife) -> None:
        consumer = life.consumer
        life.offsets.place()
        self._follow_policy_none(consumer)
        full = [each for each in consumer.partitions.held if self.sink.is_full(each)]
        consumer.resume(consumer.partitions.held)
        consumer.pause(full)
        if self._now_us >= life.poll_at_us and consumer.has_records:
            records = consumer.take_records(MAX_POLL_RECORDS)
            self._history.read(records)
            self.sink.put(records)
            life.poll_at_us = self._now_us + self.member.poll_interval_us
        if self._now_us >= life.commit_at_us and not life.offsets.busy:
            life.offsets.commit(self._now_us, consumer.partitions.held)
            life.commit_at_us = self._now_us + self.member.commit_interval_us

    def _follow_policy_none(self, consumer: GroupConsumer) -> None:
        """Without a reset policy the application decides. It keeps its position, or begins at offset 0."""
        if ErrorCode.offset_out_of_range in consumer.take_failures():
            for partition, at in consumer.resetting.items():
                if at < 0:
                    epoch = consumer.metadata_epoch()
                    self._history.position_reset(PositionReset(partition, at, 0, NO_OFFSET, epoch))
                consumer.seek(partition, max(at, 0))

    # -- time ---------------------------------------------------------------------------------------------------

    def _due_at_us(self, life: MemberLife) -> int:
        # A commit that is under way ends with an event, and the next one is sent then.
        due = [self._now_us + IDLE_US if life.offsets.busy else life.commit_at_us]
        wake_at_us = life.consumer.wake_at_us
        if wake_at_us is not None:
            due.append(wake_at_us)
        if life.consumer.has_records:
            due.append(life.poll_at_us)
        return min(due)

    def _wake_at(self, due_us: int) -> None:
        """Wake the client not at once, so that it does not spin, and not late, because not everything it waits for
        comes with an event."""
        at_us = min(max(due_us, self._now_us + SOON_US), self._now_us + IDLE_US)
        if not self._now_us < self._woken_at_us <= at_us:
            self._woken_at_us = at_us
            self._journal.actions.append(Wake(at_us, TIMER_CHANNEL))
