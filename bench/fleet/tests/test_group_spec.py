"""Groups and mirrors in a fleet's spec: what is refused, and how members are dealt to workers."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from bench.fleet.fleet import Fleet, make_fleet
from bench.fleet.plans import users_needed
from bench.fleet.spec import FleetSpec, SpecError, check
from scenarios.load import Groups, Load, Mirror, Topic, Workers


def members(name: str, count: int, **more: Any) -> Groups:
    return Groups(name=name, count=count, topics=("hot",), **more)


LOAD = Load(
    seconds=1,
    topics=(Topic("hot", 4),),
    groups=(members("g", 3, static=True), members("g", 2, protocol="cooperative"), members("o", 3, offsets="outside")),
    mirror=Mirror(topic="hot", count=2),
)
SPEC = FleetSpec(bootstrap=["node-0:9092", "node-1:9092"], load=LOAD, target=["target:9092"])


def dealt(workers: int) -> list[Fleet]:
    return [make_fleet(SPEC, (index, workers)) for index in range(workers)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shares_are_the_whole_fleet_and_offsets_kept_outside_have_one_worker(workers: int) -> None:
    fleets = dealt(workers)
    names = [member.process for fleet in fleets for member in fleet.members]
    names += [mirror.process for fleet in fleets for mirror in fleet.mirrors]
    assert sorted(names) == sorted([*(f"member-{number}" for number in range(8)), "mirror-0", "mirror-1"])
    outside = [[member for member in fleet.members if member.member.offsets == "outside"] for fleet in fleets]
    assert [len(each) for each in outside] == [3, *[0] * (workers - 1)]
    assert len({id(each.store) for each in outside[0]}) == 1
    most = max(len(fleet.members) + len(fleet.mirrors) for fleet in fleets)
    assert users_needed(replace(SPEC, workers=workers)) >= workers * most


def test_member_behaves_as_specified() -> None:
    made = make_fleet(replace(SPEC, process_prefix="1.")).members
    assert {member.member.group for member in made} == {"1.g", "1.o"}
    assert [member.member.instance_id for member in made][:4] == ["1.member-0", "1.member-1", "1.member-2", ""]
    group = made[3].config.group
    assert group is not None
    assert group.cooperative
    assert [partition.partition for partition in made[0].member.partitions] == [0, 1, 2, 3]


def test_mirror_s_target_gets_the_topic_and_is_not_reached_through_the_source_s_proxies() -> None:
    fleet = make_fleet(replace(SPEC, dial={"target:9092": "proxy:1"}))
    assert fleet.target_preparer is not None
    assert [(each.name, each.partitions) for each in fleet.target_preparer.wanted] == [("hot", 4)]
    assert [each.host for each in fleet.target_preparer.settings.bootstrap] == ["target"]
    assert not fleet.mirrors[0].writer.settings.dial
    assert make_fleet(replace(SPEC, load=dataclasses.replace(LOAD, mirror=None))).target_preparer is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"groups": (members("mirror", 1),)}, "mirror"),
        ({"groups": (members("g", 1, heartbeat_interval_ms=6000),)}, "session_timeout_ms"),
        ({"topics": ()}, "'hot' of group 'g'"),
    ],
)
def test_load_that_makes_no_sense_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        check(replace(SPEC, load=dataclasses.replace(LOAD, **changes)))


def test_mirror_needs_a_cluster_to_copy_to() -> None:
    with pytest.raises(SpecError, match="target"):
        check(replace(SPEC, target=[]))


def test_offsets_are_read_at_the_end_of_all_groups_that_commit_to_the_cluster() -> None:
    load = dataclasses.replace(
        LOAD,
        topics=(Topic("hot", 2), Topic("out", 1)),
        groups=(*LOAD.groups, members("v", 1, view=True), dataclasses.replace(members("g", 1), topics=("out",))),
        workers=(Workers(name="w", count=1, source="out", target="hot"),),
    )
    reader = make_fleet(replace(SPEC, load=load, process_prefix="1.")).offsets_reader
    assert reader is not None
    assert {
        group: [str(partition.topic) for partition in partitions] for group, partitions in reader.groups.items()
    } == {
        "1.g": ["hot", "hot", "out"],
        "1.w": ["out"],
        "1.mirror": ["hot", "hot"],
    }
    assert (
        make_fleet(replace(SPEC, load=dataclasses.replace(load, groups=(), workers=(), mirror=None))).offsets_reader
        is None
    )
