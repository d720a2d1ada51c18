"""LeaveGroup in every version, encoded and decoded."""

from typing import Any

import pytest
from kio.index import load_request_schema

from reference_broker.apis.groups.tests.membership_broker import Broker, member_of, versions
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.schema import schema_fields


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_leave_group_in_each_version(version: int) -> None:
    """Before version 3 the error of the one member is that of the response."""
    broker = Broker()
    member_id = member_of(broker)
    for leaving, error in (("x", ErrorCode.unknown_member_id), (member_id, ErrorCode.none)):
        response = broker.request(ApiKey.LEAVE_GROUP, version, group_id="g", members=[{"member_id": leaving}])
        if version >= 3:
            assert response.error_code == ErrorCode.none
            assert [(member.member_id, member.error_code) for member in response.members] == [(leaving, error)]
        else:
            assert response.error_code == error
    assert not broker.world.group.members
    broker.world.store.partition = None
    lost = broker.request(ApiKey.LEAVE_GROUP, version, group_id="h", members=[{"member_id": "x"}])
    assert lost.error_code == ErrorCode.not_coordinator


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_leave_group_before_version_3_has_one_member(version: int) -> None:
    old: Any = load_request_schema(ApiKey.LEAVE_GROUP, version)
    assert ("member_id" in {field.name for field in schema_fields(old)}) is (version < 3)
