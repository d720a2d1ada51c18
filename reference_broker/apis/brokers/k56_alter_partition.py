"""AlterPartition: a leader changes the in-sync replicas of its partitions.

* The active controller judges each partition by all changes before, also by those on their way. It answers once the
  good ones are committed and published there.
* A replica that is fenced, leaving or of another broker epoch is INELIGIBLE_REPLICA.
* A repeated request finds a newer partition epoch: INVALID_UPDATE_VERSION.
* Unlike Kafka: partitions are not reassigned, so a change of the ISR never changes the leader. The leader is in the new
  ISR and lives, or the change is refused.

KIPs: 497, 704, 841, 903.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from kio.schema.alter_partition.v3.request import AlterPartitionRequest, TopicData
from kio.schema.alter_partition.v3.request import PartitionData as Wanted
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData
from kio.schema.alter_partition.v3.response import TopicData as TopicAnswer
from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.controller.planning.isr_changes import IsrOutcomes, WantedIsr
from reference_broker.metadata.image import PartitionImage
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: AlterPartitionRequest) -> None:
    """Answers later: one entry for each of the request, in its order."""

    def answer(outcomes: IsrOutcomes | Refusal) -> None:
        refused = outcomes if isinstance(outcomes, Refusal) else None
        topics = () if isinstance(outcomes, Refusal) else zip(body.topics, outcomes, strict=True)
        call.respond(
            AlterPartitionResponse(
                throttle_time=NO_THROTTLE,
                error_code=refused.error if refused else ErrorCode.none,
                topics=tuple(_topic_answer(entry, found) for entry, found in topics),
            )
        )

    wanted = [(_bytes(entry.topic_id), [_wanted(one) for one in entry.partitions]) for entry in body.topics]
    broker.controller.change_isrs(int(body.broker_id), int(body.broker_epoch), wanted, answer)


API = Api.of(AlterPartitionRequest, handle)


def _bytes(topic_id: UUID | None) -> bytes | None:
    return None if topic_id is None else topic_id.bytes


def _wanted(partition: Wanted) -> WantedIsr:
    return WantedIsr(
        index=int(partition.partition_index),
        leader_epoch=int(partition.leader_epoch),
        partition_epoch=int(partition.partition_epoch),
        isr=tuple((int(replica.broker_id), int(replica.broker_epoch)) for replica in partition.new_isr_with_epochs),
        recovery_state=int(partition.leader_recovery_state),
    )


def _topic_answer(entry: TopicData, found: Sequence[PartitionImage | ErrorCode]) -> TopicAnswer:
    told = zip(entry.partitions, found, strict=True)
    return TopicAnswer(
        topic_id=entry.topic_id, partitions=tuple(_partition_answer(wanted, outcome) for wanted, outcome in told)
    )


def _partition_answer(wanted: Wanted, outcome: PartitionImage | ErrorCode) -> PartitionData:
    if isinstance(outcome, ErrorCode):
        return _error(wanted, outcome)
    return _done(int(wanted.partition_index), outcome)


def _done(index: int, partition: PartitionImage) -> PartitionData:
    return PartitionData(
        partition_index=i32(index),
        error_code=ErrorCode.none,
        leader_id=BrokerId(partition.leader),
        leader_epoch=i32(partition.leader_epoch),
        isr=cast(tuple[BrokerId, ...], partition.isr),
        leader_recovery_state=i8(partition.leader_recovery_state),
        partition_epoch=i32(partition.partition_epoch),
    )


def _error(wanted: Wanted, error: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=wanted.partition_index,
        error_code=error,
        leader_id=BrokerId(0),
        leader_epoch=i32(0),
        partition_epoch=i32(0),
    )
