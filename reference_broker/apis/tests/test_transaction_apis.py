"""The transaction APIs of a broker that is its own coordinator, with the errors of each version."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from reference_broker.apis.groups import k10_find_coordinator
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.topics.automatic_creation import request_creation
from reference_broker.apis.transactions import (
    k22_init_producer_id,
    k24_add_partitions_to_txn,
    k25_add_offsets_to_txn,
    k26_end_txn,
    k65_describe_transactions,
    k66_list_transactions,
)
from reference_broker.controller.planning.topic_creation import NewTopic
from reference_broker.metadata.identifiers import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.ports.node_ports import Now
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.messages import encode_response
from reference_broker.wire.schema import EPOCH, MILLISECOND

ID = TransactionalId("tx")
MINUTE = i32Timedelta.parse(timedelta(minutes=1))


def find(world: AdminWorld, *keys: str) -> list[tuple[str, int]]:
    request = FindCoordinatorRequest(key_type=i8(1), coordinator_keys=keys)
    response = world.request(k10_find_coordinator, request)
    world.settle()
    return [(coordinator.error_code.name, coordinator.node_id) for coordinator in response.coordinators]


def ready() -> AdminWorld:
    """Return a world with the transaction topic, and topic ``t`` with three partitions."""
    world = AdminWorld(transaction_state_log_num_partitions="5")
    find(world, ID)
    request_creation(world.broker.lifecycle.channel, NewTopic("t", partitions=3, replication_factor=1), lambda: None)
    world.settle()
    assert find(world, ID) == [("none", 1)]
    return world


def init(world: AdminWorld, version: int = 5, producer_id: int = -1, epoch: int = -1) -> Any:
    request = InitProducerIdRequest(
        transactional_id=ID,
        transaction_timeout=MINUTE,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(epoch),
    )
    return world.request(k22_init_producer_id, request, version)


def one(producer_id: int, epoch: int, *indexes: int, topic: str = "t", **more: Any) -> AddPartitionsToTxnTransaction:
    topics = (AddPartitionsToTxnTopic(name=TopicName(topic), partitions=tuple(map(i32, indexes))),)
    return AddPartitionsToTxnTransaction(
        transactional_id=more.pop("id_", ID),
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(epoch),
        topics=topics,
        **more,
    )


def add(world: AdminWorld, *transactions: AddPartitionsToTxnTransaction, version: int = 3) -> dict[str, list[str]]:
    """Return the errors of each transaction's partitions."""
    response = world.request(k24_add_partitions_to_txn, AddPartitionsToTxnRequest(transactions=transactions), version)
    return {
        each.transactional_id: [
            result.partition_error_code.name for topic in each.topic_results for result in topic.results_by_partition
        ]
        for each in response.results_by_transaction
    }


def end(world: AdminWorld, producer_id: int, epoch: int, version: int = 4, *, commits: bool = True) -> Any:
    request = EndTxnRequest(
        transactional_id=ID, producer_id=ProducerId(producer_id), producer_epoch=i16(epoch), committed=commits
    )
    return world.request(k26_end_txn, request, version)


def describe(world: AdminWorld, *ids: str) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=tuple(map(TransactionalId, ids)))
    return world.request(k65_describe_transactions, request).transaction_states


def listed(
    world: AdminWorld,
    states: tuple[str, ...] = (),
    ids: tuple[int, ...] = (),
    longer_ms: int = -1,
    pattern: str | None = None,
) -> Any:
    return world.request(
        k66_list_transactions,
        ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=tuple(map(ProducerId, ids)),
            duration_filter=i64(longer_ms),
            transactional_id_pattern=pattern,
        ),
    )


@pytest.mark.clause("X-2")
def test_first_find_coordinator_creates_transaction_topic() -> None:
    world = AdminWorld(transaction_state_log_num_partitions="7")
    assert find(world, "a", "b") == [("coordinator_not_available", -1)] * 2
    assert find(world, "a", "b") == [("none", 1)] * 2
    image = world.controller.image
    assert len(image.topics[TRANSACTION_TOPIC].partitions) == 7
    assert image.topic_configs(TRANSACTION_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert OFFSETS_TOPIC not in image.topics
    assert find(world, "") == [("none", 1)], "as in Kafka, although no producer can take it"


@pytest.mark.clause("X-12")
@pytest.mark.clause("TransactionCoordinatorTest.testDescribeTransactions")
def test_transaction_from_first_partition_to_end() -> None:
    world = ready()
    given = init(world)
    assert (given.error_code, given.producer_id, given.producer_epoch) == (ErrorCode.none, 0, 0)
    assert list(add(world, one(0, 0, 0, 2)).values()) == [["none", "none"]]
    (state,) = describe(world, ID)
    assert (state.error_code, state.transaction_state, state.producer_id) == (ErrorCode.none, "Ongoing", 0)
    assert (state.producer_epoch, state.transaction_timeout) == (0, MINUTE)
    assert state.transaction_start_time == EPOCH + world.broker.now.wall_ms * MILLISECOND
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("t", (0, 2))]
    response = end(world, 0, 0)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (ErrorCode.none, -1, -1)
    assert [each.transaction_state for each in describe(world, ID)] == ["CompleteCommit"]
    for index, markers in ((0, 1), (1, 0), (2, 1)):
        assert world.broker.partitions.by_name["t", index].log.log_end_offset == markers


def test_end_txn_version_5_returns_next_epoch() -> None:
    world = ready()
    init(world)
    add(world, one(0, 0, 0), version=5)
    response = end(world, 0, 0, 5)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (ErrorCode.none, 0, 1)


@pytest.mark.parametrize(
    ("version", "error"),
    [(0, "invalid_producer_epoch"), (1, "invalid_producer_epoch"), (2, "producer_fenced"), (3, "producer_fenced")],
)
@pytest.mark.clause("KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInAddOffsetToTxnWithOlderClient")
@pytest.mark.clause(
    "KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInAddPartitionToTxnWithOlderClient"
)
@pytest.mark.clause("KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInEndTxnWithOlderClient")
def test_versions_before_2_return_invalid_producer_epoch_instead_of_fenced(version: int, error: str) -> None:
    world = ready()
    init(world)
    init(world)
    assert list(add(world, one(0, 0, 1), version=version).values()) == [[error]]
    assert end(world, 0, 0, version).error_code.name == error
    offsets = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=ProducerId(0), producer_epoch=i16(0), group_id=GroupId("g")
    )
    assert world.request(k25_add_offsets_to_txn, offsets, version).error_code.name == error


@pytest.mark.parametrize(
    ("version", "error"), [(3, "invalid_producer_epoch"), (4, "producer_fenced"), (5, "producer_fenced")]
)
@pytest.mark.clause("KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInInitProducerIdWithOlderClient")
def test_init_producer_id_before_version_4_returns_invalid_producer_epoch(version: int, error: str) -> None:
    world = ready()
    for _ in range(3):
        init(world)
    assert init(world, version, 0, 0).error_code.name == error


@pytest.mark.clause("AddPartitionsToTxnRequestServerTest.shouldReceiveOperationNotAttemptedWhenOtherPartitionHasError")
@pytest.mark.clause("KafkaApisTest.testAddPartitionsToTxnOperationNotAttempted")
def test_unknown_partition_rejects_whole_add_partitions() -> None:
    world = ready()
    init(world)
    assert list(add(world, one(0, 0, 0, 3)).values()) == [["operation_not_attempted", "unknown_topic_or_partition"]]
    assert list(add(world, one(0, 0, 0, topic="none")).values()) == [["unknown_topic_or_partition"]]
    assert [each.transaction_state for each in describe(world, ID)] == ["Empty"]


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("internal", INTERNAL_TOPICS)
def test_client_cannot_add_internal_topics(internal: str, version: int) -> None:
    world = ready()
    init(world)
    mixed = one(0, 0, 0)
    mixed = replace(mixed, topics=(*mixed.topics, *one(0, 0, 0, topic=internal).topics))
    errors = add(world, mixed, version=version)
    assert list(errors.values()) == [["operation_not_attempted", "topic_authorization_failed"]]
    assert [each.transaction_state for each in describe(world, ID)] == ["Empty"]


def test_broker_adds_internal_topics_for_its_clients() -> None:
    world = ready()
    init(world)
    assert add(world, one(0, 0, 0, topic=TRANSACTION_TOPIC), version=5) == {ID: ["none"]}


@pytest.mark.clause("X-9")
@pytest.mark.clause("AddPartitionsToTxnRequestServerTest.testOneSuccessOneErrorInBatchedRequest")
@pytest.mark.clause("AddPartitionsToTxnRequestServerTest.testVerifyOnly")
@pytest.mark.clause("KafkaApisTest.testBatchedAddPartitionsToTxnRequest")
def test_broker_adds_and_verifies_several_transactions_in_one_request() -> None:
    world = ready()
    init(world)
    other = TransactionalId("other")
    found = add(world, one(0, 0, 1), one(5, 0, 0, id_=other, verify_only=True), version=5)
    assert found == {ID: ["none"], other: ["invalid_producer_id_mapping"]}
    assert add(world, one(0, 0, 1, 2, verify_only=True), version=4) == {ID: ["none", "transaction_abortable"]}
    assert add(world, version=5) == {}


def test_add_offsets_adds_offsets_partition_to_transaction() -> None:
    world = ready()
    init(world)
    request = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=ProducerId(0), producer_epoch=i16(0), group_id=GroupId("g")
    )
    assert world.request(k25_add_offsets_to_txn, request).error_code is ErrorCode.none
    ((topic,),) = [each.topics for each in describe(world, ID)]
    assert (topic.topic, len(topic.partitions)) == (OFFSETS_TOPIC, 1)


@pytest.mark.clause("X-12")
@pytest.mark.clause("TransactionCoordinatorTest.testDescribeTransactionsWithEmptyTransactionalId")
def test_describe_unknown_transactional_id_returns_error() -> None:
    world = ready()
    assert [each.error_code.name for each in describe(world, "nobody", "", "nobody")] == [
        "transactional_id_not_found",
        "invalid_request",
    ]


@pytest.mark.parametrize("started_ms", [1 << 62, -(1 << 62)])
def test_damaged_start_time_fails_only_its_description(started_ms: int) -> None:
    world = ready()
    init(world)
    entry = world.broker.transactions.entry(ID)
    assert not isinstance(entry, Error)
    entry.current = entry.current._replace(started_ms=started_ms)
    damaged, unknown = describe(world, ID, "nobody")
    assert (damaged.error_code, unknown.error_code) == (ErrorCode.none, ErrorCode.transactional_id_not_found)


def test_id_without_transaction_has_no_start_time() -> None:
    world = ready()
    init(world)
    response = world.request(k65_describe_transactions, DescribeTransactionsRequest(transactional_ids=(ID,)))
    frame = b"".join(encode_response(65, 0, 7, response))
    assert b"\xff" * 8 in frame, "-1, as in Kafka"


@pytest.mark.clause("X-12")
@pytest.mark.clause("TransactionStateManagerTest.testListTransactionsFiltering")
@pytest.mark.clause("TransactionStateManagerTest.testListTransactionsFilteringWithInvalidPattern")
def test_list_transactions_by_state_producer_and_duration() -> None:
    world = ready()
    init(world)
    add(world, one(0, 0, 0))

    def ids(response: Any) -> list[tuple[str, str]]:
        return [(state.transactional_id, state.transaction_state) for state in response.transaction_states]

    assert ids(listed(world)) == ids(listed(world, ("Ongoing",), (0, 9))) == [(ID, "Ongoing")]
    assert ids(listed(world, ("Empty",))) == ids(listed(world, ids=(9,))) == ids(listed(world, longer_ms=10_000)) == []
    assert (ids(listed(world, ("Dead",))), listed(world, ("Dead",)).unknown_state_filters) == ([], ())
    started = world.broker.now
    world.broker.now = Now(started.mono_us, started.wall_ms + 2000)
    assert ids(listed(world, longer_ms=1999)) == ids(listed(world, ("Ongoing",), (0,), 1999, "t.")) == [(ID, "Ongoing")]
    assert ids(listed(world, longer_ms=2000)) == ids(listed(world, ("Empty",), (0,), 1999)) == []
    response = listed(world, ("Ongoing", "Wrong"))
    assert (ids(response), response.unknown_state_filters) == ([(ID, "Ongoing")], ("Wrong",))
    assert ids(listed(world, ("Wrong",))) == []
    assert ids(listed(world, pattern="t.")) == ids(listed(world, pattern="")) == [(ID, "Ongoing")]
    assert ids(listed(world, pattern="t")) == []
    assert listed(world, pattern="(").error_code is ErrorCode.invalid_regular_expression


@pytest.mark.clause("TransactionStateManagerTest.testListTransactionsWithCoordinatorLoadingInProgress")
@pytest.mark.clause("KafkaApisTest.testListTransactionsErrorResponse")
def test_list_transactions_while_loading_returns_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ready()
    init(world)
    monkeypatch.setattr(world.broker.transactions, "loading", lambda: True)
    response = listed(world)
    assert (response.error_code, response.transaction_states) == (ErrorCode.coordinator_load_in_progress, ())


def test_non_coordinator_returns_not_coordinator() -> None:
    world = AdminWorld()
    assert init(world).error_code is ErrorCode.not_coordinator
    assert end(world, 0, 0).error_code is ErrorCode.not_coordinator
    assert [each.error_code for each in describe(world, ID)] == [ErrorCode.not_coordinator]
    assert listed(world).transaction_states == ()


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("pay.*", False),
        (f"^{ID}$", True),
        (ID, True),
        (ID[:-1], False),
        (f"x|{ID[0]}.*", True),
        ("", True),
        (None, True),
    ],
)
def test_pattern_must_match_whole_transactional_id(pattern: str | None, found: bool) -> None:
    world = ready()
    init(world)
    ids = [state.transactional_id for state in listed(world, pattern=pattern).transaction_states]
    assert ids == ([ID] if found else [])


@pytest.mark.parametrize("pattern", ["(", "a**", "(?=a)", r"(a)\1", "a{9999}", "((a|b)?.?){1000}x"])
def test_invalid_or_too_large_re2_pattern_is_rejected(pattern: str) -> None:
    assert listed(ready(), pattern=pattern).error_code == ErrorCode.invalid_regular_expression


def test_pattern_with_exponential_backtracking_completes() -> None:
    assert listed(ready(), pattern="(a+)+(a+)+b").error_code == ErrorCode.none
