"""Whole frames that are valid, or nearly so, and that no honest client would send. Each kind is made once.

The findings that they come from each ended, froze or bloated a node of this project once. The tests that hold each of
them alone are ``core/tests/test_hostile_*.py``; here they come all at once.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any, Final
from uuid import UUID

from bench.fleet.behaviours.bodies import metadata_request
from bench.hostile.names import CLIENT_ID, HOSTILE_TOPIC, TOPIC
from reference_broker.apis.tests.test_group_apis import filled
from reference_broker.core.tests.hostile_records import bomb, raw_batch, raw_record
from reference_broker.quorum.messages import begin_epoch
from reference_broker.records.compression import Compression
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.messages import body_class, encode_request
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

LONG: Final = "x" * 32_760
"""The longest name that an error message could not repeat."""
HIGHEST_EPOCH: Final = 2**31 - 1
BOMB_RECORDS: Final = 200_000


def frame(api_key: int, version: int, body: object, client_id: str = CLIENT_ID) -> bytes:
    return b"".join(encode_request(api_key, version, 1, client_id, body))


def _frame(api_key: int, version: int, client_id: str = CLIENT_ID, **values: Any) -> bytes:
    return frame(api_key, version, filled(body_class(api_key, "request"), values), client_id)


def _produced(topic: str, batch: bytes, client_id: str = CLIENT_ID) -> bytes:
    body = ProduceRequest(1, 5000, [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(0, batch)])])
    return frame(ApiKey.PRODUCE, 9, body, client_id)


def _created(name: str, partitions: int) -> bytes:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    return _frame(ApiKey.CREATE_TOPICS, 2, topics=[topic], validate_only=False)


@cache
def huge_names() -> Sequence[bytes]:
    """Names that no error message can carry, and numbers of partitions that nobody can have."""
    resource = {"resource_type": 2, "resource_name": LONG}
    return (
        _created(LONG, 1),
        _created("a-million-partitions", 1_000_000),
        _frame(ApiKey.DESCRIBE_CONFIGS, 1, resources=[{**resource, "configuration_keys": None}]),
        _frame(ApiKey.ALTER_CONFIGS, 0, resources=[{**resource, "configs": []}]),
        _frame(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, resources=[{**resource, "configs": []}]),
    )


@cache
def repetition() -> Sequence[bytes]:
    """The same thing asked for thousands of times in one request."""
    settings = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}
    return (
        _frame(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",) * 2200),
        _frame(ApiKey.DESCRIBE_CONFIGS, 1, resources=[settings] * 2000),
        frame(ApiKey.METADATA, 9, metadata_request([TOPIC] * 50_000)),
        frame(ApiKey.METADATA, 9, metadata_request([f"missing-{number}" for number in range(20_000)])),
    )


@cache
def records() -> Sequence[bytes]:
    """Batches that hold less or far more than they say, and look-ups by time into them."""
    now_ms = int(time.time() * 1000)
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": now_ms}
    overflow = raw_batch(raw_record(timestamp_delta=2**66), base_timestamp_ms=now_ms)
    claims = raw_batch(b"", 2**31 - 1, Compression.GZIP, body=b"garbage")
    return (
        _produced(HOSTILE_TOPIC, overflow),
        _produced(HOSTILE_TOPIC, claims),
        _produced(HOSTILE_TOPIC, bomb(Compression.ZSTD, BOMB_RECORDS)),
        _produced("__consumer_offsets", raw_batch(raw_record()), "__admin_client"),
        _frame(
            ApiKey.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": HOSTILE_TOPIC, "partitions": [partition]}],
        ),
    )


@cache
def forged() -> Sequence[bytes]:
    """Requests of the quorum and of brokers, by somebody who is no node."""
    node = "node-0:AAAAAAAAAAAAAAAAAAAAAA"
    begins = [begin_epoch(cluster, -1, 1, HIGHEST_EPOCH) for cluster in ("anything", "crucible-bench-cluster")]
    said: dict[str, Any] = {"broker_id": 0, "broker_epoch": HIGHEST_EPOCH}
    return (
        *(frame(ApiKey.BEGIN_QUORUM_EPOCH, 0, body, node) for body in begins),
        _frame(ApiKey.BROKER_REGISTRATION, 1, node, cluster_id="anything", incarnation_id=UUID(int=7), **said),
        _frame(ApiKey.BROKER_HEARTBEAT, 0, node, want_shut_down=True, **said),
        _frame(ApiKey.ALTER_PARTITION, 2, node, topics=[], **said),
    )


def one_of(frames: Callable[[], Sequence[bytes]]) -> Callable[[Random], bytes]:
    def choose(random: Random) -> bytes:
        return random.choice(frames())

    return choose
