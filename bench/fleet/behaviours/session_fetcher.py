"""Fetchers: each reads its own idle partition and shared hot ones, through fetch sessions or without any.

A fetcher has one connection and one session for each node that leads some of its partitions. It polls each node in a
task of its own (``script``), so that a node that hangs delays only its own partitions. When a leader moves, its
partitions move with it. A response that comes too late for a partition, because its position has moved, is not used
for it.

The variants differ only in their ``Habits``, some of which misbehave on purpose. That is why fetchers have a loop of
their own and do not use the client's LeaderFetches. After a top-level error or a response that does not fit, all of
them fall back to a full fetch. They lose nothing by it, because positions move only with records that came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, cast

from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.cluster import PATIENT_FAILURES, ClusterScript
from bench.fleet.behaviours.journal import AssignmentBook
from bench.fleet.behaviours.protocol import (
    Address,
    Chance,
    ClientSettings,
    HistoryRow,
    ResponseReceived,
    TopicPartition,
)
from bench.fleet.behaviours.script import Operation, Steps
from bench.fleet.values import read_row
from reference_broker.client.consumer import ConsumerState, is_damaged
from reference_broker.client.session_handler import (
    FetchPlan,
    Handled,
    SessionHandler,
    Wanted,
    make_session_handler,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import FetchResponse, PartitionData
from reports.rows import END_OF_RUN_US, PositionRow

NO_SESSIONS: Final = "none"
REVISIONS: Final = ("final", "first", NO_SESSIONS)
"""The revisions of fetch sessions. With ``none`` each fetch is a full one, whatever the variant."""


class OnLost(Enum):
    """Reaction of a fetcher to a lost response. Stock clients, which know the final revision only, FALL_BACK."""

    FALL_BACK = "full fetch in a new session; in the first revision the same request with the same number again"
    NAME_ALL = "full fetch in both revisions, as stock clients do; in the first it stays in its session"
    RESEND = "the same request with the same epoch again"
    PRESUME = "the next epoch, as if the response had been empty; it names all in the first revision, and nothing else"


@dataclass(frozen=True, slots=True)
class Habits:
    """Behaviour of a fetcher that differs from stock clients."""

    sessionless: bool = False
    on_lost: OnLost = OnLost.FALL_BACK
    forget_every: int = 0
    """Number of polls after which some hot partitions are dropped, or taken back if some are dropped; 0: never."""
    forgets_all: bool = False  # drops its idle partition, too, and thereby ends its session
    seek_every: int = 0
    """Number of polls after which some hot partitions are read from the log's start again; 0: never."""

    def __post_init__(self) -> None:
        moves = self.forget_every or self.seek_every
        # A request that is resent, or presumed processed, must still have the fetcher's positions.
        assert self.on_lost is OnLost.FALL_BACK or not moves, "only a fetcher that falls back may drop or seek"


VARIANTS: Final[Mapping[str, Habits]] = {
    "full": Habits(sessionless=True),
    "incremental": Habits(),
    "forgetting": Habits(forget_every=5),
    "emptying": Habits(forget_every=5, forgets_all=True),
    "rotating": Habits(seek_every=20),
    "refetching": Habits(on_lost=OnLost.NAME_ALL),
    "resending": Habits(on_lost=OnLost.RESEND),
    "presuming": Habits(on_lost=OnLost.PRESUME),
}


@dataclass(frozen=True, slots=True)
class FetcherPlan:
    """The plan of one fetcher."""

    process: str
    variant: str  # one of VARIANTS
    partitions: tuple[TopicPartition, ...]  # what it reads, its own idle partition first
    poll_interval_us: int = 100_000
    """Time between the intended times of two polls at the same node. A fetcher waits at the broker, so it is a closed
    loop: a poll that is due while another runs is due when that one ends."""
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 8 << 20
    partition_max_bytes: int = 1 << 20
    revision: str = "final"  # one of REVISIONS
    first_epoch: int = 1
    newest_version: int = 18  # of Fetch

    @property
    def sessionless(self) -> bool:
        return self.revision == NO_SESSIONS or VARIANTS[self.variant].sessionless


@dataclass(slots=True)
class Reading:
    """The positions of one fetcher, and the partitions that its habits make it read."""

    plan: FetcherPlan
    random: Chance
    book: AssignmentBook
    consumer: ConsumerState = field(default_factory=ConsumerState)
    dropped: frozenset[TopicPartition] = frozenset()  # not fetched for now
    polls: int = 0

    @property
    def habits(self) -> Habits:
        return VARIANTS[self.plan.variant]

    def change_mind(self, stopping: bool) -> None:
        """Drop, take back or seek partitions before a poll. Nothing is dropped after the load has ended."""
        hot = self.plan.partitions[1:]
        forget, seek = self.habits.forget_every, self.habits.seek_every
        if stopping:
            self.dropped = frozenset()
        elif forget and hot and self.polls % forget == forget - 1:
            wanted = frozenset(self.plan.partitions) if self.habits.forgets_all else self._some(hot)
            self.dropped = frozenset() if self.dropped else wanted
        elif seek and hot and self.polls % seek == seek - 1:
            chosen = self._some(hot)
            for partition in [each for each in hot if each in chosen]:
                self.seek(partition, max(0, self.consumer.positions[partition].log_start_offset))

    def _some(self, hot: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(self.random.sample(hot, max(1, len(hot) // 5)))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.book.move(partition, offset)
        self.consumer.seek(partition, offset)


__all__ = ["QUIET_POLLS", "REVISIONS", "VARIANTS", "FetcherPlan", "SessionFetcher"]

OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = "CORRUPT_MESSAGE"
MAX_REFETCHES: Final = 3
"""Number of retries of damaged records. Then the fetcher records them, so that the checks see them."""
QUIET_POLLS: Final = 3
"""After this many polls in a row without data or error, a stopping fetcher has caught up at a node."""
LEADERLESS_US: Final = 200_000
"""Interval between lookups of leaders while a partition has none."""
PARKED_US: Final = 1_000_000
"""Interval at which a task whose node leads nothing looks for work. It also does so when leaders have moved."""
SPARE: Final = Address("", 0)
"""Key of the connection (``channel_of``) for metadata from another node than the task's own."""


@dataclass(slots=True)
class NodeSession:
    """The session with one node."""

    handler: SessionHandler
    resend: FetchPlan | None = None  # the plan whose response was lost, if it is to be sent again unchanged
    quiet_polls: int = 0  # polls in a row without news since the load's end
    refusals: int = 0  # responses in a row that could not be used


@dataclass(slots=True)
class FetchEffect:
    """The effect of one response, collected while its partitions are handled."""

    node_id: int
    index: int
    rows: list[HistoryRow] = field(default_factory=list)
    spans: int = 0
    failed: bool = False


class SessionFetcher(ClusterScript):
    """Ends after Stopping, once QUIET_POLLS polls in a row at each leader brought nothing. ``reader`` may be shared."""

    KEEPS_CONNECTIONS = True

    def __init__(self, plan: FetcherPlan, settings: ClientSettings, random: Chance, reader: BatchReader) -> None:
        super().__init__(plan.process, settings, random, [partition.topic for partition in plan.partitions])
        self.plan = plan
        self.reader = reader
        self._newest = min(settings.versions.fetch, plan.newest_version)
        self.book = AssignmentBook(self.journal)
        self.reading = Reading(plan, random, self.book)
        self.sessions: dict[int, NodeSession] = {}
        self._out_of_range: dict[TopicPartition, int] = {}
        """The partitions that need another position, each with the index of the operation that reported it."""
        self._damaged: dict[TopicPartition, tuple[int, int]] = {}
        """The offset at which damaged records came last, and how often in a row."""
        self._stale_metadata = False
        self._looking_up = False
        self._by_leader: dict[int, list[TopicPartition]] = {}
        self._grouped_for: object = None
        self._leaderless = False
        self._look_again_us = 0
        self._first_poll_us = 0
        self._caught_up = False

    def still_open(self) -> list[HistoryRow]:
        return self.book.end_all(self.now.mono_us if self.leaving else END_OF_RUN_US)

    def run(self) -> Steps[None]:
        if not (yield from self.find_leaders(self.plan.partitions)):
            return
        for partition in self.plan.partitions:
            self.reading.consumer.seek(partition, 0)
        self._first_poll_us = self.first_due_us(self.plan.poll_interval_us)
        home = next((leader for leader in self._leaders() if self._address(leader) == self.connected_to), None)
        if home is None:
            self.disconnect()  # This node leads none of the partitions, and each leader gets a connection of its own.
            home = next(iter(self._leaders()))
        self.sessions[home] = self._new_session()
        self._attend_leaders()
        yield from self._attend(home)

    # -- leaders ------------------------------------------------------------------------------------------------

    def _leaders(self) -> dict[int, list[TopicPartition]]:
        """Return the partitions by leader. They are computed again only when the metadata has changed."""
        if self._grouped_for is not self.metadata:
            groups: dict[int, list[TopicPartition]] = {}
            for partition in self.plan.partitions:
                node = self.metadata.leader_of(partition)
                if node is not None:
                    groups.setdefault(node.node_id, []).append(partition)
            if groups != self._by_leader:
                for session in self.sessions.values():
                    session.quiet_polls = 0
            self._by_leader, self._grouped_for = groups, self.metadata
            self._leaderless = sum(len(group) for group in groups.values()) < len(self.plan.partitions)
        return self._by_leader

    def _address(self, node_id: int) -> Address:
        node = self.metadata.nodes[node_id]
        return Address(node.host, node.port)

    def _new_session(self) -> NodeSession:
        revision = "final" if self.plan.revision == NO_SESSIONS else self.plan.revision
        return NodeSession(make_session_handler(revision, self.plan.sessionless, self.plan.first_epoch))

    def _attend_leaders(self) -> None:
        """Start a task for each leader that has none. Wake the tasks of the other leaders."""
        for node_id in list(self._leaders()):
            channel = self.channel_of(self._address(node_id))
            if node_id in self.sessions:
                self.wake_task(channel)
            else:
                self.sessions[node_id] = self._new_session()
                self.start_task(self._attend(node_id), channel)

    def _look_up(self) -> Steps[None]:
        """Refresh metadata over the task's own connection, or from another node if that has failed."""
        self._looking_up = True
        if self.connected_to is not None and self.running_task.failures <= PATIENT_FAILURES:
            found = yield from self.refresh()
        else:
            own, self.running_task.channel = self.running_task.channel, self.channel_of(SPARE)
            failures, self.running_task.failures = self.running_task.failures, 0
            found = (yield from self.connect(self._next_address())) and (yield from self.refresh())
            self.disconnect()
            self.running_task.channel, self.running_task.failures = own, failures
        self._looking_up = False
        if found:
            self._stale_metadata = False
            self._attend_leaders()
        else:
            yield from self.back_off()

    # -- one node -----------------------------------------------------------------------------------------------

    def _attend(self, node_id: int) -> Steps[None]:
        """Poll one node as long as the fetcher lives. Nothing is due while the node leads none of its partitions."""
        session, interval = self.sessions[node_id], self.plan.poll_interval_us
        due_us = max(self._first_poll_us, self.now.mono_us)
        while not self._done():
            if self._leaderless and self.now.mono_us >= self._look_again_us:
                self._stale_metadata = True
                self._look_again_us = self.now.mono_us + LEADERLESS_US
            if self._stale_metadata and not self._looking_up:
                yield from self._look_up()
            elif not self._leaders().get(node_id):
                self.disconnect()
                yield from self.sleep_until(self.now.mono_us + (LEADERLESS_US if self._leaderless else PARKED_US))
                due_us = max(due_us, self.now.mono_us)
            elif self.now.mono_us < due_us and not self.stopping:
                yield from self.sleep_until(due_us)
            else:
                yield from self._turn(node_id, session, min(due_us, self.now.mono_us))
                due_us = max(due_us + interval, self.now.mono_us)
                if self.stopping or session.refusals == 1:
                    due_us = self.now.mono_us  # After a top-level error a full fetch follows at once.
        yield from self._close(session)

    def _close(self, session: NodeSession) -> Steps[None]:
        """Close the session where the fetcher is still connected and has time, as Kafka's consumer does (F-8)."""
        if self.connected_to is None or self.out_of_time:
            return
        plan = session.handler.close()
        if plan is not None:
            version = plan.version(self._newest)
            yield from self.call(ApiKey.FETCH, version, plan.request(version, 0, 0, 0), 0)

    def _done(self) -> bool:
        """Return whether the fetcher has ended. All tasks get the same result."""
        if self.stopping and not self._caught_up:
            polled = [self.sessions[leader].quiet_polls for leader in self._leaders() if leader in self.sessions]
            quiet = len(polled) == len(self._by_leader) and min(polled, default=0) >= QUIET_POLLS
            self._caught_up = self.leaving or self.out_of_time or (quiet and not self._leaderless)
        return self._caught_up

    def _turn(self, node_id: int, session: NodeSession, intended_us: int) -> Steps[None]:
        """Poll once, or do what must come before a poll."""
        if not (yield from self.connect_to_node(self.metadata.nodes[node_id])):
            self._stale_metadata = True
            yield from self.back_off()
            return
        mine = self._leaders().get(node_id, ())
        if lost := [each for each in mine if each in self._out_of_range]:
            yield from self._reset_positions(lost)
        elif mine:
            self.reading.change_mind(self.stopping)
            yield from self._poll(node_id, session, intended_us)

    def _reset_positions(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Continue partitions at the start of their logs, because the broker does not have their position. Only their
        leader knows the log's start. It is the node that the task is connected to."""
        found = yield from self.bound_offsets(partitions)
        for partition in partitions:
            if partition in found:
                self.reading.seek(partition, found[partition])
                self._out_of_range.pop(partition, None)
        if len(found) < len(partitions):
            self._stale_metadata = True
            yield from self.back_off()

    def _wanted(self, node_id: int) -> dict[TopicPartition, Wanted]:
        wanted: dict[TopicPartition, Wanted] = {}
        positions, max_bytes = self.reading.consumer.positions, self.plan.partition_max_bytes
        for partition in self._leaders().get(node_id, ()):
            if partition in self.reading.dropped:
                continue
            topic = self.metadata.topics[partition.topic]
            leader_epoch = topic.partitions[partition.partition].leader_epoch
            wanted[partition] = Wanted(topic.topic_id, positions[partition].offset, max_bytes, leader_epoch)
        return wanted

    def _poll(self, node_id: int, session: NodeSession, intended_us: int) -> Steps[None]:
        plan, session.resend = session.resend or session.handler.build(self._wanted(node_id)), None
        self.reading.polls += 1
        operation = self.journal.begin("fetch", intended_us)
        operation.node = node_id
        operation.session_id, operation.session_epoch = plan.session_id, plan.session_epoch
        operation.partitions_sent = len(plan.to_send)
        for partition in session.handler.partitions:
            self.book.begin(partition, self.reading.consumer.positions[partition].offset)
        wait_ms, min_bytes = self.plan.max_wait_ms, self.plan.min_bytes
        if self.stopping:  # With more than its other limits allow it would read one batch in each wait, to no end.
            min_bytes = min(min_bytes, 1)
        version = plan.version(self._newest)
        request = plan.request(version, wait_ms, min_bytes, self.plan.max_bytes)
        response = yield from self.call(ApiKey.FETCH, version, request, wait_ms * 1000)
        if isinstance(response, str):
            self.journal.end(operation, "info", response)
            session.quiet_polls = 0
            self._lost(session, plan)
            self._stale_metadata = True  # A proxy goes on accepting for a leader that is dead.
            yield from self.back_off()
            return
        if not self._handle_response(session, operation, response, cast(FetchResponse, response.body)):
            yield from self.back_off()

    def _lost(self, session: NodeSession, plan: FetchPlan) -> None:
        on_lost = self.reading.habits.on_lost
        if on_lost is OnLost.RESEND and not session.handler.retransmits:
            session.resend = plan
        elif on_lost is not OnLost.PRESUME or not session.handler.presume_processed():
            session.handler.handle_lost()
            if on_lost is OnLost.NAME_ALL:
                session.handler.make_next_full()

    # -- one response -------------------------------------------------------------------------------------------

    def _take_response(self, session: NodeSession, handled: Handled, effect: FetchEffect) -> None:
        if handled.problem is not None:
            self._take_refused(handled, effect)
            return
        held = session.handler.partitions
        for partition, data in handled.partitions:
            requested = held.get(partition)
            if requested is not None and requested.fetch_offset == self.reading.consumer.positions[partition].offset:
                self._take_partition(partition, data, effect)
        self._unassign_gone()

    def _handle_response(
        self, session: NodeSession, operation: Operation, event: ResponseReceived, body: FetchResponse
    ) -> bool:
        """Handle a response, and return whether the next poll may follow without a wait."""
        handled = session.handler.handle_response(body)
        found = FetchEffect(operation.node, operation.index)
        self._take_response(session, handled, found)
        error = None
        if handled.problem is not None:
            error = error_name(body.error_code) if body.error_code else "INVALID_ANSWER"
        operation.response_session_id, operation.response_partitions = body.session_id, len(handled.partitions)
        self.journal.end(operation, "ok" if error is None else "fail", error, event, tuple(found.rows))
        # Only polls after the load's end show that a fetcher has caught up.
        quiet = self.stopping and error is None and not found.failed and found.spans == 0
        session.quiet_polls = session.quiet_polls + 1 if quiet else 0
        if error is None and not found.failed:
            self.succeeded()
            session.refusals = 0
            return True
        # Only a second refusal in a row waits.
        session.refusals += 1
        return session.refusals == 1 and not found.failed

    def _take_partition(self, partition: TopicPartition, data: PartitionData, effect: FetchEffect) -> None:
        position = self.reading.consumer.positions[partition]
        before = position.offset
        error: str | None = None
        if data.error_code:
            error = error_name(data.error_code)
            self._note_error(partition, data, effect)
        elif data.records:
            if is_damaged(data.records) and self._refetches(partition, before):
                error, effect.failed = CORRUPT_MESSAGE, True
            else:
                for span in self.reader.read(partition, self.reading.consumer.take(partition, data)):
                    effect.rows.append(read_row(self.process, effect.index, effect.spans, partition, span))
                    effect.spans += 1
        bounds = (data.high_watermark, data.log_start_offset)
        effect.rows.append(PositionRow(self.process, effect.index, *partition, before, position.offset, *bounds, error))

    def _refetches(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether the damaged records at ``offset`` have not come more than MAX_REFETCHES times. A bit that was
        turned over on the way is right the next time; damage that the node itself holds is not."""
        at, times = self._damaged.get(partition, (offset, 0))
        times = times + 1 if at == offset else 1
        self._damaged[partition] = (offset, times)
        return times <= MAX_REFETCHES

    def _take_refused(self, handled: Handled, effect: FetchEffect) -> None:
        """Record the content of an unusable response, for the judge. It moves no position."""
        for partition, data in handled.partitions:
            position = self.reading.consumer.positions.get(partition)
            at = position.offset if position is not None else -1
            error = error_name(data.error_code) if data.error_code else None
            bounds = (data.high_watermark, data.log_start_offset)
            effect.rows.append(PositionRow(self.process, effect.index, *partition, at, at, *bounds, error))

    def _note_error(self, partition: TopicPartition, data: PartitionData, effect: FetchEffect) -> None:
        """Handle a partition's error. It is ignored if the partition has moved away from the node meanwhile."""
        if partition not in self._leaders().get(effect.node_id, ()):
            return
        effect.failed = True
        if data.error_code == OFFSET_OUT_OF_RANGE:
            if partition not in self._out_of_range:
                self._out_of_range[partition] = effect.index
            return
        leader = data.current_leader
        if leader is not None and leader.leader_id >= 0:
            self.metadata = self.metadata.learn_leader(partition, leader.leader_id, leader.leader_epoch)
            if self.metadata.leader_of(partition) is not None and partition not in self._leaders().get(
                effect.node_id, ()
            ):
                effect.failed = False  # The response named the new leader.
                self._attend_leaders()
                return
        self._stale_metadata = True

    def _unassign_gone(self) -> None:
        """End the assignments of dropped partitions that no session holds any more."""
        dropped = self.reading.dropped
        for partition in [each for each in self.book.running if each in dropped] if dropped else ():
            if all(partition not in self.sessions[leader].handler.partitions for leader in self._leaders()):
                self.book.end(partition)
