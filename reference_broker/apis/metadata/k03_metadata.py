"""Metadata: returns brokers, topics and leaders. It also creates missing topics if that is allowed.

* Null for the topics means all of them.
* Unlike Kafka: a request may name 100,000 topics.
* A topic that is created gets UNKNOWN_TOPIC_OR_PARTITION in this response, because the active controller creates it
  later. Clients retry, as with Kafka.

Version notes:
* v0: the empty list means all topics. Replicas that are not live are omitted, and are an error.
* v8: the operations that a client may use on topics and, until v10, on the cluster: all, since there is no authorizer.
* v12: topics may be requested by ID.
* v1000: the response has a metadata epoch. It does not change while the feature is switched off.
* v1001: as v1000, with topic IDs and leader epochs.

KIPs: 4, 232, 320, 430, 516, 526, 700.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, cast
from uuid import UUID

from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.metadata.v13.response import MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.metadata.described_topics import DescribedTopics, Draft, missing_error
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import CLUSTER_OPERATIONS, NO_THROTTLE, OPERATIONS_NOT_REQUESTED, TOPIC_OPERATIONS
from reference_broker.apis.topics.automatic_creation import (
    COORDINATOR_TOPICS,
    request_coordinator_topic,
    request_creation,
)
from reference_broker.controller.planning.topic_creation import NewTopic, request_problem
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.identifiers import is_internal
from reference_broker.ports.slicing import DESCRIBED_TOPICS_PER_SLICE, Sliced
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, WITH_LEADER_EPOCHS
from reference_broker.wire.drafts import (
    MetadataBroker1000,
    MetadataResponse1000,
    MetadataResponse1001,
    MetadataTopic1000,
    MetadataTopic1001,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.retired_fields import MetadataRequest, MetadataResponse

TOPIC_IDS_FROM = 12
OFFLINE_REPLICAS_FROM = 1
"""Older versions omit replicas that are not live, and have an error for them."""
MAX_TOPICS = 100_000
"""A request that names more closes its connection."""
MAX_CREATED_AT_ONCE = 100
"""The number of topics that one request starts to create, because each is a change of its own. Clients retry for the
others."""


Response: TypeAlias = MetadataResponse | MetadataResponse1000 | MetadataResponse1001


def handle(broker: Broker, described: DescribedTopics, call: Call, body: MetadataRequest) -> None:
    """The topics come in the order of the request, each once, or all of them in the order of their creation. Many are
    looked up in several events. A request for more than MAX_TOPICS closes its connection."""
    wants_all = body.topics is None or (call.api_version == 0 and not body.topics)
    count = len(body.topics or ())
    if count > MAX_TOPICS:
        call.close(f"a Metadata request names {count} topics, at most {MAX_TOPICS} are allowed")
        return
    respond_in_slices(broker, call, _build_response(broker, described, call, body, wants_all))


def _build_response(
    broker: Broker, described: DescribedTopics, call: Call, body: MetadataRequest, wants_all: bool
) -> Sliced[Response]:
    """Build the response from one state of the metadata, also if that changes meanwhile."""
    api_version, listener = call.api_version, call.listener
    cache = broker.metadata
    operations = TOPIC_OPERATIONS if body.include_topic_authorized_operations else OPERATIONS_NOT_REQUESTED
    if wants_all:
        topics = yield from _all(cache, described, operations)
    else:
        topics = yield from _requested_topics(broker, cache, described, api_version, body, operations)
    if api_version < OFFLINE_REPLICAS_FROM:
        for at, topic in enumerate(topics):
            topics[at] = _of_live_replicas(topic)
            if at % DESCRIBED_TOPICS_PER_SLICE == DESCRIBED_TOPICS_PER_SLICE - 1:
                yield
    if api_version >= FIRST_DRAFT_VERSION:
        return (yield from _draft(cache, described, topics, listener, api_version))
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=described.live_brokers(cache, listener),
        cluster_id=cache.cluster_id,
        controller_id=BrokerId(cache.controller_id),
        topics=tuple(topics),
        error_code=ErrorCode.none,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else OPERATIONS_NOT_REQUESTED
        ),
    )


def _all(cache: MetadataCache, described: DescribedTopics, operations: int) -> Sliced[list[MetadataResponseTopic]]:
    topics: list[MetadataResponseTopic] = []
    partitions = 0
    for topic in cache.topics.values():
        if partitions >= DESCRIBED_TOPICS_PER_SLICE:
            partitions = 0
            yield
        topics.append((yield from described.find(cache, topic, operations)))
        partitions += 1 + len(topic.partitions)
    return topics


API = Api(MetadataRequest, lambda broker: partial(handle, broker, DescribedTopics()))


def _draft(
    cache: MetadataCache,
    described: DescribedTopics,
    topics: list[MetadataResponseTopic],
    listener: str,
    api_version: int,
) -> Sliced[MetadataResponse1000 | MetadataResponse1001]:
    """Build the response of a draft, with the epoch of its metadata (M-4)."""
    topics_found: list[Draft] = []
    for number, topic in enumerate(topics, 1):
        topics_found.append((yield from described.find_draft(topic, api_version)))
        if number % DESCRIBED_TOPICS_PER_SLICE == 0:
            yield
    brokers = tuple(
        MetadataBroker1000(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
        for one in described.live_brokers(cache, listener)
    )
    if api_version >= WITH_LEADER_EPOCHS:
        return MetadataResponse1001(
            brokers=brokers,
            cluster_id=cache.cluster_id,
            controller_id=cache.controller_id,
            metadata_epoch=cache.served_epoch(),
            topics=cast("tuple[MetadataTopic1001, ...]", tuple(topics_found)),
        )
    return MetadataResponse1000(
        brokers=brokers,
        cluster_id=cache.cluster_id,
        controller_id=cache.controller_id,
        metadata_epoch=cache.served_epoch(),
        topics=cast("tuple[MetadataTopic1000, ...]", tuple(topics_found)),
    )


def _requested_topics(
    broker: Broker,
    cache: MetadataCache,
    described: DescribedTopics,
    api_version: int,
    body: MetadataRequest,
    operations: int,
) -> Sliced[list[MetadataResponseTopic]]:
    topics_found: list[MetadataResponseTopic] = []
    missing: list[str] = []
    seen: dict[MetadataRequestTopic | str, None] = {}
    work = 0
    for entry in body.topics or ():
        work += 1
        if work >= DESCRIBED_TOPICS_PER_SLICE:
            work = 0
            yield
        if entry in seen:
            continue
        seen[entry] = None
        topic_id = None if entry.topic_id is None else entry.topic_id.bytes
        if topic_id is not None and api_version >= TOPIC_IDS_FROM:
            name = cache.topic_names.get(topic_id)
            topic = None if name is None else cache.topics[name]
        elif topic_id is not None or entry.name is None:
            topics_found.append(_error(ErrorCode.invalid_request, entry.name or TopicName(""), entry.topic_id))
            continue
        else:
            topic = cache.topics.get(entry.name)
        if topic is not None:
            if topic.name not in seen:  # An ID may be given with any number of names, which do not count.
                seen[topic.name] = None
                topics_found.append((yield from described.find(cache, topic, operations)))
                work += len(topic.partitions)
        elif topic_id is not None:
            topics_found.append(_error(ErrorCode.unknown_topic_id, None, entry.topic_id))
        else:
            assert entry.name is not None, "an entry has a name or an ID"
            missing.append(entry.name)
            topics_found.append(_error(missing_error(entry.name), entry.name, None, operations))
    if body.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
        yield from _created(broker, missing)
    return topics_found


def _created(broker: Broker, missing: Sequence[str]) -> Sliced[None]:
    """Request the active controller to create the missing topics, except those that nobody may create."""
    created = 0
    for number, name in enumerate(missing, 1):
        if created == MAX_CREATED_AT_ONCE:
            return
        if request_problem(broker.config, NewTopic(name)) is None:
            _request_creation(broker, name)
            created += 1
        if number % DESCRIBED_TOPICS_PER_SLICE == 0:
            yield


def _request_creation(broker: Broker, name: str) -> None:
    if name in COORDINATOR_TOPICS:
        request_coordinator_topic(broker, name)
    elif broker.lifecycle.channel.has_leader:
        request_creation(broker.lifecycle.channel, NewTopic(name), _nobody_waits)


def _nobody_waits() -> None:
    """Ignore the result, because the client retries, and its retry starts the creation again if it failed."""


def _error(
    error: ErrorCode, name: TopicName | None, topic_id: UUID | None, operations: int = OPERATIONS_NOT_REQUESTED
) -> MetadataResponseTopic:
    """As in Kafka, operations are allowed on a topic that does not exist, too."""
    return MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and is_internal(name),
        partitions=(),
        topic_authorized_operations=i32(operations),
    )


def _of_live_replicas(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(
        topic,
        partitions=tuple(
            _of_live(partition) if partition.offline_replicas else partition for partition in topic.partitions
        ),
    )


def _of_live(partition: MetadataResponsePartition) -> MetadataResponsePartition:
    offline = partition.offline_replicas
    missing = partition.error_code is ErrorCode.none
    return replace(
        partition,
        error_code=ErrorCode.replica_not_available if missing else partition.error_code,
        replica_nodes=tuple(broker for broker in partition.replica_nodes if broker not in offline),
        isr_nodes=tuple(broker for broker in partition.isr_nodes if broker not in offline),
    )
