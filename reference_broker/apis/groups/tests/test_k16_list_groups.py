"""ListGroups in every version, encoded and decoded."""

from typing import Any

import pytest

from reference_broker.apis.groups.tests.membership_broker import Broker, member_of, versions
from reference_broker.groups.group import Group
from reference_broker.groups.tests.membership_world import WALL_MS
from reference_broker.ports.slicing import LISTED_PER_SLICE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("GroupMetadataManagerTest.testListGroups")
@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_list_groups_in_each_version(version: int) -> None:
    broker = Broker()
    member_of(broker)
    broker.world.partition.groups["simple"] = Group("simple", WALL_MS)

    def listed(**filters: Any) -> list[tuple[str, str, str, str]]:
        response = broker.request(ApiKey.LIST_GROUPS, version, **filters)
        assert response.error_code == ErrorCode.none
        return [(group.group_id, group.protocol_type, group.group_state, group.group_type) for group in response.groups]

    state, kind = version >= 4, "classic" if version >= 5 else ""
    both = [
        ("g", "consumer", "Stable" if state else "", kind),
        ("simple", "", "Empty" if state else "", kind),
    ]
    assert listed() == both
    if version >= 4:
        assert listed(states_filter=("stable", "Dead")) == both[:1]
        assert listed(states_filter=("EMPTY ",)) == both[1:]
        assert listed(states_filter=("unknown",)) == []
    if version >= 5:
        assert listed(types_filter=("Classic", "share")) == both
        assert listed(types_filter=("consumer",)) == []
    broker.world.store.is_loading = True
    assert broker.request(ApiKey.LIST_GROUPS, version).error_code == ErrorCode.coordinator_load_in_progress


def test_list_groups_with_many_groups_takes_slices() -> None:
    broker = Broker()
    names = [f"g{index}" for index in range(2 * LISTED_PER_SLICE + 1)]
    for name in names:
        broker.world.partition.groups[name] = Group(name, WALL_MS)
    call = broker.send(ApiKey.LIST_GROUPS, 5)
    assert not call.responses
    broker.world.pass_ms(0)
    assert [group.group_id for group in call.read().groups] == names
    abandoned = broker.send(ApiKey.LIST_GROUPS, 5)
    abandoned.closed = True
    broker.world.pass_ms(0)
    assert not abandoned.responses
