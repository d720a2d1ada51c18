"""The group APIs in every version, encoded and decoded, on membership alone."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.index import load_request_schema

from reference_broker.apis.groups import (
    k11_join_group,
    k12_heartbeat,
    k13_leave_group,
    k14_sync_group,
    k15_describe_groups,
    k16_list_groups,
    k42_delete_groups,
)
from reference_broker.apis.tests.admin_world import AdminCall
from reference_broker.apis.tests.declared import key_of
from reference_broker.groups.group import Group
from reference_broker.groups.tests.membership_world import WALL_MS, MembershipWorld
from reference_broker.ports.slicing import LISTED_PER_SLICE
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import body_class, decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.schema import schema_fields

MODULES = {
    key_of(module): module
    for module in (
        k11_join_group,
        k12_heartbeat,
        k13_leave_group,
        k14_sync_group,
        k15_describe_groups,
        k16_list_groups,
        k42_delete_groups,
    )
}


def versions(key: ApiKey) -> range:
    return range(VERSIONS[key][0], VERSIONS[key][1] + 1)


def filled(entity: type, values: dict[str, Any]) -> Any:
    """Return a message of the class that handlers see; arrays of structs are lists of dicts."""
    known = {}
    for field in schema_fields(entity):
        value = values.get(field.name, field.default)
        if field.struct is not None and value is not None and field.is_array:
            value = tuple(filled(field.struct, item) for item in values.get(field.name, ()))
        known[field.name] = value
    return entity(**known)


class Broker:
    """The part of a broker that these handlers use. ``request`` encodes a request and returns the decoded response."""

    def __init__(self, **settings: object) -> None:
        self.world = MembershipWorld(**settings)
        store = self.world.store
        self.groups = SimpleNamespace(
            membership=self.world.membership, find=store.find, active=store.active, loading=store.loading
        )
        self.ports = self.world.ports

    def send(self, key: ApiKey, version: int, **values: Any) -> "GroupCall":
        body = filled(body_class(key, "request"), values)
        frame = b"".join(encode_request(key, version, 1, "tester", body))[4:]
        header, offset = read_request_header(memoryview(frame))
        assert (header.api_key, header.api_version) == (key, version)
        call = GroupCall(key, version)
        response = MODULES[key].handle(self, call, decode_request(key, version, memoryview(frame), offset))
        if response is not None:
            call.respond(response)
        return call

    def request(self, key: ApiKey, version: int, **values: Any) -> Any:
        call = self.send(key, version, **values)
        self.world.pass_ms(0)
        return call.read()


class GroupCall(AdminCall):
    client_id = "tester"
    client_host = "/10.0.0.1"

    def __init__(self, key: ApiKey, version: int) -> None:
        super().__init__(version)
        self.key = key

    def read(self) -> Any:
        (body,) = self.responses
        frame = b"".join(encode_response(self.key, self.api_version, 1, body))[4:]
        return decode_response(self.key, self.api_version, frame)[1]


def join(broker: Broker, version: int, member_id: str = "", **more: Any) -> Any:
    return broker.request(
        ApiKey.JOIN_GROUP,
        version,
        group_id="g",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=60 if version else -0.001),
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"meta"}],
        **more,
    )


def member_of(broker: Broker, version: int = 9, **more: Any) -> str:
    """Return the only member of a stable group."""
    joined = join(broker, version, **more)
    if joined.error_code == ErrorCode.member_id_required:
        joined = join(broker, version, joined.member_id, **more)
    broker.request(
        ApiKey.SYNC_GROUP,
        4,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
    )
    return str(joined.member_id)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_join_group_in_each_version(version: int) -> None:
    broker = Broker()
    first = join(broker, version)
    if version >= 4:
        assert (first.error_code, first.protocol_name or "", first.leader) == (ErrorCode.member_id_required, "", "")
        first = join(broker, version, first.member_id)
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
    again = join(broker, 9, group_instance_id="one", reason="why not")
    assert (again.skip_assignment, again.leader) == (True, again.member_id)
    assert again.members[0].group_instance_id == "one"


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_sync_group_in_each_version(version: int) -> None:
    broker = Broker()
    joined = join(broker, 3)
    fields: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    if version >= 5:
        refused = broker.request(ApiKey.SYNC_GROUP, version, **fields, protocol_type="consumer")
        assert refused.error_code == ErrorCode.inconsistent_group_protocol
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
    fields["assignments"] = [{"member_id": joined.member_id, "assignment": b"mine"}]
    response = broker.request(ApiKey.SYNC_GROUP, version, **fields)
    assert (response.error_code, response.assignment) == (ErrorCode.none, b"mine")
    assert response.protocol_name == ("range" if version >= 5 else None)


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
    join(Broker(), 9)
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


def test_heartbeat_while_group_loads_returns_no_error() -> None:
    broker = Broker()
    for broker.world.store.is_loading, error in ((True, ErrorCode.none), (False, ErrorCode.unknown_member_id)):
        response = broker.request(ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="unknown yet")
        assert response.error_code == error


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


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_client_id_too_long_for_member_id_is_rejected(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCall, "client_id", "c" * 0x7FFF)
    assert join(Broker(), version).error_code == ErrorCode.invalid_request
    monkeypatch.setattr(GroupCall, "client_id", "c" * (0x7FFF - 37))
    assert len(join(Broker(group_initial_rebalance_delay_ms=0), version).member_id) == 0x7FFF
