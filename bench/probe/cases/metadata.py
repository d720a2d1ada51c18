"""Metadata, DescribeTopicPartitions and DescribeCluster."""

import struct
from typing import Any
from uuid import UUID

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import ProbeContext, single
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

METADATA = int(ApiKey.METADATA)
DESCRIBE = int(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
CLUSTER = int(ApiKey.DESCRIBE_CLUSTER)
CREATE, DELETE = int(ApiKey.CREATE_TOPICS), int(ApiKey.DELETE_TOPICS)
IDS = {METADATA: since_version(10), CREATE: ANY}
BY_ID = {METADATA: since_version(12), CREATE: ANY}
SNAPSHOT, METADATA_LOG = int(ApiKey.FETCH_SNAPSHOT), "__cluster_metadata"
NO_SNAPSHOT = 2**60
OF_NO_SNAPSHOT = (
    *(ErrorCode.snapshot_not_found, ErrorCode.not_leader_or_follower),
    *(ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch),
)
"""Another node may lead the metadata log, and the case does not know its leader epoch."""
NO_OPERATIONS = -(2**31)
SCHEMA = "MetadataRequest.json, MetadataResponse.json"


def _named(at: ProbeContext, *names: str, **more: object) -> Any:
    """The topics of these names, without creating them."""
    request = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False, **more}
    return at.call(METADATA, request)


def _by_id(at: ProbeContext, topic_id: UUID) -> Any:
    return single(at.call(METADATA, {"topics": [{"topic_id": topic_id, "name": None}]}), "topics")


@case("metadata/brokers/addresses", SCHEMA, {METADATA: since_version(1)}, since="0.10.0")
def addresses(at: ProbeContext) -> None:
    """Brokers have IDs of their own, and a host and a port to connect to."""
    response = at.call(METADATA, {"topics": ()})
    ids = [int(broker.node_id) for broker in response.brokers]
    at.expect_that("IDs of brokers", ids, len(set(ids)) == len(ids) > 0, "at least one, each once")
    bad = [
        f"{broker.host}:{broker.port}" for broker in response.brokers if not broker.host or not 0 < broker.port < 65536
    ]
    at.expect_that("addresses that cannot be used", bad, not bad, "none")


@case("metadata/brokers/controller", SCHEMA, {METADATA: since_version(1)}, since="0.10.0")
def controller(at: ProbeContext) -> None:
    """The controller is one of the brokers, or -1."""
    response = at.call(METADATA, {"topics": ()})
    ids = [int(broker.node_id) for broker in response.brokers]
    known = response.controller_id in (*ids, -1)
    at.expect("the controller is among the brokers or -1", known, True)


@case("metadata/brokers/cluster-id", "KIP-78", {METADATA: since_version(2)}, since="0.10.1")
def cluster_id(at: ProbeContext) -> None:
    """The cluster has an ID, which is the same in each response."""
    found = [at.call(METADATA, {"topics": ()}).cluster_id for _ in range(2)]
    at.expect("a cluster ID is returned", bool(found[0]), True)
    at.expect("both responses have the same", found[0] == found[1], True)


@case("metadata/topics/none", SCHEMA, {METADATA: since_version(1)}, since="0.10.0")
def no_topics(at: ProbeContext) -> None:
    """From version 1 on an empty list of topics means none. The response has the brokers all the same."""
    at.topic()
    response = at.call(METADATA, {"topics": ()})
    at.expect("number of topics", len(response.topics), 0)
    at.expect_that("number of brokers", len(response.brokers), len(response.brokers) > 0, "at least one")


@case("metadata/topics/all", SCHEMA, {METADATA: since_version(1), CREATE: ANY}, since="0.10.0")
def all_topics(at: ProbeContext) -> None:
    """A null list of topics means all of them."""
    name = at.topic().name
    names = {str(topic.name) for topic in at.call(METADATA, {"topics": None}).topics}
    at.expect("the case's topic is among them", name in names, True)


@case("metadata/topics/all-in-version-0", SCHEMA, {METADATA: (0, 0), CREATE: ANY}, since="0.8")
def all_in_version_0(at: ProbeContext) -> None:
    """In version 0 an empty list means all topics."""
    name = at.topic().name
    names = {str(topic.name) for topic in at.call(METADATA, {"topics": None}).topics}
    at.expect("the case's topic is among them", name in names, True)


@case("metadata/topics/partitions", SCHEMA, {METADATA: since_version(1), CREATE: ANY}, since="0.8")
def partitions(at: ProbeContext) -> None:
    """A topic has its partitions from 0 on, each with a leader that is one of its replicas in sync."""
    topic = at.topic(3)
    result = single(_named(at, topic.name), "topics")
    at.expect("error code of the topic", result.error_code, ErrorCode.none)
    at.expect("partitions", sorted(partition.partition_index for partition in result.partitions), [0, 1, 2])
    for partition in result.partitions:
        at.expect("error code of a partition", partition.error_code, ErrorCode.none)
        in_sync = partition.leader_id in partition.isr_nodes and set(partition.isr_nodes) <= set(
            partition.replica_nodes
        )
        at.expect("leader in sync, and those in sync among the replicas", in_sync, True)


@case("metadata/topics/leader-epoch", "KIP-320", {METADATA: since_version(7), CREATE: ANY}, since="2.1")
def leader_epoch(at: ProbeContext) -> None:
    """From version 7 on a partition has a leader epoch. It is 0 for a new topic, or higher if its leader has moved."""
    result = single(_named(at, at.topic().name), "topics")
    epoch = single(result, "partitions").leader_epoch
    at.expect_that("leader epoch", epoch, epoch >= 0, "0 or more")


@case("metadata/topics/offline-replicas", "KIP-112", {METADATA: since_version(5), CREATE: ANY}, since="1.0")
def offline_replicas(at: ProbeContext) -> None:
    """A partition whose replicas are all alive has no offline replicas."""
    result = single(_named(at, at.topic().name), "topics")
    at.expect("offline replicas", list(single(result, "partitions").offline_replicas), [])


@case("metadata/topics/internal", SCHEMA, {METADATA: since_version(1), CREATE: ANY}, since="0.10.0")
def internal(at: ProbeContext) -> None:
    """A client's topic is not internal."""
    result = single(_named(at, at.topic().name), "topics")
    at.expect("is internal", result.is_internal, False)


@case("metadata/topics/every-version", SCHEMA, {METADATA: ANY, CREATE: ANY}, since="0.8")
def every_version(at: ProbeContext) -> None:
    """Each version returns the same partitions, leaders and replicas."""
    name = at.topic(2).name
    results = {}
    for version in at.broker.common_versions(METADATA):
        topic = single(at.call(METADATA, {"topics": [{"name": name}]}, version), "topics")
        results[version] = sorted(
            (partition.partition_index, int(partition.leader_id), tuple(partition.replica_nodes))
            for partition in topic.partitions
        )
    first = next(iter(results.values()))
    differ = [version for version, result in results.items() if result != first]
    at.expect_that("versions that differ from the lowest", differ, not differ, "none")


@case(
    "metadata/topics/named-twice",
    "Apache Kafka's KafkaApis",
    {METADATA: since_version(4), CREATE: ANY},
    since="0.8",
    level=SHOULD,
)
def named_twice(at: ProbeContext) -> None:
    """A topic that is named twice is returned once."""
    name = at.topic().name
    at.expect("number of topics", len(_named(at, name, name).topics), 1)


@case("metadata/topics/operations-not-requested", "KIP-430", {METADATA: since_version(8), CREATE: ANY}, since="2.3")
def operations_not_requested(at: ProbeContext) -> None:
    """The authorized operations are returned only if the request wants them."""
    result = single(_named(at, at.topic().name), "topics")
    at.expect("authorized operations", result.topic_authorized_operations, NO_OPERATIONS)


@case(
    "metadata/topics/operations-requested",
    "KIP-430",
    {METADATA: since_version(8), CREATE: ANY},
    since="2.3",
    level=SHOULD,
)
def operations_requested(at: ProbeContext) -> None:
    """They are returned if the request wants them, as bits above 2."""
    result = single(_named(at, at.topic().name, include_topic_authorized_operations=True), "topics")
    bits = result.topic_authorized_operations
    at.expect_that("authorized operations", bits, bits > 0, "a set of bits")


@case("metadata/unknown/operations", "KIP-430", {METADATA: since_version(8)}, since="2.3", level=SHOULD)
def unknown_operations(at: ProbeContext) -> None:
    """They are returned for a topic that does not exist, too."""
    result = single(_named(at, at.topic_name(), include_topic_authorized_operations=True), "topics")
    bits = result.topic_authorized_operations
    at.expect_that("authorized operations", bits, bits > 0, "a set of bits")


@case("metadata/unknown/name", SCHEMA, {METADATA: since_version(4)}, since="0.8")
def unknown_name(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION and no partitions, at once."""
    name = at.topic_name()
    result = single(_named(at, name), "topics")
    at.expect("error code of the topic", result.error_code, ErrorCode.unknown_topic_or_partition)
    at.expect("name", result.name, name)
    at.expect("number of partitions", len(result.partitions), 0)


@case("metadata/unknown/not-created", "KIP-204", {METADATA: since_version(4)}, since="0.11")
def not_created(at: ProbeContext) -> None:
    """Requesting a topic without allow_auto_topic_creation does not create it."""
    name = at.topic_name()
    for _ in range(3):
        result = single(_named(at, name), "topics")
        at.expect("error code of the topic", result.error_code, ErrorCode.unknown_topic_or_partition)


@case("metadata/unknown/beside-known", SCHEMA, {METADATA: since_version(4), CREATE: ANY}, since="0.8")
def beside_known(at: ProbeContext) -> None:
    """An unknown topic does not affect the known one of the same request."""
    known, unknown = at.topic().name, at.topic_name()
    codes = {str(topic.name): topic.error_code for topic in _named(at, unknown, known).topics}
    at.expect("error code of the known topic", codes.get(known), ErrorCode.none)
    at.expect("error code of the unknown topic", codes.get(unknown), ErrorCode.unknown_topic_or_partition)


@case(
    "metadata/unknown/invalid-name",
    "Apache Kafka's Topic.validate",
    {METADATA: since_version(4)},
    since="0.8",
    level=SHOULD,
)
def invalid_name(at: ProbeContext) -> None:
    """A name that no topic can have gets INVALID_TOPIC_EXCEPTION, or as unknown."""
    result = single(_named(at, "not a topic!"), "topics")
    at.expect(
        "error code of the topic",
        result.error_code,
        ErrorCode.invalid_topic_exception,
        ErrorCode.unknown_topic_or_partition,
    )


@case("metadata/ids/returned", "KIP-516", IDS, since="2.8")
def ids_in_response(at: ProbeContext) -> None:
    """A topic has an ID that is not zero, and keeps it."""
    name = at.topic().name
    ids = [single(_named(at, name), "topics").topic_id for _ in range(2)]
    at.expect("an ID is returned", ids[0] is not None, True)
    at.expect("both responses have the same", ids[0] == ids[1], True)


@case("metadata/ids/of-unknown-name", "KIP-516", {METADATA: since_version(10)}, since="2.8")
def id_of_unknown_name(at: ProbeContext) -> None:
    """A topic that does not exist has the ID zero."""
    result = single(_named(at, at.topic_name()), "topics")
    at.expect("topic ID", result.topic_id, None)


@case("metadata/ids/found", "KIP-516", BY_ID, since="3.1")
def found_by_id(at: ProbeContext) -> None:
    """A topic is found by its ID, and returned with its name."""
    topic = at.topic(2)
    result = _by_id(at, UUID(bytes=topic.id))
    at.expect("error code of the topic", result.error_code, ErrorCode.none)
    at.expect("name", result.name, topic.name)
    at.expect("number of partitions", len(result.partitions), 2)


@case("metadata/ids/unknown", "KIP-516", BY_ID, since="3.1")
def unknown_id(at: ProbeContext) -> None:
    """An ID that no topic has gets UNKNOWN_TOPIC_ID."""
    strange = UUID(bytes=bytes(range(1, 17)))
    result = _by_id(at, strange)
    at.expect("error code of the topic", result.error_code, ErrorCode.unknown_topic_id)
    at.expect("the ID comes back", result.topic_id == strange, True)


@case("metadata/ids/recreated", "KIP-516", {**BY_ID, DELETE: ANY}, since="2.8")
def recreated(at: ProbeContext) -> None:
    """A topic that is deleted and made again under its name has another ID, and its old ID is unknown."""
    old = at.topic()
    at.delete(old)
    new = at.create(old.name)
    at.expect("the new topic has another ID", new.id != old.id, True)
    at.expect("error code of the old ID", _by_id(at, UUID(bytes=old.id)).error_code, ErrorCode.unknown_topic_id)
    at.expect("name of the new ID", _by_id(at, UUID(bytes=new.id)).name, old.name)


@case("metadata/deleted", SCHEMA, {METADATA: since_version(4), CREATE: ANY, DELETE: ANY}, since="0.8")
def deleted(at: ProbeContext) -> None:
    """A topic that was deleted is unknown."""
    topic = at.topic()
    at.delete(topic)
    result = single(_named(at, topic.name), "topics")
    at.expect("error code of the topic", result.error_code, ErrorCode.unknown_topic_or_partition)


@case("metadata/cluster/same-brokers", "KIP-700", {CLUSTER: ANY, METADATA: since_version(2)}, since="2.8")
def same_brokers(at: ProbeContext) -> None:
    """DescribeCluster returns the same cluster ID and the same brokers as Metadata."""
    cluster, metadata = at.call(CLUSTER, {"endpoint_type": 1}), at.call(METADATA, {"topics": ()})
    at.expect_no_error(cluster)
    at.expect("the cluster ID is the same", cluster.cluster_id == metadata.cluster_id, True)
    brokers = sorted((int(broker.broker_id), broker.host, broker.port) for broker in cluster.brokers)
    same = brokers == sorted((int(broker.node_id), broker.host, broker.port) for broker in metadata.brokers)
    at.expect("the brokers are the same", same, True)


@case("metadata/cluster/endpoint-type", "KIP-919", {CLUSTER: since_version(1)}, since="3.7")
def endpoint_type(at: ProbeContext) -> None:
    """A broker refuses an endpoint type that does not exist with UNSUPPORTED_ENDPOINT_TYPE."""
    at.expect_error(at.call(CLUSTER, {"endpoint_type": 77}), ErrorCode.unsupported_endpoint_type)


@case("metadata/cluster/endpoint-type-returned", "KIP-919", {CLUSTER: since_version(1)}, since="3.7", level=SHOULD)
def endpoint_type_in_response(at: ProbeContext) -> None:
    """The refusal does not repeat the requested type. It has that of the endpoint, which is 1 for a broker."""
    for wanted in (2, 77):
        response = at.call(CLUSTER, {"endpoint_type": wanted})
        at.expect("error code is set", response.error_code != 0, True)
        at.expect("endpoint type", response.endpoint_type, 1)


@case("metadata/described/partitions", "KIP-966", {DESCRIBE: ANY, CREATE: ANY}, since="3.8")
def described(at: ProbeContext) -> None:
    """DescribeTopicPartitions returns all partitions of a topic, and no cursor if that was all."""
    topic = at.topic(3)
    response = at.call(DESCRIBE, {"topics": [{"name": topic.name}]})
    result = single(response, "topics")
    at.expect("error code of the topic", result.error_code, ErrorCode.none)
    at.expect("partitions", [partition.partition_index for partition in result.partitions], [0, 1, 2])
    at.expect("cursor", response.next_cursor, None)


@case("metadata/described/unknown", "KIP-966", {DESCRIBE: ANY}, since="3.8")
def described_unknown(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    result = single(at.call(DESCRIBE, {"topics": [{"name": at.topic_name()}]}), "topics")
    at.expect("error code of the topic", result.error_code, ErrorCode.unknown_topic_or_partition)


@case("metadata/described/unknown-operations", "KIP-966", {DESCRIBE: ANY}, since="3.8", level=SHOULD)
def described_unknown_operations(at: ProbeContext) -> None:
    """It returns the authorized operations of a topic that does not exist, too."""
    result = single(at.call(DESCRIBE, {"topics": [{"name": at.topic_name()}]}), "topics")
    bits = result.topic_authorized_operations
    at.expect_that("authorized operations", bits, bits > 0, "a set of bits")


@case("metadata/described/cursor", "KIP-966", {DESCRIBE: ANY, CREATE: ANY}, since="3.8")
def described_cursor(at: ProbeContext) -> None:
    """It returns no more partitions than the limit, and a cursor from which the next request goes on."""
    topic = at.topic(3)
    request = {"topics": [{"name": topic.name}], "response_partition_limit": 2}
    response = at.call(DESCRIBE, request)
    at.expect("partitions", [partition.partition_index for partition in single(response, "topics").partitions], [0, 1])
    cursor = response.next_cursor
    at.expect_that("cursor", cursor, cursor is not None and cursor.partition_index == 2, "at partition 2")
    rest = at.call(DESCRIBE, request | {"cursor": {"topic_name": topic.name, "partition_index": 2}})
    at.expect(
        "partitions from the cursor on",
        [partition.partition_index for partition in single(rest, "topics").partitions],
        [2],
    )
    at.expect("cursor at the end", rest.next_cursor, None)


@case("metadata/described/sorted", "KIP-966", {DESCRIBE: ANY, CREATE: ANY}, since="3.8")
def described_sorted(at: ProbeContext) -> None:
    """It returns topics in the order of their names."""
    names = sorted(at.topic().name for _ in range(3))
    results = at.call(DESCRIBE, {"topics": [{"name": name} for name in reversed(names)]}).topics
    at.expect("the topics are in the order of their names", [str(result.name) for result in results] == names, True)


@case(
    "metadata/described/cursor-negative",
    "Apache Kafka's KafkaApis",
    {DESCRIBE: ANY, CREATE: ANY},
    since="3.8",
    level=SHOULD,
)
def described_cursor_negative(at: ProbeContext) -> None:
    """A cursor with a negative partition is refused with INVALID_REQUEST."""
    _refused_cursor(at, at.topic().name, partition=-1)


@case(
    "metadata/described/cursor-elsewhere",
    "KIP-966, Apache Kafka's KafkaApis",
    {DESCRIBE: ANY, CREATE: ANY},
    since="3.8",
    level=SHOULD,
)
def described_cursor_elsewhere(at: ProbeContext) -> None:
    """A cursor at a topic that the request does not name is refused with INVALID_REQUEST."""
    _refused_cursor(at, at.topic().name, cursor=at.topic().name)


def _refused_cursor(at: ProbeContext, name: str, cursor: str = "", partition: int = 0) -> None:
    """A request that is invalid as a whole: each topic has the error, and no partitions."""
    request = {"topics": [{"name": name}], "cursor": {"topic_name": cursor or name, "partition_index": partition}}
    results = at.call(DESCRIBE, request).topics
    codes = sorted({int(result.error_code) for result in results})
    at.expect("error codes of the topics", codes, [int(ErrorCode.invalid_request)])
    at.expect("number of partitions", sum(len(result.partitions) for result in results), 0)


@case("metadata/cluster/operations", "KIP-430", {METADATA: (8, 8)}, since="2.3", level=SHOULD)
def cluster_operations(at: ProbeContext) -> None:
    """Metadata 8 returns the authorized operations of the cluster if the request wants them, and only then."""
    for wanted in (True, False):
        request = struct.pack(">hhihi???", METADATA, 8, 1, 0, 0, False, wanted, False)
        at.main.send_bytes(
            struct.pack(">i", len(request)) + request, f"Metadata 8 without topics, operations: {wanted}"
        )
        (bits,) = struct.unpack(">i", at.main.receive_frame(5, "Metadata 8")[-4:])
        at.expect_that(
            f"operations, requested: {wanted}", bits, (bits != NO_OPERATIONS) == wanted, "bits, if requested"
        )


@case("metadata/cluster/operations-described", "KIP-700, DescribeClusterRequest.json", {CLUSTER: ANY}, since="2.8")
def cluster_operations_described(at: ProbeContext) -> None:
    """DescribeCluster does the same."""
    for wanted in (True, False):
        response = at.call(CLUSTER, {"include_cluster_authorized_operations": wanted})
        bits = int(response.cluster_authorized_operations)
        at.expect_that(
            f"operations, requested: {wanted}", bits, (bits != NO_OPERATIONS) == wanted, "bits, if requested"
        )


@case(
    "metadata/snapshots/each-partition",
    "KIP-630",
    {SNAPSHOT: ANY, METADATA: since_version(2)},
    since="3.0",
    level=SHOULD,
)
def snapshots_of_each_partition(at: ProbeContext) -> None:
    """FetchSnapshot serves or refuses each partition by itself: a topic without snapshots, a partition that the
    metadata log does not have, and a snapshot that does not exist."""
    cluster = at.call(METADATA, {"topics": ()}).cluster_id
    wanted = {"current_leader_epoch": -1, "snapshot_id": {"end_offset": NO_SNAPSHOT, "epoch": 0}, "position": 0}
    places = [(at.topic_name(), 0), (METADATA_LOG, 1), (METADATA_LOG, 0)]
    topics = [
        {"name": name, "partitions": [{"partition": index, **wanted} for each, index in places if each == name]}
        for name in dict.fromkeys(each for each, _ in places)
    ]
    response = at.call(SNAPSHOT, {"cluster_id": cluster, "replica_id": -1, "max_bytes": 1, "topics": topics})
    at.expect("error code of the request", response.error_code, ErrorCode.none)
    found = [
        (str(topic.name), int(partition.index), partition)
        for topic in response.topics
        for partition in topic.partitions
    ]
    at.expect("the response names the same partitions", [found_at[:2] for found_at in found] == places, True)
    for name, index, each in found[:-1]:
        where = "of a topic without snapshots" if name != METADATA_LOG else f"of partition {index} of the metadata log"
        at.expect(f"error code {where}", each.error_code, ErrorCode.unknown_topic_or_partition)
    at.expect("error code of a snapshot that does not exist", found[-1][2].error_code, *OF_NO_SNAPSHOT)
