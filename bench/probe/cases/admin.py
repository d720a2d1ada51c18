"""Making, deleting and growing topics: CreateTopics, DeleteTopics and CreatePartitions."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import TIMEOUT_MS, ByKey, ProbeContext, single, sole
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

CREATE, DELETE = int(ApiKey.CREATE_TOPICS), int(ApiKey.DELETE_TOPICS)
GROW, METADATA = int(ApiKey.CREATE_PARTITIONS), int(ApiKey.METADATA)
CREATES = {CREATE: ANY}
DELETES = {DELETE: ANY, CREATE: ANY}
GROWS = {GROW: ANY, CREATE: ANY}
BY_ID = {DELETE: since_version(6), CREATE: ANY}
CREATE_SCHEMA = "KIP-4, CreateTopicsRequest.json"
DELETE_SCHEMA = "KIP-4, DeleteTopicsRequest.json"
REPLICATION = "Apache Kafka's ReplicationControlManager"
NOBODY = 2_000_000_000
"""A broker's ID that no broker has."""
STRANGE_ID = UUID(bytes=bytes(range(2, 18)))


def _controller(at: ProbeContext, api_key: int, values: Mapping[str, object]) -> Any:
    """Send a request to the controller, on the case's own connection if it leads the case's topics as well."""
    address = at.broker.controller
    on = at.main if address == at.broker.leader else at.connect(address)
    return at.call(api_key, {"timeout": TIMEOUT_MS, **values}, on=on)


def _plain(name: str, **more: object) -> dict[str, object]:
    """A topic with one partition and one replica, in the fields of CreateTopics."""
    return {"name": name, "num_partitions": 1, "replication_factor": 1, **more}


def _placed(name: str, *assignments: tuple[int, list[int]], **more: object) -> dict[str, object]:
    """A topic whose partitions are placed by hand: each with its index and its brokers."""
    rows = [{"partition_index": index, "broker_ids": brokers} for index, brokers in assignments]
    return {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows, **more}


def _create(at: ProbeContext, *topics: Mapping[str, object], validate_only: bool = False) -> dict[str, Any]:
    """Return the result of CreateTopics for each topic, by name. A name that is returned twice fails a case."""
    response = _controller(at, CREATE, {"topics": topics, "validate_only": validate_only})
    results = {str(topic.name): topic for topic in response.topics}
    at.expect("names that are returned twice", len(response.topics) - len(results), 0)
    return results


def _refused(at: ProbeContext, topic: Mapping[str, object], *codes: ErrorCode) -> None:
    """A topic that must not be made, neither when it is only checked nor when it is meant."""
    for validate_only in (True, False):
        result = _create(at, topic, validate_only=validate_only)[str(topic["name"])]
        at.expect("error code of the topic", result.error_code, *codes)


def _made(at: ProbeContext, name: str) -> None:
    """A topic of this name can be made, and so was not there before."""
    result = _create(at, _plain(name))[name]
    at.expect("error code when the topic is made at last", result.error_code, ErrorCode.none)


@case("admin/create/made", CREATE_SCHEMA, {**CREATES, METADATA: since_version(4)}, since="0.10.1")
def made(at: ProbeContext) -> None:
    """A topic gets as many partitions and replicas as were requested."""
    topic = at.topic(3)
    result = single(at.call(METADATA, {"topics": [{"name": topic.name}], "allow_auto_topic_creation": False}), "topics")
    at.expect("partitions", sorted(partition.partition_index for partition in result.partitions), [0, 1, 2])
    at.expect("replicas of each partition", {len(partition.replica_nodes) for partition in result.partitions}, {1})


@case("admin/create/exists", CREATE_SCHEMA, CREATES, since="0.10.1")
def exists(at: ProbeContext) -> None:
    """A name that a topic has already is refused with TOPIC_ALREADY_EXISTS."""
    _refused(at, _plain(at.topic().name), ErrorCode.topic_already_exists)


@case("admin/create/validate-only", CREATE_SCHEMA, CREATES, since="0.10.2")
def validate_only(at: ProbeContext) -> None:
    """A request that only validates gets the response of one that creates the topic, and creates none."""
    name = at.topic_name()
    at.expect_no_error(_create(at, _plain(name), validate_only=True)[name])
    _made(at, name)


@case("admin/create/named-twice", "KIP-4", CREATES, since="0.10.1")
def named_twice(at: ProbeContext) -> None:
    """A name that is in a request twice is refused with INVALID_REQUEST, returned once, and not created."""
    name = at.topic_name()
    results = _create(at, _plain(name), _plain(name, num_partitions=2))
    at.expect_error(results[name], ErrorCode.invalid_request)
    _made(at, name)


@case("admin/create/invalid-name", "Apache Kafka's Topic.validate", CREATES, since="0.10.1", level=SHOULD)
def invalid_name(at: ProbeContext) -> None:
    """Names that are empty, a dot, too long or have other characters are refused with INVALID_TOPIC_EXCEPTION."""
    for name in ("", ".", "..", "no/slash", "no space", "n" * 250, "ä"):
        _refused(at, _plain(name), ErrorCode.invalid_topic_exception)


@case("admin/create/longest-name", "Apache Kafka's Topic.validate", CREATES, since="0.10.1", level=SHOULD)
def longest_name(at: ProbeContext) -> None:
    """A name may have 249 characters."""
    name = at.topic_name().ljust(249, "n")
    at.expect_no_error(_create(at, _plain(name), validate_only=True)[name])


@case("admin/create/colliding-name", "KAFKA-13743", CREATES, since="0.10.1", level=SHOULD)
def colliding_name(at: ProbeContext) -> None:
    """A name that differs from another topic's only in a dot for an underscore is refused, because names of metrics
    would collide."""
    name = at.topic_name() + "_a.b"
    at.belongings.topics.append(name)
    at.create(name)
    _refused(at, _plain(name.replace("_a.b", "_a_b")), ErrorCode.invalid_topic_exception)


@case("admin/create/no-partitions", CREATE_SCHEMA, CREATES, since="0.10.1")
def no_partitions(at: ProbeContext) -> None:
    """Zero or fewer partitions are refused with INVALID_PARTITIONS. Only -1 requests the default (KIP-464)."""
    for count in (0, -2, -(2**31)):
        _refused(at, _plain(at.topic_name(), num_partitions=count), ErrorCode.invalid_partitions)


@case("admin/create/too-many-replicas", CREATE_SCHEMA, CREATES, since="0.10.1")
def too_many_replicas(at: ProbeContext) -> None:
    """More replicas than brokers are refused with INVALID_REPLICATION_FACTOR, and so are none and fewer than none."""
    for count in (32_767, 0, -2):
        _refused(at, _plain(at.topic_name(), replication_factor=count), ErrorCode.invalid_replication_factor)


@case("admin/create/defaults", "KIP-464", {CREATE: since_version(4)}, since="2.4")
def defaults(at: ProbeContext) -> None:
    """From version 4 on, -1 means the broker's own number of partitions and of replicas."""
    name = at.topic_name()
    result = _create(at, _plain(name, num_partitions=-1, replication_factor=-1))[name]
    at.expect_no_error(result)


@case("admin/create/placed", CREATE_SCHEMA, {CREATE: since_version(5)}, since="2.4")
def placed(at: ProbeContext) -> None:
    """A topic can be placed by hand. Its number of partitions and of replicas follows from that."""
    name, node = at.topic_name(), at.broker.node_id
    result = _create(at, _placed(name, (0, [node]), (1, [node])))[name]
    at.expect_no_error(result)
    at.expect("number of partitions", result.num_partitions, 2)
    at.expect("number of replicas", result.replication_factor, 1)


@case("admin/create/placed-and-counted", CREATE_SCHEMA, CREATES, since="0.10.1")
def placed_and_counted(at: ProbeContext) -> None:
    """A topic that is placed by hand must not have a number of partitions or replicas as well."""
    assignment = (0, [at.broker.node_id])
    _refused(at, _placed(at.topic_name(), assignment, num_partitions=1), ErrorCode.invalid_request)
    _refused(at, _placed(at.topic_name(), assignment, replication_factor=1), ErrorCode.invalid_request)


@case("admin/create/placed-wrongly", REPLICATION, CREATES, since="0.10.1", level=SHOULD)
def placed_wrongly(at: ProbeContext) -> None:
    """Partitions with gaps, with a broker that does not exist or is named twice, or with no broker are refused with
    INVALID_REPLICA_ASSIGNMENT."""
    node = at.broker.node_id
    gaps: tuple[dict[int, list[int]], ...] = ({1: [node]}, {0: [node], 2: [node]})
    brokers: tuple[dict[int, list[int]], ...] = ({0: [NOBODY]}, {0: [node, node]}, {0: []})
    for wrong in (*gaps, *brokers):
        _refused(at, _placed(at.topic_name(), *wrong.items()), ErrorCode.invalid_replica_assignment)


@case("admin/create/unknown-config", "Apache Kafka's LogConfig.validate", CREATES, since="0.10.1", level=SHOULD)
def unknown_config(at: ProbeContext) -> None:
    """A setting that topics do not have, or with a value that it cannot have, is refused with INVALID_CONFIG."""
    for key, value in (("no.such.setting", "1"), ("retention.ms", "long"), ("cleanup.policy", "burn")):
        configs = [{"name": key, "value": value}]
        _refused(at, _plain(at.topic_name(), configs=configs), ErrorCode.invalid_config)


@case("admin/create/null-config", REPLICATION, CREATES, since="3.0", level=SHOULD)
def null_config(at: ProbeContext) -> None:
    """A setting without a value is refused with INVALID_CONFIG."""
    configs = [{"name": "retention.ms", "value": None}]
    _refused(at, _plain(at.topic_name(), configs=configs), ErrorCode.invalid_config, ErrorCode.invalid_request)


@case("admin/create/one-of-three", "KIP-4", CREATES, since="0.10.1")
def one_of_three(at: ProbeContext) -> None:
    """A topic that is refused does not affect the others of the request. Each has its own error."""
    good, bad, other = (at.topic_name() for _ in range(3))
    results = _create(at, _plain(good), _plain(bad, num_partitions=0), _plain(other))
    codes = [int(results[name].error_code) if name in results else None for name in (good, bad, other)]
    at.expect("error codes", codes, [0, int(ErrorCode.invalid_partitions), 0])
    at.expect("error code of the first again", _create(at, _plain(good))[good].error_code, ErrorCode(36))


@case("admin/create/returns-size", "KIP-525", {CREATE: since_version(5)}, since="2.4")
def size_in_response(at: ProbeContext) -> None:
    """From version 5 on the response has the number of partitions and replicas, also when it is only validated."""
    name = at.topic_name()
    for only in (True, False):
        result = _create(at, _plain(name, num_partitions=3), validate_only=only)[name]
        at.expect("number of partitions", result.num_partitions, 3)
        at.expect("number of replicas", result.replication_factor, 1)


@case("admin/create/returns-configs", "KIP-525", {CREATE: since_version(5)}, since="2.4")
def configs_in_response(at: ProbeContext) -> None:
    """From version 5 on the response has the topic's settings: those that were given, and those of the broker."""
    name = at.topic_name()
    given = [{"name": "retention.ms", "value": "123456"}]
    result = _create(at, _plain(name, configs=given))[name]
    at.expect_no_error(result)
    at.expect("error code of the settings", result.topic_config_error_code, 0)
    rows = ByKey({str(config.name): config for config in result.configs or ()})
    at.expect("value that was given", rows["retention.ms"].value, "123456")
    at.expect("its source (1: the topic)", rows["retention.ms"].config_source, 1)
    at.expect("cleanup.policy is returned, too", "cleanup.policy" in rows, True)
    at.expect("its source is the topic", rows["cleanup.policy"].config_source == 1, False)


@case("admin/create/returns-id", "KIP-516", {CREATE: since_version(7), METADATA: since_version(10)}, since="2.8")
def id_in_response(at: ProbeContext) -> None:
    """From version 7 on the response has the topic's ID, and so has that of Metadata."""
    name = at.topic_name()
    topic_id = _create(at, _plain(name))[name].topic_id
    at.expect("an ID is returned", topic_id is not None, True)
    at.settle(name)
    result = single(at.call(METADATA, {"topics": [{"name": name}], "allow_auto_topic_creation": False}), "topics")
    at.expect("Metadata returns the same", result.topic_id == topic_id, True)


# DeleteTopics


def _delete(at: ProbeContext, *topics: Mapping[str, object]) -> list[Any]:
    """Return the result of DeleteTopics for each topic."""
    return list(_controller(at, DELETE, {"topics": topics}).responses)


@case("admin/delete/by-name", DELETE_SCHEMA, DELETES, since="0.10.1")
def by_name(at: ProbeContext) -> None:
    """A topic is deleted by its name, once: it is unknown afterwards."""
    topic = at.topic()
    for wanted in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
        result = sole(_delete(at, {"name": topic.name}), "responses")
        at.expect("name", result.name, topic.name)
        at.expect("error code", result.error_code, wanted)


@case("admin/delete/by-id", "KIP-516", BY_ID, since="2.8")
def by_id(at: ProbeContext) -> None:
    """From version 6 on a topic is deleted by its ID, once, and the response has its name as well."""
    topic = at.topic()
    result = sole(_delete(at, {"topic_id": UUID(bytes=topic.id)}), "responses")
    at.expect_no_error(result)
    at.expect("name", result.name, topic.name)
    at.expect("the ID comes back", result.topic_id == UUID(bytes=topic.id), True)
    result = sole(_delete(at, {"topic_id": UUID(bytes=topic.id)}), "responses")
    at.expect("error code of the second time", result.error_code, ErrorCode.unknown_topic_id)


@case("admin/delete/unknown-id", "KIP-516", BY_ID, since="2.8")
def unknown_id(at: ProbeContext) -> None:
    """An ID that no topic has gets UNKNOWN_TOPIC_ID and no name."""
    result = sole(_delete(at, {"topic_id": STRANGE_ID}), "responses")
    at.expect_error(result, ErrorCode.unknown_topic_id)
    at.expect("name", result.name, None, "")


@case("admin/delete/name-and-id", "KIP-516; Apache Kafka's ControllerApis", BY_ID, since="2.8", level=SHOULD)
def name_and_id(at: ProbeContext) -> None:
    """A topic with both a name and an ID, or with neither, is refused with INVALID_REQUEST and not deleted."""
    topic = at.topic()
    result = sole(_delete(at, {"name": topic.name, "topic_id": UUID(bytes=topic.id)}), "responses")
    at.expect("error code with both", result.error_code, ErrorCode.invalid_request)
    result = sole(_delete(at, {}), "responses")
    at.expect("error code with neither", result.error_code, ErrorCode.invalid_request)
    result = sole(_delete(at, {"name": topic.name}), "responses")
    at.expect("error code of the name alone", result.error_code, ErrorCode.none)


@case("admin/delete/named-twice", "Apache Kafka's ControllerApis", DELETES, since="2.8", level=SHOULD)
def deleted_twice(at: ProbeContext) -> None:
    """A name that is in a request twice is refused with INVALID_REQUEST, returned once, and not deleted."""
    topic = at.topic()
    results = _delete(at, {"name": topic.name}, {"name": topic.name})
    at.expect("error codes", [int(result.error_code) for result in results], [int(ErrorCode.invalid_request)])
    at.expect("error code alone", sole(_delete(at, {"name": topic.name}), "responses").error_code, ErrorCode.none)


@case("admin/delete/beside-unknown", DELETE_SCHEMA, DELETES, since="0.10.1")
def beside_unknown(at: ProbeContext) -> None:
    """A topic that does not exist does not affect the others of the request."""
    known, unknown = at.topic().name, at.topic_name()
    results = {str(each.name): each.error_code for each in _delete(at, {"name": unknown}, {"name": known})}
    at.expect("error code of the known topic", results.get(known), ErrorCode.none)
    at.expect("error code of the unknown one", results.get(unknown), ErrorCode.unknown_topic_or_partition)


# CreatePartitions


def _grow(at: ProbeContext, *topics: tuple[str, int, object], validate_only: bool = False) -> dict[str, Any]:
    """Return the result of CreatePartitions for each topic, by name. A topic has its name, its new number of
    partitions, and the brokers of each new one, or None."""
    rows = [
        {"name": name, "count": count, "assignments": None if brokers is None else [{"broker_ids": brokers}]}
        for name, count, brokers in topics
    ]
    response = _controller(at, GROW, {"topics": rows, "validate_only": validate_only})
    return ByKey({str(result.name): result for result in response.results})


@case("admin/partitions/grown", "KIP-195", {**GROWS, METADATA: since_version(4)}, since="1.0")
def grown(at: ProbeContext) -> None:
    """A topic gets as many partitions as the request has, which is their new number."""
    topic = at.topic()
    at.expect_no_error(_grow(at, (topic.name, 3, None))[topic.name])
    at.settle(topic.name, 3)
    result = single(at.call(METADATA, {"topics": [{"name": topic.name}], "allow_auto_topic_creation": False}), "topics")
    at.expect("partitions", sorted(partition.partition_index for partition in result.partitions), [0, 1, 2])


@case("admin/partitions/validate-only", "KIP-195", GROWS, since="1.0")
def grown_validate_only(at: ProbeContext) -> None:
    """A request that only validates gets the response of one that adds partitions, and adds none."""
    topic = at.topic()
    result = _grow(at, (topic.name, 3, None), validate_only=True)[topic.name]
    at.expect_no_error(result)
    result = _grow(at, (topic.name, 2, None))[topic.name]
    at.expect("error code of fewer partitions afterwards", result.error_code, ErrorCode.none)


@case("admin/partitions/not-more", "KIP-195", GROWS, since="1.0")
def not_more(at: ProbeContext) -> None:
    """As many partitions as there are, or fewer, are refused with INVALID_PARTITIONS."""
    topic = at.topic(2)
    for count in (2, 1, 0, -1):
        result = _grow(at, (topic.name, count, None))[topic.name]
        at.expect(f"error code of {count} instead of 2", result.error_code, ErrorCode.invalid_partitions)


@case("admin/partitions/unknown", "KIP-195", GROWS, since="1.0")
def grown_unknown(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and does not affect the others."""
    known, unknown = at.topic().name, at.topic_name()
    results = _grow(at, (unknown, 2, None), (known, 2, None))
    at.expect("error code of the unknown topic", results[unknown].error_code, ErrorCode.unknown_topic_or_partition)
    at.expect("error code of the known one", results[known].error_code, ErrorCode.none)


@case("admin/partitions/placed-wrongly", "KIP-195", GROWS, since="1.0")
def grown_placed_wrongly(at: ProbeContext) -> None:
    """New partitions that are placed by hand are refused with INVALID_REPLICA_ASSIGNMENT if they are not as many as the
    topic grows by, or on a broker that does not exist."""
    topic = at.topic()
    for count, brokers in ((3, [at.broker.node_id]), (2, [NOBODY]), (2, [])):
        result = _grow(at, (topic.name, count, brokers))[topic.name]
        at.expect_error(result, ErrorCode.invalid_replica_assignment)


@case("admin/partitions/named-twice", "Apache Kafka's ControllerApis", GROWS, since="2.8", level=SHOULD)
def grown_twice(at: ProbeContext) -> None:
    """A name that is in a request twice is refused with INVALID_REQUEST."""
    topic = at.topic()
    result = _grow(at, (topic.name, 2, None), (topic.name, 3, None))[topic.name]
    at.expect_error(result, ErrorCode.invalid_request)
