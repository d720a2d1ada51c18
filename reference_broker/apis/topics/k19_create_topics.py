"""CreateTopics: makes topics, durably, all good ones of a request at once or none.

* The active controller answers once the records are committed and published there. Others pass the request on.
* Errors are judged by all requests before, also by those that are still on their way.
* A request that is larger than a batch of metadata is a transaction of the metadata log. Readers see all its topics or
  none.
* Unlike Kafka: the timeout is not used. A request may lead to 2,000,000 records, where Kafka stops at 10,000.

KIPs: 4, 464, 516, 525, 868.
"""

from collections import Counter
from collections.abc import Generator
from functools import lru_cache

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.configs.config_rows import ConfigRow, topic_rows
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, UNITS_PER_ENTRY, Refusal, as_uuid, chained
from reference_broker.apis.topics.topic_creation import PlannedTopic, TopicPlanner, WantedTopic
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.operations import Planning
from reference_broker.controller.refusal import NOT_CONTROLLER
from reference_broker.wire.apis import ApiKey

REMEMBERED_ROWS = 16
"""Different settings of topics, in one process."""

DUPLICATE = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")


def handle(broker: Broker, call: Call, body: CreateTopicsRequest) -> None:
    """Answers later. One result for each name of the request, in its order."""
    plans: dict[str, PlannedTopic | Refusal] = {}

    def planning() -> Planning:
        yield from _plan(broker, body, plans)
        good = [plan for plan in plans.values() if isinstance(plan, PlannedTopic)]
        return () if body.validate_only else chained(plan.records() for plan in good)

    def answer(refused: Refusal | None) -> None:
        names = plans if refused is None else dict.fromkeys(topic.name for topic in body.topics)
        results = tuple(_result(name, plans.get(name, refused), refused, broker.config) for name in names)
        call.respond(CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=results))

    if not passed_on(broker, call, ApiKey.CREATE_TOPICS, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.submit(planning(), answer, name="create topics")


API = Api.of(CreateTopicsRequest, handle)


def _plan(
    broker: Broker, body: CreateTopicsRequest, plans: dict[str, PlannedTopic | Refusal]
) -> Generator[None, None, None]:
    """Fills ``plans``, in slices."""
    planner, wanted = TopicPlanner.of(broker), {topic.name: topic for topic in body.topics}
    times = Counter(topic.name for topic in body.topics)
    for name, topic in wanted.items():
        plans[name] = DUPLICATE if times[name] > 1 else planner.plan(_wanted(topic))
        if broker.controller.spend(UNITS_PER_ENTRY):
            yield


def _wanted(topic: CreatableTopic) -> WantedTopic:
    return WantedTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=tuple((config.name, config.value) for config in topic.configs),
        assignments=tuple((one.partition_index, tuple(one.broker_ids)) for one in topic.assignments) or None,
    )


def _result(
    name: str, plan: PlannedTopic | Refusal | None, refused: Refusal | None, config: BrokerConfig
) -> CreatableTopicResult:
    # A plan was judged by what was on its way: with the leadership that is gone, and the verdict with it.
    refusal = plan if isinstance(plan, Refusal) and refused is not NOT_CONTROLLER else refused
    if refusal is not None or not isinstance(plan, PlannedTopic):
        assert refusal is not None, "a topic without a plan was refused with all others"
        return _refused(name, refusal)
    return CreatableTopicResult(
        name=TopicName(name),
        topic_id=as_uuid(plan.topic_id),
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(plan.partitions),
        replication_factor=i16(plan.replication_factor),
        configs=_config_rows(config, tuple(plan.configs.items())),
    )


@lru_cache(REMEMBERED_ROWS)
def _config_rows(config: BrokerConfig, configs: tuple[tuple[str, str], ...]) -> tuple[CreatableTopicConfigs, ...]:
    """Made once for equal settings, which most topics have."""
    return tuple(_config_row(row) for row in topic_rows(config, dict(configs)))


def _config_row(row: ConfigRow) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=row.key.name,
        value=row.value,
        read_only=row.read_only,
        config_source=i8(row.source),
        is_sensitive=False,
    )


def _refused(name: str, refusal: Refusal) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=TopicName(name), topic_id=None, error_code=refusal.error, error_message=refusal.message, configs=()
    )
