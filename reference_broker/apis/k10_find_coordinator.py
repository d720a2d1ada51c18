"""FindCoordinator: says that no coordinator is there yet, so that clients without groups go on (KIP-699)."""

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.FIND_COORDINATOR,
    min_version=0,
    max_version=6,
    behaviour="COORDINATOR_NOT_AVAILABLE for every key: clients retry it, and assigning consumers never need it. "
    "An unknown key type gets INVALID_REQUEST.",
    simplifications="Groups and transactions are not served yet.",
    kips=(699, 932),
)

KEY_TYPES = (0, 1, 2)
"""Group, transaction, share."""


def handle(broker: Broker, call: Call, body: object) -> FindCoordinatorResponse:  # noqa: ARG001
    """One answer for each key, in the request's order (versions below 4 ask for exactly one)."""
    assert isinstance(body, FindCoordinatorRequest)
    known = body.key_type in KEY_TYPES
    error = ErrorCode.coordinator_not_available if known else ErrorCode.invalid_request
    message = "The coordinator is not available." if known else f"Unknown key type {body.key_type}."
    return FindCoordinatorResponse(
        throttle_time=NO_THROTTLE,
        coordinators=tuple(
            Coordinator(
                key=key, node_id=BrokerId(-1), host="", port=i32(-1), error_code=error, error_message=message
            )
            for key in body.coordinator_keys
        ),
    )
