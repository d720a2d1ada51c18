"""SyncGroup: what a member is assigned in this generation, which its leader says (KIP-345, 559)."""

from kio.schema.errors import ErrorCode
from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.groups.membership.requests import SyncAnswer, SyncRequest
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.SYNC_GROUP,
    min_version=0,
    max_version=5,
    behaviour="Answered when the leader's assignment is replicated; a member that does not ask within the longest "
    "rebalance timeout is given up. Members that the leader left out get an empty assignment. From version 5 on both "
    "protocol type and name must be there and be the group's: else INCONSISTENT_GROUP_PROTOCOL.",
    kips=(345, 559),
)

NAMES_PROTOCOL_FROM = 5


def handle(broker: Broker, call: Call, body: object) -> SyncGroupResponse | None:
    """Answers through ``call``, at once or later."""
    assert isinstance(body, SyncGroupRequest)
    if call.api_version >= NAMES_PROTOCOL_FROM and (body.protocol_type is None or body.protocol_name is None):
        return _response(SyncAnswer(Error.INCONSISTENT_GROUP_PROTOCOL))
    request = SyncRequest(
        body.group_id,
        body.generation_id,
        body.member_id,
        body.group_instance_id,
        body.protocol_type,
        body.protocol_name,
        {each.member_id: each.assignment for each in body.assignments},
    )
    broker.groups.membership.sync(request, lambda answer: call.respond(_response(answer)))
    return None


def _response(answer: SyncAnswer) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(answer.error),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
