"""What the admin APIs share: refusals as values, constants of answers.

Changes go through ``broker.controller.submit``: judged when their turn comes, answered when they are published here.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain
from uuid import UUID

from kio.static.primitive import i32Timedelta

from reference_broker.controller.refusal import NOT_CONTROLLER, Refusal
from reference_broker.metadata.records import MetadataRecord

__all__ = [
    "CLUSTER_OPERATIONS",
    "NOT_CONTROLLER",
    "NO_THROTTLE",
    "OPERATIONS_NOT_ASKED",
    "TOPIC_OPERATIONS",
    "UNITS_PER_ENTRY",
    "Refusal",
    "as_uuid",
    "chained",
]

NO_THROTTLE = i32Timedelta.parse(timedelta(0))

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Without an authorizer everyone may do to a topic what can be done to one (AclOperation bits, as Kafka answers)."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
OPERATIONS_NOT_ASKED = -(2**31)

UNITS_PER_ENTRY = 3
"""What looking at one entry of an admin request costs of an event's time, in units of about 10 us."""


def chained(parts: Iterable[Iterable[MetadataRecord]]) -> Iterator[MetadataRecord]:
    """The records of all parts, made when they are taken."""
    return chain.from_iterable(parts)


def as_uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=topic_id)
