"""CreateTopics: makes topics, durably, all good ones of a request in one batch (KIP-464, KIP-516, KIP-525)."""

from collections.abc import Mapping

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.config_rows import topic_rows
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, as_uuid, propose
from reference_broker.apis.topic_creation import PlannedTopic, WantedTopic, plan_topic
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.CREATE_TOPICS,
    min_version=2,
    max_version=7,
    behaviour="Answered once the records are durable and the partitions are open. Errors are judged by all requests "
    "before, also those still on their way.",
    simplifications="The timeout is not used: nothing waits for other brokers. An operation of more than 10,000 "
    "records is refused with POLICY_VIOLATION, as in Kafka.",
    kips=(4, 464, 516, 525),
)

DUPLICATE = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers later. One result for each name of the request, in its order."""
    assert isinstance(body, CreateTopicsRequest)
    plans = _plans(broker, body)
    records = [record for plan in plans.values() if isinstance(plan, PlannedTopic) for record in plan.records]

    def answer(refusal: Refusal | None) -> None:
        results = tuple(_result(broker, name, plan, refusal) for name, plan in plans.items())
        call.respond(CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=results))

    propose(broker, [] if body.validate_only else records, answer)


def _plans(broker: Broker, body: CreateTopicsRequest) -> Mapping[str, PlannedTopic | Refusal]:
    names: dict[str, int] = {}
    for topic in body.topics:
        names[topic.name] = names.get(topic.name, 0) + 1
    wanted: dict[str, CreatableTopic] = {topic.name: topic for topic in body.topics}
    return {
        name: DUPLICATE if times > 1 else plan_topic(broker, _wanted(wanted[name])) for name, times in names.items()
    }


def _wanted(topic: CreatableTopic) -> WantedTopic:
    return WantedTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=tuple((config.name, config.value) for config in topic.configs),
        assignments=tuple((one.partition_index, tuple(one.broker_ids)) for one in topic.assignments) or None,
    )


def _result(
    broker: Broker, name: str, plan: PlannedTopic | Refusal, refused: Refusal | None
) -> CreatableTopicResult:
    refusal = plan if isinstance(plan, Refusal) else refused
    if refusal is not None or isinstance(plan, Refusal):
        assert refusal is not None, "a plan that is a refusal is the refusal"
        return _refused(name, refusal)
    return CreatableTopicResult(
        name=TopicName(name),
        topic_id=as_uuid(plan.topic_id),
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(len(plan.replicas)),
        replication_factor=i16(len(plan.replicas[0])),
        configs=tuple(
            CreatableTopicConfigs(
                name=row.key.name,
                value=row.value,
                read_only=row.read_only,
                config_source=i8(row.source),
                is_sensitive=False,
            )
            for row in topic_rows(broker.config, plan.configs)
        ),
    )


def _refused(name: str, refusal: Refusal) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=TopicName(name), topic_id=None, error_code=refusal.error, error_message=refusal.message, configs=()
    )
