"""A group on a real node: found, joined, assigned, described, and still there after a restart."""

from datetime import timedelta
from typing import Any

import pytest

from reference_broker.apis.tests.messages import message_from
from reference_broker.core.events import Opened
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import body_class

SETTINGS: dict[str, Any] = {"group_initial_rebalance_delay_ms": "0", "offsets_topic_num_partitions": "3"}


def body(key: ApiKey, **values: Any) -> Any:
    return message_from(body_class(key, "request"), values)


def request(world: NodeWorld, key: ApiKey, **values: Any) -> Any:
    return world.request(key, VERSIONS[key][1], body(key, **values), connection=7)


def join(world: NodeWorld, member_id: str = "") -> Any:
    return request(
        world,
        ApiKey.JOIN_GROUP,
        group_id="g",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=60),
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"meta"}],
    )


def coordinated(**config: Any) -> NodeWorld:
    world = NodeWorld(**(SETTINGS | config))
    world.give(Opened(7, "10.1.2.3:5000"))

    def found() -> bool:
        response = request(world, ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=("g",))
        return bool(response.coordinators[0].error_code == ErrorCode.none)

    for _ in range(50):
        if found():
            break
        world.advance(100)
    assert found()
    return world


def stable(world: NodeWorld) -> str:
    member_id = str(join(world).member_id)
    joined = join(world, member_id)
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.none, 1, member_id)
    synced = request(
        world,
        ApiKey.SYNC_GROUP,
        group_id="g",
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member_id, "assignment": b"mine"}],
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")
    return member_id


def beat(world: NodeWorld, member_id: str, generation: int = 1) -> Any:
    return request(world, ApiKey.HEARTBEAT, group_id="g", member_id=member_id, generation_id=generation).error_code


def test_member_joins_is_assigned_and_described() -> None:
    world = coordinated()
    member_id = stable(world)
    assert beat(world, member_id) == ErrorCode.none
    (group,) = request(world, ApiKey.DESCRIBE_GROUPS, groups=("g",)).groups
    (member,) = group.members
    assert (group.group_state, member.client_host, member.member_assignment) == ("Stable", "/10.1.2.3", b"mine")
    (listed,) = request(world, ApiKey.LIST_GROUPS).groups
    assert (listed.group_id, listed.group_state) == ("g", "Stable")
    left = request(world, ApiKey.LEAVE_GROUP, group_id="g", members=[{"member_id": member_id}])
    assert left.members[0].error_code == ErrorCode.none
    (deleted,) = request(world, ApiKey.DELETE_GROUPS, groups_names=("g",)).results
    assert deleted.error_code == ErrorCode.none
    assert request(world, ApiKey.LIST_GROUPS).groups == ()


def test_silent_member_expires() -> None:
    world = coordinated()
    member_id = stable(world)
    for _ in range(3):
        world.advance(9000)
        assert beat(world, member_id) == ErrorCode.none
    world.advance(10_100)
    assert beat(world, member_id) == ErrorCode.unknown_member_id


@pytest.mark.parametrize("clean", [True, False])
def test_group_survives_restart(clean: bool) -> None:
    world = coordinated()
    member_id = stable(world)
    if clean:
        world.shut_down()
        world.settle()
    again = NodeWorld(world.disk, **SETTINGS)
    again.give(Opened(7, "10.1.2.3:5000"))
    again.advance(100)
    assert beat(again, member_id) == ErrorCode.none
    assert beat(again, member_id, 2) == ErrorCode.illegal_generation
    (group,) = request(again, ApiKey.DESCRIBE_GROUPS, groups=("g",)).groups
    assert (group.group_state, group.protocol_data, group.members[0].member_assignment) == ("Stable", "range", b"mine")
    assert join(again, member_id).generation_id == 2
