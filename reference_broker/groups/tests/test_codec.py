"""Keys and values of the offsets topic: Kafka's bytes, a round trip of each record, damage is rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.committed_offsets import CommitOffset, OffsetKey
from reference_broker.groups.group import Group, Member
from reference_broker.groups.records import (
    CLASSIC_VALUE,
    EPOCH_VALUE,
    GroupKey,
    UnknownKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group,
    read_key,
    read_offset_value,
)

KEY = OffsetKey("g", "t", 1)
COMMIT = CommitOffset("t", 1, 5, 7, "m", 9)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def unique(members: list[Member]) -> tuple[Member, ...]:
    """Return the members without those whose ID or instance occurs before."""
    by_id = {each.member_id: each for each in members}
    static = {each.group_instance_id: each for each in by_id.values() if each.group_instance_id is not None}
    return tuple(each for each in by_id.values() if static.get(each.group_instance_id or "", each) is each)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Draw a group as its record describes it: a member has the selected protocol only."""
    protocol = draw(st.none() | TEXT)
    metadata = st.binary(max_size=40)
    known = st.just(()) if protocol is None else metadata.map(lambda data: (MemberProtocol(protocol, data),))
    member = st.builds(
        Member, TEXT, st.none() | TEXT, TEXT, TEXT, st.integers(0, 2**31 - 1), INT32, known, st.binary(max_size=40)
    )
    members = unique(draw(st.lists(member, max_size=4)))
    leader = draw(st.none() | TEXT | st.sampled_from([each.member_id for each in members] or [""]))
    selected = protocol if members else None
    return Group.loaded(draw(TEXT), draw(INT32), draw(TEXT), selected, leader, draw(INT64), members)


def test_keys_are_kafkas_bytes() -> None:
    assert offset_key("g", "t", 1) == b"\0\1\0\1g\0\1t\0\0\0\1"
    assert group_key("gr") == b"\0\2\0\2gr"


def test_offset_without_the_metadata_epoch_is_kafkas_version_3() -> None:
    expected = b"\0\3" + bytes(7) + b"\5\0\0\0\7\0\1m" + bytes(7) + b"\x09"
    assert offset_value(COMMIT, CLASSIC_VALUE) == expected


@pytest.mark.parametrize("version", [CLASSIC_VALUE, EPOCH_VALUE])
def test_offset_with_expiry_time_is_version_1(version: int) -> None:
    commit = CommitOffset("t", 1, 5, -1, "m", 9, expire_timestamp_ms=10)
    expected = b"\0\1" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\x09" + bytes(7) + b"\x0a"
    assert offset_value(commit, version) == expected


@pytest.mark.clause("M-8")
def test_metadata_epoch_is_a_tagged_field_of_version_4() -> None:
    commit = CommitOffset("t", 1, 5, 7, "m", 9, metadata_epoch=258)
    tagged = b"\1\x90\x4e\x08\0\0\0\0\0\0\1\2"
    expected = b"\0\4" + bytes(7) + b"\5\0\0\0\7\2m" + bytes(7) + b"\x09" + tagged
    assert offset_value(commit, EPOCH_VALUE) == expected


@pytest.mark.clause("D-1", "M-8")
def test_expiry_time_of_version_4_is_second_tagged_field() -> None:
    commit = CommitOffset("t", 1, 5, -1, "m", 9, metadata_epoch=258, expire_timestamp_ms=10)
    tagged = b"\2\x90\x4e\x08\0\0\0\0\0\0\1\2\x91\x4e\x08" + bytes(7) + b"\x0a"
    expected = b"\0\4" + bytes(7) + b"\5\xff\xff\xff\xff\2m" + bytes(7) + b"\x09" + tagged
    assert offset_value(commit, EPOCH_VALUE) == expected
    assert read_offset_value(KEY, expected) == commit


@pytest.mark.clause("M-11")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\0\0" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\x09", CommitOffset("t", 1, 5, -1, "m", 9)),
        (
            b"\0\1" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\x09" + bytes(7) + b"\x0a",
            CommitOffset("t", 1, 5, -1, "m", 9, expire_timestamp_ms=10),
        ),
        (b"\0\2" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\x09", CommitOffset("t", 1, 5, -1, "m", 9)),
        (b"\0\3" + bytes(7) + b"\5\0\0\0\7\0\1m" + bytes(7) + b"\x09", COMMIT),
        (b"\0\4" + bytes(7) + b"\5\0\0\0\7\2m" + bytes(7) + b"\x09\0", COMMIT),
    ],
)
def test_values_of_every_version_are_read_and_missing_epoch_is_minus_one(value: bytes, expected: CommitOffset) -> None:
    assert read_offset_value(KEY, value) == expected


def test_other_tagged_fields_are_skipped() -> None:
    plain = b"\0\4" + bytes(7) + b"\5\0\0\0\7\2m" + bytes(7) + b"\x09"
    tags = b"\2\3\2ab\x90\x4e\x08" + bytes(7) + b"\4"
    assert read_offset_value(KEY, plain + tags).metadata_epoch == 4


@given(TEXT, TEXT, INT32, INT64, INT32, TEXT, INT64, st.integers(-1, 2**63 - 1))
def test_offset_round_trip(
    group: str, topic: str, index: int, offset: int, epoch: int, metadata: str, commit_ms: int, metadata_epoch: int
) -> None:
    key = read_key(offset_key(group, topic, index))
    assert key == OffsetKey(group, topic, index)
    commit = CommitOffset(topic, index, offset, epoch, metadata, commit_ms, metadata_epoch)
    assert read_offset_value(key, offset_value(commit, EPOCH_VALUE)) == commit
    classic = read_offset_value(key, offset_value(commit, CLASSIC_VALUE))
    assert classic == CommitOffset(topic, index, offset, epoch, metadata, commit_ms)


@pytest.mark.thorough
@given(groups())
def test_group_round_trip(group: Group) -> None:
    assert read_key(group_key(group.group_id)) == GroupKey(group.group_id)
    found = read_group(group.group_id, group_value(group))
    assert found == group
    found.validate()


def test_groups_of_every_version_are_read() -> None:
    texts = b"\0\1p\0\0\0\2\0\1r\xff\xff"
    member = b"\0\1m\0\1c\0\1h"
    rest = b"\0\0\0\x0b\0\0\0\1s\0\0\0\0"
    knows = (MemberProtocol("r", b"s"),)
    first = read_group("g", b"\0\0" + texts + b"\0\0\0\1" + member + rest)
    assert first == Group.loaded("g", 2, "p", "r", None, -1, (Member("m", None, "c", "h", 11, 11, knows),))
    second = read_group("g", b"\0\1" + texts + b"\0\0\0\1" + member + b"\0\0\0\x0c" + rest)
    assert second.members["m"].rebalance_timeout_ms == 12
    third = read_group("g", b"\0\2" + texts + bytes(7) + b"\x0d\0\0\0\1" + member + b"\0\0\0\x0c" + rest)
    assert third.state_since_ms == 13
    flexible = b"\0\4\2p\0\0\0\2\2r\0" + bytes(7) + b"\x0d\2\2m\2i\2c\2h"
    fifth = read_group("g", flexible + b"\0\0\0\x0c\0\0\0\x0b\2s\1\0\0")
    assert fifth == Group.loaded("g", 2, "p", "r", None, 13, (Member("m", "i", "c", "h", 12, 11, knows),))


@pytest.mark.parametrize("instances", [(None, None), ("i", "i")])
def test_group_with_duplicate_member_is_damaged(instances: tuple[str | None, ...]) -> None:
    group = Group("g", 0, generation=1, protocol_type="p", protocol="r")
    for number, instance in enumerate(instances):
        group.members[str(number)] = Member("m" if instance is None else f"m{number}", instance, "c", "h", 1, 1, ())
    with pytest.raises(DamagedRecord, match="twice"):
        read_group("g", group_value(group))


def test_keys_of_other_group_types_are_known_by_version() -> None:
    assert read_key(b"\0\3\0\1g") == UnknownKey(3)


@given(st.binary(max_size=60))
def test_random_bytes_are_damage(data: bytes) -> None:
    for read in (read_key, lambda value: read_group("g", value), lambda value: read_offset_value(KEY, value)):
        try:
            read(data)
        except DamagedRecord:
            continue


@pytest.mark.thorough
@given(groups(), st.data())
def test_truncated_value_is_damaged(group: Group, data: st.DataObject) -> None:
    whole = group_value(group)
    with pytest.raises(DamagedRecord):
        read_group("g", whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_unknown_versions_are_damage() -> None:
    with pytest.raises(DamagedRecord):
        read_offset_value(KEY, b"\0\5" + offset_value(COMMIT, CLASSIC_VALUE)[2:])
    with pytest.raises(DamagedRecord):
        read_group("g", b"\0\5" + bytes(40))


def test_metadata_epoch_of_wrong_length_is_damage() -> None:
    plain = b"\0\4" + bytes(7) + b"\5\0\0\0\7\2m" + bytes(7) + b"\x09"
    with pytest.raises(DamagedRecord):
        read_offset_value(KEY, plain + b"\1\x90\x4e\4abcd")
