"""One valid request of each API and version, and the same with one field changed: to its limits, null, empty, twice,
another existing name, an internal topic. Both brokers get each of them, and what they respond is laid side by side.

Compared are error codes, the lengths of arrays, nulls and flags, whatever their order. Both clusters are prepared alike
and get the same requests in the same order. What would change the state is sent for validation only, or for
objects that are made for this request (``field_bases``), so that each request meets the same state.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from bench.peers.field_bases import BASES, OTHER_TOPIC, PreparedBroker, Valid
from bench.probe.conversation import body, entity_of
from reference_broker.blocking.transport import DeadlineError, TransportError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ErrorCode, ProtocolError, error_name
from reference_broker.wire.frames import RequestHeader, write_request_header
from reference_broker.wire.messages import body_class, decode_response, encode_request
from reference_broker.wire.schema import SchemaField, schema_fields

Path: TypeAlias = tuple[str | int, ...]
NAMES: Final = ("", "no-such-name", "no good", "x" * 300, OTHER_TOPIC, "__consumer_offsets", "__cluster_metadata")
UNKNOWN_ID: Final = bytes(range(16))
LIMITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "timedelta_i32": 31, "timedelta_i64": 63}
"""Number of bits of the greatest value of each kind."""
CLOSED, SILENT, GARBLED = "closed", "silent", "garbled"
WITH_BYTES: Final = (ApiKey.PRODUCE, ApiKey.FETCH)
"""APIs with bodies of their own in ``wire``. Here they have the schemas' layouts, one for each version."""
NEVER_OVER: Final = frozenset({"session_timeout", "transaction_timeout"})
"""Times that are only checked. Another short time may be over before the response, or not."""


def shown(words: str) -> str:
    """Return a value as rows of differences have it."""
    return words if len(words) < 60 else f"{words[:40]}... of {len(words)}"


NOT_SENT: Final[Mapping[tuple[ApiKey, str, str], str]] = {
    (ApiKey.PRODUCE, "acks", "0"): "there is no response",
    (ApiKey.PRODUCE, "topic_data.partition_data.records", "None"): "Kafka does not respond; here it is INVALID_RECORD",
    (ApiKey.JOIN_GROUP, "protocols", "twice"): "Kafka does not respond; here the second is ignored",
    (
        ApiKey.CREATE_PARTITIONS,
        "topics.count",
        "2147483647",
    ): "Kafka needs seconds to fail; here it is POLICY_VIOLATION",
    (ApiKey.UNREGISTER_BROKER, "broker_id", "0"): "it is the broker itself",
    **{(ApiKey.JOIN_GROUP, "group_id", shown(repr(name))): "it would have members of others" for name in NAMES if name},
}
CANNOT_SAY: Final[Mapping[tuple[ApiKey, str, str], int]] = {
    (ApiKey.METADATA, "topics", "[]"): 0,
    (ApiKey.METADATA, "topics.name", "None"): 0,
    (ApiKey.DELETE_TOPICS, "topics.name", "None"): 5,
    (ApiKey.OFFSET_FETCH, "groups", "[]"): 7,
    (ApiKey.OFFSET_FETCH, "groups", "twice"): 7,
    (ApiKey.OFFSET_FETCH, "groups.topics", "None"): 1,
    (ApiKey.FIND_COORDINATOR, "coordinator_keys", "[]"): 3,
    (ApiKey.FIND_COORDINATOR, "coordinator_keys", "twice"): 3,
    (ApiKey.LEAVE_GROUP, "members", "[]"): 2,
    (ApiKey.LEAVE_GROUP, "members", "twice"): 2,
    (ApiKey.ADD_PARTITIONS_TO_TXN, "transactions", "[]"): 3,
    (ApiKey.ADD_PARTITIONS_TO_TXN, "transactions", "twice"): 3,
}
"""Variations that old versions have no room for, with the last of these versions. All others must be sent."""
NOBODY: Final = PreparedBroker(0, b"t" * 16, 4444, 44, "nobody", "no member", b"u" * 16, 5555, 55)
"""Whose requests show which variations a version says alike."""
UNCHANGED: Final = frozenset({"validate_only"})
"""Without it the requests would change what the next ones are about."""
NOT_COMPARED: Final = frozenset(
    {
        *("is_default", "is_sensitive", "read_only", "configs", "synonyms", "brokers", "throttle_time"),
        *("api_keys", "supported_features", "finalized_features"),
        "error_message",
    }
)


@dataclass(frozen=True, slots=True)
class Variation:
    """A request with one changed field."""

    base: Valid
    path: Path  # the field with ``value``; the valid request itself has no path
    value: str
    values: Mapping[str, Any]

    @property
    def field(self) -> str:
        return ".".join(each for each in self.path if isinstance(each, str))

    def cannot_be_said(self, version: int) -> bool:
        return version <= CANNOT_SAY.get((self.base.api_key, self.field, self.value), -1)

    @property
    def is_sent(self) -> bool:
        return (self.base.api_key, self.field, self.value) not in NOT_SENT


def variations(base: Valid, version: int) -> Iterator[Variation]:
    """Yield the valid request, and then each with one field changed. Only Produce and Fetch have fields by version."""
    layout = _layout(base.api_key, version)
    values = _whole(layout, base.values)
    yield Variation(base, (), "", values)
    for path, value, words in _changes(layout, values, ()):
        changed = deepcopy(values)
        _set(changed, path, value)
        yield Variation(base, path, shown(words), changed)


def _layout(api_key: int, version: int) -> type:
    if api_key not in WITH_BYTES:
        return body_class(api_key, "request")
    kind = "Produce" if api_key == ApiKey.PRODUCE else "Fetch"
    module = import_module(f"kio.schema.{kind.lower()}.v{version}.request")
    layout: type = getattr(module, f"{kind}Request")
    return layout


def frame(side: PreparedBroker, variation: Variation, version: int) -> bytes:
    """Return the request with its length. This version must be able to say it."""
    api_key, values = variation.base.api_key, side.own(variation.values)
    if api_key not in WITH_BYTES:
        return b"".join(encode_request(api_key, version, 7, "variations", body(api_key, values)))
    layout, out = _layout(api_key, version), bytearray()
    out += write_request_header(RequestHeader(api_key, version, 7, "variations"))
    encoder(layout, layout)(out, entity_of(layout, values))
    return len(out).to_bytes(4, "big") + out


def _whole(layout: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the defaults, as plain values."""
    found: dict[str, Any] = {}
    for field in schema_fields(layout):
        value = values.get(field.name, field.default)
        if field.struct is not None and isinstance(value, Sequence):
            value = [_whole(field.struct, one) for one in value]
        elif field.struct is not None and value is not None:
            value = _whole(field.struct, value if isinstance(value, Mapping) else {})
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def _changes(layout: type, values: Mapping[str, Any], before: Path) -> Iterator[tuple[Path, Any, str]]:
    for field in schema_fields(layout):
        path, value = (*before, field.name), values[field.name]
        if field.name in UNCHANGED:
            continue
        if field.nullable and value is not None:
            yield path, None, "None"
        if field.is_array:
            if value:
                yield path, [], "[]"
                yield path, [*value, *deepcopy(value)], "twice"
                if field.struct is None:
                    yield from ((path, [one], repr([one])) for one in _others(field, value[0]))
                else:
                    yield from _changes(field.struct, value[0], (*path, 0))
        elif field.struct is not None:
            if value is not None:
                yield from _changes(field.struct, value, path)
        else:
            yield from ((path, one, repr(one)) for one in _others(field, value))


def _others(field: SchemaField, value: Any) -> Iterator[Any]:
    found: list[Any] = []
    if field.kind in LIMITS:
        most = (1 << LIMITS[field.kind]) - 1
        found = [-most - 1, -2, -1, 0, 1, 9, most]
        if field.kind.startswith("timedelta"):
            found = [-2, -1, 0, most] if field.name in NEVER_OVER else [-2, -1]
    elif field.kind == "bool":
        found = [not value]
    elif field.kind == "string":
        found = [*NAMES]
    elif field.kind in ("uuid", "raw_uuid"):
        found = [UNKNOWN_ID]
    yield from (one for one in found if one != value)


def _set(values: Any, path: Path, value: Any) -> None:
    *parents, last = path
    for parent in parents:
        values = values[parent]
    values[last] = value


def respond(side: PreparedBroker, api_key: int, version: int, sent: bytes) -> Counter[str]:
    """Send a request, and return what is compared of its response."""
    try:
        response = side.exchange(sent)
    except DeadlineError:
        return Counter([SILENT])
    except TransportError:
        return Counter([CLOSED])
    try:
        return summary(decode_response(api_key, version, response)[1])
    except ProtocolError:
        return Counter([GARBLED])


def summary(response: object) -> Counter[str]:
    """Return the error codes, the lengths of arrays and the flags of a response, by their places."""
    found: Counter[str] = Counter()
    _summarise(response, "", found)
    return found


def _summarise(value: Any, place: str, counts: Counter[str]) -> None:
    for field in fields(value):
        inner, name = getattr(value, field.name), f"{place}.{field.name}".lstrip(".")
        if field.name in NOT_COMPARED:
            continue
        if field.name.endswith("error_code"):
            counts[f"{name}={_name(inner)}"] += 1
        elif isinstance(inner, bool):
            counts[f"{name}={inner}"] += 1
        elif inner is None:
            counts[f"{name} is null"] += 1
        elif isinstance(inner, list | tuple):
            counts[f"{name} has {len(inner)}"] += 1
            for one in inner:
                if is_dataclass(one):
                    _summarise(one, name, counts)
        elif is_dataclass(inner):
            _summarise(inner, name, counts)


def _name(error: Any) -> str:
    try:
        return error_name(ErrorCode(int(error)))
    except ValueError:
        return str(int(error))


class Difference(NamedTuple):
    """A difference between two brokers' responses to a request."""

    api: str
    version: int
    field: str
    value: str
    ours: str
    kafka: str


def differences(ours: PreparedBroker, kafka: PreparedBroker, bases: Sequence[Valid] = BASES) -> Iterator[Difference]:
    """Send all requests to both brokers, and yield where they respond otherwise."""
    for base in bases:
        for version in base.versions:
            seen: set[bytes] = set()
            for variation in variations(base, version):
                if (
                    variation.cannot_be_said(version)
                    or not variation.is_sent
                    or (sent := frame(NOBODY, variation, version)) in seen
                ):
                    continue
                seen.add(sent)
                found = []
                for side in (ours, kafka):
                    side.fresh(base.make)
                    found.append(respond(side, base.api_key, version, frame(side, variation, version)))
                here, there = found
                if here != there:
                    yield Difference(
                        base.name, version, variation.field, variation.value, _words(here - there), _words(there - here)
                    )


def _words(only: Counter[str]) -> str:
    return ", ".join(sorted(only))
