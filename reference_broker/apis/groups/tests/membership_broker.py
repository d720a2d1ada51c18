"""A broker with group membership alone, and requests of its members."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

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
from reference_broker.apis.tests.messages import message_from
from reference_broker.groups.tests.membership_world import MembershipWorld
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import body_class, decode_request, decode_response, encode_request, encode_response

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


class Broker:
    """The part of a broker that these handlers use. ``request`` encodes a request and returns the decoded response."""

    def __init__(self, **settings: object) -> None:
        self.world = MembershipWorld(**settings)
        store = self.world.store
        self.groups = SimpleNamespace(
            group_manager=self.world.group_manager,
            find=store.find,
            active=store.active,
            loading=store.loading,
        )
        self.ports = self.world.ports

    def send(self, key: ApiKey, version: int, **values: Any) -> "GroupCall":
        body = message_from(body_class(key, "request"), values)
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


def join_group(broker: Broker, version: int, member_id: str = "", **more: Any) -> Any:
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
    joined = join_group(broker, version, **more)
    if joined.error_code == ErrorCode.member_id_required:
        joined = join_group(broker, version, joined.member_id, **more)
    broker.request(
        ApiKey.SYNC_GROUP,
        4,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
    )
    return str(joined.member_id)
