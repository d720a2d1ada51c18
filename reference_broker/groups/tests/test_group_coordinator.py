"""The groups that a node coordinates: loading, replication, lost leadership, fencing."""

import pytest

from reference_broker.coordination import partitioner
from reference_broker.coordination.partitioner import java_hash, partition_of
from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard
from reference_broker.groups.records import group_key, offset_key
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reference_broker.log.unified_log import BatchOrigin
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.records.record import Record, build, read_all
from reference_broker.wire.errors import Error, ErrorCode

OK = [[ErrorCode.none]]


def stable_group(group_id: str, at_ms: int = 1) -> Group:
    group = Group(group_id, at_ms, protocol_type="consumer")
    group.add(
        Member("m-1", "i-1", "client", "/host", 60_000, 10_000, (MemberProtocol("range", b"sub"),), b"parts"),
    )
    group.begin_rebalance(at_ms)
    group.init_next_generation(at_ms)
    group.become_stable(at_ms)
    return group


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("é", 233),
        ("\U0001f600", 1772899),
        ("polygenelubricants", 0),
        ("consumer", 567_770_122),
    ],
)
def test_group_ids_are_hashed_like_java_strings(text: str, value: int) -> None:
    """polygenelubricants hashes to -2^31, for which Kafka's Utils.abs gives 0, and consumer to a negative number."""
    assert java_hash(text) == value
    assert partition_of(text, 50) == java_hash(text) % 50


def test_hashes_of_long_group_ids_are_not_cached() -> None:
    before = partitioner._remembered_hash.cache_info().currsize
    assert partition_of("g" * 30_000, 1 << 31) == java_hash("g" * 30_000)
    assert partitioner._remembered_hash.cache_info().currsize == before


def test_only_leader_of_offsets_partition_is_coordinator() -> None:
    world = CoordinatorWorld()
    assert world.groups.find(world.group_in(0)) is ErrorCode.not_coordinator
    found = world.lead_offsets(0)
    assert world.groups.find(world.group_in(0)) is found
    assert world.groups.find(world.group_in(1)) is ErrorCode.not_coordinator
    assert world.commit(world.group_in(1), 5) == [[ErrorCode.not_coordinator]]
    assert world.noted("coordinator_loaded") == [{"partition": 0, "records": 0}]


def test_leadership_of_other_topics_is_ignored() -> None:
    world = CoordinatorWorld()
    world.lead(0)
    assert list(world.groups.active()) == []


def test_empty_partition_is_served_at_once() -> None:
    world = CoordinatorWorld()
    before = len(world.timers)
    assert world.lead_offsets(0) is not None
    assert len(world.timers) == before


def test_requests_during_load_return_coordinator_load_in_progress() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    group = world.group_in(0)
    assert world.commit(group, 5) == OK
    log = world.lose(0)
    assert world.lead_offsets(0, log, epoch=1) is None
    assert world.groups.loading()
    assert world.groups.find(group) is ErrorCode.coordinator_load_in_progress
    assert world.offsets_of(group)[0] is ErrorCode.coordinator_load_in_progress
    world.pass_ms(0)
    assert not world.groups.loading()
    assert world.fetched(group) == {("t", 0): 5}


@pytest.mark.clause("OffsetMetadataManagerTest.testReplay")
def test_load_restores_offsets_and_groups() -> None:
    world = CoordinatorWorld()
    target = world.lead_offsets(0)
    assert target is not None
    group_id = world.group_in(0)
    group = target.add_group(stable_group(group_id))
    target.write_group(group)
    assert world.commit(group_id, 5, 6, generation=1, member="m-1") == [[ErrorCode.none] * 2]
    simple = world.group_in(0, "simple")
    assert world.commit(simple, 7) == OK
    world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(0)
    loaded = world.active(0).groups
    found = loaded[group_id]
    assert (found.state, found.generation, found.protocol_type) == (GroupState.STABLE, 1, "consumer")
    assert found.protocol == "range"
    assert found.leader == "m-1"
    assert list(found.members) == ["m-1"]
    member = found.members["m-1"]
    assert (member.group_instance_id, member.client_id, member.client_host) == ("i-1", "client", "/host")
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (60_000, 10_000)
    assert (member.metadata("range"), member.assignment) == (b"sub", b"parts")
    assert (loaded[simple].state, loaded[simple].protocol_type) == (GroupState.EMPTY, None)
    assert world.fetched(group_id) == {("t", 0): 5, ("t", 1): 6}
    assert world.noted("coordinator_loaded")[-1] == {"partition": 0, "records": 4}


def test_long_log_is_loaded_in_slices() -> None:
    world = CoordinatorWorld()
    target = world.lead_offsets(0)
    assert target is not None
    group = world.group_in(0)
    world.show(t=1000)
    for _ in range(3):
        world.commit(group, *range(1000))
        world.pass_ms(0)
    log = world.lose(0)
    before = world.events
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    assert len(world.fetched(group)) == 1000
    assert world.events - before > 10


def test_partition_lost_during_load_is_dropped() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.commit(world.group_in(0), 5)
    world.lead_offsets(0, world.lose(0), epoch=1)
    world.lose(0)
    world.pass_ms(0)
    assert list(world.groups.active()) == []
    assert world.groups.find(world.group_in(0)) is ErrorCode.not_coordinator
    assert [len(world.noted(what)) for what in ("coordinator_loaded", "coordinator_unloaded")] == [1, 2]


def test_load_skips_damaged_records() -> None:
    world = CoordinatorWorld()
    target = world.lead_offsets(0)
    assert target is not None
    group = world.group_in(0)
    world.commit(group, 5)
    log = world.lose(0)
    wrong = [
        Record(key=b"", value=b"x"),
        Record(key=offset_key(group, "t", 0), value=b"\0\x09rest"),
        Record(key=group_key(group), value=b"\0\3"),
        Record(key=b"\0\x63", value=b"from the future"),
    ]
    log.append(world.now(), build(wrong), 0, origin=BatchOrigin.BROKER)
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    assert world.fetched(group) == {("t", 0): 5}
    assert len(world.noted("coordinator_record_skipped")) == 3
    assert [each["skipped"] for each in world.noted("coordinator_loaded_in_part")] == [3]
    assert world.active(0).groups[group].protocol_type is None


@pytest.mark.clause("OffsetMetadataManagerTest.testFetchOffsetsAtDifferentCommittedOffset")
@pytest.mark.clause("OffsetMetadataManagerTest.testFetchAllOffsetsAtDifferentCommittedOffset")
def test_commit_completes_and_is_visible_once_replicated() -> None:
    world = CoordinatorWorld((1, 2, 3))
    world.lead_offsets(0)
    group = world.group_in(0)
    responses = world.commit(group, 5)
    assert responses == []
    assert world.fetched(group) == {}
    assert world.noted("offset_committed") == []
    world.replicate(0)
    assert (responses, world.fetched(group)) == (OK, {("t", 0): 5})
    assert world.noted("offset_committed") == [
        {"group": group, "partition": "t-0", "offset": 5, "metadata_epoch": -1, "generation": 0}
    ]


def test_commit_not_replicated_in_time_fails_and_is_visible_once_replicated() -> None:
    world = CoordinatorWorld((1, 2, 3), offsets_commit_timeout_ms="700")
    world.lead_offsets(0)
    group = world.group_in(0)
    responses = world.commit(group, 5)
    world.pass_ms(699)
    assert responses == []
    world.pass_ms(1)
    assert responses == [[ErrorCode.coordinator_not_available]]
    assert world.fetched(group) == {}
    world.replicate(0)
    assert world.fetched(group) == {("t", 0): 5}


def test_commit_below_min_insync_replicas_writes_nothing() -> None:
    world = CoordinatorWorld((1, 2, 3), min_isr=2)
    world.lead_offsets(0)
    partition = world.led[0]
    world.state(partition, (1,), partition_epoch=1)
    assert world.commit(world.group_in(0), 5) == [[ErrorCode.coordinator_not_available]]
    assert partition.log.log_end_offset == 0
    assert world.active(0).groups == {}


def test_replaced_coordinator_acknowledges_no_commit() -> None:
    """The node does not know it yet: its followers fetch from another leader, so no commit of it is replicated."""
    world = CoordinatorWorld((1, 2, 3))
    world.lead_offsets(0)
    group = world.group_in(0)
    responses = world.commit(group, 5)
    world.pass_ms(1000)
    assert responses == []
    world.lose(0)
    assert responses == [[ErrorCode.not_coordinator]]
    assert world.groups.find(group) is ErrorCode.not_coordinator


def test_loaded_commit_is_visible_once_replicated() -> None:
    world = CoordinatorWorld((1, 2, 3))
    world.lead_offsets(0)
    group = world.group_in(0)
    world.commit(group, 5)
    world.replicate(0)
    world.commit(group, 6)
    log = world.lose(0)
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    world.replicate(0)
    assert world.fetched(group) == {("t", 0): 6}


def test_new_epoch_of_same_leader_causes_no_reload() -> None:
    world = CoordinatorWorld()
    target = world.lead_offsets(0)
    partition = world.led[0]
    partition.leader_epoch = 3
    world.groups.leads(partition)
    assert list(world.groups.active()) == [target]
    assert len(world.noted("coordinator_loaded")) == 1


@pytest.mark.clause("OffsetMetadataManagerTest.testDeleteGroupAllOffsets")
def test_group_deletion_removes_its_offsets() -> None:
    world = CoordinatorWorld()
    target = world.lead_offsets(0)
    assert target is not None
    group_id = world.group_in(0)
    world.commit(group_id, 5, 6)
    errors: list[Error] = []
    world.groups.group_manager.delete_group(group_id, errors.append)
    assert errors == [ErrorCode.none]
    assert world.fetched(group_id) == {}
    assert target.groups == {}
    log = world.lose(0)
    records = [record for _, record in read_all(log.read(0, 1 << 20))]
    assert [record.value is None for record in records] == [False, False, True, True, True]
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    assert (world.fetched(group_id), world.active(0).groups) == ({}, {})


def test_disk_error_fails_commit_and_keeps_no_offset() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    group = world.group_in(0)
    world.commit(group, 5)
    world.disk.fail_after = 0
    assert world.commit(group, 6) == [[ErrorCode.not_coordinator]]
    assert world.fetched(group) == {("t", 0): 5}


def test_commit_of_many_partitions_is_one_batch() -> None:
    """As in Kafka, a commit larger than one batch is rejected whole."""
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.show(t=3000)
    group = world.group_in(0)
    events = world.events
    responses = world.commit(group, *range(3000), metadata="x" * 400)
    world.pass_ms(0)
    assert responses == [[ErrorCode.unknown_server_error] * 3000]
    assert world.fetched(group) == {}
    responses = world.commit(group, *range(3000), metadata="x" * 200)
    world.pass_ms(0)
    assert responses == [[ErrorCode.none] * 3000]
    assert world.events - events >= 24
    assert len(world.fetched(group)) == 3000


@pytest.mark.clause("OffsetMetadataManagerTest.testOffsetCommitsSensor")
def test_metrics_count_groups_and_offsets() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.commit(world.group_in(0), 5, 6)
    rows = {row.name: row.metric for row in world.metrics.rows() if not row.labels}
    values = {name: getattr(rows[name], "value", None) for name in ("NumOffsets", "NumGroups", "NumGroupsEmpty")}
    assert values == {"NumOffsets": 2, "NumGroups": 1, "NumGroupsEmpty": 1}
    assert getattr(rows["offset-commit-count"], "value", 0) == 2
    world.lose(0)
    world.pass_ms(0)
    after = {row.name: getattr(row.metric, "value", None) for row in world.metrics.rows() if not row.labels}
    assert (after["NumOffsets"], after["NumGroups"]) == (0, 0)


def test_directory_name_of_offsets_partition() -> None:
    world = CoordinatorWorld()
    found = world.lead_offsets(2)
    assert isinstance(found, GroupCoordinatorShard)
    assert found.led.log.directory == f"{OFFSETS_TOPIC}-2"
