"""Expired offsets (KIP-211) and those of deleted topics are removed, also after a reload."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard
from reference_broker.groups.records import offset_key
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reference_broker.groups.tests.test_commits import put, subscription
from reference_broker.groups.tests.test_group_coordinator import stable_group
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build, read_all
from reference_broker.wire.errors import ErrorCode

MINUTE_MS = 60_000
CHECK_MS = 1000


def led(replicas: Sequence[int] = (1,), minutes: int = 10) -> tuple[CoordinatorWorld, GroupCoordinatorShard, str]:
    world = CoordinatorWorld(
        tuple(replicas), offsets_retention_minutes=str(minutes), offsets_retention_check_interval_ms=str(CHECK_MS)
    )
    target = world.lead_offsets(0)
    assert target is not None
    return world, target, world.group_in(0)


@pytest.mark.clause("OffsetMetadataManagerTest.testCleanupExpiredOffsets")
def test_offsets_of_empty_group_expire_after_retention() -> None:
    world, target, group = led()
    world.commit(group, 5)
    world.pass_ms(5 * MINUTE_MS)
    world.commit(group, 6, 7)
    world.pass_ms(5 * MINUTE_MS + CHECK_MS)
    assert world.fetched(group) == {("t", 0): 6, ("t", 1): 7}
    world.pass_ms(5 * MINUTE_MS + CHECK_MS)
    assert world.fetched(group) == {}
    assert target.groups == {}
    world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(0)
    assert (world.fetched(group), world.active(0).groups) == ({}, {})


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithRetentionTime")
@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.parametrize("retention_ms", [MINUTE_MS, 20 * MINUTE_MS])
def test_offset_with_own_retention_expires_after_it(retention_ms: int, reloaded: bool) -> None:
    world, _, group = led()
    world.commit(group, 5, retention_ms=retention_ms)
    if reloaded:
        world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(retention_ms - CHECK_MS)
    assert world.fetched(group) == {("t", 0): 5}
    world.pass_ms(2 * CHECK_MS)
    assert world.fetched(group) == {}


def test_offset_with_short_retention_expires_before_others_of_group() -> None:
    """The next check of the group was planned before that commit."""
    world, _, group = led()
    world.commit(group, 5, 6)
    world.pass_ms(2 * CHECK_MS)
    world.commit(group, 7, retention_ms=MINUTE_MS)
    world.pass_ms(MINUTE_MS + 2 * CHECK_MS)
    assert world.fetched(group) == {("t", 1): 6}


def test_retention_ending_at_minus_one_is_expired() -> None:
    world, _, group = led()
    world.commit(group, 5, retention_ms=-1 - world.now().wall_ms)
    world.pass_ms(CHECK_MS)
    assert world.fetched(group) == {}


@pytest.mark.parametrize(("retention_ms", "stays"), [(0, False), (-2, False), (-(10**16), False), (10**16, True)])
def test_own_retention_applies_unless_minus_one(retention_ms: int, stays: bool) -> None:
    world, _, group = led()
    world.commit(group, 5, retention_ms=retention_ms)
    world.pass_ms(CHECK_MS)
    assert bool(world.fetched(group)) is stays
    world.commit(group, 6)
    world.pass_ms(9 * MINUTE_MS)
    assert world.fetched(group) == {("t", 0): 6}


@pytest.mark.clause("OffsetMetadataManagerTest.testCleanupExpiredOffsetsEmptyOffsetExpirationCondition")
def test_offsets_of_subscribed_topics_do_not_expire() -> None:
    world, target, group_id = led()
    world.show(t=3, u=1)
    group = stable_group(group_id)
    group.members["m-1"].session_timeout_ms = 10**9
    group.members["m-1"].protocols = (group.members["m-1"].protocols[0]._replace(metadata=subscription("t")),)
    put(world, target, group)
    world.commit(group_id, 5, generation=1, member="m-1")
    world.commit(group_id, 6, generation=1, member="m-1", topic="u")
    world.pass_ms(10 * MINUTE_MS + CHECK_MS)
    assert world.fetched(group_id) == {("t", 0): 5}
    world.pass_ms(60 * MINUTE_MS)
    assert world.fetched(group_id) == {("t", 0): 5}


def test_retention_starts_when_group_becomes_empty() -> None:
    """The commit is old, the last member left just now."""
    world, target, group_id = led()
    group = stable_group(group_id)
    group.members["m-1"].session_timeout_ms = 15 * MINUTE_MS
    group.members["m-1"].protocols = (group.members["m-1"].protocols[0]._replace(metadata=subscription("t")),)
    put(world, target, group)
    world.commit(group_id, 5, generation=1, member="m-1")
    world.pass_ms(16 * MINUTE_MS)
    assert group.members == {}
    world.pass_ms(8 * MINUTE_MS)
    assert world.fetched(group_id) == {("t", 0): 5}
    world.pass_ms(4 * MINUTE_MS)
    assert (world.fetched(group_id), target.groups) == ({}, {})


def test_expired_groups_are_removed_without_walking_others() -> None:
    world, target, group_id = led()
    world.commit(group_id, 5)
    world.pass_ms(CHECK_MS)
    while target.retention.pop(world.now().wall_ms) is not None:
        pass
    before = world.events
    world.pass_ms(10 * CHECK_MS)
    assert world.events - before == 10  # The checks themselves, no slices.


@pytest.mark.clause("OffsetMetadataManagerTest.testOnPartitionsDeleted")
def test_topic_deletion_removes_its_offsets_and_keeps_later_ones() -> None:
    world, _, group = led()
    world.show(t=3, u=1)
    world.commit(group, 5, 6)
    world.commit(group, 7, topic="u")
    world.delete_topic("t")
    world.show(t=3, u=1)
    world.commit(group, 9)
    world.pass_ms(0)
    assert world.fetched(group) == {("t", 0): 9, ("u", 0): 7}


def test_many_offsets_expire_in_slices() -> None:
    world, _, group = led()
    world.show(t=1000)
    world.commit(group, *range(1000))
    before = world.events
    world.delete_topic("t")
    world.pass_ms(0)
    assert world.fetched(group) == {}
    assert world.events - before >= 5


def test_load_removes_offsets_of_topic_deleted_meanwhile() -> None:
    world, _, group = led()
    world.commit(group, 5)
    log = world.lose(0)
    world.show(u=1)
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    assert world.fetched(group) == {}


def test_failed_removal_is_retried() -> None:
    world, _, group = led((1, 2, 3))
    world.commit(group, 5)
    world.replicate(0)
    partition = world.led[0]
    partition.log.config = type(partition.log.config)(min_insync_replicas=2, cleanup_policy="compact")
    world.state(partition, (1,), partition_epoch=1)
    world.delete_topic("t")
    world.pass_ms(500)
    assert partition.log.log_end_offset == 1
    world.state(partition, (1, 2, 3), partition_epoch=2)
    world.pass_ms(1000)
    world.replicate(0)
    assert world.fetched(group) == {}


def test_loaded_commit_expires_at_time_in_its_record() -> None:
    """Values of version 1 contain their own expiry time."""
    world, _, group = led()
    log = world.lose(0)
    now_ms = world.now().wall_ms
    value = b"\0\1" + (5).to_bytes(8, "big") + b"\0\0" + now_ms.to_bytes(8, "big") + (now_ms + 3000).to_bytes(8, "big")

    log.append(world.now(), build([Record(timestamp_ms=now_ms, key=offset_key(group, "t", 0), value=value)]), 0)
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    assert world.fetched(group) == {("t", 0): 5}
    world.pass_ms(5000)
    assert world.fetched(group) == {}


# --- a reload finds the same after any history
# -------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 2), st.integers(1, 3), st.sampled_from("tu"), st.integers(-1, 5)),
        st.tuples(st.just("old"), st.integers(0, 2), st.integers(1, 3), st.sampled_from("tu"), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 2), st.integers(1, 3), st.sampled_from("tu"), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 2), st.just(0), st.just("t"), st.just(0)),
        st.tuples(st.just("drop"), st.just(0), st.just(0), st.sampled_from("tu"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 700), st.just(0), st.just("t"), st.just(0)),
        st.tuples(st.just("reload"), st.integers(0, 1), st.just(0), st.just("t"), st.just(0)),
    ),
    max_size=25,
)


def compacted(world: CoordinatorWorld, log: UnifiedLog) -> UnifiedLog:
    """Return a log with the newest record of each key, as a cleaner leaves it."""
    newest: dict[bytes | None, Record] = {}
    for _, record in read_all(log.read(log.log_start_offset, 1 << 24, log.log_end_offset)):
        newest.pop(record.key, None)
        newest[record.key] = record
    made = run_to_end(open_log(MemoryDisk(), log.directory, log.config, world.now(), True))
    if newest:
        made.append(world.now(), build(list(newest.values())), 0, origin=BatchOrigin.BROKER)
    return made


@pytest.mark.thorough
@pytest.mark.clause("M-8")
@given(STEPS)
def test_reload_after_any_history_returns_same_offsets(steps: list[tuple[str, int, int, str, int]]) -> None:
    world, _, _ = led()
    world.show(1, t=3, u=3)
    names = [world.group_in(0, prefix) for prefix in "abc"]
    model: dict[tuple[str, str, int], tuple[int, int]] = {}
    leader_epoch = 0
    for number, (what, first, count, topic, metadata_epoch) in enumerate(steps):
        group = names[first % 3]
        if what in ("commit", "old"):
            epoch = metadata_epoch if what == "commit" else None
            (errors,) = world.commit(group, *range(number, number + count), topic=topic, epoch=epoch)
            for index, error in enumerate(errors):
                last = model.get((group, topic, index), (0, -1))[1]
                assert (error is ErrorCode.none) == (epoch is None or epoch >= last)
                if error is ErrorCode.none:
                    model[group, topic, index] = (number + index, -1 if epoch is None else epoch)
        elif what == "delete":
            world.groups.offset_manager.delete_offsets(
                group, [(topic, index) for index in range(count)], lambda *_: None
            )
            for index in range(count):
                model.pop((group, topic, index), None)
        elif what == "kill":
            world.groups.group_manager.delete_group(group, lambda _: None)
            model = {key: value for key, value in model.items() if key[0] != group}
        elif what == "drop":
            world.delete_topic(topic)
            world.pass_ms(0)
            world.show(1, t=3, u=3)
            model = {key: value for key, value in model.items() if key[1] != topic}
        elif what == "pass":
            world.pass_ms(first)
        else:
            log = world.lose(0)
            leader_epoch += 1
            world.lead_offsets(0, compacted(world, log) if first else log, epoch=leader_epoch)
            world.pass_ms(0)
        found = {}
        for name in names:
            for one in world.offsets_of(name)[1]:
                assert one.commit is not None
                found[name, one.topic, one.partition] = (one.commit.offset, one.commit.metadata_epoch)
        assert found == model
