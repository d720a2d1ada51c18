"""A member of a consumer group: joins, reads what it is given, commits how far it came, and writes down all of it.

Four kinds of strands: metadata (member_metadata.py), offsets (member_offsets.py), membership (here, with a connection
to the coordinator of its own, since JoinGroup's answer may take long), and one for each node that leads something it
reads (session_fetcher.py). What a membership says is carried out at once: what is revoked is read no more and committed
before the member joins again.

Once the load is over a member goes on until it has caught up, commits, and falls silent without leaving, so that the
others do not take over what has been read. Only one that leaves while others stay says so to its coordinator.
"""

from collections.abc import Sequence

from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.group_plans import ASSIGNED, MemberPlan
from bench.fleet.behaviours.member_offsets import OFFSETS_LANE, MemberOffsets
from bench.fleet.behaviours.outside_offsets import OutsideStore
from bench.fleet.behaviours.protocol import Address, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Steps
from bench.fleet.runs import BatchReader
from reference_broker.client.group_events import (
    COOPERATIVE_PROTOCOLS,
    EAGER_PROTOCOLS,
    Assigned,
    Failed,
    GroupConfig,
    GroupEvent,
    Joined,
    Left,
    Lost,
    MemberState,
    Revoked,
)
from reference_broker.client.group_membership import GroupMembership
from reference_broker.client.group_requests import JOIN_GROUP, GroupRequest, MemberIdentity, error_of, name_of
from reference_broker.client.offset_commits import Committed, CommittedOffsets, Fetched
from reference_broker.wire.apis import api_name
from reports.rows import MembershipRow

MEMBERSHIP_LANE = Address("", 3)
"""Stands for the connection to the coordinator on which the member joins and sends heartbeats."""
AWAY_US = 300_000
"""How long a member that left stays away, or one that cannot be a member waits before it tries again."""


class GroupMember(MemberOffsets):
    """Ends after Stopping, once it has caught up with all that it was given. ``reader`` and ``store`` may be shared."""

    def __init__(
        self,
        plan: MemberPlan,
        settings: ClientSettings,
        random: Chance,
        reader: BatchReader,
        store: OutsideStore | None = None,
    ) -> None:
        super().__init__(plan, settings, random, reader, store)
        self.membership = self._new_membership()
        self._given_at: dict[TopicPartition, int] = {}
        self._join_began_us = -1
        self._came_us = 0

    def _new_membership(self) -> GroupMembership:
        plan = self.member
        config = GroupConfig(
            plan.group,
            plan.topics,
            COOPERATIVE_PROTOCOLS if plan.protocol == "cooperative" else EAGER_PROTOCOLS,
            plan.instance_id or None,
            plan.session_timeout_ms * 1000,
            plan.rebalance_timeout_ms * 1000,
            plan.heartbeat_interval_ms * 1000,
            self.settings.backoff_us,
            self.settings.request_timeout_us,
            self.coordinator.versions,
        )
        return GroupMembership(config, self.coordinator)

    @property
    def belongs(self) -> bool:
        """It takes part in the group protocol."""
        return self.member.protocol != ASSIGNED

    def run(self) -> Steps[None]:
        self._came_us = self._first_poll_us = self.now.mono_us
        self.beside(self._keep_offsets(), self.lane_of(OFFSETS_LANE))
        self.beside(self._belong(), self.lane_of(MEMBERSHIP_LANE))
        yield from self._keep_metadata()

    def identity(self) -> MemberIdentity:
        return self.membership.identity if self.belongs else super().identity()

    def _told_of_group(self, result: Committed | Fetched) -> None:
        if result.group_error and self.belongs:
            self.membership.told(self.now.mono_us, result.group_error, result.asked_as)
            self.hurry(self.lane_of(MEMBERSHIP_LANE))

    def _metadata_came(self) -> None:
        super()._metadata_came()
        counts = {name: len(topic.partitions) for name, topic in self.metadata.topics.items()}
        if counts and self.belongs:
            self.membership.learn_partitions(counts)
            self.hurry(self.lane_of(MEMBERSHIP_LANE))

    def _settled(self) -> bool:
        return super()._settled() and (not self.belongs or self.membership.state is MemberState.STABLE)

    # -- membership ---------------------------------------------------------------------------------------------

    def _belong(self) -> Steps[None]:
        """The strand, as long as the client lives."""
        if not self.belongs:
            self._given(self.member.partitions)
        while not self._done():
            if self.member.stay_us and self.now.mono_us - self._came_us >= self.member.stay_us and not self.stopping:
                yield from self._begin_anew()
            elif self.belongs:
                yield from self._take_part()
            else:
                yield from self.nap_until(None)
        if self.leaving and self.belongs:
            yield from self._leave()

    def _take_part(self) -> Steps[None]:
        """One request, or a wait for the next."""
        membership = self.membership
        request = membership.next_request(self.now.mono_us)
        yield from self._carry_out_events()
        if request is not None:
            yield from self._ask_coordinator(membership, request)
            yield from self._carry_out_events()
        elif membership.wanted_topics and self.metadata.topics:
            self._metadata_came()
        elif membership is self.membership:
            yield from self.nap_until(membership.wake_at_us)

    def _ask_coordinator(self, membership: GroupMembership, request: GroupRequest) -> Steps[None]:
        if request.api_key == JOIN_GROUP and self._join_began_us < 0:
            self._join_began_us = self.now.mono_us
        operation = self.begin(_snake(api_name(request.api_key)), self.now.mono_us)
        operation.node = -1 if request.to is None else request.to.node_id
        answer = yield from self._send(request)
        if answer is None:
            self.end(operation, "info", "disconnected")
            membership.failed(self.now.mono_us)
            return
        code = error_of(getattr(answer, "error_code", 0))
        self.end(operation, "fail" if code else "ok", name_of(code) if code else None)
        membership.answered(self.now.mono_us, answer)

    def _leave(self) -> Steps[None]:
        """Out of the group, in order; as far as that is possible within a request's time."""
        membership, end_us = self.membership, self.now.mono_us + self.settings.request_timeout_us
        membership.leave()
        while not membership.is_over and self.now.mono_us < end_us:
            yield from self._take_part()

    def _begin_anew(self) -> Steps[None]:
        """As a client that ended and was started again: nothing is known but what was committed or stored."""
        if self.belongs:
            yield from self._leave()
        else:
            yield from self._commit_now(self.reading)
        if not self.membership.is_over:
            self._left(-1)
        self._forget(self.reading)
        self.starting.clear()
        yield from self._other_ends()
        self._start_over()
        yield from self.sleep_until(self.now.mono_us + AWAY_US)
        self._came_us = self.now.mono_us
        self._want_metadata()
        if not self.belongs:
            self._given(self.member.partitions)

    def _start_over(self) -> None:
        """A new member, which knows no coordinator."""
        self.coordinator = self.new_coordinator()
        self.offsets = CommittedOffsets(self.coordinator)
        self.membership = self._new_membership()
        self._join_began_us = -1

    # -- what a membership says ---------------------------------------------------------------------------------

    def _carry_out_events(self) -> Steps[None]:
        for event in self.membership.take_events():
            yield from self._carry_out(event)

    def _carry_out(self, event: GroupEvent) -> Steps[None]:
        match event:
            case Joined():
                since_us = self._join_began_us if self._join_began_us >= 0 else self.now.mono_us
                self._join_began_us = -1
                self._record_membership("joined", event.generation, since_us=since_us)
            case Assigned():
                for where in event.partitions:
                    self._given_at[where] = self.now.mono_us
                    self._record_membership("assigned", event.generation, where)
                self._given(event.partitions)
            case Revoked():
                yield from self._give_up(event)
            case Lost():
                self._take_away(event.partitions, "lost", event.generation)
            case Left():
                self._left(event.generation)
            case Failed():
                yield from self.sleep_until(self.now.mono_us + AWAY_US)
                yield from self._other_ends()
                self._start_over()

    def _left(self, generation: int) -> None:
        """What it hears from here on, a client hears that knows nothing."""
        self._record_membership("left", generation)
        self.metadata = self.no_metadata()

    def _give_up(self, event: Revoked) -> Steps[None]:
        """Reads them no more, commits how far it came with them, and lets go."""
        membership = self.membership
        held = [each for each in event.partitions if each in self.reading]
        read = [each for each in held if each not in self._no_offset]
        self._read_no_more(held)
        yield from self._before_commit(read)
        yield from self._commit_now(read)
        self._take_away(event.partitions, "revoked", event.generation)
        membership.release()

    def _before_commit(self, partitions: Sequence[TopicPartition]) -> Steps[None]:  # noqa: ARG002
        """For those that have more to do with what they read."""
        yield from ()

    def _take_away(self, partitions: Sequence[TopicPartition], what: str, generation: int) -> None:
        for where in partitions:
            since_us = self._given_at.pop(where, self.now.mono_us)
            self._record_membership(what, generation, where, since_us)
        self._forget(partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Reads them no more, and does not commit them either."""
        self._read_no_more([each for each in partitions if each in self.reading])
        for where in partitions:
            self.starting.pop(where, None)
            self.kept.pop(where, None)

    def _record_membership(
        self, event: str, generation: int, where: TopicPartition | None = None, since_us: int = -1
    ) -> None:
        topic, partition = where or ("", -1)
        since_us = since_us if since_us >= 0 else self.now.mono_us
        member_id = self.membership.member_id
        self.record(
            MembershipRow(
                self.process,
                self.member.group,
                member_id,
                generation,
                event,
                topic,
                partition,
                self.now.mono_us,
                since_us,
            )
        )


def _snake(name: str) -> str:
    """JoinGroup: join_group."""
    words = (f"_{each.lower()}" if each.isupper() and place else each.lower() for place, each in enumerate(name))
    return "".join(words)
