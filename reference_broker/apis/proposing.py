"""How admin APIs change the metadata: refusals as values, and one way to propose and answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from reference_broker.apis.broker import Broker
from reference_broker.log.disk import DiskError
from reference_broker.raft.controller import TooManyRecords
from reference_broker.raft.metadata_records import MetadataRecord

NO_THROTTLE = i32Timedelta.parse(timedelta(0))

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Without an authorizer everyone may do to a topic what can be done to one (AclOperation bits, as Kafka answers)."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
OPERATIONS_NOT_ASKED = -(2**31)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one part of a request is not done."""

    error: ErrorCode
    message: str


def propose(
    broker: Broker, records: Sequence[MetadataRecord], answer: Callable[[Refusal | None], None]
) -> None:
    """Calls ``answer(None)`` once the records are durable and published, or at once with why nothing was written.

    Without records the answer waits for what was proposed before: it was judged by that.
    """
    try:
        broker.controller.propose(records, lambda: answer(None))
    except TooManyRecords as refused:
        answer(Refusal(ErrorCode.policy_violation, f"Unable to perform excessively large batch operation: {refused}."))
    except DiskError as refused:
        answer(Refusal(ErrorCode.kafka_storage_error, str(refused)))


def as_uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=topic_id)
