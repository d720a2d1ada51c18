"""What clients of a coordinator are told of an error of its log (Kafka's CoordinatorOperationExceptionHelper)."""

from collections.abc import Mapping
from typing import Final

from reference_broker.wire.errors import Error, ErrorCode

_TOLD: Final[Mapping[Error, Error]] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
}


def told_as(error: Error) -> Error:
    """Returns what is told instead of the log's error."""
    return _TOLD.get(error, error)
