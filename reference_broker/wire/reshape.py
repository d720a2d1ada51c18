"""Conversions for messages whose fields changed so much between versions that copying by name is not enough.

Each pair converts the class of an old version to the class that handlers see (``up``) and back (``down``). Content for
which an old version has no field is left out. Passing several coordinators or keys to a version that has room for one
is our own bug.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple, TypeAlias

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.schema import schema_fields

Change: TypeAlias = Callable[[Any, type], Any]


class Reshape(NamedTuple):
    """``up(old, new_class)`` and ``down(new, old_class)``."""

    up: Change
    down: Change


def _build(target: type, **values: Any) -> Any:
    """Makes a ``target`` from the values that it has fields for. Its other fields get their default."""
    known = {each.name: each.default for each in schema_fields(target)}
    return target(**{name: values.get(name, default) for name, default in known.items()})


def _taken_over(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _item_class(entity: type, name: str) -> type:
    """The class of the items of an array field."""
    found = next(each.struct for each in schema_fields(entity) if each.name == name)
    assert found is not None
    return found


def _metadata_request_up(old: Any, new: type) -> Any:
    # Version 0 has no null; an empty list of topics asks for all of them.
    item = _item_class(new, "topics")
    topics = tuple(_build(item, **_taken_over(each)) for each in old.topics) or None
    return _build(new, **(_taken_over(old) | {"topics": topics}))


def _metadata_request_down(body: Any, old: type) -> Any:
    assert body.topics is None or body.topics, "version 0 cannot ask for no topics"
    item = _item_class(old, "topics")
    return _build(old, topics=tuple(_build(item, **_taken_over(each)) for each in body.topics or ()))


def _find_coordinator_request_up(old: Any, new: type) -> Any:
    return _build(new, **(_taken_over(old) | {"coordinator_keys": (old.key,)}))


def _find_coordinator_request_down(body: Any, old: type) -> Any:
    (key,) = body.coordinator_keys
    return _build(old, **(_taken_over(body) | {"key": key}))


def _find_coordinator_response_up(old: Any, new: type) -> Any:
    coordinator = _build(_item_class(new, "coordinators"), **_taken_over(old))
    return _build(new, **(_taken_over(old) | {"coordinators": (coordinator,)}))


def _find_coordinator_response_down(body: Any, old: type) -> Any:
    (coordinator,) = body.coordinators
    return _build(old, **(_taken_over(body) | _taken_over(coordinator)))


def _delete_topics_request_up(old: Any, new: type) -> Any:
    item = _item_class(new, "topics")
    topics = tuple(_build(item, name=name) for name in old.topic_names)
    return _build(new, **(_taken_over(old) | {"topics": topics}))


def _delete_topics_request_down(body: Any, old: type) -> Any:
    return _build(old, **(_taken_over(body) | {"topic_names": tuple(each.name for each in body.topics)}))


def _in_partitions(value: Any, new: type, change: Callable[[Any, type], Any]) -> Any:
    """Changes the partitions of a request that is an array of topics, each with an array of partitions."""
    topic_class = _item_class(new, "topics")
    partition_class = _item_class(topic_class, "partitions")
    topics = tuple(
        _build(
            topic_class,
            **(_taken_over(topic) | {"partitions": tuple(change(each, partition_class) for each in topic.partitions)}),
        )
        for topic in value.topics
    )
    return _build(new, **(_taken_over(value) | {"topics": topics}))


def _end_quorum_epoch_up(old: Any, new: type) -> Any:
    def change(partition: Any, target: type) -> Any:
        item = _item_class(target, "preferred_candidates")
        candidates = tuple(_build(item, candidate_id=each) for each in partition.preferred_successors)
        return _build(target, **(_taken_over(partition) | {"preferred_candidates": candidates}))

    return _in_partitions(old, new, change)


def _end_quorum_epoch_down(body: Any, old: type) -> Any:
    def change(partition: Any, target: type) -> Any:
        successors = tuple(each.candidate_id for each in partition.preferred_candidates)
        return _build(target, **(_taken_over(partition) | {"preferred_successors": successors}))

    return _in_partitions(body, old, change)


def _alter_partition_up(old: Any, new: type) -> Any:
    def change(partition: Any, target: type) -> Any:
        item = _item_class(target, "new_isr_with_epochs")
        replicas = tuple(_build(item, broker_id=each) for each in partition.new_isr)
        return _build(target, **(_taken_over(partition) | {"new_isr_with_epochs": replicas}))

    return _in_partitions(old, new, change)


def _alter_partition_down(body: Any, old: type) -> Any:
    def change(partition: Any, target: type) -> Any:
        replicas = tuple(each.broker_id for each in partition.new_isr_with_epochs)
        return _build(target, **(_taken_over(partition) | {"new_isr": replicas}))

    return _in_partitions(body, old, change)


_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
"""KIP-778 introduced types of upgrade. This is the type that AllowDowngrade corresponds to."""


def _update_features_up(old: Any, new: type) -> Any:
    item = _item_class(new, "feature_updates")
    updates = tuple(
        _build(item, **(_taken_over(each) | {"upgrade_type": _SAFE_DOWNGRADE if each.allow_downgrade else _UPGRADE}))
        for each in old.feature_updates
    )
    return _build(new, **(_taken_over(old) | {"feature_updates": updates}))


def _update_features_down(body: Any, old: type) -> Any:
    item = _item_class(old, "feature_updates")
    updates = tuple(
        _build(item, **(_taken_over(each) | {"allow_downgrade": each.upgrade_type != _UPGRADE}))
        for each in body.feature_updates
    )
    return _build(old, **(_taken_over(body) | {"feature_updates": updates}))


def _leave_group_request_up(old: Any, new: type) -> Any:
    member = _build(_item_class(new, "members"), member_id=old.member_id)
    return _build(new, **(_taken_over(old) | {"members": (member,)}))


def _leave_group_request_down(body: Any, old: type) -> Any:
    (member,) = body.members
    return _build(old, **(_taken_over(body) | {"member_id": member.member_id}))


def _leave_group_response_down(body: Any, old: type) -> Any:
    # Old versions have one error field, which serves the request and its only member.
    error = body.error_code or next((each.error_code for each in body.members), body.error_code)
    return _build(old, **(_taken_over(body) | {"error_code": error}))


def _leave_group_response_up(old: Any, new: type) -> Any:
    return _build(new, **_taken_over(old))


_LEAVE_GROUP_REQUEST: Final = Reshape(_leave_group_request_up, _leave_group_request_down)
_LEAVE_GROUP_RESPONSE: Final = Reshape(_leave_group_response_up, _leave_group_response_down)


def _offset_fetch_request_up(old: Any, new: type) -> Any:
    group = _item_class(new, "groups")
    item = _item_class(group, "topics")
    topics = None if old.topics is None else tuple(_build(item, **_taken_over(each)) for each in old.topics)
    return _build(new, **(_taken_over(old) | {"groups": (_build(group, group_id=old.group_id, topics=topics),)}))


def _offset_fetch_request_down(body: Any, old: type) -> Any:
    (group,) = body.groups
    item = _item_class(old, "topics")
    topics = None if group.topics is None else tuple(_build(item, **_taken_over(each)) for each in group.topics)
    return _build(old, **(_taken_over(body) | {"group_id": group.group_id, "topics": topics}))


def _offset_fetch_topics(topics: Any, item: type) -> tuple[Any, ...]:
    partition = _item_class(item, "partitions")

    def change(topic: Any) -> Any:
        partitions = tuple(_build(partition, **_taken_over(one)) for one in topic.partitions)
        return _build(item, name=topic.name, partitions=partitions)

    return tuple(change(topic) for topic in topics)


def _offset_fetch_response_up(old: Any, new: type) -> Any:
    """Old versions do not carry the group's ID."""
    group = _item_class(new, "groups")
    topics = _offset_fetch_topics(old.topics, _item_class(group, "topics"))
    found = _build(group, **(_taken_over(old) | {"group_id": "", "topics": topics}))
    return _build(new, **(_taken_over(old) | {"groups": (found,)}))


def _offset_fetch_response_down(body: Any, old: type) -> Any:
    (group,) = body.groups
    topics = _offset_fetch_topics(group.topics, _item_class(old, "topics"))
    return _build(old, **(_taken_over(body) | {"topics": topics, "error_code": group.error_code}))


_OFFSET_FETCH_REQUEST: Final = Reshape(_offset_fetch_request_up, _offset_fetch_request_down)
_OFFSET_FETCH_RESPONSE: Final = Reshape(_offset_fetch_response_up, _offset_fetch_response_down)
_FIND_COORDINATOR_REQUEST: Final = Reshape(_find_coordinator_request_up, _find_coordinator_request_down)
_FIND_COORDINATOR_RESPONSE: Final = Reshape(_find_coordinator_response_up, _find_coordinator_response_down)
_DELETE_TOPICS: Final = Reshape(_delete_topics_request_up, _delete_topics_request_down)

REQUESTS: Final[Mapping[tuple[int, int], Reshape]] = {
    (ApiKey.METADATA, 0): Reshape(_metadata_request_up, _metadata_request_down),
    **{(ApiKey.FIND_COORDINATOR, version): _FIND_COORDINATOR_REQUEST for version in range(4)},
    **{(ApiKey.LEAVE_GROUP, version): _LEAVE_GROUP_REQUEST for version in range(3)},
    **{(ApiKey.OFFSET_FETCH, version): _OFFSET_FETCH_REQUEST for version in range(1, 8)},
    **{(ApiKey.DELETE_TOPICS, version): _DELETE_TOPICS for version in range(1, 6)},
    (ApiKey.END_QUORUM_EPOCH, 0): Reshape(_end_quorum_epoch_up, _end_quorum_epoch_down),
    (ApiKey.UPDATE_FEATURES, 0): Reshape(_update_features_up, _update_features_down),
    (ApiKey.ALTER_PARTITION, 2): Reshape(_alter_partition_up, _alter_partition_down),
}
"""By API key and version."""

RESPONSES: Final[Mapping[tuple[int, int], Reshape]] = {
    **{(ApiKey.FIND_COORDINATOR, version): _FIND_COORDINATOR_RESPONSE for version in range(4)},
    **{(ApiKey.LEAVE_GROUP, version): _LEAVE_GROUP_RESPONSE for version in range(3)},
    **{(ApiKey.OFFSET_FETCH, version): _OFFSET_FETCH_RESPONSE for version in range(1, 8)},
}
"""By API key and version."""
