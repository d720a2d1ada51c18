"""Groups and mirrors in a fleet's spec: what is refused, and how members are dealt to workers."""

import pytest
from msgspec.structs import replace

from bench.fleet.group_spec import MemberGroup, MirrorGroup
from bench.fleet.processes import users_needed
from bench.fleet.spec import FleetSpec, SpecError, check, make_fleet

SPEC = FleetSpec(
    bootstrap=["node-0:9092", "node-1:9092"],
    seconds=1,
    partitions=4,
    groups=[
        MemberGroup("g", 3, static=True),
        MemberGroup("g", 2, protocol="cooperative"),
        MemberGroup("o", 3, offsets="outside"),
    ],
    mirror=MirrorGroup(["target:9092"], count=2),
)


def dealt(workers):
    return [make_fleet(SPEC, (index, workers)) for index in range(workers)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shares_are_the_whole_fleet_and_offsets_kept_outside_have_one_worker(workers):
    fleets = dealt(workers)
    names = [each.process for fleet in fleets for each in (*fleet.members, *fleet.mirrors)]
    assert sorted(names) == sorted([*(f"member-{number}" for number in range(8)), "mirror-0", "mirror-1"])
    outside = [[each for each in fleet.members if each.member.offsets == "outside"] for fleet in fleets]
    assert [len(each) for each in outside] == [3, *[0] * (workers - 1)]
    assert len({id(each.store) for each in outside[0]}) == 1
    most = max(len(fleet.members) + len(fleet.mirrors) for fleet in fleets)
    assert users_needed(replace(SPEC, workers=workers)) >= workers * most


def test_what_the_spec_says_is_what_a_member_does():
    members = make_fleet(replace(SPEC, process_prefix="1.")).members
    assert {each.member.group for each in members} == {"1.g", "1.o"}
    assert [each.member.instance_id for each in members][:4] == ["1.member-0", "1.member-1", "1.member-2", ""]
    assert members[3].config.group.cooperative
    assert [each.partition for each in members[0].member.partitions] == [0, 1, 2, 3]


def test_the_mirror_s_target_gets_the_topic_and_is_not_reached_through_the_source_s_proxies():
    fleet = make_fleet(replace(SPEC, dial={"target:9092": "proxy:1"}))
    assert fleet.target_preparer is not None
    assert fleet.target_preparer.partition_counts == {"hot": 4}
    assert [each.host for each in fleet.target_preparer.settings.bootstrap] == ["target"]
    assert not fleet.mirrors[0].writer.settings.dial
    assert make_fleet(replace(SPEC, mirror=None)).target_preparer is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"groups": [MemberGroup("g", 0)]}, "count"),
        ({"groups": [MemberGroup("g", 1, protocol="lazy")]}, "lazy"),
        ({"groups": [MemberGroup("g", 1, reset="middle")]}, "middle"),
        ({"groups": [MemberGroup("g", 1, offsets="under")]}, "under"),
        ({"groups": [MemberGroup("g", 1, metadata_from=-3)]}, "metadata_from"),
        ({"groups": [MemberGroup("mirror", 1)]}, "mirror"),
        ({"mirror": MirrorGroup([])}, "target"),
        ({"partitions": 0}, "hot topic"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, word):
    with pytest.raises(SpecError, match=word):
        check(replace(SPEC, **changes))
