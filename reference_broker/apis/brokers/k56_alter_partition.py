"""AlterPartition: a leader changes the in-sync replicas of its partitions.

* The active controller judges each partition by all changes before, also by those on their way. It answers once the
  good ones are committed and published there.
* A replica that is fenced, leaving or of another broker epoch is INELIGIBLE_REPLICA.
* A repeated request finds a newer partition epoch: INVALID_UPDATE_VERSION.
* Unlike Kafka: partitions are not reassigned, so a change of the ISR never changes the leader. The leader is in the new
  ISR and lives, or the change is refused.

KIPs: 497, 704, 841, 903.
"""

from collections.abc import Generator
from typing import cast

from kio.schema.alter_partition.v3.request import AlterPartitionRequest, TopicData
from kio.schema.alter_partition.v3.request import PartitionData as Wanted
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData
from kio.schema.alter_partition.v3.response import TopicData as TopicAnswer
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.proposing import NO_THROTTLE, UNITS_PER_ENTRY, Refusal
from reference_broker.controller.operations import Planning
from reference_broker.controller.partition_changes import RECOVERED, RECOVERING, PartitionChanges
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import MetadataRecord
from reference_broker.metadata.replay import changed_partition

NO_CHECK = -1
"""As a replica's broker epoch: it is not compared."""


def handle(broker: Broker, call: Call, body: AlterPartitionRequest) -> None:
    """Answers later: one entry for each of the request, in its order."""
    controller = broker.controller
    stale: Refusal | None = None
    answers: list[TopicAnswer] = []

    def planning() -> Planning:
        nonlocal stale
        stale = _stale_epoch(controller.latest, body)
        records: list[MetadataRecord] = []
        if stale is None:
            yield from _plan(broker, body, records, answers)
        return records

    def answer(refused: Refusal | None) -> None:
        refusal = refused or stale
        call.respond(
            AlterPartitionResponse(
                throttle_time=NO_THROTTLE,
                error_code=refusal.error if refusal else ErrorCode.none,
                topics=() if refusal else tuple(answers),
            )
        )

    controller.submit(planning(), answer, name="alter partitions", atomic=False)


API = Api.of(AlterPartitionRequest, handle)


def _stale_epoch(image: MetadataImage, body: AlterPartitionRequest) -> Refusal | None:
    known = image.brokers.get(int(body.broker_id))
    if known is not None and known.broker_epoch == body.broker_epoch:
        return None
    return Refusal(ErrorCode.stale_broker_epoch, "Not the epoch of a registered broker.")


def _plan(
    broker: Broker, body: AlterPartitionRequest, records: list[MetadataRecord], answers: list[TopicAnswer]
) -> Generator[None, None, None]:
    """Fills ``records`` and ``answers``, in slices. ``latest`` does not change meanwhile: this is the one plan."""
    latest = broker.controller.latest
    changes = PartitionChanges.of(latest)
    for entry in body.topics:
        topic = None if entry.topic_id is None else latest.topic_by_id(entry.topic_id.bytes)
        found: list[PartitionData] = []
        for wanted in entry.partitions:
            if topic is None:
                found.append(_error(wanted, ErrorCode.unknown_topic_id))
            else:
                found.append(_alter(broker, changes, int(body.broker_id), topic, wanted, records))
            if broker.controller.spend(UNITS_PER_ENTRY):
                yield
        answers.append(_topic_answer(entry, found))


def _topic_answer(entry: TopicData, partitions: list[PartitionData]) -> TopicAnswer:
    return TopicAnswer(topic_id=entry.topic_id, partitions=tuple(partitions))


def _alter(
    broker: Broker,
    changes: PartitionChanges,
    leader_id: int,
    topic: TopicImage,
    wanted: Wanted,
    records: list[MetadataRecord],
) -> PartitionData:
    latest, index = broker.controller.latest, int(wanted.partition_index)
    if not 0 <= index < len(topic.partitions):
        return _error(wanted, ErrorCode.unknown_topic_or_partition)
    partition = topic.partitions[index]
    problem = _stale_state(partition, leader_id, wanted) or _bad_isr(latest, partition, wanted)
    if problem is not None:
        return _error(wanted, problem)
    record = changes.change(
        topic.topic_id,
        index,
        partition,
        isr=tuple(int(replica.broker_id) for replica in wanted.new_isr_with_epochs),
        recovery_state=int(wanted.leader_recovery_state),
    )
    if record is not None:
        records.append(record)
        partition = changed_partition(partition, record)
    return _done(index, partition)


def _stale_state(partition: PartitionImage, leader_id: int, wanted: Wanted) -> ErrorCode | None:
    """A leader that knows more than this controller talks to a controller of the past."""
    if wanted.leader_epoch > partition.leader_epoch or wanted.partition_epoch > partition.partition_epoch:
        return ErrorCode.not_controller
    if wanted.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if leader_id != partition.leader:
        return ErrorCode.invalid_request
    if wanted.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    return None


def _bad_isr(image: MetadataImage, partition: PartitionImage, wanted: Wanted) -> ErrorCode | None:
    isr = [int(replica.broker_id) for replica in wanted.new_isr_with_epochs]
    state = int(wanted.leader_recovery_state)
    if not isr or len(dict.fromkeys(isr)) != len(isr) or any(replica not in partition.replicas for replica in isr):
        return ErrorCode.invalid_request
    if partition.leader not in isr or state not in (RECOVERED, RECOVERING):
        return ErrorCode.invalid_request
    if state == RECOVERING and (len(isr) > 1 or partition.leader_recovery_state == RECOVERED):
        return ErrorCode.invalid_request
    for replica in wanted.new_isr_with_epochs:
        known = image.brokers.get(int(replica.broker_id))
        if known is None or known.fenced or known.in_controlled_shutdown:
            return ErrorCode.ineligible_replica
        if replica.broker_epoch not in (NO_CHECK, known.broker_epoch):
            return ErrorCode.ineligible_replica
    return None


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
