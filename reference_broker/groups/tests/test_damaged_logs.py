"""Loading an offsets partition with a damaged log or extreme values never fails."""

import errno
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.coordination.record_fields import DamagedRecord, FieldWriter
from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.group import Group, Member
from reference_broker.groups.records import group_key, group_value, offset_key, read_group
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reference_broker.log.unified_log import BatchOrigin
from reference_broker.ports.disk import DiskError
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.wire.errors import ErrorCode


def reloaded(world: CoordinatorWorld, *records: Record, **how: Any) -> None:
    log = world.lose(0)
    if records:
        log.append(world.now(), build(records, **how), 0, origin=BatchOrigin.BROKER)
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)


def with_commits(count: int = 3) -> tuple[CoordinatorWorld, str]:
    """Return a world with one batch for each commit."""
    world = CoordinatorWorld()
    world.lead_offsets(0)
    group = world.group_in(0)
    for offset in range(count):
        world.commit(group, offset)
    return world, group


def path_of(world: CoordinatorWorld) -> str:
    return str(world.led[0].log.segments[0].path)


def test_batch_with_wrong_checksum_is_skipped() -> None:
    world, group = with_commits()
    world.disk.files[path_of(world)][-1] ^= 1
    reloaded(world)
    assert world.fetched(group) == {("t", 0): 1}
    assert [each["skipped"] for each in world.noted("coordinator_loaded_in_part")] == [1]


def test_partition_with_damaged_batch_length_is_not_served() -> None:
    """Where the length of a batch is damaged, the position of the next one is unknown."""
    world, group = with_commits(1)
    batch_bytes = len(world.disk.files[path_of(world)])
    for offset in range(2000):
        world.commit(group, offset)
    world.disk.files[path_of(world)][1800 * batch_bytes + 8] ^= 0x41
    reloaded(world)
    world.pass_ms(100)
    assert world.groups.find(group) is ErrorCode.not_coordinator
    assert not world.groups.loading()
    assert world.groups.metrics.loading.value == 0
    assert len(world.noted("coordinator_load_failed")) == 1
    world.lose(0)
    assert world.groups.metrics.loading.value == 0


def no_descriptor(disk: object, path: str, position: int, length: int) -> bytes:  # noqa: ARG001
    raise DiskError(errno.EMFILE, "no free descriptor")


def test_load_is_retried_after_disk_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world, group = with_commits()
    with monkeypatch.context() as failing:
        failing.setattr(type(world.disk), "read", no_descriptor)
        reloaded(world)
        world.pass_ms(1500)
        assert world.groups.find(group) is ErrorCode.coordinator_load_in_progress
    assert len(world.noted("coordinator_load_failed")) == 2
    world.pass_ms(1000)
    assert world.fetched(group) == {("t", 0): 2}
    assert not world.groups.loading()
    assert world.groups.metrics.loading.value == 0


def test_load_is_not_retried_after_leadership_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world, group = with_commits()
    with monkeypatch.context() as failing:
        failing.setattr(type(world.disk), "read", no_descriptor)
        reloaded(world)
        world.lose(0)
        world.pass_ms(3000)
    assert world.groups.find(group) is ErrorCode.not_coordinator
    assert len(world.noted("coordinator_load_failed")) == 1
    assert world.groups.metrics.loading.value == 0


def test_decompression_bomb_is_skipped() -> None:
    world, group = with_commits()
    bomb = Record(key=b"\0\x63", value=bytes(40 * 2**20))
    reloaded(world, bomb, compression=Compression.ZSTD)
    assert world.fetched(group) == {("t", 0): 2}
    assert len(world.noted("coordinator_record_skipped")) == 1


INT32 = st.sampled_from([-(2**31), -1, 0, 1, 10_000, 2**31 - 1])
INT64 = st.sampled_from([-(2**63), -1, 0, 1, 10_000, 2**63 - 1])
TEXT = st.sampled_from(["", "a", "b", "range", "consumer", "x" * 32_767])
BLOB = st.sampled_from([b"", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff", b"\xff" * 5])


@st.composite
def group_values(draw: st.DrawFn) -> bytes:
    out = FieldWriter(draw(st.sampled_from([0, 1, 2, 3])))
    version = int.from_bytes(out.data, "big")
    out.string(draw(TEXT))
    out.int32(draw(INT32))
    out.string(draw(st.none() | TEXT))
    out.string(draw(st.none() | TEXT))
    if version >= 2:
        out.int64(draw(INT64))
    count = draw(st.integers(0, 3))
    out.length(count)
    for _ in range(count):
        out.string(draw(TEXT))
        if version >= 3:
            out.string(draw(st.none() | TEXT))
        out.string(draw(TEXT))
        out.string(draw(TEXT))
        if version >= 1:
            out.int32(draw(INT32))
        out.int32(draw(INT32))
        out.blob(draw(BLOB))
        out.blob(draw(BLOB))
    return bytes(out.data)


@st.composite
def offset_values(draw: st.DrawFn) -> bytes:
    version = draw(st.sampled_from([0, 1, 2, 3]))
    out = FieldWriter(version)
    out.int64(draw(INT64))
    if version == 3:
        out.int32(draw(INT32))
    out.string(draw(TEXT))
    out.int64(draw(INT64))
    if version == 1:
        out.int64(draw(INT64))
    return bytes(out.data)


@pytest.mark.thorough
@given(st.lists(group_values(), max_size=4), st.lists(offset_values(), max_size=4))
@settings(max_examples=40, deadline=None)
def test_records_with_extreme_fields_are_loaded_or_skipped(groups: list[bytes], offsets: list[bytes]) -> None:
    world = CoordinatorWorld(offsets_retention_check_interval_ms="1000")
    world.lead_offsets(0)
    names = [world.group_in(0, prefix) for prefix in "abcd"]
    records = [Record(key=group_key(name), value=value) for name, value in zip(names, groups, strict=False)]
    records += [Record(key=offset_key(names[0], "t", at), value=value) for at, value in enumerate(offsets)]
    reloaded(world, *(records or [Record(key=b"\0\2", value=None)]))
    world.groups.validate()
    for _ in range(5):
        world.pass_ms(60_000)
        world.groups.validate()
    assert world.groups.find(names[0]) is world.active(0)


def test_text_too_long_for_response_is_damage() -> None:
    member = Member("m", None, "c", "/h", 1, 1, (MemberProtocol("range", b""),))
    group = Group("g", 1, protocol_type="consumer")
    group.add(member)
    assert read_group("g", group_value(group)).members.keys() == {"m"}
    out = FieldWriter(4, flexible_from=4)
    out.string("c" * 40_000)
    out.int32(1)
    out.string(None)
    out.string(None)
    out.int64(-1)
    out.length(0)
    out.tagged({})
    with pytest.raises(DamagedRecord):
        read_group("g", bytes(out.data))
