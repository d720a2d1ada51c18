"""SyncGroup in every version, encoded and decoded."""

from typing import Any

import pytest

from reference_broker.apis.groups.tests.membership_broker import Broker, join_group, versions
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_sync_group_in_each_version(version: int) -> None:
    broker = Broker()
    joined = join_group(broker, 3)
    fields: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    if version >= 5:
        refused = broker.request(ApiKey.SYNC_GROUP, version, **fields, protocol_type="consumer")
        assert refused.error_code == ErrorCode.inconsistent_group_protocol
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
    fields["assignments"] = [{"member_id": joined.member_id, "assignment": b"mine"}]
    response = broker.request(ApiKey.SYNC_GROUP, version, **fields)
    assert (response.error_code, response.assignment) == (ErrorCode.none, b"mine")
    assert response.protocol_name == ("range" if version >= 5 else None)
