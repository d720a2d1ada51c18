"""Requests of an upgrade, to either broker: topics with their IDs, their settings, and offsets."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.fleet.behaviours.bodies import (
    LATEST,
    create_topics_request,
    list_offsets_request,
    metadata_request,
    new_topic,
    set_topic_configs_request,
)
from bench.fleet.behaviours.protocol import TopicPartition
from bench.peers.clients import connect
from campaigns.upgrade.kafka_files import UpgradeError
from reference_broker.blocking.transport import TransportError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name

CREATE_VERSION = 7
METADATA_VERSION = 12
ALTER_VERSION = 1
OFFSETS_VERSION = 9
"""The first with LATEST_TIERED (KIP-1005)."""
LATEST_TIERED = -5
TIMEOUT_MS = 10_000
UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}
"""A topic's settings stay behind in ZooKeeper. With the defaults a broker would delete old segments at once."""
SOON = (ErrorCode.leader_not_available, ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition)


def create_topics(port: int, topics: Mapping[str, int]) -> dict[str, bytes]:
    """Create topics with these numbers of partitions, one replica each. Return their IDs. Raise UpgradeError."""
    wanted = [new_topic(name, partitions, 1, UNLIMITED) for name, partitions in topics.items()]
    response = _call(port, ApiKey.CREATE_TOPICS, CREATE_VERSION, create_topics_request(wanted, TIMEOUT_MS))
    for topic in response.topics:
        _check(topic.error_code, f"topic {topic.name} was not created", topic.error_message)
    return {str(topic.name): topic.topic_id.bytes for topic in response.topics}


def make_tiered(port: int, topics: Sequence[str]) -> None:
    """Raise UpgradeError."""
    request = set_topic_configs_request(topics, {"remote.storage.enable": "true"})
    for response in _call(port, ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, request).responses:
        _check(response.error_code, f"topic {response.resource_name} was not made tiered", response.error_message)


def are_led(port: int, topics: Mapping[str, int]) -> bool:
    """Return whether all partitions have a leader. Raise UpgradeError."""
    found = _call(port, ApiKey.METADATA, METADATA_VERSION, metadata_request(list(topics))).topics
    return all(
        topic.error_code == 0
        and len(topic.partitions) == topics[str(topic.name)]
        and all(one.error_code == 0 and one.leader_id >= 0 for one in topic.partitions)
        for topic in found
    )


def end_offsets(port: int, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """One past the last record of each. One without a leader is omitted. Raise UpgradeError."""
    return _offsets(port, partitions, LATEST)


def tiered_offsets(port: int, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The last offset of each in the remote tier, or -1. Raise UpgradeError."""
    return _offsets(port, partitions, LATEST_TIERED)


def _offsets(port: int, partitions: Sequence[tuple[str, int]], at: int) -> dict[tuple[str, int], int]:
    named = [TopicPartition(*partition) for partition in partitions]
    response = _call(port, ApiKey.LIST_OFFSETS, OFFSETS_VERSION, list_offsets_request(named, at))
    found = {
        (str(topic.name), int(partition.partition_index)): partition
        for topic in response.topics
        for partition in topic.partitions
    }
    for (topic, index), each in found.items():
        if each.error_code not in SOON:
            _check(each.error_code, f"{topic}-{index} has no offset", None)
    return {name: int(each.offset) for name, each in found.items() if each.error_code == 0}


def _call(port: int, api_key: ApiKey, version: int, body: object) -> Any:
    try:
        with connect(port) as connection:
            return connection.call(api_key, version, body)
    except TransportError as failure:
        raise UpgradeError(f"The broker at 127.0.0.1:{port} did not respond: {failure}.") from failure


def _check(code: int, what: str, why: str | None) -> None:
    if code:
        raise UpgradeError(f"{what}: {error_name(code)}{f' ({why})' if why else ''}.")
