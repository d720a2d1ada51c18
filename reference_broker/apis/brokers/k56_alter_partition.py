"""AlterPartition: a leader changes the in-sync replicas of its partitions.

* The active controller judges each partition by all earlier changes, also by those that are not committed yet. It
  responds once the good changes are committed and published there.
* A replica that is fenced, leaving or of another broker epoch is INELIGIBLE_REPLICA.
* A repeated request finds a newer partition epoch: INVALID_UPDATE_VERSION.
* Unlike Kafka: partitions are not reassigned, so a change of the ISR never changes the leader. The leader is in the new
  ISR and lives, or the change is refused.

KIPs: 497, 704, 841, 903.
"""

from collections.abc import Sequence
from typing import cast

from kio.schema.alter_partition.v3.request import AlterPartitionRequest, TopicData
from kio.schema.alter_partition.v3.request import PartitionData as Wanted
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData
from kio.schema.alter_partition.v3.response import TopicData as TopicResult
from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.partition_requests import IsrChange, IsrOutcomes, RequestedIsr
from reference_broker.metadata.image import PartitionImage
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: AlterPartitionRequest) -> None:
    """Respond later, with one entry for each entry of the request, in its order."""

    def respond(outcomes: IsrOutcomes | ApiError) -> None:
        topics = () if isinstance(outcomes, ApiError) else zip(body.topics, outcomes, strict=True)
        call.respond(
            AlterPartitionResponse(
                throttle_time=NO_THROTTLE,
                error_code=error_fields(outcomes)["error_code"],
                topics=tuple(_topic_result(entry, images) for entry, images in topics),
            )
        )

    requested_topics = [
        (
            None if entry.topic_id is None else entry.topic_id.bytes,
            [_wanted(partition) for partition in entry.partitions],
        )
        for entry in body.topics
    ]
    broker.controller.append_write_event(
        IsrChange(body.broker_id, body.broker_epoch, requested_topics), callback(call, respond)
    )


API = Api.of(AlterPartitionRequest, handle)


def _wanted(partition: Wanted) -> RequestedIsr:
    return RequestedIsr(
        index=partition.partition_index,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple((replica.broker_id, replica.broker_epoch) for replica in partition.new_isr_with_epochs),
        recovery_state=partition.leader_recovery_state,
    )


def _topic_result(entry: TopicData, outcomes: Sequence[PartitionImage | ErrorCode]) -> TopicResult:
    results = zip(entry.partitions, outcomes, strict=True)
    return TopicResult(
        topic_id=entry.topic_id,
        partitions=tuple(_partition_result(requested, outcome) for requested, outcome in results),
    )


def _partition_result(requested: Wanted, outcome: PartitionImage | ErrorCode) -> PartitionData:
    if isinstance(outcome, ErrorCode):
        return PartitionData(
            partition_index=requested.partition_index,
            error_code=outcome,
            leader_id=BrokerId(0),
            leader_epoch=i32(0),
            partition_epoch=i32(0),
        )
    return PartitionData(
        partition_index=requested.partition_index,
        error_code=ErrorCode.none,
        leader_id=BrokerId(outcome.leader),
        leader_epoch=i32(outcome.leader_epoch),
        isr=cast(tuple[BrokerId, ...], outcome.isr),
        leader_recovery_state=i8(outcome.leader_recovery_state),
        partition_epoch=i32(outcome.partition_epoch),
    )
