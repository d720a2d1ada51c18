"""How a member comes to its positions and keeps them: fetched, waited for, committed; or kept outside.

One strand, on a connection of its own, starts what was assigned (committed offsets, then M-10's wait) and commits
what has moved, each ``commit_interval_us``. Who must commit at once (a partition is revoked) does it through
``_commit_now``; never are two commits in flight, so that none overtakes another.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.group_plans import OUTSIDE, MemberPlan
from bench.fleet.behaviours.member_metadata import MemberMetadata
from bench.fleet.behaviours.outside_offsets import OutsideStore
from bench.fleet.behaviours.protocol import Address, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Steps
from bench.fleet.runs import BatchReader
from reference_broker.client import offset_commits
from reference_broker.client.group_coordinator import GroupCoordinator
from reference_broker.client.group_requests import (
    DRAFT_VERSION,
    GroupRequest,
    GroupVersions,
    MemberIdentity,
)
from reference_broker.client.offset_commits import (
    NO_OFFSET,
    Committed,
    CommittedOffsets,
    Fetched,
)
from reference_broker.client.offset_requests import CommittedOffset, OffsetToCommit
from reference_broker.wire.errors import Error, error_name
from reports.rows import CommitRow

OFFSETS_LANE: Final = Address("", 2)
"""Stands for the connection to the coordinator on which offsets are committed and fetched."""
STEP_US: Final = 20_000
"""How often somebody looks again who waits for another strand."""
IDLE_US: Final = 200_000


class MemberOffsets(MemberMetadata):
    """``starting``: given (by which number), and not read from yet. ``kept``: what is committed (or stored) of each
    partition that is read; a partition's offset is committed where it differs. ``store``: where offsets are that are
    kept outside."""

    def __init__(
        self,
        plan: MemberPlan,
        settings: ClientSettings,
        random: Chance,
        reader: BatchReader,
        store: OutsideStore | None = None,
    ) -> None:
        super().__init__(plan, settings, random, reader)
        self.store = store or OutsideStore()
        self.starting: dict[TopicPartition, int] = {}
        self._times_given = 0
        self.kept: dict[TopicPartition, int] = {}
        self.coordinator = self.new_coordinator()
        self.offsets = CommittedOffsets(self.coordinator)
        self._commit_at_us = 0
        self._waiting: dict[TopicPartition, CommittedOffset] = {}
        """What the metadata must be as new as before it is read from."""

    def new_coordinator(self) -> GroupCoordinator:
        settings = self.settings
        return GroupCoordinator(
            self.member.group, self.group_versions(False), settings.backoff_us, settings.request_timeout_us
        )

    def group_versions(self, draft: bool) -> GroupVersions:
        """``draft``: OffsetCommit and OffsetFetch with the metadata epoch."""
        told = self.settings.versions
        offsets = (DRAFT_VERSION, DRAFT_VERSION) if draft else (told.offset_commit, told.offset_fetch)
        return GroupVersions(
            told.find_coordinator, told.join_group, told.sync_group, told.heartbeat, told.leave_group, *offsets
        )

    def identity(self) -> MemberIdentity:
        """As whom offsets are committed."""
        return MemberIdentity(self.member.group)

    def _told_of_group(self, result: Committed | Fetched) -> None:
        """An answer about offsets says something of the membership."""

    # -- the strand ---------------------------------------------------------------------------------------------

    def _keep_offsets(self) -> Steps[None]:
        self.strand.lane = self.lane_of(OFFSETS_LANE)
        self._commit_at_us = self.now.mono_us + self.member.commit_interval_us
        while not self._done():
            if self.starting:
                yield from self._start(dict(self.starting))
            elif self.now.mono_us >= self._commit_at_us:
                yield from self._commit_now(self.reading)
                self._commit_at_us = self.now.mono_us + self.member.commit_interval_us
            else:
                yield from self.sleep_until(min(self._commit_at_us, self.now.mono_us + IDLE_US))
        yield from self._commit_now(self.reading)

    def _start(self, given: Mapping[TopicPartition, int]) -> Steps[None]:
        """From their committed offsets on, once the metadata is as new as those; what is taken away meanwhile, or taken
        away and given again, is left alone."""
        found = yield from self._committed(tuple(given))
        if found is None:
            yield from self.back_off()
            return
        while not self._done():
            self._waiting = {where: found[where] for where in given if self.starting.get(where) == given[where]}
            if self._may_start():
                break
            self._want_metadata()
            yield from self.back_off()
        else:
            return
        self.succeeded()
        started, self._waiting = self._waiting, {}
        for where, at in started.items():
            del self.starting[where]
            self._position(where, at)
        self._read_too(tuple(started))

    def _may_start(self) -> bool:
        """Spec M-10, and M-13 for what was kept outside."""
        if not self.member.metadata_epoch:
            return True
        epoch, waiting = self.metadata.metadata_epoch, self._waiting.values()
        if self.member.offsets == OUTSIDE:
            return all(offset_commits.has_reached(epoch, each.metadata_epoch) for each in waiting)
        return offset_commits.may_consume(epoch, waiting)

    def _metadata_came(self) -> None:
        if self._waiting and self._may_start():
            self.hurry(self.lane_of(OFFSETS_LANE))

    def _settled(self) -> bool:
        return super()._settled() and not self.starting

    def _given(self, partitions: Sequence[TopicPartition]) -> None:
        """They are to be read from now on."""
        self._times_given += 1
        self.starting.update(dict.fromkeys(partitions, self._times_given))
        self.hurry(self.lane_of(OFFSETS_LANE))

    def _position(self, where: TopicPartition, at: CommittedOffset) -> None:
        fresh = at.offset == NO_OFFSET
        self.consumer.seek(where, 0 if fresh else at.offset)
        self.kept[where] = at.offset
        if fresh:
            self._no_offset[where] = None
            self._out_of_range[where] = self._operations - 1

    # -- committed offsets --------------------------------------------------------------------------------------

    def _committed(self, partitions: Sequence[TopicPartition]) -> Steps[dict[TopicPartition, CommittedOffset] | None]:
        """None: they could not be had."""
        if self.member.offsets == OUTSIDE:
            loaded = {where: self.store.load(where) for where in partitions}
            self._record_fetched("loaded", -1, loaded, None)
            return loaded
        yield from self._other_ends()
        operation = self.begin("offset_fetch", self.now.mono_us)
        self.offsets.fetch(partitions, self.identity(), self.now.mono_us + self.settings.request_timeout_us)
        yield from self._carry_out_offsets()
        if self.coordinator.node is not None:
            operation.node = self.coordinator.node.node_id
        result = self.offsets.take_result()
        assert isinstance(result, Fetched), "a fetch of offsets has a result of its kind"
        if not result.error:
            self.end(operation, "ok")
            self._record_fetched("fetched", operation.index, result.offsets, result.asked_as)
            return dict(result.offsets)
        self.end(operation, "fail", error_name(int(result.error)))
        self._told_of_group(result)
        return None

    def _record_fetched(
        self, kind: str, index: int, found: Mapping[TopicPartition, CommittedOffset], asked_as: MemberIdentity | None
    ) -> None:
        for where, at in found.items():
            self._record_offset(kind, index, where, at, asked_as, None)

    def _record_offset(
        self,
        kind: str,
        index: int,
        where: TopicPartition,
        at: CommittedOffset | OffsetToCommit,
        asked_as: MemberIdentity | None,
        error: str | None,
    ) -> None:
        who = asked_as or self.identity()
        draft = self._is_draft if asked_as is not None else True
        row = CommitRow(
            self.process,
            index,
            kind,
            self.member.group,
            who.generation_id,
            who.member_id,
            *where,
            at.offset,
            at.leader_epoch,
            at.metadata_epoch if draft else -1,
            draft,
            error,
            self.now.mono_us,
        )
        self.record(row)

    @property
    def _is_draft(self) -> bool:
        return self.coordinator.versions.offset_commit == DRAFT_VERSION

    def _other_ends(self) -> Steps[None]:
        """Whoever else has an operation on offsets."""
        while self.offsets.busy:
            yield from self.sleep_until(self.now.mono_us + STEP_US)

    # -- commits ------------------------------------------------------------------------------------------------

    def _progress(self, where: TopicPartition) -> tuple[int, int]:
        """(offset, leader epoch) to commit: what lies before has been dealt with."""
        position = self.consumer.positions[where]
        return position.offset, position.leader_epoch

    def _moved(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetToCommit]:
        moved: dict[TopicPartition, OffsetToCommit] = {}
        for where in partitions:
            if where in self.kept and where not in self._out_of_range:
                offset, leader_epoch = self._progress(where)
                if offset != self.kept[where]:
                    epoch = self.metadata.metadata_epoch if self.member.metadata_epoch else -1
                    moved[where] = OffsetToCommit(offset, leader_epoch, epoch)
        return moved

    def _commit_now(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Of these, what has moved; ends when that is committed, or is not to be."""
        yield from self._other_ends()
        moved = self._moved(partitions)
        if not moved:
            return
        if self.member.offsets == OUTSIDE:
            self._store(moved)
            return
        operation = self.begin("offset_commit", self.now.mono_us)
        operation.partitions_sent = len(moved)
        self.offsets.commit(moved, self.identity(), self.now.mono_us + self.settings.request_timeout_us)
        yield from self._carry_out_offsets()
        if self.coordinator.node is not None:
            operation.node = self.coordinator.node.node_id
        result = self.offsets.take_result()
        assert isinstance(result, Committed), "a commit has a result of its kind"
        wrong = next((each for each in result.errors.values() if each), Error.NONE)
        kind = "ok" if not wrong else "info" if wrong is Error.REQUEST_TIMED_OUT else "fail"
        self.end(operation, kind, error_name(int(wrong)) if wrong else None)
        for where, error in result.errors.items():
            name = error_name(int(error)) if error else None
            self._record_offset("commit", operation.index, where, moved[where], result.asked_as, name)
            # A refused epoch is raised, not retried (spec M-7): the next commit is of what was read after it.
            if (not error or error is Error.INVALID_METADATA_EPOCH) and where in self.kept:
                self.kept[where] = moved[where].offset
        self._told_of_group(result)

    def _store(self, moved: Mapping[TopicPartition, OffsetToCommit]) -> None:
        generation = self.identity().generation_id
        for where, at in moved.items():
            stored = self.store.store(where, at, generation)
            self._record_offset("stored", -1, where, at, None, None if stored else "FENCED")
            self.kept[where] = at.offset

    def nap_until(self, wake_at_us: int | None) -> Steps[None]:
        """Until then, but neither in no time nor for long: what is waited for may come through another strand."""
        soon_us, late_us = self.now.mono_us + STEP_US, self.now.mono_us + IDLE_US
        yield from self.sleep_until(late_us if wake_at_us is None else min(max(wake_at_us, soon_us), late_us))

    # -- requests -----------------------------------------------------------------------------------------------

    def _carry_out_offsets(self) -> Steps[None]:
        while self.offsets.busy:
            if self._knows_versions(self.coordinator):
                request = self.offsets.next_request(self.now.mono_us)
            elif not (yield from self._agree()):
                self.coordinator.lose(self.now.mono_us)
                continue
            else:
                continue
            if request is None:
                if self.offsets.busy:
                    yield from self.nap_until(self.offsets.wake_at_us)
                continue
            answer = yield from self._send(request)
            if answer is None:
                self.offsets.failed(self.now.mono_us)
            else:
                self.offsets.answered(self.now.mono_us, answer)

    def _knows_versions(self, coordinator: GroupCoordinator) -> bool:
        """Whether the connection to the coordinator that stands says in which versions offsets are committed."""
        if not self.member.metadata_epoch or coordinator.node is None:
            return True
        here = self.connected_to == Address(coordinator.node.host, coordinator.node.port)
        if not here or self.strand.lane not in self._drafts:
            return False
        coordinator.versions = self.group_versions(self._drafts[self.strand.lane])
        return True

    def _agree(self) -> Steps[bool]:
        """Connected to the coordinator, with what it knows known."""
        node = self.coordinator.node
        assert node is not None, "there is nobody to agree with"
        if not (yield from self._to(Address(node.host, node.port), node.node_id)):
            return False
        return (yield from self._learn_drafts())

    def _to(self, address: Address, node_id: int = -1) -> Steps[bool]:
        if self.connected_to == address:
            return True
        return (yield from self.connect(address, node_id))

    def _send(self, request: GroupRequest) -> Steps[object | None]:
        """The answer, None if there is none."""
        if request.to is not None:
            reached = yield from self._to(Address(request.to.host, request.to.port), request.to.node_id)
        else:
            reached = yield from self._to(self._next_address())
        if not reached:
            return None
        waits_us = max(0, request.timeout_us - self.settings.request_timeout_us)
        answer = yield from self.call(request.api_key, request.api_version, request.body, waits_us)
        return None if isinstance(answer, str) else answer.body
