"""Responses with an error: each is made from its request, for all of it or for one partition.

The code knows the names of fields in Kafka's schemas, not the APIs. An item of a response has the same keys as the item
of the request that it is about: names, IDs and indexes.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any, Final

from crucible_kafka.library.message_facts import PARTITION_FIELDS, TopicName, partition_of, topic_of
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode, known_error
from reference_broker.wire.fetch import FetchResponse, FetchTopicResponse, PartitionData
from reference_broker.wire.messages import body_class, empty_response, has_error_code
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from reference_broker.wire.schema import schema_fields

ERROR_FIELDS: Final = ("error_code", "partition_error_code")
READ_ONLY: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)
"""APIs that change nothing. Their requests are handled, and the error replaces what the response says."""
OF_FETCHED_PARTITIONS: Final = frozenset(
    {
        ErrorCode.offset_out_of_range,
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.topic_authorization_failed,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unsupported_compression_type,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.offset_moved_to_tiered_storage,
    }
)
"""Errors that a Fetch has in its partitions only: clients ignore them, or stop, where they are at the top level."""
BESIDE_AN_ERROR: Final = {
    "records": b"",
    "base_offset": -1,
    "committed_offset": -1,
    "leader_id": -1,
    "node_id": -1,
    "port": -1,
    "high_watermark": -1,
    "low_watermark": -1,
}
"""Other fields of an item that has an error, where Kafka's schemas have no such default."""
KEYS_OF_TEXTS: Final = ("key", "group_id", "transactional_id", "name")
"""Where an array of texts in a request has an array of structs in the response, the key of a struct."""


def response_class(api_key: int) -> type:
    if api_key == ApiKey.PRODUCE:
        return ProduceResponse
    return FetchResponse if api_key == ApiKey.FETCH else body_class(api_key, "response")


def names_in_requests(api_key: int, fields: set[str]) -> bool:
    """Return whether requests of an API have one of these fields."""
    if api_key == ApiKey.PRODUCE:
        return bool(fields & {"topic", "partition", "transactional_id"})
    if api_key == ApiKey.FETCH:
        return bool(fields & {"topic", "partition"})
    return bool(fields & set(_field_names(body_class(api_key, "request"))))


def _field_names(struct: type) -> Iterator[str]:
    for field in schema_fields(struct):
        yield field.name
        if field.struct is not None:
            yield from _field_names(field.struct)


def has_place(api_key: int, versions: tuple[int, int], of_partition: bool) -> bool:
    """Return whether responses of some of these versions have an error code: any, or that of a partition."""
    if api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
        return True
    if not of_partition and any(has_error_code(api_key, version) for version in range(versions[0], versions[1] + 1)):
        return True
    return any(not of_partition or has_partition for has_partition in _places(body_class(api_key, "response")))


def _places(struct: type) -> Iterator[bool]:
    """Yield for each struct with an error whether it is about a partition."""
    names = {field.name for field in schema_fields(struct)}
    if names & set(ERROR_FIELDS):
        yield bool(names & set(PARTITION_FIELDS))
    for field in schema_fields(struct):
        if field.struct is not None:
            yield from _places(field.struct)


def has_throttle_time(api_key: int) -> bool:
    if api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
        return True
    return any(field.name == "throttle_time" for field in schema_fields(body_class(api_key, "response")))


def _is_at_top_level(api_key: int, version: int, code: int) -> bool:
    """Return whether a broker would put the error at the top level of the response, not into its items."""
    if api_key == ApiKey.METADATA:  # The top level is there for this error alone (KIP-1102).
        return code == ErrorCode.rebootstrap_required and has_error_code(api_key, version)
    is_of_items = api_key == ApiKey.FETCH and code in OF_FETCHED_PARTITIONS
    return not is_of_items and has_error_code(api_key, version)


# A response that the node has made


def stamped(
    api_key: int,
    version: int,
    body: object,
    code: int,
    topic: str | None,
    partition: int | None,
    topic_name: TopicName,
) -> object:
    """Return the response with the error: at its top level if it has one, else in the outermost items. With
    ``partition`` the error is in the items of that partition. The response is the same object if it has no place."""
    if partition is None and _is_at_top_level(api_key, version, code):
        return empty_response(api_key, version, known_error(code))  # type: ignore[arg-type]
    changed = _stamped(body, "", "", code, topic, partition, topic_name)
    if changed is body and isinstance(body, FetchResponse) and partition is not None:
        item = _error_item(PartitionData(partition, 0, -1), code)
        entry = FetchTopicResponse(topic or "", _id_of(body, topic), [item])
        changed = replace(body, responses=[*body.responses, entry]) if topic else body
    return changed


def _id_of(body: FetchResponse, topic: str | None) -> bytes:
    return next((response.topic_id for response in body.responses if response.topic == topic), bytes(16))


def _stamped(
    value: Any, list_name: str, topic: str, code: int, wanted: str | None, partition: int | None, names: TopicName
) -> Any:
    topic = topic_of(value, list_name, names) or topic
    if list_name and _error_field(value) is not None:
        if partition is None:
            return _error_item(value, code)
        if partition_of(value) == partition and wanted in (None, topic):
            return _error_item(value, code)
    changes = {}
    for name, items in _arrays_of_structs(value):
        new = [_stamped(item, name, topic, code, wanted, partition, names) for item in items]
        if any(now is not before for now, before in zip(new, items, strict=True)):
            changes[name] = type(items)(new)
    return replace(value, **changes) if changes else value


def _error_field(value: Any) -> str | None:
    return next((name for name in ERROR_FIELDS if hasattr(value, name)), None)


def _error_item(value: Any, code: int) -> Any:
    name = _error_field(value)
    assert name is not None, f"{type(value).__name__} has no error code"
    is_named = isinstance(getattr(value, name), ErrorCode)
    beside = {field: nothing for field, nothing in BESIDE_AN_ERROR.items() if hasattr(value, field)}
    return replace(value, **{name: known_error(code) if is_named else code}, **beside)


def _arrays_of_structs(value: Any) -> Iterator[tuple[str, Any]]:
    for name in value.__dataclass_fields__:
        items = getattr(value, name)
        if isinstance(items, list | tuple) and items and is_dataclass(items[0]):
            yield name, items


# A response that nobody has made


def refused(api_key: int, version: int, request: object, code: int) -> object | None:
    """Return the response of a broker that refuses the whole request, or None if it cannot be made from the request
    alone."""
    if _is_at_top_level(api_key, version, code):
        return empty_response(api_key, version, known_error(code))  # type: ignore[arg-type]
    return refused_items(api_key, version, request, code)


def refused_items(api_key: int, version: int, request: object, code: int) -> object | None:
    """Return a response with the error in each item and nothing at its top level, or None as ``refused``."""
    if isinstance(request, ProduceRequest):
        return _refused_produce(request, code)
    if api_key in READ_ONLY or version >= FIRST_DRAFT_VERSION:
        return None
    response, placed = _made(response_class(api_key), request, code, is_item=False)
    return response if placed else None


def _refused_produce(request: ProduceRequest, code: int) -> ProduceResponse:
    return ProduceResponse(
        [
            ProduceTopicResponse(
                topic.topic,
                topic.topic_id,
                [ProducePartitionResponse(partition.partition, code) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _made(struct: type, request: Any, code: int, is_item: bool = True) -> tuple[Any, bool]:
    """Return a value of a response's struct for a struct of the request, and whether the error has a place in it: in an
    item, or below the top level."""
    values: dict[str, Any] = {}
    placed = False
    for field in schema_fields(struct):
        if field.name in ERROR_FIELDS and is_item:
            values[field.name] = known_error(code) if field.kind == "error_code" else code
            placed = True
        elif field.is_array and field.struct is not None:
            items = [_item(field.struct, one, code) for one in _counterpart(field.name, request)]
            values[field.name] = tuple(item for item, _ in items)
            placed = placed or any(has for _, has in items)
        elif field.name in BESIDE_AN_ERROR:
            values[field.name] = BESIDE_AN_ERROR[field.name]
        elif field.name != "throttle_time" and hasattr(request, field.name):
            values[field.name] = getattr(request, field.name)
        else:
            values[field.name] = field.default
    return struct(**values), placed


def _item(struct: type, one: Any, code: int) -> tuple[Any, bool]:
    """Return the item of a response for one item of the request, which may be a text or a number."""
    if is_dataclass(one):
        return _made(struct, one, code)
    names = [field.name for field in schema_fields(struct)]
    keys = PARTITION_FIELDS if isinstance(one, int) else KEYS_OF_TEXTS
    key = next(name for name in names if name in keys)
    made, placed = _made(struct, None, code)
    return replace(made, **{key: one}), placed


def _counterpart(name: str, request: Any) -> Any:
    """Return the array of the request that an array of the response is about: of the same name, or else the only
    one."""
    if request is None:
        return ()
    found = getattr(request, name, None)
    if isinstance(found, list | tuple):
        return found
    arrays = [getattr(request, field) for field in request.__dataclass_fields__]
    return next((array for array in arrays if isinstance(array, list | tuple) and array), ())


# One partition of a request


def split(request: Any, topic: str | None, partition: int, names: TopicName) -> tuple[Any, Any]:
    """Return the request without a partition, and the request with that partition alone. Either is None if it has no
    partitions."""
    return (
        _only(request, "", "", lambda name, index: not (index == partition and topic in (None, name)), names),
        _only(request, "", "", lambda name, index: index == partition and topic in (None, name), names),
    )


def _only(value: Any, list_name: str, topic: str, keeps: Any, names: TopicName) -> Any:
    """Return the struct with the wanted partitions, or None if it had partitions and none of them is wanted."""
    topic = topic_of(value, list_name, names) or topic
    changes: dict[str, Any] = {}
    had = kept = False
    for name in value.__dataclass_fields__:
        items = getattr(value, name)
        if not isinstance(items, list | tuple) or not items:
            continue
        if is_dataclass(items[0]) and partition_of(items[0]) is None:
            new = [found for item in items if (found := _only(item, name, topic, keeps, names)) is not None]
            had, kept = True, kept or bool(new)
            changes[name] = type(items)(new)
        elif topic and (is_dataclass(items[0]) or name in ("partitions", "partition_indexes")):
            new = [item for item in items if keeps(topic, partition_of(item))]
            had, kept = True, kept or bool(new)
            changes[name] = type(items)(new)
    if had and not kept:
        return None
    return replace(value, **changes)


def merged(response: Any, more: Any) -> Any:
    """Return the response with the items of another one. Topics that both have are merged."""
    changes: dict[str, Any] = {}
    for name, items in _arrays_of_structs(more):
        known = list(getattr(response, name))
        for item in items:
            at = next((number for number, each in enumerate(known) if _key(each) == _key(item)), None)
            if at is None:
                known.append(item)
            else:
                known[at] = merged(known[at], item)
        changes[name] = type(getattr(response, name))(known)
    return replace(response, **changes) if changes else response


def _key(item: Any) -> tuple[Any, ...]:
    return tuple(getattr(item, name, None) for name in ("name", "topic", "topic_id", "group_id", *PARTITION_FIELDS))


def served_versions(api_key: int) -> tuple[int, int]:
    return VERSIONS[api_key][:2]
