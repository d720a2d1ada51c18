"""Heartbeat in every version, encoded and decoded."""

from datetime import timedelta
from typing import Any

import pytest

from reference_broker.apis.groups.tests.membership_broker import Broker, join_group, member_of, versions
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeat_in_each_version(version: int) -> None:
    broker = Broker()
    member_id = member_of(broker)
    for fields_sent, error in (
        ({"generation_id": 1}, ErrorCode.none),
        ({"generation_id": 2}, ErrorCode.illegal_generation),
        ({"generation_id": 1, "member_id": "x"}, ErrorCode.unknown_member_id),
        ({"generation_id": 1, "group_id": ""}, ErrorCode.invalid_group_id),
    ):
        fields: dict[str, Any] = {"group_id": "g", "member_id": member_id, **fields_sent}
        assert broker.request(ApiKey.HEARTBEAT, version, **fields).error_code == error
    join_group(Broker(), 9)
    broker.send(
        ApiKey.JOIN_GROUP,
        3,
        group_id="g",
        session_timeout=timedelta(seconds=10),
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    response = broker.request(ApiKey.HEARTBEAT, version, group_id="g", member_id=member_id, generation_id=1)
    assert response.error_code == ErrorCode.rebalance_in_progress


def test_heartbeat_while_group_loads_returns_no_error() -> None:
    broker = Broker()
    for broker.world.store.is_loading, error in ((True, ErrorCode.none), (False, ErrorCode.unknown_member_id)):
        response = broker.request(ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="unknown yet")
        assert response.error_code == error
