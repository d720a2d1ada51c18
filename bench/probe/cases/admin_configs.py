"""Settings: DescribeConfigs, IncrementalAlterConfigs and AlterConfigs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import AGAIN_AFTER_S, ByKey, ProbeContext, single
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

DESCRIBE, ALTER = int(ApiKey.DESCRIBE_CONFIGS), int(ApiKey.INCREMENTAL_ALTER_CONFIGS)
REPLACE, CREATE = int(ApiKey.ALTER_CONFIGS), int(ApiKey.CREATE_TOPICS)
DESCRIBES = {DESCRIBE: since_version(1), CREATE: ANY}
ALTERS = {ALTER: ANY, **DESCRIBES}
REPLACES = {REPLACE: ANY, **DESCRIBES}
TOPIC, BROKER = 2, 4
SET, UNSET, APPEND, SUBTRACT = 0, 1, 2, 3
OF_TOPIC, OF_DEFAULT = 1, 5
"""Sources of a setting: set for this topic, and built in."""
SEEN_WITHIN_S = 5.0
COMMON = frozenset(
    (
        *("cleanup.policy", "compression.type", "delete.retention.ms", "file.delete.delay.ms", "flush.messages"),
        *("flush.ms", "index.interval.bytes", "max.compaction.lag.ms", "max.message.bytes", "message.timestamp.type"),
        *("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate"),
        *("retention.bytes", "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms"),
        "unclean.leader.election.enable",
    )
)
"""The settings of a topic that each release of Apache Kafka since 2.0 has."""
TYPES = {
    "preallocate": 1,
    "compression.type": 2,
    "min.insync.replicas": 3,
    "retention.ms": 5,
    "min.cleanable.dirty.ratio": 6,
    "cleanup.policy": 7,
}
"""Types of settings as KIP-569 numbers them: boolean, string, int, long, double and list."""


def _describe(at: ProbeContext, name: str, keys: Sequence[str] | None = None, kind: int = TOPIC, **more: Any) -> Any:
    """Return the result of DescribeConfigs for one resource."""
    wanted = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return single(at.call(DESCRIBE, {"resources": [wanted], **more}), "results")


def _rows(at: ProbeContext, name: str, keys: Sequence[str] | None = None, **more: Any) -> dict[str, Any]:
    """The settings of a topic, by their names."""
    results = _describe(at, name, keys, **more)
    at.expect("error code of the topic", results.error_code, ErrorCode.none)
    return ByKey({str(config.name): config for config in results.configs})


def _becomes(at: ProbeContext, topic: str, key: str, wanted: str) -> None:
    """A setting has this value, within the time that a broker may take to learn of a change."""
    until = time.monotonic() + SEEN_WITHIN_S
    while (seen := _rows(at, topic, [key])[key].value) != wanted and time.monotonic() < until:
        time.sleep(AGAIN_AFTER_S)
    at.expect(f"{key} afterwards", seen, wanted)


def _alter(
    at: ProbeContext, topic: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, validate_only: bool = False
) -> ErrorCode:
    """Change settings of a resource and return its error code. A change is a name, an operation and a value."""
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": topic, "configs": configs}
    result = single(at.call(ALTER, {"resources": [resource], "validate_only": validate_only}), "responses")
    return ErrorCode(result.error_code)


def _altered(at: ProbeContext, topic: str, *changes: tuple[str, int, str | None]) -> None:
    at.expect("error code of the change", _alter(at, topic, *changes), ErrorCode.none)


def _replace(
    at: ProbeContext, topic: str, settings: Mapping[str, str | None], validate_only: bool = False
) -> ErrorCode:
    """Replace all settings of a topic."""
    configs = [{"name": key, "value": value} for key, value in settings.items()]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    result = single(at.call(REPLACE, {"resources": [resource], "validate_only": validate_only}), "responses")
    return ErrorCode(result.error_code)


# DescribeConfigs


@case("admin/configs/complete", "KIP-133", DESCRIBES, since="0.11", level=SHOULD)
def complete(at: ProbeContext) -> None:
    """The response has all settings of a topic, and not only some of them."""
    missing = sorted(COMMON - _rows(at, at.topic().name).keys())
    at.expect_that("settings that are missing", missing, not missing, "none")


@case("admin/configs/core", "KIP-133", DESCRIBES, since="0.11")
def core(at: ProbeContext) -> None:
    """The response has at least the settings that tools read: cleanup, retention, the largest batch, and how many
    replicas must be in sync."""
    wanted = {"cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "min.insync.replicas"}
    missing = sorted(wanted - _rows(at, at.topic().name).keys())
    at.expect_that("settings that are missing", missing, not missing, "none")


@case("admin/configs/by-name", "KIP-133", DESCRIBES, since="0.11")
def by_name(at: ProbeContext) -> None:
    """The response has only the settings that are named. It omits a name that no setting has."""
    results = _rows(at, at.topic().name, ["retention.ms", "cleanup.policy", "no.such.setting"])
    at.expect("settings", sorted(results), ["cleanup.policy", "retention.ms"])


@case("admin/configs/set-for-topic", "KIP-133, KIP-226", {**DESCRIBES, DESCRIBE: since_version(1)}, since="1.1")
def set_for_topic(at: ProbeContext) -> None:
    """A setting of the topic itself has its value and source 1, and others have another source."""
    results = _rows(at, at.topic(configs={"retention.ms": "123456"}).name)
    at.expect("value", results["retention.ms"].value, "123456")
    at.expect("source", results["retention.ms"].config_source, OF_TOPIC)
    at.expect("another setting's source is the topic", results["cleanup.policy"].config_source == OF_TOPIC, False)
    at.expect("is sensitive", results["retention.ms"].is_sensitive, False)
    at.expect("is read-only", results["retention.ms"].read_only, False)


@case("admin/configs/synonyms", "KIP-226", {**DESCRIBES, DESCRIBE: since_version(1)}, since="1.1")
def synonyms(at: ProbeContext) -> None:
    """With include_synonyms a setting has all places that give it a value. The first of them is the one that counts."""
    name = at.topic(configs={"max.message.bytes": "54321"}).name
    row = _rows(at, name, ["max.message.bytes"], include_synonyms=True)["max.message.bytes"]
    places = [(str(synonym.name), synonym.value, synonym.source) for synonym in row.synonyms]
    at.expect("first place", places[0], ("max.message.bytes", "54321", OF_TOPIC))
    at.expect("name and source of the last place", (places[-1][0], places[-1][2]), ("message.max.bytes", OF_DEFAULT))


@case("admin/configs/no-synonyms", "KIP-226", {**DESCRIBES, DESCRIBE: since_version(1)}, since="1.1")
def no_synonyms(at: ProbeContext) -> None:
    """Without it no setting has synonyms."""
    results = _rows(at, at.topic(configs={"max.message.bytes": "54321"}).name)
    count = sum(len(result.synonyms) for result in results.values())
    at.expect("number of synonyms", count, 0)


@case("admin/configs/types", "KIP-569", {**DESCRIBES, DESCRIBE: since_version(3)}, since="2.6")
def types(at: ProbeContext) -> None:
    """From version 3 on each setting has its type."""
    results = {key: row.config_type for key, row in _rows(at, at.topic().name, list(TYPES)).items()}
    wrong = sorted(key for key, seen in results.items() if seen != TYPES[key])
    at.expect_that("settings with a wrong type", wrong, not wrong, "none")
    at.expect_that("number of settings with a type", len(results), len(results) > 2, "more than two")


@case("admin/configs/documentation", "KIP-569", {**DESCRIBES, DESCRIBE: since_version(3)}, since="2.6", level=SHOULD)
def documentation(at: ProbeContext) -> None:
    """From version 3 on a setting is documented if the request wants that, and only then."""
    name = at.topic().name
    request = _rows(at, name, ["retention.ms"], include_documentation=True)["retention.ms"].documentation
    at.expect("documentation is returned if requested", bool(request), True)
    at.expect("else", _rows(at, name, ["retention.ms"])["retention.ms"].documentation or None, None)


@case("admin/configs/unknown-topic", "KIP-133", {DESCRIBE: since_version(1)}, since="0.11")
def unknown_topic(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION and no settings."""
    results = _describe(at, at.topic_name())
    at.expect_error(results, ErrorCode.unknown_topic_or_partition)
    at.expect("number of settings", len(results.configs), 0)


@case(
    "admin/configs/invalid-topic",
    "Apache Kafka's ConfigHelper",
    {DESCRIBE: since_version(1)},
    since="0.11",
    level=SHOULD,
)
def invalid_topic(at: ProbeContext) -> None:
    """A name that no topic can have gets INVALID_TOPIC_EXCEPTION."""
    at.expect_error(_describe(at, "no topic!"), ErrorCode.invalid_topic_exception)


@case("admin/configs/of-broker", "KIP-133", {DESCRIBE: since_version(1)}, since="0.11")
def of_broker(at: ProbeContext) -> None:
    """A broker returns its own settings, among them some that cannot be changed while it runs."""
    results = _describe(at, str(at.broker.node_id), kind=BROKER)
    at.expect_no_error(results)
    fixed = [str(config.name) for config in results.configs if config.read_only]
    at.expect("some settings are read-only", bool(fixed), True)


@case(
    "admin/configs/of-strange-broker",
    "Apache Kafka's ConfigHelper",
    {DESCRIBE: since_version(1)},
    since="0.11",
    level=SHOULD,
)
def of_strange_broker(at: ProbeContext) -> None:
    """The settings of another broker than the one that gets the request, or whose name is no number, are refused with
    INVALID_REQUEST."""
    for name in ("2000000000", "broker"):
        at.expect_error(_describe(at, name, kind=BROKER), ErrorCode.invalid_request)


@case("admin/configs/beside-unknown", "KIP-133", DESCRIBES, since="0.11")
def beside_unknown(at: ProbeContext) -> None:
    """A resource that does not exist does not affect the others of the request."""
    known, unknown = at.topic().name, at.topic_name()
    wanted = [{"resource_type": TOPIC, "resource_name": name} for name in (unknown, known)]
    results = {result.resource_name: result.error_code for result in at.call(DESCRIBE, {"resources": wanted}).results}
    at.expect("error code of the known topic", results.get(known), ErrorCode.none)
    at.expect("error code of the unknown one", results.get(unknown), ErrorCode.unknown_topic_or_partition)


# IncrementalAlterConfigs


@case("admin/alter/set-and-delete", "KIP-339", ALTERS, since="2.3")
def set_and_delete(at: ProbeContext) -> None:
    """A setting is set, and deleted again, whereupon it has the value that it had before. Others stay as they are."""
    topic = at.topic(configs={"segment.bytes": "2000000"}).name
    before = _rows(at, topic, ["retention.ms"])["retention.ms"].value
    _altered(at, topic, ("retention.ms", SET, "123456"))
    _becomes(at, topic, "retention.ms", "123456")
    _altered(at, topic, ("retention.ms", UNSET, None))
    _becomes(at, topic, "retention.ms", before)
    _becomes(at, topic, "segment.bytes", "2000000")


@case("admin/alter/append-and-subtract", "KIP-339", ALTERS, since="2.3")
def append_and_subtract(at: ProbeContext) -> None:
    """A value is appended to a list, once, and taken out of it. A setting that was not set begins with its default."""
    topic = at.topic().name
    for _ in range(2):
        _altered(at, topic, ("cleanup.policy", APPEND, "compact"))
    _becomes(at, topic, "cleanup.policy", "delete,compact")
    _altered(at, topic, ("cleanup.policy", SUBTRACT, "delete"))
    _becomes(at, topic, "cleanup.policy", "compact")


@case("admin/alter/append-to-number", "KIP-339", ALTERS, since="2.3")
def append_to_number(at: ProbeContext) -> None:
    """Nothing can be appended to a setting that is no list, nor taken out of it: INVALID_CONFIG."""
    topic = at.topic().name
    for operation in (APPEND, SUBTRACT):
        code = _alter(at, topic, ("retention.ms", operation, "1"))
        at.expect("error code", code, ErrorCode.invalid_config, ErrorCode.invalid_request)


@case("admin/alter/validate-only", "KIP-339", ALTERS, since="2.3")
def alter_validate_only(at: ProbeContext) -> None:
    """A request that only validates finds what is wrong, and changes nothing."""
    topic = at.topic(configs={"retention.ms": "111111"}).name
    change, wrong = ("retention.ms", SET, "123456"), ("retention.ms", SET, "long")
    at.expect("error code of a right value", _alter(at, topic, change, validate_only=True), ErrorCode.none)
    at.expect("error code of a wrong one", _alter(at, topic, wrong, validate_only=True), ErrorCode.invalid_config)
    _altered(at, topic, ("segment.bytes", SET, "2000000"))
    _becomes(at, topic, "segment.bytes", "2000000")
    _becomes(at, topic, "retention.ms", "111111")


@case("admin/alter/invalid", "KIP-339", ALTERS, since="2.3")
def alter_invalid(at: ProbeContext) -> None:
    """A setting that topics do not have, or a value that it cannot have, is refused with INVALID_CONFIG."""
    topic = at.topic().name
    for key, value in (("no.such.setting", "1"), ("retention.ms", "long"), ("min.insync.replicas", "0")):
        at.expect(f"error code of {key}", _alter(at, topic, (key, SET, value)), ErrorCode.invalid_config)


@case("admin/alter/all-or-nothing", "KIP-339", ALTERS, since="2.3")
def all_or_nothing(at: ProbeContext) -> None:
    """The changes of one resource are made all together, or none of them if one is wrong."""
    topic = at.topic(configs={"retention.ms": "111111"}).name
    code = _alter(at, topic, ("retention.ms", SET, "123456"), ("segment.bytes", SET, "many"))
    at.expect("error code", code, ErrorCode.invalid_config)
    _altered(at, topic, ("segment.bytes", SET, "2000000"))
    _becomes(at, topic, "segment.bytes", "2000000")
    _becomes(at, topic, "retention.ms", "111111")


@case("admin/alter/named-twice", "Apache Kafka's ConfigAdminManager", ALTERS, since="2.3", level=SHOULD)
def altered_twice(at: ProbeContext) -> None:
    """A setting that a request names twice is refused with INVALID_REQUEST."""
    code = _alter(at, at.topic().name, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    at.expect("error code", code, ErrorCode.invalid_request)


@case("admin/alter/no-value", "Apache Kafka's ConfigAdminManager", ALTERS, since="2.3", level=SHOULD)
def no_value(at: ProbeContext) -> None:
    """A setting that is to be set to null is refused with INVALID_REQUEST. Only a deletion needs no value."""
    code = _alter(at, at.topic().name, ("retention.ms", SET, None))
    at.expect("error code", code, ErrorCode.invalid_request)


@case("admin/alter/unknown-topic", "KIP-339", ALTERS, since="2.3")
def alter_unknown_topic(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and does not affect the others."""
    known, unknown = at.topic().name, at.topic_name()
    configs = [{"name": "retention.ms", "config_operation": SET, "value": "123456"}]
    resources = [{"resource_type": TOPIC, "resource_name": each, "configs": configs} for each in (unknown, known)]
    results = {
        response.resource_name: response.error_code for response in at.call(ALTER, {"resources": resources}).responses
    }
    at.expect("error code of the unknown topic", results.get(unknown), ErrorCode.unknown_topic_or_partition)
    at.expect("error code of the known one", results.get(known), ErrorCode.none)
    _becomes(at, known, "retention.ms", "123456")


@case("admin/alter/unknown-kind", "Apache Kafka's ConfigAdminManager", ALTERS, since="2.3", level=SHOULD)
def unknown_kind(at: ProbeContext) -> None:
    """A kind of resource that does not exist is refused with INVALID_REQUEST."""
    code = _alter(at, at.topic().name, ("retention.ms", SET, "1"), kind=99)
    at.expect("error code", code, ErrorCode.invalid_request)


# AlterConfigs


@case("admin/replace/replaced", "KIP-133", REPLACES, since="0.11")
def replaced(at: ProbeContext) -> None:
    """AlterConfigs replaces all settings of a topic: what it does not name has its default again."""
    topic = at.topic(configs={"retention.ms": "111111"}).name
    at.expect("error code", _replace(at, topic, {"segment.bytes": "2000000"}), ErrorCode.none)
    _becomes(at, topic, "segment.bytes", "2000000")
    source = _rows(at, topic, ["retention.ms"])["retention.ms"].config_source
    at.expect("the other setting's source is the topic", source == OF_TOPIC, False)


@case("admin/replace/validate-only", "KIP-133", {**REPLACES, ALTER: ANY}, since="0.11")
def replace_validate_only(at: ProbeContext) -> None:
    """A request that only validates finds what is wrong, and changes nothing."""
    topic = at.topic(configs={"retention.ms": "111111"}).name
    at.expect("error code", _replace(at, topic, {"retention.ms": "123456"}, validate_only=True), ErrorCode.none)
    code = _replace(at, topic, {"retention.ms": "long"}, validate_only=True)
    at.expect("error code of a wrong value", code, ErrorCode.invalid_config)
    _altered(at, topic, ("segment.bytes", SET, "2000000"))
    _becomes(at, topic, "segment.bytes", "2000000")
    _becomes(at, topic, "retention.ms", "111111")


@case("admin/replace/unknown-topic", "KIP-133", REPLACES, since="0.11")
def replace_unknown_topic(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    code = _replace(at, at.topic_name(), {"retention.ms": "123456"})
    at.expect("error code", code, ErrorCode.unknown_topic_or_partition)


# Ranges, and what is named twice

OUT_OF_RANGE = (
    *(("retention.ms", "-2"), ("segment.ms", "0"), ("min.insync.replicas", "0"), ("max.message.bytes", "-1")),
    *(("min.cleanable.dirty.ratio", "1.5"), ("delete.retention.ms", "-1"), ("compression.type", "nosuch")),
    *(("message.timestamp.type", "nosuch"), ("cleanup.policy", "nosuch"), ("flush.messages", "0")),
    *(("unclean.leader.election.enable", "maybe"), ("index.interval.bytes", "-1"), ("segment.jitter.ms", "-1")),
)


@case("admin/alter/out-of-range", "Apache Kafka's LogConfig", ALTERS, since="2.3", level=SHOULD)
def out_of_range(at: ProbeContext) -> None:
    """A value beyond a setting's range is refused with INVALID_CONFIG."""
    topic = at.topic().name
    codes = {key: _alter(at, topic, (key, SET, value)) for key, value in OUT_OF_RANGE}
    taken = sorted(key for key, code in codes.items() if code != ErrorCode.invalid_config)
    at.expect_that("settings that are not refused so", taken, not taken, "none")


@case("admin/create/out-of-range", "Apache Kafka's LogConfig", DESCRIBES, since="2.3", level=SHOULD)
def created_out_of_range(at: ProbeContext) -> None:
    """So it is for a topic that is made, and the topic is not made then."""
    codes = {}
    for key, value in OUT_OF_RANGE:
        wanted = {
            "name": at.topic_name(),
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value}],
        }
        codes[key] = single(at.call(CREATE, {"topics": [wanted], "timeout": 5_000}), "topics").error_code
    taken = sorted(key for key, code in codes.items() if code != ErrorCode.invalid_config)
    at.expect_that("settings that are not refused so", taken, not taken, "none")


@case("admin/alter/segment-bytes", "KIP-1030", ALTERS, since="4.0", level=SHOULD)
def smallest_segment(at: ProbeContext) -> None:
    """Since Apache Kafka 4.0 no segment can be smaller than 1 MiB."""
    topic = at.topic().name
    at.expect("error code of 1048575", _alter(at, topic, ("segment.bytes", SET, "1048575")), ErrorCode.invalid_config)
    at.expect("error code of 1048576", _alter(at, topic, ("segment.bytes", SET, "1048576")), ErrorCode.none)


@case("admin/alter/resource-twice", "Apache Kafka's ConfigAdminManager", ALTERS, since="2.3", level=SHOULD)
def altered_resource_twice(at: ProbeContext) -> None:
    """A resource that a request names twice is refused with INVALID_REQUEST, and nothing of it is changed."""
    topic = at.topic(configs={"retention.ms": "111111"}).name
    changes = [{"name": key, "config_operation": SET, "value": "1"} for key in ("retention.ms", "segment.ms")]
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configs": [change]} for change in changes]
    codes = {int(response.error_code) for response in at.call(ALTER, {"resources": resources}).responses}
    at.expect("error codes", sorted(codes), [int(ErrorCode.invalid_request)])
    _becomes(at, topic, "retention.ms", "111111")


@case("admin/configs/resource-twice", "Apache Kafka's ConfigHelper", DESCRIBES, since="0.11", level=SHOULD)
def described_resource_twice(at: ProbeContext) -> None:
    """A resource that DescribeConfigs names twice is returned twice."""
    topic = at.topic().name
    wanted = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    results = at.call(DESCRIBE, {"resources": [wanted, wanted]}).results
    at.expect("number of results", len(results), 2)
