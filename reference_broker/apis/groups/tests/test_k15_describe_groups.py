"""DescribeGroups in every version, encoded and decoded."""

import pytest

from reference_broker.apis.groups.tests.membership_broker import Broker, member_of, versions
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause(
    "GroupMetadataManagerTest.testDescribeGroupStable",
    "GroupMetadataManagerTest.testDescribeGroupRebalancing",
    "GroupMetadataManagerTest.testDescribeGroupsGroupIdNotFoundException",
)
@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_describe_groups_in_each_version(version: int) -> None:
    broker = Broker()
    member_id = member_of(broker)
    response = broker.request(
        ApiKey.DESCRIBE_GROUPS, version, groups=("g", "none"), include_authorized_operations=version >= 3
    )
    found, none = response.groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "tester", "/10.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"meta", b"mine")
    assert (none.group_state, none.members) == ("Dead", ())
    assert none.error_code == (ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none)
    if version >= 3:
        assert found.authorized_operations == 3400
    broker.world.join(member_id)
    broker.world.new()
    (rebalancing,) = broker.request(ApiKey.DESCRIBE_GROUPS, version, groups=("g",)).groups
    assert (rebalancing.protocol_data, rebalancing.members[0].member_metadata) == ("", b"")
    broker.world.store.is_loading = True
    (loading,) = broker.request(ApiKey.DESCRIBE_GROUPS, version, groups=("g",)).groups
    assert (loading.error_code, loading.group_state) == (ErrorCode.coordinator_load_in_progress, "")
