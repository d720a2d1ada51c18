"""Offsets in a transaction, on a real node: added, committed or aborted, also after a restart (X-8, X-9)."""

from datetime import timedelta
from typing import Any

import pytest

from reference_broker.core.events import Opened
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.core.tests.test_groups_of_a_node import SETTINGS, body, coordinated, stable
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode

ID = "tx"
VERSIONS_OF_COMMIT = range(VERSIONS[ApiKey.TXN_OFFSET_COMMIT][0], VERSIONS[ApiKey.TXN_OFFSET_COMMIT][1] + 1)
ADDS_BY_ITSELF_FROM = 5
UNSTABLE = (-1, ErrorCode.unstable_offset_commit)
RETRIABLE_ERRORS = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
)


class Producer:
    """A transactional producer that works as its version of TxnOffsetCommit does."""

    def __init__(self, world: NodeWorld, version: int) -> None:
        self.world, self.version = world, version
        self.is_second = version >= ADDS_BY_ITSELF_FROM
        self.retried(
            ApiKey.FIND_COORDINATOR, 6, lambda it: it.coordinators[0].error_code, key_type=1, coordinator_keys=(ID,)
        )
        response = self.retried(
            ApiKey.INIT_PRODUCER_ID,
            5 if self.is_second else 4,
            lambda it: it.error_code,
            transactional_id=ID,
            transaction_timeout=timedelta(seconds=60),
            producer_id=-1,
            producer_epoch=-1,
        )
        self.owner = {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}

    def find(self, kind: int, key: str) -> None:
        fields = {"key_type": kind, "coordinator_keys": (key,)}
        self.retried(ApiKey.FIND_COORDINATOR, 6, lambda it: it.coordinators[0].error_code, **fields)

    def retried(self, key: ApiKey, version: int, error_of: Any, **fields: Any) -> Any:
        for _ in range(50):
            response = self.world.request(key, version, body(key, **fields), 7)
            if error_of(response) not in RETRIABLE_ERRORS:
                return response
            self.world.advance(100)
        raise AssertionError(f"{key.name} got {error_of(response)}")

    def add(self) -> None:
        if not self.is_second:
            fields = {"transactional_id": ID, "group_id": "g", **self.owner}
            assert (
                self.retried(ApiKey.ADD_OFFSETS_TO_TXN, 3, lambda it: it.error_code, **fields).error_code
                == ErrorCode.none
            )

    def commit(self, offset: int, **member: Any) -> int:
        """Commit partition 0. Partition 1 does not exist."""
        partitions = [
            {"partition_index": at, "committed_offset": offset, "committed_metadata": "text"} for at in (0, 1)
        ]
        response = self.retried(
            ApiKey.TXN_OFFSET_COMMIT,
            self.version,
            lambda it: it.topics[0].partitions[0].error_code,
            transactional_id=ID,
            group_id="g",
            topics=[{"name": "t", "partitions": partitions}],
            **self.owner,
            **({"generation_id": -1, "member_id": "", "group_instance_id": None} | member if self.version >= 3 else {}),
        )
        first, second = response.topics[0].partitions
        assert second.error_code == ErrorCode.unknown_topic_or_partition
        return int(first.error_code)

    def end(self, commit: bool) -> None:
        fields = {"transactional_id": ID, "committed": commit, **self.owner}
        response = self.retried(ApiKey.END_TXN, 5 if self.is_second else 3, lambda it: it.error_code, **fields)
        assert response.error_code == ErrorCode.none
        if self.is_second:
            self.owner = {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}
        self.world.settle()


def fetched(world: NodeWorld, *, stable: bool) -> tuple[int, int]:
    topics = [{"name": "t", "partition_indexes": [0]}]
    groups = [{"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}]
    request = body(ApiKey.OFFSET_FETCH, groups=groups, require_stable=stable)
    (offset,) = world.request(ApiKey.OFFSET_FETCH, 9, request, 7).groups[0].topics[0].partitions
    return int(offset.committed_offset), int(offset.error_code)


def led() -> NodeWorld:
    world = coordinated()
    world.create("t")
    return world


@pytest.mark.clause("X-8")
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", VERSIONS_OF_COMMIT)
def test_offsets_are_hidden_until_transaction_is_committed(version: int, commit: bool) -> None:
    world = led()
    producer = Producer(world, version)
    producer.add()
    assert producer.commit(5) == ErrorCode.none
    assert fetched(world, stable=True) == UNSTABLE
    assert fetched(world, stable=False) == (-1, ErrorCode.none)
    producer.end(commit)
    seen = (5 if commit else -1, ErrorCode.none)
    assert (fetched(world, stable=True), fetched(world, stable=False)) == (seen, seen)


@pytest.mark.clause("X-9")
@pytest.mark.parametrize("version", [version for version in VERSIONS_OF_COMMIT if version < ADDS_BY_ITSELF_FROM])
def test_commit_without_added_offsets_partition_writes_nothing(version: int) -> None:
    world = led()
    producer = Producer(world, version)
    error = ErrorCode.transaction_abortable if version >= 4 else ErrorCode.invalid_txn_state
    assert producer.commit(5) == error
    assert fetched(world, stable=True) == (-1, ErrorCode.none)


@pytest.mark.clause("X-8")
@pytest.mark.parametrize("version", [3, 4, 5])
def test_commit_of_older_generation_writes_nothing(version: int) -> None:
    """KIP-447: a zombie must not commit offsets that its successor has consumed."""
    world = led()
    member = stable(world)
    producer = Producer(world, version)
    producer.add()
    assert producer.commit(5, member_id=member, generation_id=0) == ErrorCode.illegal_generation
    assert producer.commit(5, member_id="other", generation_id=1) == ErrorCode.unknown_member_id
    assert producer.commit(6, member_id=member, generation_id=1) == ErrorCode.none
    producer.end(True)
    assert fetched(world, stable=True) == (6, ErrorCode.none)


@pytest.mark.clause("X-8")
@pytest.mark.clause("X-13")
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [3, 5])
def test_open_transaction_continues_after_restart(version: int, commit: bool) -> None:
    world = led()
    producer = Producer(world, version)
    producer.add()
    assert producer.commit(5) == ErrorCode.none
    again = NodeWorld(world.disk, **SETTINGS)
    again.give(Opened(7, "10.1.2.3:5000"))
    producer.world = again
    producer.find(0, "g")
    again.advance(1000)
    assert fetched(again, stable=True) == UNSTABLE
    producer.end(commit)
    assert fetched(again, stable=True) == (5 if commit else -1, ErrorCode.none)


@pytest.mark.clause(
    "KafkaApisTest.shouldReplaceCoordinatorNotAvailableWithLoadInProcessInTxnOffsetCommitWithOlderClient"
)
def test_old_clients_get_no_coordinator_load_in_progress() -> None:
    """KAFKA-7296: they would crash."""
    world = led()
    producers = {version: Producer(world, version) for version in (1, 2)}
    target: Any = world.node.broker.groups.find("g")
    target.is_loaded = False
    for version, error in ((1, ErrorCode.coordinator_not_available), (2, ErrorCode.coordinator_load_in_progress)):
        partitions = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": None}]
        request = body(
            ApiKey.TXN_OFFSET_COMMIT,
            transactional_id=ID,
            group_id="g",
            topics=[{"name": "t", "partitions": partitions}],
            **producers[version].owner,
        )
        response = world.request(ApiKey.TXN_OFFSET_COMMIT, version, request, 7)
        assert response.topics[0].partitions[0].error_code == error
