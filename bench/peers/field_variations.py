"""One valid request of each API and version, and the same with one field changed: to its limits, null, empty, twice,
another existing name, an internal topic. Both brokers get each of them, and what they respond is laid side by side.

Compared are error codes, the lengths of arrays and flags, whatever their order. Both clusters are prepared alike and
get the same requests in the same order. What would delete topics, groups or members is sent for validation only or not
at all, so that each request meets the same state.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from bench.peers.raw_client import RawConnection, create_topic, produce_request
from bench.probe.bodies import body
from reference_broker.records.builder import build
from reference_broker.records.record import Record
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name
from reference_broker.wire.errors import ErrorCode, ProtocolError, error_name
from reference_broker.wire.messages import body_class, decode_response, encode_request
from reference_broker.wire.schema import SchemaField, schema_fields

Path: TypeAlias = tuple[str | int, ...]
TOPIC, OTHER_TOPIC, GROUP, TRANSACTIONAL_ID = "t", "u", "g", "tx"
NAMES: Final = ("", "no-such-name", "no good", "x" * 300, OTHER_TOPIC, "__consumer_offsets", "__cluster_metadata")
UNKNOWN_ID: Final = bytes(range(16))
LIMITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "timedelta_i32": 31, "timedelta_i64": 63}
"""How many bits the greatest value of each kind has."""
SILENT_S = 4.0
CLOSED, SILENT, GARBLED = "closed", "silent", "garbled"


class OfSide:
    """A value that each broker has given out itself, named by an attribute of Side."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __deepcopy__(self, _: object) -> "OfSide":
        return self


PRODUCER = {"producer_id": OfSide("producer_id"), "producer_epoch": OfSide("producer_epoch")}
OWNER = {"transactional_id": TRANSACTIONAL_ID, **PRODUCER}
ONE_OFFSET = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "m"}]}]
SETTING = {"name": "retention.ms", "value": "1000"}
BASES: Final[Mapping[int, Mapping[str, Any]]] = {
    ApiKey.LIST_OFFSETS: {
        "replica_id": -1,
        "topics": [
            {"name": TOPIC, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
        ],
    },
    ApiKey.METADATA: {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False},
    ApiKey.OFFSET_COMMIT: {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "topics": ONE_OFFSET,
    },
    ApiKey.OFFSET_FETCH: {"groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]},
    ApiKey.FIND_COORDINATOR: {"coordinator_keys": [GROUP]},
    ApiKey.HEARTBEAT: {"group_id": GROUP, "generation_id": 1, "member_id": "m"},
    ApiKey.LEAVE_GROUP: {"group_id": GROUP, "members": [{"member_id": "m"}]},
    ApiKey.SYNC_GROUP: {
        "group_id": GROUP,
        "generation_id": 1,
        "member_id": "m",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    },
    ApiKey.DESCRIBE_GROUPS: {"groups": [GROUP]},
    ApiKey.LIST_GROUPS: {},
    ApiKey.CREATE_TOPICS: {
        "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1, "configs": [SETTING]}],
        "timeout": 5000,
        "validate_only": True,
    },
    ApiKey.DELETE_RECORDS: {
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}],
        "timeout": 2000,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "replica_id": -1,
        "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}],
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {"transactions": [{**OWNER, "topics": [{"name": TOPIC, "partitions": [0]}]}]},
    ApiKey.ADD_OFFSETS_TO_TXN: {**OWNER, "group_id": GROUP},
    ApiKey.TXN_OFFSET_COMMIT: {**OWNER, "group_id": GROUP, "generation_id": -1, "topics": ONE_OFFSET},
    ApiKey.DESCRIBE_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": ["retention.ms"]}]
    },
    ApiKey.ALTER_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": [SETTING]}],
        "validate_only": True,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": [{**SETTING, "config_operation": 0}]}],
        "validate_only": True,
    },
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": TOPIC, "count": 3, "assignments": None}],
        "timeout": 2000,
        "validate_only": True,
    },
    ApiKey.ELECT_LEADERS: {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": 2000},
    ApiKey.OFFSET_DELETE: {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 1}]}]},
    ApiKey.DESCRIBE_QUORUM: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ApiKey.DESCRIBE_CLUSTER: {},
    ApiKey.DESCRIBE_PRODUCERS: {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
    ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": [TRANSACTIONAL_ID]},
    ApiKey.LIST_TRANSACTIONS: {},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "topics": [{"name": TOPIC}],
        "cursor": {"topic_name": TOPIC, "partition_index": 0},
    },
}
"""Requests that both brokers take, by plain values. A field that is not named has its default. Those of Produce and
Fetch are compared elsewhere (``test_batches_like_kafka``, ``test_fetch_like_kafka``)."""
NEWEST: Final = {int(ApiKey.ADD_PARTITIONS_TO_TXN): 3}
"""The newest version that is for clients."""
UNCHANGED: Final = frozenset({"validate_only"})
"""Without it the requests would change what the next ones are about."""
NOT_COMPARED: Final = frozenset({"is_default", "is_sensitive", "read_only", "configs", "synonyms", "brokers"})


@dataclass(frozen=True, slots=True)
class Variation:
    """A request in which ``value`` is at ``path``; the valid one itself has no path."""

    api_key: int
    path: Path
    value: str
    values: Mapping[str, Any]

    @property
    def field(self) -> str:
        return ".".join(each for each in self.path if isinstance(each, str))


def variations(api_key: int) -> Iterator[Variation]:
    """Yield the valid request, and then each with one field changed."""
    layout = body_class(api_key, "request")
    base = _whole(layout, BASES[api_key])
    yield Variation(api_key, (), "", base)
    for path, value in _changes(layout, base, ()):
        changed = deepcopy(base)
        _set(changed, path, value)
        words = repr(value)
        yield Variation(api_key, path, words if len(words) < 60 else f"{words[:40]}... of {len(words)}", changed)


def _whole(layout: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the defaults, as plain values."""
    found: dict[str, Any] = {}
    for each in schema_fields(layout):
        value = values.get(each.name, each.default)
        if each.struct is not None and isinstance(value, Sequence):
            value = [_whole(each.struct, one) for one in value]
        elif each.struct is not None and isinstance(value, Mapping):
            value = _whole(each.struct, value)
        found[each.name] = list(value) if isinstance(value, tuple) else value
    return found


def _changes(layout: type, values: Mapping[str, Any], before: Path) -> Iterator[tuple[Path, Any]]:
    for each in schema_fields(layout):
        path, value = (*before, each.name), values[each.name]
        if each.name in UNCHANGED:
            continue
        if each.nullable and value is not None:
            yield path, None
        if each.is_array:
            if value:
                yield path, []
                yield path, [*value, *deepcopy(value)]
                if each.struct is None:
                    yield from ((path, [one]) for one in _others(each, value[0]))
                else:
                    yield from _changes(each.struct, value[0], (*path, 0))
        elif each.struct is not None:
            if value is not None:
                yield from _changes(each.struct, value, path)
        else:
            yield from ((path, one) for one in _others(each, value))


def _others(each: SchemaField, value: Any) -> Iterator[Any]:
    found: list[Any] = []
    if each.kind in LIMITS:
        most = (1 << LIMITS[each.kind]) - 1
        found = [-most - 1, -2, -1, 0, 1, 9, most]
        if each.kind.startswith("timedelta"):
            found = [-2, -1]  # A short time may be over, or not.
    elif each.kind == "bool":
        found = [not value]
    elif each.kind == "string":
        found = [*NAMES]
    elif each.kind in ("uuid", "raw_uuid"):
        found = [UNKNOWN_ID]
    yield from (one for one in found if one != value)


def _set(values: Any, path: Path, value: Any) -> None:
    *parents, last = path
    for each in parents:
        values = values[each]
    values[last] = value


@dataclass(slots=True)
class Side:
    """One broker on loopback, prepared with ``prepare``."""

    port: int
    producer_id: int = -1
    producer_epoch: int = -1
    _connection: RawConnection | None = field(default=None, init=False)

    def prepare(self) -> None:
        """Make two topics, one with records, an empty group with an offset, and a transactional ID."""
        with RawConnection(self.port) as connection:
            for name in (TOPIC, OTHER_TOPIC):
                create_topic(connection, name, 2)
            batch = build([Record(timestamp_ms=1_700_000_000_000, key=b"k", value=b"v")] * 3)
            for partition in (0, 1):
                self._until(connection, ApiKey.PRODUCE, 9, produce_request(TOPIC, partition, batch))
            for kind, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
                wanted = body(ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": [key]})
                self._until(connection, ApiKey.FIND_COORDINATOR, 4, wanted)
            self._until(connection, ApiKey.OFFSET_COMMIT, 8, body(ApiKey.OFFSET_COMMIT, BASES[ApiKey.OFFSET_COMMIT]))
            init = {"transactional_id": TRANSACTIONAL_ID, "transaction_timeout": 900_000}
            init |= {"producer_id": -1, "producer_epoch": -1}
            told = self._until(connection, ApiKey.INIT_PRODUCER_ID, 4, body(ApiKey.INIT_PRODUCER_ID, init))
            self.producer_id, self.producer_epoch = int(told.producer_id), int(told.producer_epoch)

    def _until(self, connection: RawConnection, api_key: int, version: int, sent: object) -> Any:
        """Send a request until its response has no error. A topic or a coordinator may not be there yet."""
        deadline = time.monotonic() + 60
        while True:
            told = connection.call(api_key, version, sent)
            errors = [words for words in summary(told) if "error_code" in words and "=NONE" not in words]
            if not errors:
                return told
            assert time.monotonic() < deadline, f"{api_name(api_key)}: {errors}"
            time.sleep(0.2)

    def frame(self, variation: Variation, version: int) -> bytes | None:
        """Return the request with its length, or None if this version cannot say it."""
        api_key = variation.api_key
        try:
            sent = body(api_key, self._own(variation.values))
            return b"".join(encode_request(api_key, version, 7, "variations", sent))
        except Exception:
            return None

    def _own(self, value: Any) -> Any:
        if isinstance(value, OfSide):
            return getattr(self, value.name)
        if isinstance(value, Mapping):
            return {name: self._own(each) for name, each in value.items()}
        return [self._own(each) for each in value] if isinstance(value, list) else value

    def respond(self, api_key: int, version: int, frame: bytes) -> Counter[str]:
        """Send a request, and return what is compared of its response."""
        if self._connection is None:
            self._connection = RawConnection(self.port, SILENT_S)
        try:
            answer = self._connection.exchange(frame)
        except TimeoutError:
            return self._lost(SILENT)
        except OSError:
            return self._lost(CLOSED)
        try:
            return summary(decode_response(api_key, version, memoryview(answer))[1])
        except ProtocolError:
            return Counter([GARBLED])

    def _lost(self, how: str) -> Counter[str]:
        self.close()
        return Counter([how])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def summary(response: object) -> Counter[str]:
    """Return the error codes, the lengths of arrays and the flags of a response, by their places."""
    found: Counter[str] = Counter()
    _summarise(response, "", found)
    return found


def _summarise(value: Any, place: str, found: Counter[str]) -> None:
    for each in fields(value):
        inner, name = getattr(value, each.name), f"{place}.{each.name}".lstrip(".")
        if each.name in NOT_COMPARED or each.name == "throttle_time":
            continue
        if each.name.endswith("error_code"):
            found[f"{name}={_name(inner)}"] += 1
        elif isinstance(inner, bool):
            found[f"{name}={inner}"] += 1
        elif isinstance(inner, list | tuple):
            found[f"{name} has {len(inner)}"] += 1
            for one in inner:
                if is_dataclass(one):
                    _summarise(one, name, found)
        elif is_dataclass(inner):
            _summarise(inner, name, found)


def _name(error: Any) -> str:
    try:
        return error_name(ErrorCode(int(error)))
    except ValueError:
        return str(int(error))


class Difference(NamedTuple):
    """What only one of the brokers responds to a request."""

    api: str
    version: int
    field: str
    value: str
    ours: str
    kafka: str


def differences(ours: Side, kafka: Side) -> Iterator[Difference]:
    """Send all requests to both brokers, and yield where they respond otherwise."""
    for api_key in BASES:
        oldest, newest, *_ = VERSIONS[api_key]
        for version in range(oldest, min(newest, NEWEST.get(api_key, newest)) + 1):
            seen: set[bytes] = set()
            for each in variations(api_key):
                frame, other = ours.frame(each, version), kafka.frame(each, version)
                if frame is None or other is None or frame in seen:
                    continue
                seen.add(frame)
                here, there = ours.respond(api_key, version, frame), kafka.respond(api_key, version, other)
                if here != there:
                    yield Difference(
                        api_name(api_key), version, each.field, each.value, _words(here - there), _words(there - here)
                    )


def _words(only: Counter[str]) -> str:
    return ", ".join(sorted(only))
