"""Metadata: brokers, topics, leaders; creates topics that are asked for, where that is on (KIP-516, KIP-320)."""

from dataclasses import dataclass, replace
from typing import TypeAlias, cast
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v13.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.groups.offsets_topic_creation import ask_to_create_offsets_topic
from reference_broker.apis.metadata.topic_description import described
from reference_broker.apis.proposing import (
    NO_THROTTLE,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    as_uuid,
)
from reference_broker.apis.topics.automatic_creation import ask_to_create
from reference_broker.controller.planning.topic_creation import WantedTopic, request_problem
from reference_broker.groups.storage.topic import OFFSETS_TOPIC
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.image import BrokerImage, PartitionImage, TopicImage
from reference_broker.metadata.topic_names import is_internal, name_problem
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey
from reference_broker.wire.drafts import (
    MetadataBroker1000,
    MetadataPartition1000,
    MetadataResponse1000,
    MetadataTopic1000,
)

CARD = Card(
    api_key=ApiKey.METADATA,
    min_version=0,
    max_version=13,
    behaviour="All topics: null, or the empty list in version 0. Topics by ID from version 12. A topic that is to be "
    "created is answered UNKNOWN_TOPIC_OR_PARTITION at once, while the active controller is asked to create it, as in "
    "Kafka; clients ask again. Draft 1000 says the metadata epoch of what is told.",
    simplifications="-",
    kips=(4, 232, 320, 430, 516, 526),
)

TOPIC_IDS_FROM = 12
OFFLINE_REPLICAS_FROM = 1
"""Before, replicas that are not live are not named, and are an error."""
MOST_CREATED_AT_ONCE = 100
"""Topics that one request starts to create; the others are asked for again. Each is a change of its own."""

_NO_ID: UUID | None = None
_BrokerIds: TypeAlias = tuple[BrokerId, ...]


def handle(broker: Broker, call: Call, body: object) -> MetadataResponse | MetadataResponse1000:
    """Topics in the request's order, each once; all topics in the order in which they were created."""
    assert isinstance(body, MetadataRequest)
    cache = broker.metadata
    operations = TOPIC_OPERATIONS if body.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
    if body.topics is None or (call.api_version == 0 and not body.topics):
        topics = [_found(broker, topic, operations) for topic in cache.topics.values()]
    else:
        topics = _asked(broker, call.api_version, body, body.topics, operations)
    if call.api_version < OFFLINE_REPLICAS_FROM:
        topics = [_of_live_replicas(topic) for topic in topics]
    if call.api_version >= FIRST_DRAFT_VERSION:
        return _draft(broker, topics)
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            MetadataResponseBroker(node_id=BrokerId(one.broker_id), host=one.host, port=i32(one.port), rack=one.rack)
            for one in cache.live_brokers()
        ),
        cluster_id=cache.cluster_id,
        controller_id=BrokerId(cache.controller_id),
        topics=tuple(topics),
        error_code=ErrorCode.none,
    )


def _draft(broker: Broker, topics: list[MetadataResponseTopic]) -> MetadataResponse1000:
    """With the epoch of what is told (M-4)."""
    cache = broker.metadata
    return MetadataResponse1000(
        brokers=tuple(
            MetadataBroker1000(node_id=one.broker_id, host=one.host, port=one.port, rack=one.rack)
            for one in cache.live_brokers()
        ),
        cluster_id=cache.cluster_id,
        controller_id=cache.controller_id,
        metadata_epoch=cache.metadata_epoch,
        topics=tuple(_draft_topic(broker, topic) for topic in topics),
    )


def _draft_topic(broker: Broker, topic: MetadataResponseTopic) -> MetadataTopic1000:
    """Made once for each answer that is remembered: 10,000 partitions cost 20 ms."""
    known = broker.topic_answers.get(topic.name or "")
    if not isinstance(known, _Answer) or known.answer.partitions is not topic.partitions:
        return _in_draft_layout(topic)
    if known.draft is None:
        known.draft = _in_draft_layout(topic)
    return known.draft


def _in_draft_layout(topic: MetadataResponseTopic) -> MetadataTopic1000:
    return MetadataTopic1000(
        error_code=int(topic.error_code),
        name=topic.name or "",
        is_internal=topic.is_internal,
        partitions=tuple(
            MetadataPartition1000(
                error_code=int(one.error_code),
                partition_index=one.partition_index,
                leader_id=one.leader_id,
                replica_nodes=one.replica_nodes,
                isr_nodes=one.isr_nodes,
                offline_replicas=one.offline_replicas,
            )
            for one in topic.partitions
        ),
    )


def _asked(
    broker: Broker, api_version: int, body: MetadataRequest, topics: tuple[MetadataRequestTopic, ...], operations: int
) -> list[MetadataResponseTopic]:
    cache = broker.metadata
    answers: list[MetadataResponseTopic] = []
    missing: list[str] = []
    for entry in dict.fromkeys(topics):
        topic_id = None if entry.topic_id is None else entry.topic_id.bytes
        if topic_id is not None and api_version >= TOPIC_IDS_FROM:
            name = cache.topic_names.get(topic_id)
            topic = None if name is None else cache.topics[name]
        elif topic_id is not None or entry.name is None:
            answers.append(_error(ErrorCode.invalid_request, entry.name or TopicName(""), entry.topic_id))
            continue
        else:
            topic = cache.topics.get(entry.name)
        if topic is not None:
            answers.append(_found(broker, topic, operations))
        elif topic_id is not None:
            answers.append(_error(ErrorCode.unknown_topic_id, None, entry.topic_id))
        else:
            assert entry.name is not None, "an entry has a name or an ID"
            missing.append(entry.name)
            answers.append(_missing(entry.name))
    if body.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
        return _created(broker, answers, missing)
    return answers


def _missing(name: str) -> MetadataResponseTopic:
    allowed = name_problem(name) is None
    error = ErrorCode.unknown_topic_or_partition if allowed else ErrorCode.invalid_topic_exception
    return _error(error, TopicName(name), _NO_ID)


def _created(broker: Broker, answers: list[MetadataResponseTopic], missing: list[str]) -> list[MetadataResponseTopic]:
    """Asks the active controller to create them; one that cannot be created is answered with the reason."""
    refused: dict[str, ErrorCode] = {}
    created = 0
    for name in missing:
        if created == MOST_CREATED_AT_ONCE:
            break
        problem = request_problem(broker.config, WantedTopic(name))
        if problem is None:
            _ask_to_create(broker, name)
            created += 1
        else:
            refused[name] = problem.error
    return [
        _error(refused[answer.name], answer.name, _NO_ID) if answer.name in refused else answer for answer in answers
    ]


def _ask_to_create(broker: Broker, name: str) -> None:
    if name == OFFSETS_TOPIC:
        ask_to_create_offsets_topic(broker)
    elif broker.replica.lifecycle.channel.has_leader:
        ask_to_create(broker, WantedTopic(name), _nobody_waits)


def _nobody_waits() -> None:
    """The client asks again, and creation starts anew if it failed."""


def _error(error: ErrorCode, name: TopicName | None, topic_id: UUID | None) -> MetadataResponseTopic:
    internal = name is not None and is_internal(name)
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, is_internal=internal, partitions=())


@dataclass(slots=True)
class _Answer:
    """``topic`` and ``brokers``: what it was made from; it holds as long as they are the same objects. ``draft``: the
    same for draft 1000, once somebody has asked for that."""

    topic: TopicImage
    brokers: tuple[BrokerImage, ...]
    operations: int
    answer: MetadataResponseTopic
    draft: MetadataTopic1000 | None = None


def _found(broker: Broker, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    """Made once for each state of a topic: 10,000 partitions cost 0.1 s to describe, and many clients ask."""
    cache = broker.metadata
    known = broker.topic_answers.get(topic.name)
    if isinstance(known, _Answer) and known.topic is topic and known.brokers is cache.brokers:
        same = known.operations == operations
        return known.answer if same else replace(known.answer, topic_authorized_operations=i32(operations))
    answer = _described(cache, topic, operations)
    broker.topic_answers[topic.name] = _Answer(topic, cache.brokers, operations, answer)
    return answer


def _described(cache: MetadataCache, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=as_uuid(topic.topic_id),
        is_internal=is_internal(topic.name),
        partitions=tuple(_partition(cache, index, one) for index, one in enumerate(topic.partitions)),
        topic_authorized_operations=i32(operations),
    )


def _partition(cache: MetadataCache, index: int, partition: PartitionImage) -> MetadataResponsePartition:
    """Its numbers fit, being the image's: kio would look at each of them twice, for thousands of partitions."""
    told = described(cache, partition)
    return MetadataResponsePartition(
        error_code=told.error,
        partition_index=cast(i32, index),
        leader_id=cast(BrokerId, told.leader),
        leader_epoch=cast(i32, told.leader_epoch),
        replica_nodes=cast(_BrokerIds, partition.replicas),
        isr_nodes=cast(_BrokerIds, partition.isr),
        offline_replicas=cast(_BrokerIds, told.offline),
    )


def _of_live_replicas(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(topic, partitions=tuple(_of_live(one) if one.offline_replicas else one for one in topic.partitions))


def _of_live(partition: MetadataResponsePartition) -> MetadataResponsePartition:
    offline = partition.offline_replicas
    missing = partition.error_code is ErrorCode.none
    return replace(
        partition,
        error_code=ErrorCode.replica_not_available if missing else partition.error_code,
        replica_nodes=tuple(broker for broker in partition.replica_nodes if broker not in offline),
        isr_nodes=tuple(broker for broker in partition.isr_nodes if broker not in offline),
    )
