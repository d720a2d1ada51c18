"""CreatePartitions: adds partitions to topics, all good ones of a request in one batch (KIP-195)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, propose
from reference_broker.apis.topic_creation import manual_problem, partition_records, place
from reference_broker.model.metadata_image import MetadataImage, TopicImage
from reference_broker.raft.metadata_records import PartitionRecord
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.CREATE_PARTITIONS,
    min_version=0,
    max_version=3,
    behaviour="Answered once the records are durable and the new partitions are open.",
    simplifications="The timeout is not used: nothing waits for other brokers.",
    kips=(195, 599),
)


@dataclass(frozen=True, slots=True)
class _Plan:
    records: tuple[PartitionRecord, ...]


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers later. One result for each name of the request, in its order."""
    assert isinstance(body, CreatePartitionsRequest)
    plans = _plans(broker.controller.latest, body)
    records = [record for plan in plans.values() if isinstance(plan, _Plan) for record in plan.records]

    def answer(refusal: Refusal | None) -> None:
        results = tuple(_result(name, plan, refusal) for name, plan in plans.items())
        call.respond(CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=results))

    propose(broker, [] if body.validate_only else records, answer)


def _plans(image: MetadataImage, body: CreatePartitionsRequest) -> Mapping[str, _Plan | Refusal]:
    plans: dict[str, _Plan | Refusal] = {}
    for topic in body.topics:
        if topic.name in plans:
            plans[topic.name] = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")
        else:
            plans[topic.name] = _plan(image, topic)
    return plans


def _plan(image: MetadataImage, wanted: CreatePartitionsTopic) -> _Plan | Refusal:
    topic = image.topics.get(wanted.name)
    if topic is None:
        return Refusal(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    current = len(topic.partitions)
    if wanted.count == current:
        return Refusal(ErrorCode.invalid_partitions, f"Topic already has {current} partition(s).")
    if wanted.count < current:
        return Refusal(
            ErrorCode.invalid_partitions,
            f"The topic {wanted.name} currently has {current} partition(s); {wanted.count} would not be an increase.",
        )
    replicas = _replicas(image, wanted, topic)
    if isinstance(replicas, Refusal):
        return replicas
    return _Plan(tuple(partition_records(topic.topic_id, current, replicas, image)))


def _replicas(
    image: MetadataImage, wanted: CreatePartitionsTopic, topic: TopicImage
) -> Sequence[tuple[int, ...]] | Refusal:
    current, factor = len(topic.partitions), len(topic.partitions[0].replicas)
    additional = wanted.count - current
    if wanted.assignments is None:
        return place(image, additional, factor, first=current)
    if len(wanted.assignments) != additional:
        return Refusal(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified.",
        )
    replicas = [tuple(assignment.broker_ids) for assignment in wanted.assignments]
    for brokers in replicas:
        problem = manual_problem(image, brokers, factor)
        if problem is not None:
            return problem
    return replicas


def _result(name: str, plan: _Plan | Refusal, refused: Refusal | None) -> CreatePartitionsTopicResult:
    refusal = plan if isinstance(plan, Refusal) else refused
    if refusal is None:
        return CreatePartitionsTopicResult(name=TopicName(name), error_code=ErrorCode.none)
    return CreatePartitionsTopicResult(
        name=TopicName(name), error_code=refusal.error, error_message=refusal.message
    )
