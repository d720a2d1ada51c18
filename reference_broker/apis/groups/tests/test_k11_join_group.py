"""JoinGroup in every version, encoded and decoded."""

import pytest

from reference_broker.apis.groups.tests.membership_broker import Broker, GroupCall, join_group, member_of, versions
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_join_group_in_each_version(version: int) -> None:
    broker = Broker()
    first = join_group(broker, version)
    if version >= 4:
        assert first.error_code == ErrorCode.member_id_required
        assert (first.protocol_name or "") == ""
        assert first.leader == ""
        first = join_group(broker, version, first.member_id)
    assert (first.error_code, first.generation_id, first.protocol_name) == (ErrorCode.none, 1, "range")
    assert first.leader == first.member_id
    assert first.member_id.startswith("tester-")
    assert [(member.member_id, member.metadata) for member in first.members] == [(first.member_id, b"meta")]
    assert first.protocol_type == ("consumer" if version >= 7 else None)
    known = broker.world.group.members[first.member_id]
    assert (known.rebalance_timeout_ms, known.session_timeout_ms) == (60_000 if version else 10_000, 10_000)
    assert (known.client_id, known.client_host) == ("tester", "/10.0.0.1")


def test_join_group_with_reason_and_instance_id() -> None:
    broker = Broker()
    member_of(broker, group_instance_id="one")
    again = join_group(broker, 9, group_instance_id="one", reason="why not")
    assert (again.skip_assignment, again.leader) == (True, again.member_id)
    assert again.members[0].group_instance_id == "one"


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_client_id_too_long_for_member_id_is_rejected(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCall, "client_id", "c" * 0x7FFF)
    assert join_group(Broker(), version).error_code == ErrorCode.invalid_request
    monkeypatch.setattr(GroupCall, "client_id", "c" * (0x7FFF - 37))
    assert len(join_group(Broker(group_initial_rebalance_delay_ms=0), version).member_id) == 0x7FFF
