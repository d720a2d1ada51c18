"""Refusals that no other case meets, and what clients send that a broker must not refuse."""

import struct
from typing import Any

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import TIMEOUT_MS, ProbeContext, Topic, single
from bench.probe.data import altered, batch, log_end, now_ms, produce
from bench.probe.transactional import ADD, ADD_OFFSETS, BY_CLIENTS, COMMIT_OFFSETS, END, OWNED, Transactional, allowed
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

PRODUCE, CREATE, GROUP_DELETE = int(ApiKey.PRODUCE), int(ApiKey.CREATE_TOPICS), int(ApiKey.OFFSET_DELETE)
WRITES = {PRODUCE: since_version(3), CREATE: ANY, ApiKey.FETCH: since_version(4)}
METADATA, API_VERSIONS = int(ApiKey.METADATA), int(ApiKey.API_VERSIONS)
CURSORS = int(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
ALTER, FEATURES, QUORUM = ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.UPDATE_FEATURES, ApiKey.DESCRIBE_QUORUM
OFFSETS_TOPIC, METADATA_TOPIC = "__consumer_offsets", "__cluster_metadata"
TOPIC_RESOURCE = 2
NOBODY = 2_000_000_000
"""A broker's ID that no broker has."""
SEGMENT_BYTES = 1 << 20
MIB = 1 << 20


# Requests of any kind


@case("handshake/frames/bytes-behind", "Apache Kafka's RequestContext", {METADATA: ANY}, since="0.8", level=SHOULD)
def bytes_behind(at: ProbeContext) -> None:
    """Bytes behind the end of a request are ignored. Clients exist that write some: librdkafka, where it wants all
    topics."""
    values = {"topics": [{"name": at.topic_name()}], "allow_auto_topic_creation": False}
    request, words = at.main.encoded(METADATA, at.version(METADATA), values)
    frame = request.frame
    at.main.send_bytes(struct.pack(">i", len(frame) - 4 + 3) + frame[4:] + bytes(3), words)
    topic = single(at.main.receive(request), "topics")
    at.expect("error code of the topic", topic.error_code, ErrorCode.unknown_topic_or_partition)


@case("handshake/client-id/not-utf-8", "Apache Kafka's RequestHeader", {API_VERSIONS: ANY}, since="0.8", level=SHOULD)
def not_utf_8(at: ProbeContext) -> None:
    """A client ID that is not UTF-8 is accepted."""
    at.main.send_bytes(struct.pack(">ihhih", 12, API_VERSIONS, 0, 77, 2) + b"\xe4a", "ApiVersions 0 of client \\xe4a")
    response = at.main.receive_frame()
    at.expect("correlation ID", int.from_bytes(response[:4], "big"), 77)
    at.expect("error code", int.from_bytes(response[4:6], "big", signed=True), ErrorCode.none)


# Produce


@case("produce/idempotence/fields-without-id", "KIP-98, the record batch", WRITES, since="0.11")
def fields_without_id(at: ProbeContext) -> None:
    """Without a producer ID, epoch and sequence mean nothing: sarama and aiokafka leave epoch -1 and sequence 0 there,
    KafkaJS both as 0."""
    topic = at.topic()
    for number, (epoch, sequence) in enumerate(((-1, 0), (0, 0), (0, -1), (3, 7))):
        result = produce(at, topic, altered(batch(), producer_epoch=epoch, base_sequence=sequence))
        at.expect_no_error(result)
        at.expect("base offset", result.base_offset, number)


@case("produce/batch/unknown-attributes", "Apache Kafka's LogValidator", WRITES, since="0.11", level=SHOULD)
def unknown_attributes(at: ProbeContext) -> None:
    """A batch whose attributes have unknown bits is taken."""
    topic = at.topic()
    for attributes in (0x80, 0x1000):
        result = produce(at, topic, altered(batch(), attributes=attributes))
        at.expect_no_error(result)


@case("produce/timestamps/first-too-late", "Apache Kafka's LogValidator", WRITES, since="3.6", level=SHOULD)
def first_too_late(at: ProbeContext) -> None:
    """A batch of which only the first timestamp is beyond message.timestamp.after.max.ms: INVALID_TIMESTAMP."""
    topic = at.topic(configs={"message.timestamp.after.max.ms": "1000"})
    data = altered(batch(), base_timestamp_ms=now_ms() + 3_600_000)
    at.expect_error(produce(at, topic, data), ErrorCode.invalid_timestamp)


@case("produce/batch/larger-than-segment", "Apache Kafka's UnifiedLog", WRITES, since="0.8", level=SHOULD)
def larger_than_segment(at: ProbeContext) -> None:
    """A batch that is larger than segment.bytes of its topic is refused with RECORD_LIST_TOO_LARGE."""
    topic = at.topic(configs={"segment.bytes": str(SEGMENT_BYTES), "max.message.bytes": str(4 * MIB)})
    result = produce(at, topic, batch(bytes(SEGMENT_BYTES + 1)))
    at.expect_error(result, ErrorCode.record_list_too_large)
    at.expect("log end", log_end(at, topic), 0)


@case("produce/batch/too-large-repacked", "Apache Kafka's UnifiedLog", WRITES, since="0.8", level=SHOULD)
def too_large_repacked(at: ProbeContext) -> None:
    """A batch that is larger than max.message.bytes with the codec of its topic is refused with MESSAGE_TOO_LARGE."""
    topic = at.topic(configs={"compression.type": "uncompressed", "max.message.bytes": "2000"})
    data = build([Record(timestamp_ms=now_ms(), value=bytes(4000))], compression=Compression.GZIP)
    at.expect_error(produce(at, topic, data), ErrorCode.message_too_large)
    at.expect("log end", log_end(at, topic), 0)


@case(
    "produce/topics/internal",
    "Apache Kafka's ReplicaManager",
    {PRODUCE: (3, 12), ApiKey.FIND_COORDINATOR: ANY, ApiKey.DESCRIBE_GROUPS: ANY},
    since="0.10",
    level=SHOULD,
    hostile=True,
)
def internal(at: ProbeContext) -> None:
    """A client may not write to __consumer_offsets: INVALID_TOPIC_EXCEPTION."""
    at.coordinator(at.group())  # The topic exists once the coordinator of a group was looked up.
    result = produce(at, Topic(OFFSETS_TOPIC, bytes(16), 1), batch())
    at.expect_error(result, ErrorCode.invalid_topic_exception)


# Others of clients


@case(
    "offsets/delete/internal",
    "Apache Kafka's ReplicaManager",
    {ApiKey.DELETE_RECORDS: ANY, ApiKey.FIND_COORDINATOR: ANY, ApiKey.DESCRIBE_GROUPS: ANY},
    since="0.11",
    level=SHOULD,
)
def delete_internal(at: ProbeContext) -> None:
    """Records of __consumer_offsets cannot be deleted: INVALID_TOPIC_EXCEPTION."""
    at.coordinator(at.group())
    partitions = [{"partition_index": 0, "offset": 0}]
    request = {"topics": [{"name": OFFSETS_TOPIC, "partitions": partitions}], "timeout": TIMEOUT_MS}
    result = single(at.call(ApiKey.DELETE_RECORDS, request), "topics", "partitions")
    at.expect_error(result, ErrorCode.invalid_topic_exception)


@case("metadata/cluster/controllers", "KIP-919", {ApiKey.DESCRIBE_CLUSTER: since_version(1)}, since="3.7", level=SHOULD)
def controllers(at: ProbeContext) -> None:
    """A broker refuses a request for controllers with MISMATCHED_ENDPOINT_TYPE."""
    response = at.call(ApiKey.DESCRIBE_CLUSTER, {"endpoint_type": 2})
    at.expect_error(response, ErrorCode.mismatched_endpoint_type)


@case("metadata/described/bad-cursor", "KIP-966", {CURSORS: ANY, CREATE: ANY}, since="3.8", level=SHOULD)
def bad_cursor(at: ProbeContext) -> None:
    """A cursor of a negative partition, or of a topic that is not named, is refused with INVALID_REQUEST."""
    topic = at.topic().name
    for cursor in ({"topic_name": topic, "partition_index": -1}, {"topic_name": f"{topic}-", "partition_index": 0}):
        request = {"topics": [{"name": topic}], "response_partition_limit": 10, "cursor": cursor}
        at.expect_error(single(at.call(CURSORS, request), "topics"), ErrorCode.invalid_request)


@case("groups/offset-delete/empty-group-id", "KIP-496", {GROUP_DELETE: ANY, CREATE: ANY}, since="2.4", level=SHOULD)
def empty_group_id(at: ProbeContext) -> None:
    """An empty group ID is refused with INVALID_GROUP_ID."""
    topics = [{"name": at.topic().name, "partitions": [{"partition_index": 0}]}]
    response = at.call(GROUP_DELETE, {"group_id": "", "topics": topics})
    at.expect_error(response, ErrorCode.invalid_group_id)


# Transactions


IN_GROUPS = {**OWNED, ADD_OFFSETS: ANY, COMMIT_OFFSETS: (0, 4), ApiKey.DESCRIBE_GROUPS: ANY, CREATE: ANY}


@case("transactions/group-offsets/empty-group-id", "KIP-98", IN_GROUPS, since="0.11", level=SHOULD)
def commit_without_group(at: ProbeContext) -> None:
    """TxnOffsetCommit with an empty group ID: INVALID_GROUP_ID."""
    topic, producer = at.topic(), Transactional(at).take()
    code = producer.commit_offset(at.main, "", topic, 1)
    at.expect("error code", code, ErrorCode.invalid_group_id)


@case("transactions/group-offsets/unknown-topic", "KIP-98", IN_GROUPS, since="0.11", level=SHOULD)
def commit_of_unknown(at: ProbeContext) -> None:
    """TxnOffsetCommit for a topic that does not exist: UNKNOWN_TOPIC_OR_PARTITION."""
    producer, group_id = Transactional(at).take(), at.group()
    at.expect("error code of AddOffsetsToTxn", producer.add_offsets(group_id), ErrorCode.none)
    topic = Topic(at.topic_name(), bytes(16), 1)
    code = producer.commit_offset(at.coordinator(group_id), group_id, topic, 1)
    at.expect("error code", code, ErrorCode.unknown_topic_or_partition)


@case("transactions/add/internal", "KIP-98", {**OWNED, ADD: BY_CLIENTS}, since="0.11", level=SHOULD, hostile=True)
def add_internal(at: ProbeContext) -> None:
    """A client cannot add __consumer_offsets to its transaction: TOPIC_AUTHORIZATION_FAILED."""
    codes = Transactional(at).take().add({OFFSETS_TOPIC: [0]})
    at.expect("error code", codes[OFFSETS_TOPIC, 0], ErrorCode.topic_authorization_failed)


@case("transactions/end/unknown-id", "KIP-98", {**OWNED, END: ANY}, since="0.11", level=SHOULD)
def end_of_unknown(at: ProbeContext) -> None:
    """EndTxn of a transactional ID that does not exist: INVALID_PRODUCER_ID_MAPPING."""
    response = Transactional(at, producer_id=1_000_000, epoch=0).end(commits=True)
    at.expect_error(response, ErrorCode.invalid_producer_id_mapping)


@case("transactions/producers/invalid-name", "KIP-664", {ApiKey.DESCRIBE_PRODUCERS: ANY}, since="2.8", level=SHOULD)
def producers_of_invalid(at: ProbeContext) -> None:
    """DescribeProducers of a name that no topic can have: INVALID_TOPIC_EXCEPTION."""
    request = {"topics": [{"name": "no/slash", "partition_indexes": [0]}]}
    result = single(at.call(ApiKey.DESCRIBE_PRODUCERS, request), "topics", "partitions")
    at.expect_error(result, ErrorCode.invalid_topic_exception)


# Admin


def _of_controller(at: ProbeContext, api_key: int, values: dict[str, Any]) -> Any:
    address = at.broker.controller
    return at.call(api_key, values, on=at.main if address == at.broker.leader else at.connect(address))


@case("admin/create/metadata-topic", "KIP-500", {CREATE: ANY}, since="3.0", level=SHOULD)
def metadata_topic(at: ProbeContext) -> None:
    """Nobody can make the topic of the metadata log: INVALID_REQUEST."""
    topics = [{"name": METADATA_TOPIC, "num_partitions": 1, "replication_factor": 1}]
    result = single(
        _of_controller(at, CREATE, {"topics": topics, "timeout": TIMEOUT_MS, "validate_only": True}), "topics"
    )
    at.expect_error(result, ErrorCode.invalid_request)


def _alter(at: ProbeContext, topic: str) -> ErrorCode:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": configs}
    return ErrorCode(single(at.call(ALTER, {"resources": [resource], "validate_only": True}), "responses").error_code)


@case("admin/alter/invalid-topic", "Apache Kafka's ConfigAdminManager", {ALTER: ANY}, since="2.3", level=SHOULD)
def alter_invalid_topic(at: ProbeContext) -> None:
    """Settings of a name that no topic can have cannot be altered: INVALID_TOPIC_EXCEPTION."""
    at.expect("error code", _alter(at, "no/slash"), ErrorCode.invalid_topic_exception)


@case("admin/alter/no-topic", "Apache Kafka's ConfigAdminManager", {ALTER: ANY}, since="2.3", level=SHOULD)
def alter_no_topic(at: ProbeContext) -> None:
    """There are no settings of all topics: INVALID_REQUEST."""
    at.expect("error code", _alter(at, ""), ErrorCode.invalid_request)


@case("admin/brokers/unregister-unknown", "KIP-631", {ApiKey.UNREGISTER_BROKER: ANY}, since="2.8", level=SHOULD)
def unregister_unknown(at: ProbeContext) -> None:
    """A broker that does not exist cannot be unregistered: BROKER_ID_NOT_REGISTERED."""
    response = _of_controller(at, ApiKey.UNREGISTER_BROKER, {"broker_id": NOBODY})
    at.expect_error(response, ErrorCode.broker_id_not_registered)


@case("admin/quorum/other-topic", "KIP-595", {QUORUM: ANY, CREATE: ANY}, since="2.7", level=SHOULD)
def other_topic(at: ProbeContext) -> None:
    """DescribeQuorum of another topic than the metadata log's: UNKNOWN_TOPIC_OR_PARTITION."""
    request = {"topics": [{"topic_name": at.topic().name, "partitions": [{"partition_index": 0}]}]}
    result = single(_of_controller(at, QUORUM, request), "topics", "partitions")
    at.expect_error(result, ErrorCode.unknown_topic_or_partition)


@case("admin/features/too-high", "KIP-584", {FEATURES: since_version(1)}, since="3.3", level=SHOULD)
def too_high(at: ProbeContext) -> None:
    """A level that the broker does not support is refused with INVALID_UPDATE_VERSION."""
    wanted = {"feature": "metadata.version", "max_version_level": 32_000}
    response = _of_controller(at, FEATURES, {"timeout": TIMEOUT_MS, "feature_updates": [wanted], "validate_only": True})
    code = int(response.error_code) or next(
        (int(result.error_code) for result in response.results if result.error_code), 0
    )
    at.expect("error code", code, ErrorCode.invalid_update_version)


@case("admin/features/upgradable", "KIP-584", {FEATURES: since_version(1), API_VERSIONS: since_version(4)}, since="4.0")
def upgradable(at: ProbeContext) -> None:
    """An administrator may upgrade each feature to the highest level that the controller supports. The exception is
    kraft.version, which clusters with a static quorum refuse."""
    software = {"client_software_name": "probe", "client_software_version": "1"}
    reply = _of_controller(at, API_VERSIONS, software)
    finalized = {str(feature.name): int(feature.max_version_level) for feature in reply.finalized_features}
    refused = []
    for feature in reply.supported_features:
        name, level = str(feature.name), int(feature.max_version)
        if name == "kraft.version" or finalized.get(name, 0) >= level:
            continue
        wanted = {"feature": name, "max_version_level": level}
        values = {"timeout": TIMEOUT_MS, "feature_updates": [wanted], "validate_only": True}
        response = _of_controller(at, FEATURES, values)
        allowed(int(response.error_code))
        if response.error_code:
            refused.append(f"{name} {level}")
    at.expect_that("refused upgrades", sorted(refused), not refused, "none")
