"""Conversions of messages between versions: those whose fields changed too much to be copied by name.

A ``VersionConversion`` converts the class of an old version to the class that handlers see (``up``) and back
(``down``). Content for which an old version has no field is omitted. Passing several coordinators or keys to a version
that has room for one is our own bug.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.schema import schema_fields

Change: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""Takes a message of one class. Returns the fields of the other class that cannot be copied by name. A mapping
of field names to values may represent a struct."""


class VersionConversion(NamedTuple):
    """``up`` gets a message of the old version, ``down`` one of the class that handlers see."""

    up: Change
    down: Change


def converted(value: Any, target: type, change: Change = lambda _: {}) -> Any:
    """Make a ``target`` from the fields of ``value`` that have the same names, and from those that ``change`` gives.
    Structs inside are converted in the same way. All other fields get their default."""
    given = {**_fields(value), **change(value)}
    get = given.get
    values = {name: get(name, default) for name, default in _defaults(target)}
    for name, struct, is_array in _structs_of(target):
        found = values[name]
        if found is not None:
            values[name] = tuple([converted(each, struct) for each in found]) if is_array else converted(found, struct)
    return target(**values)


@cache
def _defaults(target: type) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in schema_fields(target))


@cache
def _structs_of(target: type) -> tuple[tuple[str, type, bool], ...]:
    """The name and the class of each field that holds structs, and whether it is an array of them."""
    return tuple(
        (field.name, field.struct, field.is_array) for field in schema_fields(target) if field.struct is not None
    )


def _fields(value: Any) -> Mapping[str, Any]:
    if value.__class__ is dict:
        given: Mapping[str, Any] = value
        return given
    return {name: getattr(value, name) for name in _names(value.__class__)}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _structs(name: str, values: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Make one struct for each value. Each struct has a single field, ``name``."""
    return [{name: value} for value in values]


def _values(name: str, structs: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(getattr(struct, name) for struct in structs)


def _each(structs: Iterable[Any], change: Change) -> list[Mapping[str, Any]]:
    return [{**_fields(struct), **change(struct)} for struct in structs]


def _in_partitions(body: Any, change: Change) -> Mapping[str, Any]:
    """Change the partitions of a request that is an array of topics, each with an array of partitions."""
    return {"topics": _each(body.topics, lambda topic: {"partitions": _each(topic.partitions, change)})}


def _only(items: tuple[Any, ...]) -> Any:
    (item,) = items
    return item


def _only_item_of(name: str) -> VersionConversion:
    """Make the conversion for an API whose old versions serve a single item. They have the item's fields at their top
    level, and later versions have an array of items, ``name``."""
    return VersionConversion(up=lambda old: {name: (old,)}, down=lambda body: _fields(_only(getattr(body, name))))


def _metadata_request_down(body: Any) -> Mapping[str, Any]:
    assert body.topics is None or body.topics, "version 0 cannot request an empty list of topics"
    return {"topics": body.topics or ()}


_METADATA_REQUEST: Final = VersionConversion(
    # Version 0 has no null; an empty list of topics requests all of them.
    up=lambda old: {"topics": old.topics or None},
    down=_metadata_request_down,
)
_FIND_COORDINATOR_REQUEST: Final = VersionConversion(
    up=lambda old: {"coordinator_keys": (old.key,)},
    down=lambda body: {"key": _only(body.coordinator_keys)},
)
_DELETE_TOPICS: Final = VersionConversion(
    up=lambda old: {"topics": _structs("name", old.topic_names)},
    down=lambda body: {"topic_names": _values("name", body.topics)},
)
_END_QUORUM_EPOCH: Final = VersionConversion(
    up=lambda old: _in_partitions(
        old, lambda each: {"preferred_candidates": _structs("candidate_id", each.preferred_successors)}
    ),
    down=lambda body: _in_partitions(
        body, lambda each: {"preferred_successors": _values("candidate_id", each.preferred_candidates)}
    ),
)
_ALTER_PARTITION: Final = VersionConversion(
    up=lambda old: _in_partitions(old, lambda each: {"new_isr_with_epochs": _structs("broker_id", each.new_isr)}),
    down=lambda body: _in_partitions(body, lambda each: {"new_isr": _values("broker_id", each.new_isr_with_epochs)}),
)

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
"""The types of upgrade that KIP-778 introduced. SAFE_DOWNGRADE corresponds to AllowDowngrade of version 0."""

_UPDATE_FEATURES: Final = VersionConversion(
    up=lambda old: {
        "feature_updates": _each(
            old.feature_updates, lambda each: {"upgrade_type": _SAFE_DOWNGRADE if each.allow_downgrade else _UPGRADE}
        )
    },
    down=lambda body: {
        "feature_updates": _each(body.feature_updates, lambda each: {"allow_downgrade": each.upgrade_type != _UPGRADE})
    },
)
_LEAVE_GROUP_RESPONSE: Final = VersionConversion(
    up=lambda _: {},
    # Old versions have one error field, which serves the request and its only member.
    down=lambda body: {
        "error_code": body.error_code or next((member.error_code for member in body.members), body.error_code)
    },
)
_TRANSACTION_FIELDS: Final = ("transactional_id", "producer_id", "producer_epoch", "topics")
_OLD: Final = "v3_and_below_"


def _add_partitions_down(body: Any) -> Mapping[str, Any]:
    transaction = _only(body.transactions)
    return {f"{_OLD}{name}": getattr(transaction, name) for name in _TRANSACTION_FIELDS}


_ADD_PARTITIONS_TO_TXN_REQUEST: Final = VersionConversion(
    # Old versions are for clients. Each request of theirs is about one transaction, and adds its partitions.
    up=lambda old: {"transactions": ({name: getattr(old, f"{_OLD}{name}") for name in _TRANSACTION_FIELDS},)},
    down=_add_partitions_down,
)
_ADD_PARTITIONS_TO_TXN_RESPONSE: Final = VersionConversion(
    up=lambda old: {
        "results_by_transaction": ({"transactional_id": "", "topic_results": old.results_by_topic_v3_and_below},)
    },
    down=lambda body: {
        "results_by_topic_v3_and_below": tuple(
            topic for result in body.results_by_transaction for topic in result.topic_results
        )
    },
)
"""Old versions do not carry the transactional ID, so it is empty. They have no error of the whole response either."""
_ONE_COORDINATOR: Final = _only_item_of("coordinators")
_ONE_MEMBER: Final = _only_item_of("members")
_ONE_GROUP: Final = _only_item_of("groups")
"""Old versions of OffsetFetch's response do not carry the group's ID, so it is empty."""

REQUESTS: Final[Mapping[tuple[int, int], VersionConversion]] = {
    (ApiKey.METADATA, 0): _METADATA_REQUEST,
    **{(ApiKey.FIND_COORDINATOR, version): _FIND_COORDINATOR_REQUEST for version in range(4)},
    **{(ApiKey.LEAVE_GROUP, version): _ONE_MEMBER for version in range(3)},
    **{(ApiKey.OFFSET_FETCH, version): _ONE_GROUP for version in range(1, 8)},
    **{(ApiKey.DELETE_TOPICS, version): _DELETE_TOPICS for version in range(1, 6)},
    (ApiKey.END_QUORUM_EPOCH, 0): _END_QUORUM_EPOCH,
    (ApiKey.UPDATE_FEATURES, 0): _UPDATE_FEATURES,
    (ApiKey.ALTER_PARTITION, 2): _ALTER_PARTITION,
    **{(ApiKey.ADD_PARTITIONS_TO_TXN, version): _ADD_PARTITIONS_TO_TXN_REQUEST for version in range(4)},
}
"""By API key and version."""

RESPONSES: Final[Mapping[tuple[int, int], VersionConversion]] = {
    **{(ApiKey.FIND_COORDINATOR, version): _ONE_COORDINATOR for version in range(4)},
    **{(ApiKey.LEAVE_GROUP, version): _LEAVE_GROUP_RESPONSE for version in range(3)},
    **{(ApiKey.OFFSET_FETCH, version): _ONE_GROUP for version in range(1, 8)},
    **{(ApiKey.ADD_PARTITIONS_TO_TXN, version): _ADD_PARTITIONS_TO_TXN_RESPONSE for version in range(4)},
}
"""By API key and version."""
