"""What the admin APIs share: refusals as values, and constants of answers."""

from datetime import timedelta
from typing import TypedDict
from uuid import UUID

from kio.static.primitive import i32Timedelta

from reference_broker.controller.changes import NOT_CONTROLLER as NOT_CONTROLLER
from reference_broker.controller.changes import Refusal as Refusal
from reference_broker.wire.errors import ErrorCode

NO_THROTTLE = i32Timedelta.parse(timedelta(0))

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Without an authorizer everyone may do everything to a topic. These are AclOperation bits, as Kafka answers them."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
OPERATIONS_NOT_ASKED = -(2**31)


class Verdict(TypedDict):
    """The two fields with which most answers say whether something was done."""

    error_code: ErrorCode
    error_message: str | None


def verdict(outcome: object) -> Verdict:
    """The error and its message if ``outcome`` is a Refusal. Anything else stands for success."""
    if isinstance(outcome, Refusal):
        return Verdict(error_code=outcome.error, error_message=outcome.message)
    return Verdict(error_code=ErrorCode.none, error_message=None)


def as_uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=topic_id)
