"""A fetcher whose metadata is its own affair: from which node it comes, how often, and whether it is believed.

One strand, on a connection of its own, asks the node whose turn it is; the others only say that what is known does not
help. A client with ``metadata_epoch`` asks each node first whether it knows the drafts (nodes of a cluster that is just
being upgraded differ in that) and drops answers that are older than the last accepted one (spec M-5).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from bench.fleet.behaviours.bodies import (
    API_VERSIONS,
    API_VERSIONS_REQUEST,
    EARLIEST,
    LATEST,
    METADATA,
    metadata_request,
)
from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.group_plans import ALTERNATING, MemberPlan
from bench.fleet.behaviours.habits import FetcherPlan
from bench.fleet.behaviours.protocol import Address, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Steps
from bench.fleet.behaviours.session_fetcher import QUIET_POLLS, Answer, NodeSession, SessionFetcher
from bench.fleet.runs import BatchReader
from reference_broker.client.fetch_plan import Handled
from reference_broker.client.group_requests import DRAFT_VERSION
from reference_broker.client.metadata_cache import EpochGuards, MetadataCache, MetadataUpdate
from reference_broker.wire.apis import DRAFTS, ApiKey
from reports.rows import MetadataEpochRow, ResetRow

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.response import ApiVersionsResponse

METADATA_LANE: Final = Address("", 1)
"""Stands for the connection on which metadata is asked for."""
API_VERSIONS_ASKED: Final = 3
DRAFT: Final = DRAFTS[ApiKey.METADATA, DRAFT_VERSION]
"""A node that announces this one knows all that members speak."""
OUT_OF_RANGE: Final = "OFFSET_OUT_OF_RANGE"
NO_OFFSET: Final = "no_offset"


def fetcher_plan(plan: MemberPlan) -> FetcherPlan:
    """Of the fetcher that a member is as well."""
    return FetcherPlan(
        process=plan.process,
        variant="incremental",
        partitions=plan.partitions,
        poll_interval_us=plan.poll_interval_us,
        max_wait_ms=plan.max_wait_ms,
        min_bytes=plan.min_bytes,
        max_bytes=plan.max_bytes,
        partition_max_bytes=plan.partition_max_bytes,
    )


class MemberMetadata(SessionFetcher):
    """``reading``: partitions whose position is known, and those in ``_no_offset``, which get one from their leader."""

    def __init__(self, plan: MemberPlan, settings: ClientSettings, random: Chance, reader: BatchReader) -> None:
        super().__init__(fetcher_plan(plan), settings, random, reader)
        self.member = plan
        self.reading = ()
        self.metadata = self.no_metadata()
        self._drafts: dict[int, bool] = {}
        """Whether the node that a lane is connected to knows the drafts."""
        self._no_offset: dict[TopicPartition, None] = {}
        self._asked = random.randrange(len(settings.bootstrap))

    def no_metadata(self) -> MetadataCache:
        """What a client knows that has just started."""
        return MetadataCache(guards=EpochGuards(self.member.leader_epochs, self.member.metadata_epoch))

    # -- asking -------------------------------------------------------------------------------------------------

    def _keep_metadata(self) -> Steps[None]:
        """The strand that asks, as long as the client lives."""
        self.strand.lane = self.lane_of(METADATA_LANE)
        while not self._done():
            if (yield from self._ask_for_metadata()):
                self.succeeded()
                self._stale_metadata = self._looking_up = False
                self._metadata_came()
                self._attend_leaders()
                yield from self.sleep_until(self.now.mono_us + self.member.metadata_interval_us)
            else:
                yield from self.back_off()

    def _metadata_came(self) -> None:
        """For those that wait for it."""

    def _look_up(self) -> Steps[None]:
        """What a strand does to which metadata has been no help."""
        self._want_metadata()
        yield from self.back_off()

    def _want_metadata(self) -> None:
        """Ask now, unless that is being tried anyhow."""
        if not self._looking_up:
            self._looking_up = True
            self.hurry(self.lane_of(METADATA_LANE))

    def _source(self) -> tuple[int, Address]:
        """The node to ask: as the plan says. Nodes are numbered as the bootstrap addresses are until one is known."""
        known = {node: Address(each.host, each.port) for node, each in self.metadata.nodes.items()}
        every = {**dict(enumerate(self.settings.bootstrap)), **known}
        numbers = sorted(every)
        if self.member.metadata_from >= 0:
            node = self.member.metadata_from
            node = node if node in every else numbers[0]
        elif self.member.metadata_from == ALTERNATING:
            self._asked += 1
            node = numbers[self._asked % len(numbers)]
        else:
            node = self.random.choice(numbers)
        return node, every[node]

    def _ask_for_metadata(self) -> Steps[bool]:
        node, address = self._source()
        if self.connected_to != address and not (yield from self.connect(address, node)):
            return False
        if not (yield from self._learn_drafts()):
            return False
        draft = self._drafts.get(self.strand.lane, False)
        operation = self.begin("metadata", self.now.mono_us)
        operation.node = node
        version = DRAFT_VERSION if draft else self.settings.versions.metadata
        answer = yield from self.call(METADATA, version, metadata_request(self.topics))
        if isinstance(answer, str):
            self.end(operation, "fail", answer)
            return False
        update = MetadataUpdate.of(answer.body)  # type: ignore[arg-type]
        accepted = self.metadata.accepts(update)
        row = MetadataEpochRow(self.process, operation.index, node, update.metadata_epoch, accepted, self.now.mono_us)
        self.end(operation, "ok", None, answer, rows=(row,) if draft else ())
        if accepted:
            self.metadata = self.metadata.apply(update)
        return accepted

    def _learn_drafts(self) -> Steps[bool]:
        """Once for each connection of a client that speaks them; False: there is no answer, and no connection any
        more."""
        lane = self.strand.lane
        if not self.member.metadata_epoch or lane in self._drafts:
            return True
        answer = yield from self.call(API_VERSIONS, API_VERSIONS_ASKED, API_VERSIONS_REQUEST)
        if isinstance(answer, str):
            return False
        announced = cast("ApiVersionsResponse", answer.body).supported_features
        self._drafts[lane] = any(each.name == DRAFT for each in announced)
        return True

    def connect(self, address: Address, node: int = -1) -> Steps[bool]:
        self._drafts.pop(self.strand.lane, None)
        return (yield from super().connect(address, node))

    # -- what is read -------------------------------------------------------------------------------------------

    def _leader_epoch(self, where: TopicPartition) -> int:
        return super()._leader_epoch(where) if self.member.leader_epochs else -1

    def _read_too(self, partitions: Sequence[TopicPartition]) -> None:
        """They have positions, or are in ``_no_offset``."""
        self.reading = (*self.reading, *(each for each in partitions if each not in self.reading))
        self._attend_leaders()

    def _read_no_more(self, partitions: Sequence[TopicPartition]) -> None:
        gone = dict.fromkeys(partitions)
        self.reading = tuple(each for each in self.reading if each not in gone)
        for where in partitions:
            self._out_of_range.pop(where, None)
            self._no_offset.pop(where, None)
            if where in self.assigned:
                self._unassign(where)

    def _take_answer(self, session: NodeSession, handled: Handled, found: Answer) -> None:
        """What has been given up meanwhile is not taken."""
        kept = tuple(each for each in handled.partitions if each[0] in self.reading)
        super()._take_answer(session, Handled(handled.problem, kept, handled.unrequested), found)

    def _done(self) -> bool:
        if self.stopping and not self._caught_up:
            polled = [self.sessions[each].quiet_polls for each in self._leaders() if each in self.sessions]
            quiet = len(polled) == len(self._by_leader) and min(polled, default=QUIET_POLLS) >= QUIET_POLLS
            quiet = quiet and self._settled() and not self._leaderless
            self._caught_up = self.leaving or self.out_of_time or quiet
        return self._caught_up

    def _settled(self) -> bool:
        """Everything that is to be read is read from."""
        return not self._out_of_range

    # -- positions that do not hold -----------------------------------------------------------------------------

    def _reset_positions(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """As the reset policy says, by what the node that is connected to knows of its log."""
        if self.member.reset == "none":
            kept = [each for each in partitions if each not in self._no_offset]
            for where in kept:
                del self._out_of_range[where]
            if kept:
                self._stale_metadata = True
                yield from self.back_off()
        wanted = [each for each in partitions if each in self._out_of_range]
        if not wanted:
            return
        found = yield from self.bound_offsets(wanted, LATEST if self.member.reset == "latest" else EARLIEST)
        for where in wanted:
            if where in found and where in self._out_of_range:
                self._reset(where, found[where])
        if len(found) < len(wanted):
            self._stale_metadata = True
            yield from self.back_off()

    def _reset(self, where: TopicPartition, offset: int) -> None:
        fresh = where in self._no_offset
        before = -1 if fresh else self.consumer.positions[where].offset
        index, reason = self._out_of_range.pop(where), NO_OFFSET if fresh else OUT_OF_RANGE
        self._no_offset.pop(where, None)
        epoch = self.metadata.metadata_epoch
        self.record(ResetRow(self.process, index, *where, before, offset, reason, epoch, self.now.mono_us))
        self._seek(where, offset)
