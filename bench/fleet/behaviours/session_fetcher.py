"""Fetchers: each reads its own idle partition and shared hot ones, through a fetch session or without one.

The variants differ in their habits only (VARIANTS). All of them fall back to a full fetch after a top-level error or an
answer that does not fit, and lose nothing by it: positions move only with records that came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, cast

from bench.fleet.behaviours.bodies import FETCH
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.protocol import Answered, ClientSettings, HistoryRow, TopicPartition
from bench.fleet.behaviours.script import Operation, Steps
from bench.fleet.rows import END_OF_RUN_US, AssignmentRow, PositionRow
from bench.fleet.runs import BatchReader, read_row
from reference_broker.client.consumer import ConsumerState
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.session_handler import FetchPlan, FetchSessionHandler, Handled, Wanted
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import FetchResponse, PartitionData

OFFSET_OUT_OF_RANGE: Final = 1
QUIET_POLLS: Final = 3
"""Polls in a row without data or error after which a stopping fetcher has caught up."""
LEADERLESS_US: Final = 200_000
"""How often leaders are looked up again while a partition has none."""
POLLS_PER_VISIT: Final = 4
"""Where partitions have several leaders: fetches at one node before the connection moves to the next."""


class OnLost(Enum):
    """What a fetcher does when the answer did not come. Stock clients FALL_BACK."""

    FALL_BACK = "full fetch in a new session"
    RESEND = "the same request with the same epoch again"
    PRESUME = "the next epoch, naming nothing, as if the answer had been empty"


@dataclass(frozen=True, slots=True)
class Habits:
    """``forget_every`` / ``seek_every``: each so many polls some hot partitions are dropped (and taken back at the next
    such poll), or some are read from offset 0 again; 0 never."""

    sessionless: bool = False
    on_lost: OnLost = OnLost.FALL_BACK
    forget_every: int = 0
    seek_every: int = 0

    def __post_init__(self) -> None:
        moves = self.forget_every or self.seek_every
        # A request that is sent again, or presumed processed, must still say where the fetcher is.
        assert self.on_lost is OnLost.FALL_BACK or not moves, "only a fetcher that falls back may drop or seek"


VARIANTS: Final[Mapping[str, Habits]] = {
    "full": Habits(sessionless=True),
    "incremental": Habits(),
    "forgetting": Habits(forget_every=5),
    "rotating": Habits(seek_every=20),
    "resending": Habits(on_lost=OnLost.RESEND),
    "presuming": Habits(on_lost=OnLost.PRESUME),
}


@dataclass(frozen=True, slots=True)
class FetcherPlan:
    """``partitions``: what it reads, its own idle one first. ``poll_interval_us``: from one poll's intended time to the
    next; a poll that is due while another runs is due when that one ends (a fetcher waits at the broker, so it is a
    closed loop by nature)."""

    process: str
    variant: str
    partitions: tuple[TopicPartition, ...]
    poll_interval_us: int = 100_000
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 8 << 20
    partition_max_bytes: int = 1 << 20


@dataclass(slots=True)
class NodeSession:
    """``resend``: the plan whose answer was lost, to be sent again as it was."""

    handler: FetchSessionHandler
    resend: FetchPlan | None = None


@dataclass(slots=True)
class Assigned:
    from_us: int
    from_offset: int


@dataclass(slots=True)
class Answer:
    """What one answer brought, collected while its partitions are gone through."""

    rows: list[HistoryRow] = field(default_factory=list)
    runs: int = 0
    failed: bool = False


class SessionFetcher(ClusterScript):
    """Ends after Stopping, once QUIET_POLLS polls in a row brought nothing. ``reader`` may be shared."""

    def __init__(self, plan: FetcherPlan, settings: ClientSettings, random: Random, reader: BatchReader) -> None:
        super().__init__(plan.process, settings, random, [each.topic for each in plan.partitions])
        self.plan = plan
        self.habits = VARIANTS[plan.variant]
        self.reader = reader
        self.consumer = ConsumerState()
        self.sessions: dict[int, NodeSession] = {}
        self.dropped: frozenset[TopicPartition] = frozenset()
        self.assigned: dict[TopicPartition, Assigned] = {}
        self.polls = 0
        self.quiet_polls = 0
        self._out_of_range: list[TopicPartition] = []
        self._refusals = 0
        self._stale_metadata = False
        self._by_leader: dict[int, list[TopicPartition]] = {}
        self._grouped_for: object = None
        self._leaderless = False
        self._look_again_us = 0

    def run(self) -> Steps[None]:
        if not (yield from self.find_leaders(self.plan.partitions)):
            return
        for where in self.plan.partitions:
            self.consumer.seek(where, 0)
        interval = self.plan.poll_interval_us
        due_us = self.now.mono_us + (self.random.randrange(interval) if interval else 0)
        while not self._done():
            if self.now.mono_us < due_us and not self.stopping:
                yield from self.sleep_until(due_us)
            intended_us = min(due_us, self.now.mono_us)
            yield from self._turn(intended_us)
            due_us = max(due_us + interval, self.now.mono_us)
            if self.stopping or self._refusals == 1:
                due_us = self.now.mono_us  # A top-level error is answered by a full fetch at once.

    def still_open(self) -> list[HistoryRow]:
        return [self._assignment_row(where, END_OF_RUN_US) for where in list(self.assigned)]

    def _done(self) -> bool:
        leaders = len(self._leaders())
        enough = QUIET_POLLS if leaders <= 1 else POLLS_PER_VISIT * leaders  # So many polls in a row visit each.
        return self.out_of_time or (self.stopping and not self._leaderless and self.quiet_polls >= enough)

    # -- one poll -----------------------------------------------------------------------------------------------

    def _turn(self, intended_us: int) -> Steps[None]:
        """One poll at the node whose turn it is, or an attempt to find out where to poll."""
        if self._leaderless and self.now.mono_us >= self._look_again_us:
            self._stale_metadata = True
            self._look_again_us = self.now.mono_us + LEADERLESS_US
        if self._stale_metadata:
            self._stale_metadata = False
            if not (yield from self.refresh()):
                self._stale_metadata = True
                yield from self.back_off()
                return
        node = self._node()
        if node is None or not (yield from self.connect_to_node(node)):
            self._stale_metadata = True
            yield from self.back_off()
            return
        if lost := [each for each in self._leaders()[node.node_id] if each in self._out_of_range]:
            yield from self._reset_positions(lost)
            return
        self._change_mind()
        yield from self._poll(node, intended_us)

    def _leaders(self) -> dict[int, list[TopicPartition]]:
        """Partitions by leader, computed again only when metadata changed."""
        if self._grouped_for is not self.metadata:
            groups: dict[int, list[TopicPartition]] = {}
            for where in self.plan.partitions:
                node = self.metadata.leader_of(where)
                if node is not None:
                    groups.setdefault(node.node_id, []).append(where)
            self._by_leader, self._grouped_for = groups, self.metadata
            self._leaderless = sum(len(group) for group in groups.values()) < len(self.plan.partitions)
        return self._by_leader

    def _node(self) -> NodeAddress | None:
        leaders = list(self._leaders())
        if not leaders:
            return None
        return self.metadata.nodes[leaders[self.polls // POLLS_PER_VISIT % len(leaders)]]

    def _wanted(self, node: NodeAddress) -> dict[TopicPartition, Wanted]:
        wanted: dict[TopicPartition, Wanted] = {}
        positions, topics, max_bytes = self.consumer.positions, self.metadata.topics, self.plan.partition_max_bytes
        for where in self._leaders()[node.node_id]:
            if where in self.dropped:
                continue
            topic = topics[where.topic]
            epoch = topic.partitions[where.partition].leader_epoch
            wanted[where] = Wanted(topic.topic_id, positions[where].offset, max_bytes, epoch)
        return wanted

    def _poll(self, node: NodeAddress, intended_us: int) -> Steps[None]:
        session = self.sessions.get(node.node_id)
        if session is None:
            session = self.sessions[node.node_id] = NodeSession(FetchSessionHandler(self.habits.sessionless))
        plan, session.resend = session.resend or session.handler.build(self._wanted(node)), None
        self.polls += 1
        operation = self.begin("fetch", intended_us)
        operation.node = node.node_id
        operation.session_id, operation.session_epoch = plan.session_id, plan.session_epoch
        operation.partitions_sent = len(plan.to_send)
        self._assign_new(session)
        wait_ms = self.plan.max_wait_ms
        request = plan.request(wait_ms, self.plan.min_bytes, self.plan.max_bytes)
        answer = yield from self.call(FETCH, plan.version(self.settings.versions.fetch), request, wait_ms * 1000)
        if isinstance(answer, str):
            self.end(operation, "info", answer)
            self.quiet_polls = 0
            self._lost(session, plan)
            yield from self.back_off()
            return
        if not self._take(session, operation, answer, cast(FetchResponse, answer.body)):
            yield from self.back_off()

    def _lost(self, session: NodeSession, plan: FetchPlan) -> None:
        if self.habits.on_lost is OnLost.RESEND:
            session.resend = plan
        elif self.habits.on_lost is not OnLost.PRESUME or not session.handler.presume_processed():
            session.handler.handle_lost()

    # -- one answer ---------------------------------------------------------------------------------------------

    def _take(self, session: NodeSession, operation: Operation, answered: Answered, body: FetchResponse) -> bool:
        """Whether the next poll may follow without a wait."""
        handled = session.handler.handle_response(body)
        found = Answer()
        if handled.problem is None:
            for where, data in handled.partitions:
                self._take_partition(operation.index, where, data, found)
            self._unassign_gone()
        else:
            self._take_refused(operation.index, handled, found)
        error = None
        if handled.problem is not None:
            error = error_name(body.error_code) if body.error_code else "INVALID_ANSWER"
        self.end(
            operation,
            "ok" if error is None else "fail",
            error,
            answered,
            body.session_id,
            len(handled.partitions),
            tuple(found.rows),
        )
        # Only polls after the load's end tell: records may have come since, at a node whose turn was before.
        quiet = self.stopping and error is None and not found.failed and found.runs == 0
        self.quiet_polls = self.quiet_polls + 1 if quiet else 0
        if error is None and not found.failed:
            self.succeeded()
            self._refusals = 0
            return True
        # Only a second refusal in a row waits.
        self._refusals += 1
        return self._refusals == 1 and not found.failed

    def _take_partition(self, index: int, where: TopicPartition, data: PartitionData, found: Answer) -> None:
        position = self.consumer.positions[where]
        before = position.offset
        error: str | None = None
        if data.error_code:
            error = error_name(data.error_code)
            found.failed = True
            self._note_error(where, data)
        elif data.records:
            for run in self.reader.read(where, self.consumer.take(where, data)):
                found.rows.append(read_row(self.process, index, found.runs, where, run))
                found.runs += 1
        row = PositionRow(
            self.process, index, *where, before, position.offset, data.high_watermark, data.log_start_offset, error
        )
        found.rows.append(row)

    def _take_refused(self, index: int, handled: Handled, found: Answer) -> None:
        """An answer that does not fit moves nothing, but what it held is recorded for the judge."""
        for where, data in handled.partitions:
            position = self.consumer.positions.get(where)
            at = position.offset if position is not None else -1
            error = error_name(data.error_code) if data.error_code else None
            found.rows.append(
                PositionRow(self.process, index, *where, at, at, data.high_watermark, data.log_start_offset, error)
            )

    def _note_error(self, where: TopicPartition, data: PartitionData) -> None:
        if data.error_code == OFFSET_OUT_OF_RANGE:
            self._out_of_range.append(where)
            return
        leader = data.current_leader
        if leader is not None and leader.leader_id >= 0:
            self.metadata = self.metadata.learn_leader(where, leader.leader_id, leader.leader_epoch)
        self._stale_metadata = True

    # -- what is read, and from where ---------------------------------------------------------------------------

    def _change_mind(self) -> None:
        """Before a poll: drop, take back or seek, as the habits say. Nothing is dropped once load has ended."""
        hot = self.plan.partitions[1:]
        forget, seek = self.habits.forget_every, self.habits.seek_every
        if self.stopping:
            self.dropped = frozenset()
        elif forget and hot and self.polls % forget == forget - 1:
            self.dropped = frozenset() if self.dropped else self._some(hot)
        elif seek and hot and self.polls % seek == seek - 1:
            for where in self._in_order(hot, self._some(hot)):
                self._seek(where, max(0, self.consumer.positions[where].log_start_offset))

    def _some(self, hot: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(self.random.sample(hot, max(1, len(hot) // 5)))

    @staticmethod
    def _in_order(hot: Sequence[TopicPartition], chosen: frozenset[TopicPartition]) -> list[TopicPartition]:
        return [each for each in hot if each in chosen]

    def _seek(self, where: TopicPartition, offset: int) -> None:
        if where in self.assigned:
            self.record(self._assignment_row(where, self.now.mono_us))
            self.assigned[where] = Assigned(self.now.mono_us, offset)
        self.consumer.seek(where, offset)

    def _reset_positions(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Partitions whose position the broker does not have go on at the log's start: only their leader, which is the
        node connected to, can tell it."""
        found = yield from self.earliest_offsets(partitions)
        for where in partitions:
            if where in found:
                self._seek(where, found[where])
        self._out_of_range = [each for each in self._out_of_range if each not in found]
        if len(found) < len(partitions):
            self._stale_metadata = True
            yield from self.back_off()

    def _assign_new(self, session: NodeSession) -> None:
        for where in session.handler.partitions:
            if where not in self.assigned:
                self.assigned[where] = Assigned(self.now.mono_us, self.consumer.positions[where].offset)

    def _unassign_gone(self) -> None:
        """A good answer acknowledges the forgetting that its request asked for."""
        for where in [each for each in self.assigned if each in self.dropped] if self.dropped else ():
            if all(where not in each.handler.partitions for each in self.sessions.values()):
                self.record(self._assignment_row(where, self.now.mono_us))

    def _assignment_row(self, where: TopicPartition, until_us: int) -> AssignmentRow:
        assigned = self.assigned.pop(where)
        return AssignmentRow(self.process, *where, assigned.from_us, until_us, assigned.from_offset)
