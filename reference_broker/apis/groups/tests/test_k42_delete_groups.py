"""DeleteGroups in every version, encoded and decoded."""

import pytest

from reference_broker.apis.groups.tests.membership_broker import Broker, member_of, versions
from reference_broker.groups.group import Group
from reference_broker.groups.tests.membership_world import WALL_MS
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_delete_groups_in_each_version(version: int) -> None:
    broker = Broker()
    member_of(broker)
    broker.world.partition.groups["simple"] = Group("simple", WALL_MS)
    broker.world.partition.holds = True
    call = broker.send(ApiKey.DELETE_GROUPS, version, groups_names=("g", "simple", "none", "simple"))
    assert not call.responses
    broker.world.partition.writes[-1].written(ErrorCode.none)
    assert [(result.group_id, result.error_code) for result in call.read().results] == [
        ("g", ErrorCode.non_empty_group),
        ("simple", ErrorCode.none),
        ("none", ErrorCode.group_id_not_found),
    ]
    assert broker.request(ApiKey.DELETE_GROUPS, version, groups_names=()).results == ()
