"""OffsetCommit, OffsetFetch, OffsetDelete: validation, errors and the metadata epoch."""

from typing import Any

import pytest

from reference_broker.groups.committed_offsets import OffsetKey
from reference_broker.groups.group import Group
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard
from reference_broker.groups.offset_metadata_manager import CommitRequest, RequestedOffset
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reference_broker.groups.tests.test_group_coordinator import stable_group
from reference_broker.ports.coroutines import run_coroutine
from reference_broker.records.record import read_all
from reference_broker.wire.errors import DraftError, Error, ErrorCode


def led(**config: Any) -> tuple[CoordinatorWorld, GroupCoordinatorShard, str]:
    world = CoordinatorWorld(**config)
    target = world.lead_offsets(0)
    assert target is not None
    return world, target, world.group_in(0)


def put(world: CoordinatorWorld, target: GroupCoordinatorShard, group: Group) -> None:
    world.groups.group_manager.serve(target, target.add_group(group))


def value_versions(world: CoordinatorWorld) -> list[int]:
    log = world.led[0].log
    values = [record.value for _, record in read_all(log.read(0, 1 << 20))]
    return [int.from_bytes(value[:2], "big") for value in values if value is not None]


@pytest.mark.clause("OffsetMetadataManagerTest.testSimpleGroupOffsetCommit")
def test_simple_consumer_commits_to_empty_group() -> None:
    world, target, group = led()
    assert world.commit(group, 5, 6) == [[ErrorCode.none, ErrorCode.none]]
    assert world.fetched(group) == {("t", 0): 5, ("t", 1): 6}
    assert list(target.groups) == [group]


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithUnknownMemberId")
@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithIllegalGeneration")
@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithoutMemberIdAndGeneration")
@pytest.mark.parametrize(
    ("generation", "member", "error"),
    [
        (1, "m-1", ErrorCode.none),
        (0, "m-1", ErrorCode.illegal_generation),
        (2, "m-1", ErrorCode.illegal_generation),
        (1, "m-2", ErrorCode.unknown_member_id),
        (-1, "", ErrorCode.unknown_member_id),
    ],
)
def test_commit_outside_current_generation_is_rejected(generation: int, member: str, error: Error) -> None:
    world, target, group = led()
    put(world, target, stable_group(group))
    assert world.commit(group, 5, generation=generation, member=member) == [[error]]
    assert world.fetched(group) == ({("t", 0): 5} if error is ErrorCode.none else {})


@pytest.mark.clause("OffsetMetadataManagerTest.testOffsetCommitWithUnknownGroup")
def test_commit_with_generation_to_unknown_group_returns_illegal_generation() -> None:
    world, _, group = led()
    assert world.commit(group, 5, generation=3, member="m") == [[ErrorCode.illegal_generation]]


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithFencedInstanceId")
def test_commit_of_replaced_instance_is_fenced() -> None:
    world, target, group = led()
    put(world, target, stable_group(group))
    responses: list[list[Error]] = []
    wanted = (RequestedOffset("t", 0, 5, 0, ""),)
    world.groups.offset_manager.commit_offsets(CommitRequest(group, 1, "m-old", "i-1", wanted), responses.append)
    assert responses == [[ErrorCode.fenced_instance_id]]


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetCommitMaintainsSession")
def test_commit_counts_as_a_heartbeat() -> None:
    world, target, group = led()
    put(world, target, stable_group(group))
    for _ in range(5):
        world.pass_ms(6000)
        assert world.commit(group, 5, generation=1, member="m-1") == [[ErrorCode.none]]
    world.pass_ms(10_500)
    assert world.commit(group, 5, generation=1, member="m-1") == [[ErrorCode.unknown_member_id]]


def test_invalid_partition_does_not_fail_others() -> None:
    world, _, group = led(offset_metadata_max_bytes="3")
    responses: list[list[Error]] = []
    wanted = (
        RequestedOffset("t", 0, 5, 0, "1234"),
        RequestedOffset("t", 3, 5, 0, ""),
        RequestedOffset("unknown", 0, 5, 0, ""),
        RequestedOffset("t", -1, 5, 0, ""),
        RequestedOffset("t", 1, 6, 0, "123"),
        RequestedOffset("t", 2, 7, 0, None),
    )
    world.groups.offset_manager.commit_offsets(CommitRequest(group, -1, "", None, wanted), responses.append)
    unknown = ErrorCode.unknown_topic_or_partition
    assert responses == [
        [ErrorCode.offset_metadata_too_large, unknown, unknown, unknown, ErrorCode.none, ErrorCode.none]
    ]
    assert world.fetched(group) == {("t", 1): 6, ("t", 2): 7}


def test_text_too_long_for_record_is_rejected() -> None:
    """Flexible requests can carry them."""
    world, target, group_id = led(offset_metadata_max_bytes="100000")
    assert world.commit(group_id, 5, metadata="x" * 32_767) == [[ErrorCode.none]]
    assert world.commit(group_id, 5, metadata="x" * 32_768) == [[ErrorCode.offset_metadata_too_large]]
    assert world.commit("g" * 32_768, 5) == [[ErrorCode.invalid_group_id]]
    group = stable_group(group_id)
    group.protocol_type = "x" * 32_768
    errors: list[Error] = []

    async def write() -> None:
        errors.append(await target.write_group(group))

    run_coroutine(write())
    assert errors == [ErrorCode.unknown_server_error]


def test_commit_with_only_invalid_partitions_writes_nothing() -> None:
    world, target, group = led()
    assert world.commit(group, 5, topic="unknown") == [[ErrorCode.unknown_topic_or_partition]]
    assert (world.led[0].log.log_end_offset, target.groups) == (0, {})


@pytest.mark.clause("OffsetMetadataManagerTest.testFetchOffsetsWithUnknownGroup")
@pytest.mark.clause("OffsetMetadataManagerTest.testFetchAllOffsetsWithUnknownGroup")
def test_offset_fetch_returns_requested_partitions_in_order() -> None:
    world, _, group = led()
    world.commit(group, 5, 6, metadata="m")
    error, found = world.offsets_of(group, [("u", [0]), ("t", [2, 1])])
    assert error is ErrorCode.none
    assert [(each.topic, each.partition, None if each.commit is None else each.commit.offset) for each in found] == [
        ("u", 0, None),
        ("t", 2, None),
        ("t", 1, 6),
    ]
    commit = found[2].commit
    assert commit is not None
    assert (commit.metadata, commit.leader_epoch, commit.commit_timestamp_ms) == ("m", 3, world.now().wall_ms)
    assert world.offsets_of(world.group_in(0, "unknown")) == (ErrorCode.none, [])


# --- the metadata epoch -----------------------------------------------------------------------------------------------


@pytest.mark.clause("M-7")
@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (6, ErrorCode.none),
        (5, ErrorCode.none),
        (4, DraftError.INVALID_METADATA_EPOCH),
        (-1, DraftError.INVALID_METADATA_EPOCH),
    ],
)
def test_commit_with_smaller_metadata_epoch_is_rejected(epoch: int, error: Error) -> None:
    world, _, group = led()
    world.show(1, t=3)
    assert world.commit(group, 50, epoch=5) == [[ErrorCode.none]]
    assert world.commit(group, 60, epoch=epoch) == [[error]]
    assert world.fetched(group) == {("t", 0): 60 if error is ErrorCode.none else 50}


@pytest.mark.clause("M-7")
def test_only_partition_with_smaller_metadata_epoch_is_rejected() -> None:
    world, _, group = led()
    world.show(1, t=3)
    world.commit(group, 50, epoch=5)
    assert world.commit(group, 60, 61, epoch=4) == [[DraftError.INVALID_METADATA_EPOCH, ErrorCode.none]]
    assert world.fetched(group) == {("t", 0): 50, ("t", 1): 61}


@pytest.mark.clause("M-7")
def test_metadata_epoch_is_compared_with_pending_commit() -> None:
    world = CoordinatorWorld((1, 2, 3))
    world.lead_offsets(0)
    world.show(1, t=3)
    group = world.group_in(0)
    world.commit(group, 50, epoch=5)
    assert world.commit(group, 60, epoch=4) == [[DraftError.INVALID_METADATA_EPOCH]]


@pytest.mark.clause("M-11")
def test_commit_without_metadata_epoch_is_accepted() -> None:
    world, target, group = led()
    world.show(1, t=3)
    world.commit(group, 50, epoch=5)
    assert world.commit(group, 60) == [[ErrorCode.none]]
    stored = target.offsets.find(OffsetKey(group, "t", 0))
    assert stored is not None
    assert (stored.offset, stored.metadata_epoch) == (60, -1)
    assert world.commit(group, 70, epoch=1) == [[ErrorCode.none]]


@pytest.mark.clause("M-14")
def test_value_version_4_is_written_once_feature_is_enabled() -> None:
    world, target, group = led()
    world.show(0, t=3)
    assert world.commit(group, 50, epoch=5) == [[ErrorCode.none]]
    assert world.commit(group, 51, epoch=4) == [[ErrorCode.none]]
    assert value_versions(world) == [3, 3]
    before = target.offsets.find(OffsetKey(group, "t", 0))
    assert before is not None
    assert before.metadata_epoch == -1
    world.show(1, t=3)
    world.commit(group, 52, epoch=5)
    world.commit(group, 53)
    assert value_versions(world) == [3, 3, 4, 4]


@pytest.mark.clause("M-8")
@pytest.mark.clause("M-11")
def test_metadata_epoch_survives_coordinator_change() -> None:
    world, _, group = led()
    world.commit(group, 40, 41)
    world.show(1, t=3)
    world.commit(group, 50, epoch=5)
    world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(0)
    _, found = world.offsets_of(group)
    assert {(each.partition, each.commit.offset, each.commit.metadata_epoch) for each in found if each.commit} == {
        (0, 50, 5),
        (1, 41, -1),
    }
    assert world.commit(group, 60, epoch=4) == [[DraftError.INVALID_METADATA_EPOCH]]


# --- OffsetDelete -----------------------------------------------------------------------------------------------------


def deleted(world: CoordinatorWorld, group: str, *wanted: tuple[str, int]) -> list[tuple[Error, list[Error]]]:
    responses: list[tuple[Error, list[Error]]] = []
    world.groups.offset_manager.delete_offsets(group, wanted, lambda error, errors: responses.append((error, errors)))
    return responses


def subscription(topic: str) -> bytes:
    return b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetDelete")
def test_offset_delete_removes_single_offsets() -> None:
    world, _, group = led()
    world.commit(group, 5, 6)
    assert deleted(world, group, ("t", 0), ("t", 2), ("unknown", 0)) == [
        (ErrorCode.none, [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_topic_or_partition])
    ]
    assert world.fetched(group) == {("t", 1): 6}
    world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(0)
    assert world.fetched(group) == {("t", 1): 6}


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetDeleteWithErrors")
def test_offset_delete_of_subscribed_topic_is_rejected() -> None:
    world, target, group_id = led()
    world.show(t=3, u=1)
    group = stable_group(group_id)
    group.members["m-1"].protocols = (group.members["m-1"].protocols[0]._replace(metadata=subscription("t")),)
    put(world, target, group)
    world.commit(group_id, 5, generation=1, member="m-1")
    world.commit(group_id, 6, generation=1, member="m-1", topic="u")
    assert deleted(world, group_id, ("t", 0), ("u", 0)) == [
        (ErrorCode.none, [ErrorCode.group_subscribed_to_topic, ErrorCode.none])
    ]
    assert world.fetched(group_id) == {("t", 0): 5}


def test_offset_delete_keeps_offsets_of_other_groups() -> None:
    world, target, group_id = led()
    assert deleted(world, group_id, ("t", 0)) == [(ErrorCode.group_id_not_found, [])]
    group = stable_group(group_id)
    group.protocol_type = "connect"
    put(world, target, group)
    assert deleted(world, group_id, ("t", 0)) == [(ErrorCode.non_empty_group, [])]
    assert deleted(world, world.group_in(1), ("t", 0)) == [(ErrorCode.not_coordinator, [])]
