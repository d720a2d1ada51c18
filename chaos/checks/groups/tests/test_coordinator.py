"""A group coordinator compared with its log: planted violations, and near misses."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from chaos.checks.check import Check
from chaos.checks.groups.assignments import OneGroupLeader
from chaos.checks.groups.coordinator import (
    DECIDED_AT_ONCE,
    LATE_US,
    HeldOffsetsReplicated,
    LoadedIsReplayed,
    RemovalsDue,
    ResponsesReplicated,
)
from chaos.checks.groups.group_state import Committed, LoggedGroup, LoggedMember, logged_batches
from chaos.checks.history import History
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.replica_view import Replicated, TouchedLogs
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.kafka_messages import (
    delete_groups_request,
    delete_groups_response,
    offset_commit_request,
    offset_commit_response,
    offset_delete_request,
    offset_delete_response,
    offset_fetch_request,
    offset_fetch_response,
    sync_group_request,
    sync_group_response,
)
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubGroupCoordinatorShard,
    StubImages,
    StubNode,
    image_of,
    node_partitions,
    topic_image,
)
from chaos.sim.disk import SimDisk
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Closed, Note, Reply, Request
from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.committed_offsets import CommitOffset, CommittedOffsets, OffsetKey
from reference_broker.groups.group import Group, Member
from reference_broker.groups.records import EPOCH_VALUE, group_key, group_value, offset_key, offset_value
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin
from reference_broker.metadata.image import PartitionImage
from reference_broker.ports.disk import Disk, MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.wire.drafts import (
    OffsetFetchRequest1001,
    OffsetFetchRequestTopic1000,
    OffsetFetchResponse1001,
    OffsetFetchResponsePartition1001,
    OffsetFetchResponseTopic1001,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag
from reports.rows import ChangeRow, MembershipRow, TraceRow

pytestmark = pytest.mark.clause("M-8", "X-8")

OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP, TXN_OFFSET_COMMIT, DELETE_GROUPS, OFFSET_DELETE = 8, 9, 14, 28, 42, 47
OFFSETS_ID = b"o" * 16
MINUTE_MS = 60_000
SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"


def of_group(generation: int = 3, *, empty: bool = False, since_ms: int = 5) -> Group:
    member = Member("a", None, "client", "host", 2000, 1000, (MemberProtocol("range", SUBSCRIPTION),), b"all")
    members = () if empty else (member,)
    return Group.loaded("g", generation, "consumer", None if empty else "range", "a", since_ms, members)


def commit(offset: int, *, ms: int = 0, **more: Any) -> CommitOffset:
    return CommitOffset("t", 0, offset, 4, "text", ms, **more)


class CheckedGroupCoordinator:
    """Node 1, which leads the only partition of the offsets topic, and the checks that follow its log."""

    def __init__(self, *kinds: type[Check], disk: Disk | None = None) -> None:
        context = check_context()
        self.view, self.touched = context.replicas, TouchedLogs()
        self.disk = disk or MemoryDisk()
        self.view._touched = self.touched
        kinds = kinds or (ResponsesReplicated, LoadedIsReplayed, RemovalsDue)
        self.checks: list[Check] = [kind(context) for kind in kinds]
        self.us, self.wall_ms = 1_000_000, 0
        with self.touched.noted():
            self.log = run_to_end(open_log(self.disk, "__consumer_offsets-0", LogConfig(), Now(0, 0), True))
        led = Partition("__consumer_offsets", OFFSETS_ID, 0, 4, self.log)
        self.target = StubGroupCoordinatorShard(led=led)
        self.held = self.target.offsets
        self.broker = StubBroker(
            node_id=1,
            disk=self.disk,
            config=replace(BrokerConfig(), offsets_retention_minutes=1),
            partitions=node_partitions(led),
            controller=StubImages(image_of(topic_image("__consumer_offsets"), topic_image("t"))),
            groups=StubCoordinator([self.target]),
        )
        self.node = StubNode(self.broker).as_node()
        self.number = 0
        self.looked()

    def looked(self) -> list[str]:
        """Let the checks follow the log, and return the explanations of all violations."""
        self.us += 1000
        self.broker.now = Now(self.us, self.wall_ms)
        self.view.observe(self.us, 0, self.node, False)
        return [violation.explanation for check in self.checks for violation in check.violations]

    def acts(self, event: Any, *effects: Any) -> list[str]:
        for check in self.checks:
            if type(check).acted is not Check.acted:
                check.acted(self.us + 1000, self.node, event, effects)
        return self.looked()

    def append(self, batch: bytes, *, commits: bool = True) -> list[str]:
        with self.touched.noted():
            self.log.append(Now(0, self.wall_ms), batch, 4, origin=BatchOrigin.BROKER)
            if commits:
                self.log.advance_high_watermark(self.log.log_end_offset)
        return self.looked()

    def replicate(self) -> None:
        with self.touched.noted():
            self.log.advance_high_watermark(self.log.log_end_offset)

    def write(self, *records: tuple[bytes, bytes | None], producer_id: int = -1, commits: bool = True) -> list[str]:
        rows = [Record(timestamp_ms=0, key=key, value=value) for key, value in records]
        is_transactional = producer_id >= 0
        epoch = 0 if is_transactional else -1
        batch = build(rows, producer_id=producer_id, producer_epoch=epoch, is_transactional=is_transactional)
        return self.append(batch, commits=commits)

    def offset(self, value: CommitOffset | None, *, producer_id: int = -1, commits: bool = True) -> list[str]:
        key = OffsetKey("g", "t", 0)
        data = None if value is None else offset_value(value, EPOCH_VALUE)
        return self.write((offset_key(*key), data), producer_id=producer_id, commits=commits)

    def group(self, group: Group | None) -> list[str]:
        return self.write((group_key("g"), None if group is None else group_value(group)))

    def marker(self, producer_id: int, *, commit: bool) -> list[str]:
        return self.append(
            build_marker(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=4, timestamp_ms=0)
        )

    def request(self, api_key: int, body: Any) -> None:
        self.number += 1
        self.acts(Request(self.number, 1, api_key, 9, "c", body, Tag(api_key, 9, "c")))

    def responds(self, api_key: int, response: Any) -> list[str]:
        return self.acts(Closed(99), Reply(self.number, 1, api_key, 9, response, Tag(api_key, 9, "c")))

    def commits(
        self, offset: int, *, api_key: int = OFFSET_COMMIT, error: ErrorCode = ErrorCode.none, between: Any = None
    ) -> list[str]:
        """Request, do what is ``between``, and respond."""
        self.request(api_key, offset_commit_request(offset=offset))
        if between is not None:
            between()
        return self.responds(api_key, offset_commit_response(error))

    def fetches(
        self,
        offset: int,
        *,
        stable: bool = False,
        everything: bool = False,
        metadata: str = "text",
        error: ErrorCode = ErrorCode.none,
    ) -> list[str]:
        """Fetch the offset of t-0, or those of all topics, and return ``offset``. -1 is the response if there is
        none."""
        self.request(OFFSET_FETCH, offset_fetch_request(of_all_topics=everything, require_stable=stable))
        if offset >= 0:
            return self.responds(OFFSET_FETCH, offset_fetch_response(offset, metadata=metadata, error=error))
        if everything:
            return self.responds(OFFSET_FETCH, offset_fetch_response(None))
        return self.responds(OFFSET_FETCH, offset_fetch_response(-1, leader_epoch=-1, metadata="", error=error))

    def fetches_draft(self, offset: int, metadata_epoch: int) -> list[str]:
        """Fetch the offset of t-0 with the draft whose response has a metadata epoch, and return these values."""
        topic = OffsetFetchRequestTopic1000(name="t", partition_indexes=(0,))
        self.request(OFFSET_FETCH, OffsetFetchRequest1001(group_id="g", topics=(topic,)))
        partition = OffsetFetchResponsePartition1001(
            partition_index=0,
            committed_offset=offset,
            committed_leader_epoch=4,
            metadata_epoch=metadata_epoch,
            metadata="text",
        )
        topics = (OffsetFetchResponseTopic1001(name="t", partitions=(partition,)),)
        return self.responds(OFFSET_FETCH, OffsetFetchResponse1001(topics=topics))

    def load(self, *notes: Note) -> list[str]:
        return self.acts(Closed(99), *notes, Note("coordinator_loaded", (("partition", 0),)))

    def ended(self, history: History | None = None) -> list[str]:
        for check in self.checks:
            check.end(history or History())
        return self.looked()


@pytest.fixture
def world() -> CheckedGroupCoordinator:
    return CheckedGroupCoordinator()


# --- the bytes --------------------------------------------------------------------------------------------------------


def test_records_are_read_as_they_are_written(world: CheckedGroupCoordinator) -> None:
    world.group(of_group())
    world.offset(commit(5, ms=7))
    world.offset(commit(6, ms=8, metadata_epoch=3, expire_timestamp_ms=99))
    plain = CommitOffset("t", 0, 9, -1, "", 8, expire_timestamp_ms=44)
    world.write((offset_key("g", "t", 0), offset_value(plain, 3)), producer_id=7)
    world.marker(7, commit=False)
    world.offset(None)
    batches = list(logged_batches(world.log, 0, world.log.log_end_offset))
    member = LoggedMember(None, 2000, 1000, SUBSCRIPTION, b"all")
    group = LoggedGroup(3, "consumer", "range", "a", 5, {"a": member})
    assert batches[0].records == ((0, "g", group),)
    assert member.topics == ["t"]
    assert LoggedMember(None, 1, 1, b"\x00", b"").topics is None
    key = "g", "t", 0
    assert batches[1].records == ((1, key, Committed(5, 4, "text", 7, -1, -1, 2)),)
    assert batches[2].records == ((2, key, Committed(6, 4, "text", 8, 3, 99, 3)),)
    assert batches[3].records == ((3, key, Committed(9, -1, "", 8, -1, 44, 4)),)
    assert (batches[3].producer_id, batches[4].producer_id, batches[4].marker) == (7, 7, 0)
    assert batches[5].records == ((5, key, None),)


def test_offset_is_removed_from_its_committed_tombstone_to_the_next_commit(world: CheckedGroupCoordinator) -> None:
    key, offsets, times = ("g", "t", 0), world.checks[0].context.offsets, []
    steps = (lambda: world.offset(commit(5)), lambda: world.offset(None, commits=False), world.replicate)
    for step in (*steps, lambda: world.offset(None), lambda: world.offset(commit(6))):
        step()
        world.looked()
        times.append(world.us)
    _, appended_us, removed_us, _, committed_us = times
    assert not offsets.was_removed(key, 0, appended_us)
    assert offsets.was_removed(key, appended_us, removed_us)
    assert offsets.was_removed(key, removed_us + 1, removed_us + 1)
    assert not offsets.was_removed(key, committed_us + 1, committed_us + 2)
    assert not offsets.was_removed(("g", "t", 1), 0, committed_us)


# --- responses --------------------------------------------------------------------------------------------------------


def test_commit_is_acknowledged_when_its_record_is_committed(world: CheckedGroupCoordinator) -> None:
    assert world.commits(5, between=lambda: world.offset(commit(5))) == []
    assert world.commits(6, error=ErrorCode.coordinator_not_available) == []
    explanations = world.commits(7, between=lambda: world.offset(commit(7), commits=False))
    assert "acknowledged offset 7 of t-0 for group g" in explanations[0]


def test_record_of_an_earlier_request_acknowledges_nothing(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.offset(commit(6))
    assert "acknowledged offset 5" in world.commits(5)[0]


def test_commit_of_a_transaction_is_acknowledged_before_its_marker(world: CheckedGroupCoordinator) -> None:
    assert world.commits(5, api_key=TXN_OFFSET_COMMIT, between=lambda: world.offset(commit(5), producer_id=7)) == []
    assert "acknowledged offset 6" in world.commits(6, api_key=TXN_OFFSET_COMMIT)[0]


def test_fetch_returns_the_last_committed_offset(world: CheckedGroupCoordinator) -> None:
    assert world.fetches(-1) == []
    world.offset(commit(5))
    world.us += LATE_US
    assert world.fetches(5) == []
    assert world.fetches(5, everything=True) == []
    assert "returned all offsets of group g without" in world.fetches(-1, everything=True)[0]


@pytest.mark.parametrize(("offset", "metadata"), [(4, "text"), (-1, ""), (5, "x")])
def test_fetch_that_returns_another_value_than_the_committed_one(
    world: CheckedGroupCoordinator, offset: int, metadata: str
) -> None:
    world.offset(commit(5))
    world.us += LATE_US
    assert "is committed (M-8)" in world.fetches(offset, metadata=metadata)[0]


@pytest.mark.parametrize(("metadata_epoch", "is_right"), [(-1, True), (3, False)])
def test_fetch_returns_the_metadata_epoch_of_the_commit(
    world: CheckedGroupCoordinator, metadata_epoch: int, is_right: bool
) -> None:
    world.offset(commit(5))
    world.us += LATE_US
    explanations = world.fetches_draft(5, metadata_epoch)
    assert (explanations == []) is is_right
    assert all("is committed (M-8)" in explanation for explanation in explanations)


def test_offset_that_is_not_replicated_or_removed_is_not_returned(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.offset(commit(6), commits=False)
    world.us += LATE_US
    assert world.fetches(5) == []
    assert "returned offset 6" in world.fetches(6)[0]
    other = CheckedGroupCoordinator()
    other.offset(commit(5))
    other.offset(None)
    other.us += LATE_US
    assert other.fetches(-1) == []
    assert "returned offset 5" in other.fetches(5)[0]


def test_value_that_was_the_last_a_moment_ago_may_be_returned(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.us += LATE_US
    world.offset(commit(6))
    assert world.fetches(5) == []


def test_open_transaction_makes_an_offset_unstable(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.offset(commit(6), producer_id=7)
    world.us += LATE_US
    assert world.fetches(5) == []
    assert world.fetches(-1, error=ErrorCode.unstable_offset_commit, stable=True) == []
    assert "an open transaction has committed another one" in world.fetches(5, stable=True)[0]
    assert (
        "to a client that does not require stable offsets"
        in world.fetches(-1, error=ErrorCode.unstable_offset_commit)[1]
    )


@pytest.mark.parametrize("commits", [True, False])
def test_transaction_marker_decides_returned_offset(world: CheckedGroupCoordinator, commits: bool) -> None:
    world.offset(commit(5))
    world.offset(commit(6), producer_id=7)
    world.marker(7, commit=commits)
    world.us += LATE_US
    assert world.fetches(6 if commits else 5, stable=True) == []
    assert "is committed (M-8)" in world.fetches(5 if commits else 6, stable=True)[0]
    assert (
        "and no open transaction has committed"
        in world.fetches(-1, error=ErrorCode.unstable_offset_commit, stable=True)[1]
    )


def test_later_record_wins_whenever_its_marker_comes(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(6), producer_id=7)
    world.offset(commit(8))
    world.marker(7, commit=True)
    world.us += LATE_US
    assert world.fetches(8) == []
    assert world.fetches(6)


def test_tombstone_removes_what_a_transaction_has_committed(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(6), producer_id=7)
    world.offset(None)
    world.marker(7, commit=True)
    world.us += LATE_US
    assert world.fetches(-1, stable=True) == []
    assert world.fetches(6)


def test_coordinator_that_was_replaced_is_not_judged(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.us += LATE_US
    (partition,) = world.checks[0].context.offsets.partitions.values()
    partition.leader = 5, 2
    assert world.fetches(4) == []


def test_parked_sync_group_gets_committed_assignment(world: CheckedGroupCoordinator) -> None:
    def synced(assignment: bytes, *, writes: bool) -> list[str]:
        world.request(SYNC_GROUP, sync_group_request("a"))
        if writes:
            world.group(of_group())
        return world.responds(SYNC_GROUP, sync_group_response(assignment))

    assert "and None is committed" in synced(b"all", writes=False)[0]
    assert len(synced(b"all", writes=True)) == 1
    assert "and (3, b'all') is committed" in synced(b"none", writes=True)[1]


# --- loads ------------------------------------------------------------------------------------------------------------


def loaded(world: CheckedGroupCoordinator) -> CheckedGroupCoordinator:
    """Return the world with group ``g`` and an offset, both in the log and at the coordinator."""
    world.group(of_group(2))
    world.group(of_group())
    world.offset(commit(5))
    world.target.groups["g"] = of_group()
    world.held.add_unreplicated(world.log.log_end_offset, [(OffsetKey("g", "t", 0), commit(5))])
    assert list(world.held.advance_high_watermark(world.log.log_end_offset))
    return world


def test_load_equals_the_replay(world: CheckedGroupCoordinator) -> None:
    assert loaded(world).load() == []


def test_load_must_not_differ_from_the_log() -> None:
    def wrong(change: Any) -> str:
        other = loaded(CheckedGroupCoordinator())
        change(other)
        return "\n".join(other.load())

    def tombstone(other: CheckedGroupCoordinator) -> None:
        other.group(None)
        other.offset(None)

    assert "group g is missing" in wrong(lambda other: other.target.groups.clear())
    assert "has generation, type and protocol (2," in wrong(lambda other: other.target.groups.update(g=of_group(2)))
    assert "has members" in wrong(lambda other: setattr(other.target.groups["g"].members["a"], "assignment", b""))
    assert "has leader b" in wrong(lambda other: setattr(other.target.groups["g"], "leader", "b"))
    assert "has no record" not in wrong(lambda other: other.group(None))
    assert "the log has no record of it" in wrong(tombstone)
    assert "and none is committed" in wrong(lambda other: other.offset(None))
    assert "has (5, 4, 'text'), and offset 6" in wrong(lambda other: other.offset(commit(6)))
    assert wrong(lambda other: other.offset(commit(6), commits=False)) == ""


@pytest.mark.parametrize(("is_marker_committed", "is_removed"), [(False, False), (True, False), (False, True)])
def test_load_with_group_of_an_aborted_transaction(
    world: CheckedGroupCoordinator, is_marker_committed: bool, is_removed: bool
) -> None:
    """The abort counts when it is below the high watermark, and a tombstone at once."""
    world.offset(commit(5), producer_id=7)
    if is_removed:
        world.offset(None, commits=False)
    world.append(
        build_marker(commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=4, timestamp_ms=0),
        commits=is_marker_committed,
    )
    world.target.groups["g"] = Group("g", 0)
    explanations = world.load()
    assert any("the log has no record of it" in explanation for explanation in explanations) is (
        is_marker_committed or is_removed
    )


def test_load_that_left_out_damaged_records_is_not_judged(world: CheckedGroupCoordinator) -> None:
    loaded(world).target.groups.clear()
    assert world.load(Note("coordinator_loaded_in_part", (("partition", "__consumer_offsets-0"),))) == []


def test_record_that_differs_from_the_group_that_is_written(world: CheckedGroupCoordinator) -> None:
    world.target.groups["g"] = of_group()
    assert world.group(of_group()) == []
    world.target.groups["g"].members["a"].rebalance_timeout_ms = 1
    assert "has appended a record of a group, and group g has members" in world.group(of_group())[0]


# --- what a coordinator holds -----------------------------------------------------------------------------------------


class Holding(CheckedGroupCoordinator):
    """A coordinator that follows its log, but for what a test omits."""

    def __init__(self) -> None:
        super().__init__(HeldOffsetsReplicated)

    def commits_one(self, value: CommitOffset | None, producer_id: int = -1, *, is_held: bool = True) -> list[str]:
        self.offset(value, producer_id=producer_id, commits=False)
        if is_held:
            self.held.add_unreplicated(self.log.log_end_offset, [(OffsetKey("g", "t", 0), value)], producer_id)
        return self._replicated()

    def commits_many(self, count: int, producer_id: int) -> list[str]:
        changes = [(OffsetKey("g", "t", index), commit(6)) for index in range(count)]
        records = [(offset_key(*key), offset_value(value, EPOCH_VALUE)) for key, value in changes]
        self.write(*records, producer_id=producer_id, commits=False)
        self.held.add_unreplicated(self.log.log_end_offset, changes, producer_id)
        return self._replicated()

    def ends(self, producer_id: int, *, commit: bool, as_commit: bool | None = None) -> list[str]:
        self.append(
            build_marker(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=4, timestamp_ms=0),
            commits=False,
        )
        is_commit = commit if as_commit is None else as_commit
        self.held.add_end_transaction_marker(self.log.log_end_offset, producer_id, is_commit=is_commit)
        return self._replicated()

    def _replicated(self) -> list[str]:
        for _ in self.held.advance_high_watermark(self.log.log_end_offset):
            pass
        self.replicate()
        return self.looked()


@pytest.mark.clause("X-8")
def test_coordinator_that_holds_what_its_log_has() -> None:
    world = Holding()
    assert world.commits_one(commit(5)) == []
    assert world.commits_one(commit(6), 7) == []
    assert world.commits_one(commit(8)) == []
    assert world.ends(7, commit=True) == []  # The plain commit is the later record (KAFKA-5247).
    assert world.commits_one(commit(9), 7) == []
    assert world.ends(7, commit=False) == []
    assert world.commits_one(commit(9), 7) == []
    assert world.commits_one(None) == []
    assert world.ends(7, commit=True) == []
    assert world.checks[0].evidence


@pytest.mark.clause("X-8")
def test_coordinator_that_holds_another_offset_than_its_log() -> None:
    world = Holding()
    world.commits_one(commit(5))
    assert "has (5, 4, 'text') for t-0 of group g, and offset 6" in world.commits_one(commit(6), is_held=False)[0]
    world = Holding()
    assert "lacks an offset of an open transaction" in world.commits_one(commit(6), 7, is_held=False)[0]
    world = Holding()
    world.commits_one(commit(6), 7)
    assert "has (6, 4, 'text') for t-0 of group g, and nothing" in world.ends(7, commit=False, as_commit=True)[0]


@pytest.mark.clause("X-8")
def test_older_commit_that_its_marker_brings_back_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommittedOffsets, "_is_newer", lambda *_: True)
    world = Holding()
    world.commits_one(commit(6), 7)
    world.commits_one(commit(8))
    assert "has (6, 4, 'text') for t-0 of group g, and offset 8" in world.ends(7, commit=True)[0]


@pytest.mark.parametrize(
    ("offsets", "slices_us", "after_us", "is_red"),
    [
        (1, 0, 0, True),
        (DECIDED_AT_ONCE, 0, 0, True),
        (DECIDED_AT_ONCE + 1, 0, 0, False),
        (DECIDED_AT_ONCE + 1, 0, LATE_US, False),
        (DECIDED_AT_ONCE + 1, 0, LATE_US + 1, True),
        (1, 9, LATE_US + 9, False),
        (1, 9, LATE_US + 10, True),
    ],
)
def test_coordinator_decides_a_long_transaction_in_slices_and_in_time(
    monkeypatch: pytest.MonkeyPatch, offsets: int, slices_us: int, after_us: int, is_red: bool
) -> None:
    """The coordinator must hold what its log has, whatever it reports of itself (``is_behind``)."""
    world = Holding()
    for check in world.checks:
        check.context = replace(check.context, settings=replace(check.context.settings, slices_us=slices_us))
    world.commits_many(offsets, 7)
    monkeypatch.setattr(CommittedOffsets, "advance_high_watermark", lambda *_: ())
    world.ends(7, commit=True)
    assert bool(world.checks[0].violations) is (is_red and after_us == 0)
    world.us += after_us - 1000
    assert bool(world.looked()) is is_red
    monkeypatch.undo()
    assert list(world.held.advance_high_watermark(world.log.log_end_offset))
    assert bool(world.commits_one(commit(8))) is is_red


def test_long_transaction_that_is_not_decided_in_the_end_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Holding()
    world.commits_many(DECIDED_AT_ONCE + 1, 7)
    monkeypatch.setattr(CommittedOffsets, "advance_high_watermark", lambda *_: ())
    assert world.ends(7, commit=True) == []
    assert world.ended()


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["__consumer_offsets-0/1.log", "__consumer_offsets-1/1.log", ""])
def test_records_that_cannot_be_read_are_excused_only_where_a_fault_has_damaged_the_log(path: str) -> None:
    disk = SimDisk(Random(0))
    world = CheckedGroupCoordinator(disk=disk)
    disk.damaged += [(path, b"")] * bool(path)
    world.offset(commit(5))
    record = offset_key("g", "t", 0), b"\x00\x03short"
    if path.startswith("__consumer_offsets-0/"):
        assert world.write(record) == []
    else:
        with pytest.raises(IndexError):
            world.write(record)


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("is_replicated", [True, False])
def test_log_that_ends_below_its_committed_records_excuses_nothing_if_others_have_them(is_replicated: bool) -> None:
    world = CheckedGroupCoordinator()
    if is_replicated:
        state = PartitionImage((1, 2), (1, 2), 1, 4, 0)
        of_offsets = Replicated("__consumer_offsets-0", (OFFSETS_ID, 0), state, Eligible.of(state, 1))
        world.view.partitions[OFFSETS_ID, 0] = of_offsets
    world.offset(commit(5))
    world.offset(commit(6))
    with world.touched.noted():
        world.log.truncate_to(1)
    world.us += 2 * LATE_US
    assert bool(world.fetches(5)) is is_replicated


# --- removals ---------------------------------------------------------------------------------------------------------


def removed(world: CheckedGroupCoordinator, after_ms: int) -> list[str]:
    world.wall_ms += after_ms
    world.offset(None)
    return world.ended()


def test_offset_expires_after_its_retention_and_not_earlier() -> None:
    for after_ms, is_early in ((MINUTE_MS, False), (MINUTE_MS - 1, True)):
        world = CheckedGroupCoordinator()
        world.offset(commit(5))
        assert bool(removed(world, after_ms)) is is_early


def test_expiry_of_its_own_counts() -> None:
    for expires_ms, is_early in ((500, False), (501, True)):
        world = CheckedGroupCoordinator()
        world.offset(commit(5, expire_timestamp_ms=expires_ms))
        assert bool(removed(world, 500)) is is_early


def test_retention_of_an_empty_group_counts_from_its_last_member() -> None:
    for after_ms, is_early in ((MINUTE_MS + 400, False), (MINUTE_MS + 399, True)):
        world = CheckedGroupCoordinator()
        world.offset(commit(5))
        world.group(of_group(empty=True, since_ms=400))
        assert bool(removed(world, after_ms)) is is_early


def test_offsets_of_subscribed_topics_do_not_expire(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.group(of_group())
    assert "and its members subscribe to the topic" in removed(world, 2 * MINUTE_MS)[0]


@pytest.mark.parametrize(("topic", "index", "is_excused"), [("t", 0, True), ("t", 1, False), ("u", 0, False)])
def test_offset_deleted_by_client_is_not_expired(
    world: CheckedGroupCoordinator, topic: str, index: int, is_excused: bool
) -> None:
    world.offset(commit(5))
    world.request(OFFSET_DELETE, offset_delete_request(topic, index))
    assert bool(removed(world, 1)) is not is_excused


@pytest.mark.parametrize(("group", "is_excused"), [("g", True), ("h", False)])
def test_deleted_group_loses_its_offsets(world: CheckedGroupCoordinator, group: str, is_excused: bool) -> None:
    world.offset(commit(5))
    world.request(DELETE_GROUPS, delete_groups_request(group))
    assert bool(removed(world, 1)) is not is_excused


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (ErrorCode.group_subscribed_to_topic, True),
        (ErrorCode.group_id_not_found, True),
        (ErrorCode.not_coordinator, False),
        (ErrorCode.none, False),
    ],
)
def test_offset_whose_deletion_was_refused_is_kept(
    world: CheckedGroupCoordinator, error: ErrorCode, is_refused: bool, requests: int
) -> None:
    """A second request may have deleted it, whatever the response to the first was."""
    world.offset(commit(5))
    for _ in range(requests):
        world.request(OFFSET_DELETE, offset_delete_request("t", 0))
    world.responds(OFFSET_DELETE, offset_delete_response(error))
    assert bool(removed(world, 1)) is (is_refused and requests == 1)


def test_group_that_a_coordinator_refused_to_delete_keeps_its_offsets(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.request(DELETE_GROUPS, delete_groups_request())
    world.responds(DELETE_GROUPS, delete_groups_response(ErrorCode.non_empty_group))
    assert removed(world, 1)


def test_offsets_go_with_their_topic(world: CheckedGroupCoordinator) -> None:
    world.offset(commit(5))
    world.wall_ms += 1
    world.offset(None)
    row = ChangeRow("admin", 1, "delete", "t", "", 1, 1, -1, "ok", 1, None)
    assert world.ended(History(changes=[row])) == []


@pytest.mark.parametrize(
    ("ending", "generation", "leader", "is_red"),
    [
        ("deleted", 1, "b", False),
        ("deleted", 3, "b", False),
        ("not replicated", 1, "b", True),
        ("another group", 1, "b", True),
        ("deleted before", 1, "b", True),
        ("deleted before", 3, "b", True),
        ("deleted before", 4, "b", False),
    ],
)
def test_generations_begin_again_only_after_the_group_s_tombstone(
    ending: str, generation: int, leader: str, *, is_red: bool
) -> None:
    """Member a led generation 3. A tombstone may be committed by the event in which the next group is stable."""
    world = CheckedGroupCoordinator(OneGroupLeader)
    (check,) = world.checks

    def stable(generation: int, leader: str) -> None:
        fields = {"group": "g", "state": "Stable", "generation": generation, "leader": leader}
        check.trace(TraceRow(1, 0, 0, world.us + 1000, "group_state", detail=json.dumps(fields)))

    assigned = []

    def assigns(generation: int, member: str) -> None:
        at_us = world.us + 1000
        assigned.append(MembershipRow(member, "g", member, generation, "assigned", "t", 0, at_us, at_us))

    world.group(of_group())
    if ending == "deleted before":
        world.group(None)
    stable(3, "a")
    assigns(3, "a")
    world.us += 1000
    stable(generation, leader)
    assigns(generation, leader)
    if ending == "deleted":
        world.group(None)
    elif ending != "deleted before":
        world.write((group_key("g" if ending == "not replicated" else "h"), None), commits=ending == "another group")
    explanations = world.ended(History(memberships=assigned))
    assert bool(explanations) is is_red


@pytest.mark.parametrize("is_deleted", [True, False])
def test_partition_has_another_owner_in_the_generation_only_of_a_group_that_was_deleted(*, is_deleted: bool) -> None:
    world = CheckedGroupCoordinator(OneGroupLeader)
    rows = [MembershipRow("a", "g", "a", 1, "assigned", "t", 0, world.us, world.us)]
    world.group(of_group(1))
    if is_deleted:
        world.group(None)
    rows.append(MembershipRow("b", "g", "b", 1, "assigned", "t", 0, world.us, world.us))
    assert bool(world.ended(History(memberships=rows))) is not is_deleted
