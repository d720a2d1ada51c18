"""Fields of responses that several APIs share: errors, errors for each partition, and constants."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypedDict, TypeVar
from uuid import UUID

from kio.static.primitive import i32, i32Timedelta

from reference_broker.controller.write_operations import NOT_CONTROLLER as NOT_CONTROLLER
from reference_broker.controller.write_operations import ApiError as ApiError
from reference_broker.ports.slicing import ERRORS_PER_SLICE, Sliced
from reference_broker.wire.errors import Error, ErrorCode

NO_THROTTLE = i32Timedelta.parse(timedelta(0))

TOPIC_OPERATIONS = i32(sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11)))
"""Without an authorizer everyone may do everything to a topic. These are AclOperation bits, as Kafka returns them."""
CLUSTER_OPERATIONS = i32(sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12)))
OPERATIONS_NOT_REQUESTED = i32(-(2**31))


class ErrorFields(TypedDict):
    """The two fields of an error in most responses."""

    error_code: ErrorCode
    error_message: str | None


def error_fields(outcome: object) -> ErrorFields:
    """Return the error code and message of an ApiError. Any other ``outcome`` means success."""
    if isinstance(outcome, ApiError):
        return ErrorFields(error_code=outcome.error, error_message=outcome.message)
    return ErrorFields(error_code=ErrorCode.none, error_message=None)


def as_uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=topic_id)


def error_for_version(error: Error, api_version: int, knows_fenced_from: int) -> Error:
    """Return the error that a client of this version knows.

    Older clients do not know PRODUCER_FENCED (KIP-588). They get INVALID_PRODUCER_EPOCH, which is as fatal to them.
    """
    if error is ErrorCode.producer_fenced and api_version < knows_fenced_from:
        return ErrorCode.invalid_producer_epoch
    return error


TopicT = TypeVar("TopicT")


class _RequestedTopic(Protocol):
    """A topic of the request."""

    @property
    def name(self) -> Any: ...

    @property
    def partitions(self) -> Sequence[Any]: ...


def topics_with_errors(
    requested: Iterable[_RequestedTopic],
    errors: Iterable[Error],
    topic: Callable[..., TopicT],
    partition: Callable[..., object],
) -> Sliced[tuple[TopicT, ...]]:
    """Build the topics of a response that has one error for each requested partition.

    ``topic`` and ``partition`` are the classes of the response. The errors come in the request's order.
    """
    remaining, failed_topics, count = iter(errors), list[TopicT](), 0
    for requested_topic in requested:
        partitions = []
        for topic_partition in requested_topic.partitions:
            partitions.append(partition(partition_index=topic_partition.partition_index, error_code=next(remaining)))
            count += 1
            if count % ERRORS_PER_SLICE == 0:
                yield
        failed_topics.append(topic(name=requested_topic.name, partitions=tuple(partitions)))
    return tuple(failed_topics)
