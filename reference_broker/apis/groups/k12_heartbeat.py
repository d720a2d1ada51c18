"""Heartbeat: a member is alive, and hears whether it has to join again."""

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.HEARTBEAT,
    min_version=0,
    max_version=4,
    behaviour="The session begins anew. REBALANCE_IN_PROGRESS: join again. UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and, "
    "for static members, FENCED_INSTANCE_ID: this member is given up or replaced. NONE while the group is loaded.",
    kips=(62, 345),
)


def handle(broker: Broker, call: Call, body: object) -> HeartbeatResponse:  # noqa: ARG001
    assert isinstance(body, HeartbeatRequest)
    error = broker.groups.membership.heartbeat(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id
    )
    return _ANSWERS.get(error) or _response(error)


def _response(error: Error) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(error))


_ANSWERS = {
    Error.NONE: _response(Error.NONE),
    Error.REBALANCE_IN_PROGRESS: _response(Error.REBALANCE_IN_PROGRESS),
    Error.COORDINATOR_LOAD_IN_PROGRESS: _response(Error.NONE),
}
"""Almost every heartbeat of a large group gets one of the first two. While the group is loaded Kafka says that all is
well, since older clients do not expect the true error here."""
