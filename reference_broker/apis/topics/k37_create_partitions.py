"""CreatePartitions: adds partitions to topics, all good ones of a request at once or none.

* The active controller answers once the records are committed and published there. Others pass the request on.
* All good entries of a request are seen at once.
* Unlike Kafka: the timeout is not used, because nothing waits for other brokers.

KIPs: 195, 599.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, chained
from reference_broker.apis.topics.topic_creation import (
    Replicas,
    manual_problem,
    partition_records,
    too_many_partitions,
)
from reference_broker.controller.operations import Planning
from reference_broker.controller.refusal import NOT_CONTROLLER
from reference_broker.controller.replica_placement import placement
from reference_broker.metadata.image import MetadataImage, TopicImage
from reference_broker.metadata.records import PartitionRecord
from reference_broker.ports.chance import RandomSource
from reference_broker.wire.apis import ApiKey

DUPLICATE = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")


@dataclass(frozen=True, slots=True)
class _Plan:
    """New partitions of ``topic``, up to ``count``."""

    topic: TopicImage
    count: int
    replicas: Replicas

    def records(self, image: MetadataImage) -> Iterator[PartitionRecord]:
        return partition_records(self.topic.topic_id, len(self.topic.partitions), self.count, self.replicas, image)


def handle(broker: Broker, call: Call, body: CreatePartitionsRequest) -> None:
    """Answers later. One result for each name of the request, in its order."""
    plans: dict[str, _Plan | Refusal] = {}

    def planning() -> Planning:
        latest = broker.controller.latest
        for topic in body.topics:
            plans[topic.name] = DUPLICATE if topic.name in plans else _plan(latest, topic, broker.random)
            if broker.controller.spend(1 + len(topic.assignments or ())):
                yield
        good = [plan for plan in plans.values() if isinstance(plan, _Plan)]
        return () if body.validate_only else chained(plan.records(latest) for plan in good)

    def answer(refused: Refusal | None) -> None:
        names = plans if refused is None else dict.fromkeys(topic.name for topic in body.topics)
        results = tuple(_result(name, plans.get(name), refused) for name in names)
        call.respond(CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=results))

    if not passed_on(broker, call, ApiKey.CREATE_PARTITIONS, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.submit(planning(), answer, name="create partitions")


API = Api.of(CreatePartitionsRequest, handle)


def _plan(image: MetadataImage, wanted: CreatePartitionsTopic, random: RandomSource) -> _Plan | Refusal:
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
    refusal = too_many_partitions(wanted.count)
    if refusal is not None:
        return refusal
    replicas = _replicas(image, wanted, topic, random)
    return replicas if isinstance(replicas, Refusal) else _Plan(topic, wanted.count, replicas)


def _replicas(
    image: MetadataImage, wanted: CreatePartitionsTopic, topic: TopicImage, random: RandomSource
) -> Replicas | Refusal:
    current, factor = len(topic.partitions), len(topic.partitions[0].replicas)
    additional = wanted.count - current
    if wanted.assignments is None:
        return placement(image, factor, random, topic.partitions)
    if len(wanted.assignments) != additional:
        return Refusal(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified.",
        )
    replicas = [tuple(int(broker) for broker in assignment.broker_ids) for assignment in wanted.assignments]
    for brokers in replicas:
        problem = manual_problem(image, brokers, factor)
        if problem is not None:
            return problem
    return iter(replicas)


def _result(name: str, plan: _Plan | Refusal | None, refused: Refusal | None) -> CreatePartitionsTopicResult:
    # A plan was judged by what was on its way: with the leadership that is gone, and the verdict with it.
    refusal = plan if isinstance(plan, Refusal) and refused is not NOT_CONTROLLER else refused
    if refusal is None:
        return CreatePartitionsTopicResult(name=TopicName(name), error_code=ErrorCode.none)
    return CreatePartitionsTopicResult(name=TopicName(name), error_code=refusal.error, error_message=refusal.message)
