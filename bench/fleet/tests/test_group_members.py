"""Members of a group: what they read and commit through rebalances, lost coordinators and old metadata."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bench.fleet.behaviours.final_reads import FINAL_OFFSETS, OffsetsReader
from bench.fleet.behaviours.group_member import ALTERNATING, GroupMember, MemberPlan
from bench.fleet.behaviours.member_storage import OutsideStore
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import Address, ClientSettings, Leaving, TopicPartition
from bench.fleet.tests.conftest import read_offsets
from bench.fleet.tests.groups import GroupsBroker, GroupWorld
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.wire.apis import ApiKey
from reports.rows import MembershipRow

HOT = tuple(TopicPartition("hot", number) for number in range(4))
PLAN = MemberPlan(
    "",
    "g",
    HOT,
    poll_interval_us=20_000,
    commit_interval_us=100_000,
    heartbeat_interval_ms=100,
    metadata_interval_us=200_000,
)


@pytest.fixture
def settings() -> ClientSettings:
    return ClientSettings(tuple(Address(f"node-{number}", 9092) for number in range(3)))


@pytest.fixture
def broker() -> GroupsBroker:
    broker = GroupsBroker({"hot": 4})
    for partition in HOT:
        broker.leaders[partition] = partition.partition % 3
    return broker


@pytest.fixture
def world(broker: GroupsBroker) -> GroupWorld:
    return GroupWorld(broker)


@pytest.fixture
def load(settings: ClientSettings) -> KeyedProducer:
    plan = ProducerPlan("producer-0", HOT, interval_us=10_000, records_per_request=3)
    return KeyedProducer(plan, settings, Random(4))


def member(settings: ClientSettings, number: int, store: OutsideStore | None = None, **changes: Any) -> GroupMember:
    plan = replace(PLAN, process=f"member-{number}", **changes)
    return GroupMember(plan, settings, Random(number), store)


def finish(world: GroupWorld, load: KeyedProducer, *members: GroupMember) -> None:
    world.stop(load)
    world.run(1)
    world.stop(*members)
    world.run(10)
    assert {load.process, *(each.process for each in members)} <= world.finished, "somebody never finished"


def all_read(world: GroupWorld, broker: GroupsBroker, members: list[GroupMember]) -> dict[TopicPartition, list[int]]:
    """Return by partition which member read which offsets, in order of time."""
    found: dict[TopicPartition, list[int]] = {}
    for group_member in members:
        for partition, offsets in read_offsets(world, group_member.process).items():
            found.setdefault(partition, []).extend(offsets)
    for topic_partition in HOT:
        assert set(found[topic_partition]) == set(range(broker.logs[topic_partition].end)), topic_partition
    return found


def events(world: GroupWorld, what: str) -> list[MembershipRow]:
    return [row for row in world.rows("memberships") if row.event == what]


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
@pytest.mark.parametrize("metadata_epoch", [True, False])
@pytest.mark.parametrize("leader_epochs", [True, False])
def test_members_share_the_partitions_and_commit_all_that_they_read(
    world: GroupWorld,
    broker: GroupsBroker,
    settings: ClientSettings,
    load: KeyedProducer,
    protocol: str,
    metadata_epoch: bool,
    leader_epochs: bool,
) -> None:
    changes: dict[str, Any] = {"protocol": protocol, "metadata_epoch": metadata_epoch, "leader_epochs": leader_epochs}
    members = [member(settings, number, **changes) for number in range(2)]
    world.start(load, members[0])
    world.run(1)
    world.start(members[1])
    world.run(2)
    finish(world, load, *members)
    found = all_read(world, broker, members)
    owners = {each.process: set(read_offsets(world, each.process)) for each in members}
    assert all(len(owner) >= 2 for owner in owners.values()), "one of them got nothing"
    for partition in HOT:
        assert broker.groups["g"].offsets[partition][0] == broker.logs[partition].end
        assert sorted(found[partition]) == list(range(broker.logs[partition].end)), (
            "read twice although nothing was lost"
        )
    drafts = {row.draft for row in world.rows("commits")}
    assert drafts == {metadata_epoch}
    assert bool(world.rows("metadata_epochs")) is metadata_epoch
    revoked = len(events(world, "revoked"))
    assert revoked == (4 if protocol == "eager" else 2)


def test_fetch_has_leader_epoch_only_if_enabled(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings
) -> None:
    broker.epochs = dict.fromkeys(broker.epochs, 5)
    for leader_epochs, wanted in ((True, {5}), (False, {-1})):
        one = member(settings, int(leader_epochs), metadata_epoch=False, leader_epochs=leader_epochs, group="g2")
        world.start(one)
        world.run(1)
        fetches: list[Any] = [
            request.body for request in broker.requests if request.api_key == 1 and request.client_id == one.process
        ]
        epochs = {part.current_leader_epoch for body in fetches for topic in body.topics for part in topic.partitions}
        assert epochs == wanted


@pytest.mark.thorough
def test_member_that_leaves_hands_over_at_once_and_its_successor_reads_nothing_twice(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    members = [member(settings, number) for number in range(2)]
    world.start(load, *members)
    world.run(2)
    world.at(world.now_us, members[0], Leaving())
    world.run(2)
    assert members[0].process in world.finished
    assert events(world, "left")
    finish(world, load, members[1])
    for partition, offsets in all_read(world, broker, members).items():
        assert sorted(offsets) == list(range(broker.logs[partition].end)), partition


@pytest.mark.clause("F-8")
@pytest.mark.parametrize("stay_us", [0, 700_000])
def test_member_closes_its_sessions_when_it_leaves_and_when_it_is_done(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer, stay_us: int
) -> None:
    members = [member(settings, 0), member(settings, 1, stay_us=stay_us)]
    world.start(load, *members)
    world.run(2)
    assert len(broker.sessions) > 0
    world.at(world.now_us, members[0], Leaving())
    world.run(1)
    finish(world, load, members[1])
    assert not broker.sessions
    closed = [
        request
        for request in broker.requests
        if request.api_key == ApiKey.FETCH and request.body.session_epoch == -1  # type: ignore[attr-defined]
    ]
    assert {request.client_id for request in closed} == {each.process for each in members}
    fetches = [row for row in world.rows("operations") if row.f == "fetch" and row.process != "final"]
    assert fetches
    assert all(fetch.session_epoch >= 0 for fetch in fetches), "what closes a session is no operation"


@pytest.mark.clause("F-8")
def test_member_whose_node_is_down_ends_without_closing_its_session_there(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = member(settings, 0)
    world.start(load, one)
    world.run(1)
    open_before = len(broker.sessions)
    world.down.add(2)
    world.at(world.now_us, one, Leaving())
    world.run(2 * settings.request_timeout_us / 1_000_000 + 1)
    assert one.process in world.finished
    assert len(broker.sessions) < open_before


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
def test_revoked_partitions_are_not_read_during_commit(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer, protocol: str
) -> None:
    world.commits_take_us = 300_000
    members = [member(settings, number, protocol=protocol) for number in range(2)]
    world.start(load, members[0])
    world.run(1)
    world.start(members[1])
    world.run(3)
    finish(world, load, *members)
    assert events(world, "revoked")
    for partition, offsets in all_read(world, broker, members).items():
        assert sorted(offsets) == list(range(broker.logs[partition].end)), partition


@pytest.mark.thorough
def test_coordinator_that_moves_is_found_and_nothing_is_lost(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    members = [member(settings, number) for number in range(2)]
    world.start(load, *members)
    world.run(1)
    broker.coordinator = 1
    world.down.add(0)
    for partition in HOT:
        broker.move(partition, 1 + partition.partition % 2)
    world.run(5)
    world.down.clear()
    finish(world, load, *members)
    all_read(world, broker, members)
    assert all(broker.groups["g"].offsets[partition][0] == broker.logs[partition].end for partition in HOT)
    calls = [row for row in world.rows("operations") if row.f in ("offset_commit", "heartbeat")]
    assert {call.node for call in calls if call.type == "ok"} == {0, 1}


def test_member_that_is_unknown_loses_all_and_joins_again(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = member(settings, 0)
    world.start(load, one)
    world.run(1)
    broker.groups["g"].members.clear()
    world.run(2)
    assert [event.partition for event in events(world, "lost")] == [0, 1, 2, 3]
    assert len(events(world, "joined")) == 2
    finish(world, load, one)
    all_read(world, broker, [one])


def rewind_world(world: GroupWorld, broker: GroupsBroker, load: KeyedProducer, subject: GroupMember) -> None:
    """Partition 0 moves from node 0 to node 1, and node 0 does not learn of it."""
    world.start(load, subject)
    world.run(1)
    broker.grow_old(0)
    broker.epoch += 1
    broker.move(HOT[0], 1)
    world.run(2)
    broker.old.clear()
    world.run(1)
    finish(world, load, subject)


@pytest.mark.thorough
@pytest.mark.clause("M-15", "M-5")
@pytest.mark.parametrize("guarded", [True, False])
def test_old_metadata_rewinds_a_client_that_believes_it_and_no_other(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer, guarded: bool
) -> None:
    one = member(settings, 0, metadata_epoch=guarded, metadata_from=ALTERNATING)
    rewind_world(world, broker, load, one)
    resets = [row for row in world.rows("resets") if row.reason == "OFFSET_OUT_OF_RANGE"]
    read_offsets = all_read(world, broker, [one])
    if guarded:
        assert resets == []
        assert sorted(read_offsets[HOT[0]]) == list(range(broker.logs[HOT[0]].end))
        assert not all(row.accepted for row in world.rows("metadata_epochs"))
    else:
        assert resets
        assert resets[0].from_offset > resets[0].to_offset == 0
        assert len(read_offsets[HOT[0]]) > broker.logs[HOT[0]].end


@pytest.mark.thorough
@pytest.mark.clause("M-10")
def test_no_record_is_read_before_the_metadata_is_as_new_as_the_commit(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    """All nodes that it can reach are old; once they are new it goes on."""
    first = member(settings, 0)
    broker.epoch = 7
    world.start(load, first)
    world.run(1)
    world.at(world.now_us, first, Leaving())
    world.run(0.5)
    for node in range(3):
        broker.grow_old(node)
        broker.old[node].epoch = 6
    second = member(settings, 1)
    world.start(second)
    world.run(3)
    assert [row for row in world.rows("commits") if row.kind == "fetched" and row.process == second.process]
    assert read_offsets(world, second.process) == {}
    broker.old.clear()
    world.run(2)
    assert read_offsets(world, second.process) != {}
    finish(world, load, second)
    for partition, offsets in all_read(world, broker, [first, second]).items():
        assert sorted(offsets) == list(range(broker.logs[partition].end)), partition


@pytest.mark.clause("M-7")
def test_refused_epoch_is_raised_once_and_not_retried(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = member(settings, 0)
    broker.epoch = 3
    world.start(load, one)
    world.run(1)
    broker.groups["g"].offsets[HOT[0]] = (10_000, -1, 9)
    world.run(1)
    refused = [row for row in world.rows("commits") if row.error == "INVALID_METADATA_EPOCH"]
    assert refused
    assert {row.partition for row in refused} == {0}
    assert broker.groups["g"].offsets[HOT[0]] == (10_000, -1, 9)
    assert len({row.offset for row in refused}) == len(refused), "the same commit was sent again"


@pytest.mark.clause("M-13")
@pytest.mark.parametrize("guarded", [True, False])
def test_offsets_kept_outside_are_resumed_only_under_metadata_that_is_as_new(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer, guarded: bool
) -> None:
    store = OutsideStore()
    changes = {"protocol": "assigned", "offsets": "outside", "metadata_epoch": guarded, "metadata_from": 0}
    first = member(settings, 0, store, **changes)
    broker.grow_old(0)
    broker.old.clear()
    broker.grow_old(0)
    view = broker.old.pop(0)
    broker.epoch, view.epoch = 5, 4
    view.logs = {HOT[0]: type(broker.logs[HOT[0]])()}  # It was cut off before anything was written.
    world.start(load, first)
    world.run(1)
    world.at(world.now_us, first, Leaving())
    world.run(0.5)
    broker.move(HOT[0], 1)
    broker.old[0] = view
    second = member(settings, 1, store, **changes)
    world.start(second)
    world.run(2)
    resets = [row for row in world.rows("resets") if row.reason == "OFFSET_OUT_OF_RANGE"]
    assert bool(resets) is not guarded
    broker.old.clear()
    finish(world, load, second)
    assert not world.rows("memberships")
    assert {row.kind for row in world.rows("commits")} == {"stored", "loaded"}
    if guarded:
        for partition, offsets in all_read(world, broker, [first, second]).items():
            assert sorted(offsets) == list(range(broker.logs[partition].end)), partition


def test_earlier_owner_stores_nothing_outside_any_more() -> None:
    store = OutsideStore()
    assert store.store(HOT[0], OffsetToCommit(7, -1, 3), 2)
    assert not store.store(HOT[0], OffsetToCommit(5, -1, 3), 1)
    assert store.load(HOT[0]).offset == 7
    assert store.load(HOT[0]).metadata_epoch == 3


@pytest.mark.thorough
def test_temporary_client_restarts_from_committed_offset(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = member(settings, 0, stay_us=1_000_000)
    world.start(load, one)
    world.run(4)
    finish(world, load, one)
    assert len(events(world, "left")) >= 2
    for partition, offsets in all_read(world, broker, [one]).items():
        assert sorted(offsets) == list(range(broker.logs[partition].end)), partition


def test_clients_of_drafts_speak_released_versions_to_nodes_that_know_no_draft(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    broker.drafts = set()
    one = member(settings, 0)
    world.start(load, one)
    world.run(1)
    assert {row.draft for row in world.rows("commits")} == {False}
    broker.drafts = {0, 1, 2}
    world.down.add(0)  # As a bounce would, this closes its connections.
    world.run(1)
    world.down.clear()
    world.run(2)
    assert {row.draft for row in world.rows("commits")} == {False, True}
    finish(world, load, one)
    all_read(world, broker, [one])


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_missing_committed_offset_uses_reset_policy(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer, reset: str
) -> None:
    world.start(load)
    world.run(1)
    world.stop(load)
    one = member(settings, 0, reset=reset)
    world.start(one)
    world.run(1)
    rows = world.rows("resets")
    assert {row.reason for row in rows} == {"no_offset"}
    assert {row.from_offset for row in rows} == {-1}
    # The fake's ListOffsets knows log starts only; what matters is the request.
    lookups: list[Any] = [request.body for request in broker.requests if request.api_key == 2]
    timestamps = {part.timestamp for body in lookups for topic in body.topics for part in topic.partitions}
    assert timestamps == {"earliest": {-2}, "latest": {-1}, "none": set()}[reset]


def test_with_the_policy_none_a_position_out_of_range_is_kept(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = member(settings, 0, reset="none", metadata_epoch=False, metadata_from=ALTERNATING)
    rewind_world(world, broker, load, one)
    assert not [row for row in world.rows("resets") if row.reason == "OFFSET_OUT_OF_RANGE"]
    all_read(world, broker, [one])


def offsets_reader(settings: ClientSettings) -> OffsetsReader:
    return OffsetsReader("offsets-reader", settings, Random(9), {"g": HOT, "other": HOT[:1]}, 4_000_000)


def test_committed_offsets_are_read_once_more_at_the_end(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = member(settings, 0)
    world.start(load, one)
    world.run(1)
    finish(world, load, one)
    last = offsets_reader(settings)
    world.start(last)
    world.run(1)
    assert last.process in world.finished
    assert last.missed == ""
    found = {
        (row.group, row.partition): row
        for row in world.rows("commits")
        if row.kind == "fetched" and row.process == last.process
    }
    committed = {("g", partition.partition): broker.logs[partition].end for partition in HOT}
    assert {key: each.offset for key, each in found.items()} == {**committed, ("other", 0): -1}
    assert {(each.generation, each.member_id, each.draft) for each in found.values()} == {(-1, "", False)}
    commits_us = max(row.at_us for row in world.rows("commits") if row.kind == "commit")
    reads = [row for row in world.rows("operations") if row.process == last.process and row.f == FINAL_OFFSETS]
    assert [read.type for read in reads] == ["ok", "ok"]
    assert all(commits_us < read.invoke_us for read in reads)


def test_groups_without_coordinator_are_named(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings
) -> None:
    broker.coordinator = 1
    world.down = {1}
    last = offsets_reader(settings)
    world.start(last)
    world.run(6)
    assert last.process in world.finished
    assert last.missed == "the committed offsets of groups g, other could not be read"
    assert not world.rows("commits")


@pytest.mark.parametrize("trouble", ["no response", "open transaction"])
def test_groups_whose_offsets_stay_unknown_hold_up_no_other(
    world: GroupWorld, broker: GroupsBroker, settings: ClientSettings, trouble: str
) -> None:
    """A request without a response takes 3 s, so there is time for one only."""
    stuck = [f"stuck-{number}" for number in range(4)]
    if trouble == "no response":
        broker.coordinators = dict.fromkeys(stuck, 1)
        world.fault = lambda request: (
            "lose_request"
            if request.api_key == ApiKey.OFFSET_FETCH and request.body.groups[0].group_id in stuck  # type: ignore[attr-defined]
            else None
        )
    else:
        broker.unstable = {*stuck}
    last = OffsetsReader("offsets-reader", settings, Random(9), dict.fromkeys([*stuck, "g", "h"], HOT), 4_000_000)
    world.start(last)
    world.run(8)
    assert last.process in world.finished
    assert last.missed == f"the committed offsets of groups {', '.join(stuck)} could not be read"
    groups = {row.group for row in world.rows("commits") if row.process == last.process}
    assert groups == {"g", "h"}
    reads = [row for row in world.rows("operations") if row.f == FINAL_OFFSETS]
    assert {read.type for read in reads} == {"ok", "fail"}
    wrong = {read.error for read in reads if read.type == "fail"}
    assert wrong == {"REQUEST_TIMED_OUT", "timeout" if trouble == "no response" else "UNSTABLE_OFFSET_COMMIT"}
