"""TxnOffsetCommit: commits offsets of a group as a part of a producer's transaction.

* The offsets are visible only after the transaction is committed, and those of an aborted one never.
* The group's partition of the offsets topic must be a part of the transaction. Its coordinator verifies that.
* The response follows when all replicas in sync have the commits. They are no heartbeat of the member.
* Unknown partitions get UNKNOWN_TOPIC_OR_PARTITION whatever else is refused. If all are, no coordinator is queried.

Version notes:
* v0-1: old clients do not know COORDINATOR_LOAD_IN_PROGRESS, and get COORDINATOR_NOT_AVAILABLE (KAFKA-7296).
* v0-2: name no member, so a zombie is fenced by its producer's epoch only.
* v3: has the member, its instance and its generation, which are checked unless all of them are missing.
* v4: TRANSACTION_ABORTABLE.
* v5: adds the partition of the offsets topic to the transaction.

KIPs: 98, 345, 447, 890.
"""

from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, respond_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, topics_with_errors
from reference_broker.groups.offset_metadata_manager import CommitRequest, OffsetsTransaction, RequestedOffset
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import Error, ErrorCode

KNOWS_LOADING_FROM = 2


def handle(broker: Broker, call: Call, body: TxnOffsetCommitRequest) -> None:
    """Respond later: an error for each partition, in the request's order."""
    request = CommitRequest(
        group_id=body.group_id,
        generation=body.generation_id,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        offsets=tuple(
            RequestedOffset(
                topic.name,
                partition.partition_index,
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata,
            )
            for topic in body.topics
            for partition in topic.partitions
        ),
        transaction=OffsetsTransaction(body.transactional_id, body.producer_id, body.producer_epoch, call.api_version),
    )

    def build_response(errors: list[Error]) -> Sliced[object]:
        topics = topics_with_errors(body.topics, errors, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)
        return TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=(yield from topics))

    def committed(errors: list[Error]) -> None:
        known_errors = [_known(error, call.api_version) for error in errors]
        respond_in_slices(broker, call, build_response(known_errors))

    broker.groups.offset_manager.commit_offsets(request, callback(call, committed), call.run)


API: Api[TxnOffsetCommitRequest] = Api.of(TxnOffsetCommitRequest, handle)


def _known(error: Error, api_version: int) -> Error:
    is_loading = error is ErrorCode.coordinator_load_in_progress
    return ErrorCode.coordinator_not_available if is_loading and api_version < KNOWS_LOADING_FROM else error
