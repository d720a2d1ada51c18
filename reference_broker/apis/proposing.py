"""What the admin APIs share: refusals as values, and constants of answers."""

from datetime import timedelta
from uuid import UUID

from kio.static.primitive import i32Timedelta

from reference_broker.controller.refusal import NOT_CONTROLLER, Refusal

__all__ = [
    "CLUSTER_OPERATIONS",
    "NOT_CONTROLLER",
    "NO_THROTTLE",
    "OPERATIONS_NOT_ASKED",
    "TOPIC_OPERATIONS",
    "Refusal",
    "as_uuid",
]

NO_THROTTLE = i32Timedelta.parse(timedelta(0))

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Without an authorizer everyone may do everything to a topic. These are the AclOperation bits that Kafka answers."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
OPERATIONS_NOT_ASKED = -(2**31)


def as_uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=topic_id)
