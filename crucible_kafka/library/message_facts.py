"""Facts about a request that a rule can match: groups, topics, partitions and transactional IDs that its body names.

The walk knows the names of fields in Kafka's schemas, not the APIs, so that it works for all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

TopicName: TypeAlias = Callable[[bytes], str | None]
"""Finds the name of a topic by its ID."""

TOPIC_FIELDS: Final = ("topic", "topic_name")
TOPIC_LISTS: Final = ("topics", "topic_partitions", "topic_results", "responses")
"""Arrays of structs whose ``name`` is a topic's."""
PARTITION_FIELDS: Final = ("partition", "partition_index", "partition_id")
PARTITION_LISTS: Final = ("partitions", "partition_indexes")
GROUP_FIELDS: Final = ("group_id", "group")
GROUP_LISTS: Final = ("groups", "groups_names")
TRANSACTION_FIELDS: Final = ("transactional_id",)
TRANSACTION_LISTS: Final = ("transactional_ids",)
GROUP_KEYS, TRANSACTION_KEYS = 0, 1
"""Types of the keys of FindCoordinator."""


WHERE_NAMED: Final = {
    "group": {*GROUP_FIELDS, *GROUP_LISTS, "coordinator_keys"},
    "topic": {*TOPIC_FIELDS, *TOPIC_LISTS, "topic_id", "topic_names"},
    "partition": {*PARTITION_FIELDS, *PARTITION_LISTS},
    "transactional_id": {*TRANSACTION_FIELDS, *TRANSACTION_LISTS, "coordinator_keys"},
    "transaction": {*TRANSACTION_FIELDS, *TRANSACTION_LISTS, "coordinator_keys"},
}
"""The fields of requests that name what a rule may match."""


@dataclass(slots=True)
class Facts:
    """The names in one body."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    transactional_ids: set[str] = field(default_factory=set)


def facts_of(body: object, topic_name: TopicName) -> Facts:
    """Return what the body of a request names."""
    found = Facts()
    if is_dataclass(body):
        _walk(body, "", "", found, topic_name)
        keys = getattr(body, "coordinator_keys", None)
        if keys:
            by_type = {GROUP_KEYS: found.groups, TRANSACTION_KEYS: found.transactional_ids}
            by_type.get(int(getattr(body, "key_type", GROUP_KEYS)), set()).update(map(str, keys))
    return found


def topic_of(item: object, list_name: str, topic_name: TopicName) -> str:
    """Return the topic that a struct in the array ``list_name`` names, or an empty string."""
    for field_ in TOPIC_FIELDS:
        value = getattr(item, field_, None)
        if isinstance(value, str) and value:
            return value
    if list_name in TOPIC_LISTS:
        value = getattr(item, "name", None)
        if isinstance(value, str) and value:
            return value
    topic_id = getattr(item, "topic_id", None)
    raw = topic_id.bytes if isinstance(topic_id, UUID) else topic_id
    return (topic_name(raw) or "") if isinstance(raw, bytes) and any(raw) else ""


def partition_of(item: object) -> int | None:
    """Return the partition that a struct, or a number in a list of partitions, is about."""
    if isinstance(item, int):
        return int(item)
    for field_ in PARTITION_FIELDS:
        value = getattr(item, field_, None)
        if isinstance(value, int):
            return int(value)
    return None


def items_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of a struct."""
    for field_ in fields(value):
        yield field_.name, getattr(value, field_.name)


def _walk(value: Any, list_name: str, topic: str, facts: Facts, topic_name: TopicName) -> None:
    own = topic_of(value, list_name, topic_name)
    if own:
        topic = own
        facts.topics.add(topic)
    partition = partition_of(value) if topic else None
    if partition is not None:
        facts.partitions.add((topic, partition))
    for name, each in items_of(value):
        if is_dataclass(each):
            _walk(each, name, topic, facts, topic_name)
        elif isinstance(each, str):
            _note_text(name, each, facts)
        elif isinstance(each, list | tuple):
            for item in each:
                if is_dataclass(item):
                    _walk(item, name, topic, facts, topic_name)
                elif isinstance(item, str):
                    _note_text_of_list(name, item, facts)
                elif isinstance(item, int) and topic and name in PARTITION_LISTS:
                    facts.partitions.add((topic, int(item)))


def _note_text(name: str, text: str, facts: Facts) -> None:
    if name in GROUP_FIELDS:
        facts.groups.add(text)
    elif name in TRANSACTION_FIELDS and text:
        facts.transactional_ids.add(text)


def _note_text_of_list(name: str, text: str, facts: Facts) -> None:
    if name in GROUP_LISTS:
        facts.groups.add(text)
    elif name in TRANSACTION_LISTS:
        facts.transactional_ids.add(text)
    elif name == "topic_names":
        facts.topics.add(text)
