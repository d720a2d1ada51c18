"""Rules of a test: what they match, what they do to stock clients and on the wire, and how they fail a test."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as ConfluentError
from kafka import KafkaConsumer
from kafka import TopicPartition as Partition
from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

from crucible_kafka import Cluster, CrucibleTimeout, RuleNeverFired
from crucible_kafka.library.error_responses import has_place, refused, refused_items, split
from crucible_kafka.library.rules import API_KEYS
from reference_broker.blocking.transport import Connection, DeadlineError, LostError
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import decode_response, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

LIMIT_S = 10
TOPIC = "t"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


@pytest.fixture
def kafka(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.clear_rules()


@pytest.fixture
def raw(kafka: Cluster) -> Iterator[Callable[..., Any]]:
    """Return a function that sends one request over a connection of its own, as the client ``raw``."""
    opened: list[Connection] = []

    def call(api_key: int, body: object, version: int | None = None, limit_s: float = LIMIT_S) -> Any:
        host, _, port = kafka.bootstrap_servers.rpartition(":")
        connection = Connection.open(host, int(port), int(limit_s * 1e6), "raw")
        opened.append(connection)
        version = VERSIONS[api_key][1] if version is None else version
        return connection.call(api_key, version, body, int(limit_s * 1e6))

    yield call
    for each in opened:
        each.close()


def produce_request(*partitions: int, acks: int = -1) -> ProduceRequest:
    records = build([Record(value=b"x", timestamp_ms=1)])
    return ProduceRequest(
        acks, 5000, [ProduceTopic(TOPIC, bytes(16), [ProducePartition(p, records) for p in partitions])]
    )


def produce(raw: Callable[..., Any], *partitions: int) -> dict[int, int]:
    """Produce one record to each partition, and return their error codes."""
    response = raw(ApiKey.PRODUCE, produce_request(*partitions), 12)
    return {partition.partition: partition.error_code for topic in response.responses for partition in topic.partitions}


HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)  # type: ignore[arg-type]


def consumer_of(kafka: Cluster, group: str, **config: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "client.id": "app-1",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **config,
        }
    )


# Stock clients


def test_lost_commit_is_committed_and_the_client_commits_again(kafka: Cluster) -> None:
    lost = kafka.on("OffsetCommit", client_id="app-*").drop_response(times=1)
    consumer = consumer_of(kafka, "lost-commit")
    try:
        consumer.assign([TopicPartition(TOPIC, 0)])
        with suppress(KafkaException):  # librdkafka may leave the retry to the application.
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 5)], asynchronous=False)
        assert kafka.committed("lost-commit") == {(TOPIC, 0): 5}
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    finally:
        consumer.close()
    lost.assert_fired(times=1)
    assert kafka.committed("lost-commit") == {(TOPIC, 0): 7}
    (hit,) = lost.hits
    assert hit.api == "OffsetCommit"
    assert hit.client_id == "app-1"
    assert hit.node == 0


def test_producer_retries_where_the_leader_has_moved(kafka: Cluster) -> None:
    kafka.create_topic("moved")
    moved = kafka.on("Produce", topic="moved").respond_error("NOT_LEADER_OR_FOLLOWER", times=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10})
    producer.produce("moved", value="once")
    assert producer.flush(LIMIT_S) == 0
    moved.assert_fired(times=2)
    assert [record.value for record in kafka.records("moved")] == [b"once"], "what is refused is not appended"


def test_lost_acknowledgement_is_a_duplicate_without_idempotence(kafka: Cluster) -> None:
    kafka.create_topic("dup")
    kafka.on("Produce", topic="dup").drop_response(times=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10})
    producer.produce("dup", value="x")
    assert producer.flush(LIMIT_S) == 0
    assert [record.value for record in kafka.records("dup")] == [b"x", b"x"]


def test_consumer_opens_a_new_session_where_its_own_is_unknown(kafka: Cluster) -> None:
    stale = kafka.on("Fetch", session=True, client_id="sess").respond_error("FETCH_SESSION_ID_NOT_FOUND", nth=2)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, client_id="sess", fetch_max_wait_ms=50)
    try:
        consumer.assign([Partition(TOPIC, 0)])
        deadline = time.monotonic() + LIMIT_S
        while not stale.fired and time.monotonic() < deadline:
            consumer.poll(timeout_ms=100)
        consumer.poll(timeout_ms=300)
    finally:
        consumer.close(autocommit=False)
    stale.assert_fired(times=1)
    fetches = kafka.frames(api="Fetch", client_id="sess", direction="request")
    new = [fetch for fetch in fetches if fetch.body["session_epoch"] == 0]
    assert len(new) >= 2, "after the error it begins another session"
    assert stale.spec.nth == 2


def test_coordinator_that_is_not_available_is_sought_again(kafka: Cluster) -> None:
    away = kafka.on("FindCoordinator", group="sought").respond_error("COORDINATOR_NOT_AVAILABLE", times=2)
    consumer = consumer_of(kafka, "sought")
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
    finally:
        consumer.close()
    away.assert_fired(times=2)
    assert kafka.committed("sought") == {(TOPIC, 0): 1}


def test_producer_is_refused_by_an_error(kafka: Cluster) -> None:
    refused = kafka.on("InitProducerId", transactional_id="pay*").respond_error("CLUSTER_AUTHORIZATION_FAILED", times=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "payments"})
    with pytest.raises(KafkaException) as failure:
        producer.init_transactions(LIMIT_S)
    assert failure.value.args[0].code() == ConfluentError.CLUSTER_AUTHORIZATION_FAILED
    refused.assert_fired()


def test_partition_that_cannot_be_fetched_is_fetched_again(kafka: Cluster) -> None:
    kafka.create_topic("sick", partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition in (0, 1):
        producer.produce("sick", value=f"p{partition}", partition=partition)
    assert producer.flush(LIMIT_S) == 0
    sick = kafka.on("Fetch", topic="si*").respond_error("KAFKA_STORAGE_ERROR", partition=1, times=2)
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, client_id="nurse", auto_offset_reset="earliest", fetch_max_wait_ms=50
    )
    try:
        consumer.assign([Partition("sick", 0), Partition("sick", 1)])
        read: set[bytes] = set()
        deadline = time.monotonic() + LIMIT_S
        while len(read) < 2 and time.monotonic() < deadline:
            read |= {each.value for batch in consumer.poll(timeout_ms=100).values() for each in batch}
    finally:
        consumer.close(autocommit=False)
    assert read == {b"p0", b"p1"}
    sick.assert_fired(times=2)
    errors = [
        (topic_partition["partition"], topic_partition["error_code"])
        for frame in kafka.frames(api="Fetch", client_id="nurse", direction="response")
        for topic in frame.body["responses"]
        for topic_partition in topic["partitions"]
        if topic_partition["error_code"] != "NONE"
    ]
    assert errors == [(1, "KAFKA_STORAGE_ERROR")] * 2


def test_commit_is_refused_for_one_partition(kafka: Cluster) -> None:
    refused_part = kafka.on("OffsetCommit", group="halves").respond_error("INVALID_COMMIT_OFFSET_SIZE", partition=1)
    consumer = consumer_of(kafka, "halves")
    offsets = [TopicPartition(TOPIC, 0, 3), TopicPartition(TOPIC, 1, 4)]
    try:
        with suppress(KafkaException):
            outcome = consumer.commit(offsets=offsets, asynchronous=False)
            assert [each.error is None for each in outcome or ()] == [True, False]
    finally:
        consumer.close()
    refused_part.assert_fired()
    assert kafka.committed("halves") == {(TOPIC, 0): 3}


def test_rule_matches_by_the_state_of_a_transaction(kafka: Cluster) -> None:
    kafka.create_topic("tx")
    again = kafka.on("AddPartitionsToTxn", transaction="Ongoing").drop_response(optional=True)
    ends = kafka.on("EndTxn", transactional_id="t?", transaction="Ongoing").respond_error(
        "CONCURRENT_TRANSACTIONS", times=1
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t1"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce("tx", value="x")
    producer.commit_transaction(LIMIT_S)
    ends.assert_fired(times=1)
    assert again.fired == 0, "its first partition is added to an empty transaction"
    assert [record.committed for record in kafka.records("tx")] == [True]


# Acts on the wire


def test_drop_request_breaks_the_connection_and_handles_nothing(kafka: Cluster, raw: Callable[..., Any]) -> None:
    before = len(kafka.records(TOPIC))
    kafka.on("Produce").drop_request()
    with pytest.raises(LostError):
        produce(raw, 0)
    assert len(kafka.records(TOPIC)) == before


def test_drop_response_breaks_the_connection_after_the_work(kafka: Cluster, raw: Callable[..., Any]) -> None:
    before = len(kafka.records(TOPIC))
    kafka.on("Produce").drop_response()
    with pytest.raises(LostError):
        produce(raw, 0)
    assert len(kafka.records(TOPIC)) == before + 1


@pytest.mark.parametrize("handled", [False, True])
def test_hang_keeps_the_connection_open(kafka: Cluster, raw: Callable[..., Any], handled: bool) -> None:
    before = len(kafka.records(TOPIC))
    kafka.on("Produce").hang(handled=handled)
    with pytest.raises(DeadlineError):
        raw(ApiKey.PRODUCE, produce_request(0), 12, limit_s=0.3)
    assert len(kafka.records(TOPIC)) == before + handled


def test_close_before_and_after(kafka: Cluster, raw: Callable[..., Any]) -> None:
    before = len(kafka.records(TOPIC))
    kafka.on("Produce").close_before(times=1)
    with pytest.raises(LostError):
        produce(raw, 0)
    assert len(kafka.records(TOPIC)) == before
    kafka.on("Produce").close_after(times=1)
    host, _, port = kafka.bootstrap_servers.rpartition(":")
    with Connection.open(host, int(port), 5_000_000, "raw") as connection:
        assert connection.call(ApiKey.PRODUCE, 12, produce_request(0)).responses
        with pytest.raises(LostError):
            connection.call(ApiKey.PRODUCE, 12, produce_request(0))


def test_delays_of_requests_and_responses(kafka: Cluster, raw: Callable[..., Any]) -> None:
    delayed = kafka.on("Heartbeat").delay_request(0.2, times=1)
    began = time.monotonic()
    raw(ApiKey.HEARTBEAT, HEARTBEAT)
    assert time.monotonic() - began >= 0.2
    delayed.assert_fired(times=1)
    kafka.on("Heartbeat").delay_response(0.2, times=1)
    began = time.monotonic()
    raw(ApiKey.HEARTBEAT, HEARTBEAT)
    assert time.monotonic() - began >= 0.2


def test_delayed_request_is_handled_after_its_client_has_left(kafka: Cluster, raw: Callable[..., Any]) -> None:
    before = len(kafka.records(TOPIC))
    kafka.on("Produce").delay_request(0.3, times=1)
    host, _, port = kafka.bootstrap_servers.rpartition(":")
    with Connection.open(host, int(port), 5_000_000, "raw") as connection:
        connection.send(ApiKey.PRODUCE, 12, produce_request(0))
        time.sleep(0.05)
    assert len(kafka.records(TOPIC)) == before
    time.sleep(0.4)
    assert len(kafka.records(TOPIC)) == before + 1
    assert produce(raw, 0) == {0: 0}, "the node goes on"


def test_reorder_lets_the_next_request_overtake(kafka: Cluster, raw: Callable[..., Any]) -> None:
    held = kafka.on("Produce", partition=1).reorder(within_s=LIMIT_S, times=1)
    before = len(kafka.records(TOPIC, 1))
    host, _, port = kafka.bootstrap_servers.rpartition(":")
    with Connection.open(host, int(port), LIMIT_S * 1_000_000, "raw") as connection:
        first = connection.send(ApiKey.PRODUCE, 12, produce_request(1))
        held.wait_fired()
        assert len(kafka.records(TOPIC, 1)) == before
        second = raw(ApiKey.PRODUCE, produce_request(1), 12).responses[0].partitions[0]
        overtaken = connection.receive(first).body.responses[0].partitions[0]
    assert overtaken.base_offset == second.base_offset + 1
    kafka.on("Heartbeat").reorder(within_s=0.1, times=1)
    assert raw(ApiKey.HEARTBEAT, HEARTBEAT).error_code is not None, "a request that nothing overtakes goes on"


def test_duplicate_request_is_handled_twice_with_one_response(kafka: Cluster, raw: Callable[..., Any]) -> None:
    before = len(kafka.records(TOPIC))
    kafka.on("Produce").duplicate_request(times=1)
    assert produce(raw, 0) == {0: 0}
    assert len(kafka.records(TOPIC)) == before + 2
    assert produce(raw, 0) == {0: 0}


def test_truncate_and_damage(kafka: Cluster, raw: Callable[..., Any]) -> None:
    cut = kafka.on("Heartbeat").truncate_response(6, times=1)
    assert str(cut) == 'on("Heartbeat").truncate_response(size_bytes=6, times=1)'
    with pytest.raises(LostError, match="closed"):
        raw(ApiKey.HEARTBEAT, HEARTBEAT)
    kafka.on("Heartbeat").damage_response(7, times=1)
    with pytest.raises(LostError, match="correlation ID"):
        raw(ApiKey.HEARTBEAT, HEARTBEAT)
    kafka.on("Heartbeat").damage_response(-1, times=1)
    with pytest.raises(LostError, match="garbled"):
        raw(ApiKey.HEARTBEAT, HEARTBEAT)


def test_throttle_is_in_the_response(kafka: Cluster, raw: Callable[..., Any]) -> None:
    kafka.on(["Heartbeat", "Produce"]).throttle(250)
    assert raw(ApiKey.HEARTBEAT, HEARTBEAT).throttle_time.total_seconds() == 0.25
    assert raw(ApiKey.PRODUCE, produce_request(0), 12).throttle_time_ms == 250


def test_error_for_one_partition_leaves_the_others(kafka: Cluster, raw: Callable[..., Any]) -> None:
    before = {p: len(kafka.records(TOPIC, p)) for p in range(3)}
    kafka.on("Produce").respond_error("NOT_LEADER_OR_FOLLOWER", partition=1)
    assert produce(raw, 0, 1, 2) == {0: 0, 1: int(ErrorCode.not_leader_or_follower), 2: 0}
    assert {p: len(kafka.records(TOPIC, p)) - before[p] for p in range(3)} == {0: 1, 1: 0, 2: 1}
    assert produce(raw, 1) == {1: int(ErrorCode.not_leader_or_follower)}


def test_error_after_the_request_was_handled(kafka: Cluster, raw: Callable[..., Any]) -> None:
    before = len(kafka.records(TOPIC, 0))
    kafka.on("Produce").respond_error("NOT_ENOUGH_REPLICAS_AFTER_APPEND", handled=True)
    assert produce(raw, 0) == {0: int(ErrorCode.not_enough_replicas_after_append)}
    assert len(kafka.records(TOPIC, 0)) == before + 1


def test_error_in_a_request_that_only_reads(kafka: Cluster, raw: Callable[..., Any]) -> None:
    kafka.on("ListOffsets").respond_error("UNKNOWN_TOPIC_OR_PARTITION", partition=1)
    partitions = tuple(
        ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)  # type: ignore[arg-type]
        for index in range(3)
    )
    body = ListOffsetsRequest(
        replica_id=-1,  # type: ignore[arg-type]
        isolation_level=0,  # type: ignore[arg-type]
        topics=(ListOffsetsTopic(name=TOPIC, partitions=partitions),),  # type: ignore[arg-type]
        timeout=timedelta(0),  # type: ignore[arg-type]
    )
    (topic,) = raw(ApiKey.LIST_OFFSETS, body).topics
    assert [partition.error_code for partition in topic.partitions] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
    ]


# Matching and counting


def test_matching_by_group_topic_partition_version_and_client(kafka: Cluster, raw: Callable[..., Any]) -> None:
    other = kafka.on("Heartbeat", group="other").drop_request(optional=True)
    third = kafka.on("Produce", topic="t*", partition=2).respond_error("KAFKA_STORAGE_ERROR")
    old = kafka.on("Heartbeat", versions=(0, 2), client_id="r?w").respond_error("REBALANCE_IN_PROGRESS")
    assert raw(ApiKey.HEARTBEAT, HEARTBEAT, 4).error_code is not ErrorCode.rebalance_in_progress
    assert raw(ApiKey.HEARTBEAT, HEARTBEAT, 2).error_code is ErrorCode.rebalance_in_progress
    assert produce(raw, 0) == {0: 0}
    assert produce(raw, 2) == {2: int(ErrorCode.kafka_storage_error)}
    assert other.fired == 0
    assert third.fired == 1
    assert old.fired == 1


def test_matching_by_connection_and_session(kafka: Cluster, raw: Callable[..., Any]) -> None:
    raw(ApiKey.HEARTBEAT, HEARTBEAT)
    connection = kafka.frames(api="Heartbeat", client_id="raw")[-1].connection
    mine = kafka.on("Heartbeat", connection=connection).drop_request(optional=True)
    raw(ApiKey.HEARTBEAT, HEARTBEAT)
    assert mine.fired == 0, "it came on another connection"
    new = kafka.on("Fetch", session="new", client_id="fetcher").delay_response(0)
    old = kafka.on("Fetch", session="incremental", client_id="fetcher").delay_response(0)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, client_id="fetcher", fetch_max_wait_ms=20)
    try:
        consumer.assign([Partition(TOPIC, 0)])
        deadline = time.monotonic() + LIMIT_S
        while old.fired < 2 and time.monotonic() < deadline:
            consumer.poll(timeout_ms=50)
    finally:
        consumer.close(autocommit=False)
    assert new.fired == 1
    assert old.fired >= 2


def test_requests_of_nodes_match_only_where_a_rule_says_so() -> None:
    with Cluster(nodes=3, processes=False) as several:
        of_clients = several.on("AlterPartition").drop_request(optional=True)
        heartbeats = several.on("BrokerHeartbeat", sender="node").delay_response(0)
        heartbeats.wait_fired(times=3, timeout=LIMIT_S)
        assert all(hit.client_id.startswith("node-") for hit in heartbeats.hits)
        assert several.frames(api="BrokerHeartbeat", of_nodes=True)
        assert several.frames(api="BrokerHeartbeat") == []
        assert of_clients.fired == 0


def test_nth_times_and_removal(kafka: Cluster, raw: Callable[..., Any]) -> None:
    def heartbeats(count: int) -> list[bool]:
        return [raw(ApiKey.HEARTBEAT, HEARTBEAT).error_code is ErrorCode.fenced_instance_id for _ in range(count)]

    second = kafka.on("Heartbeat").respond_error("FENCED_INSTANCE_ID", nth=2)
    assert heartbeats(4) == [False, True, False, False]
    second.remove()
    later = kafka.on("Heartbeat").respond_error("FENCED_INSTANCE_ID", nth=2, times=2)
    assert heartbeats(4) == [False, True, True, False]
    later.remove()
    always = kafka.on("Heartbeat").respond_error("FENCED_INSTANCE_ID")
    assert heartbeats(2) == [True, True]
    always.remove()
    assert heartbeats(1) == [False]
    assert always.fired == 2


def test_probability_with_a_seed_chooses_the_same_requests(kafka: Cluster, raw: Callable[..., Any]) -> None:
    def chosen() -> list[bool]:
        rule = kafka.on("Heartbeat").respond_error("FENCED_INSTANCE_ID", probability=0.5, seed=7)
        found = [raw(ApiKey.HEARTBEAT, HEARTBEAT).error_code is ErrorCode.fenced_instance_id for _ in range(12)]
        rule.remove()
        return found

    first = chosen()
    assert chosen() == first
    assert 0 < sum(first) < 12


def test_two_rules_count_the_same_requests(kafka: Cluster, raw: Callable[..., Any]) -> None:
    kafka.on("Heartbeat").respond_error("FENCED_INSTANCE_ID", nth=1)
    kafka.on("Heartbeat").respond_error("REBALANCE_IN_PROGRESS", nth=2)
    codes = [raw(ApiKey.HEARTBEAT, HEARTBEAT).error_code for _ in range(2)]
    assert codes == [ErrorCode.fenced_instance_id, ErrorCode.rebalance_in_progress]


def test_frames_name_the_rule_that_acted(kafka: Cluster, raw: Callable[..., Any]) -> None:
    rule = kafka.on("Heartbeat", client_id="raw").respond_error("FENCED_INSTANCE_ID")
    raw(ApiKey.HEARTBEAT, HEARTBEAT)
    request, response = kafka.frames(api="Heartbeat", client_id="raw")[-2:]
    assert f"rule {rule.spec.id}" in request.fault
    assert response.error == "FENCED_INSTANCE_ID"


def test_rules_hold_over_a_restart(kafka: Cluster, raw: Callable[..., Any]) -> None:
    rule = kafka.on("Heartbeat").respond_error("FENCED_INSTANCE_ID", times=2)
    raw(ApiKey.HEARTBEAT, HEARTBEAT)
    kafka.node(0).kill()
    kafka.node(0).restart()
    assert [raw(ApiKey.HEARTBEAT, HEARTBEAT).error_code is ErrorCode.fenced_instance_id for _ in range(2)] == [
        True,
        False,
    ]
    rule.assert_fired(times=2)


def test_rules_that_change_while_a_node_is_paused_hold_when_it_resumes(kafka: Cluster, raw: Callable[..., Any]) -> None:
    gone = kafka.on("Heartbeat").respond_error("FENCED_INSTANCE_ID")
    kafka.node(0).pause()
    gone.remove()
    rule = kafka.on("Heartbeat").respond_error("REBALANCE_IN_PROGRESS")
    kafka.node(0).resume()
    assert raw(ApiKey.HEARTBEAT, HEARTBEAT).error_code is ErrorCode.rebalance_in_progress
    assert gone.fired == 0
    assert rule.fired == 1


# Rules that never fired


def test_leaving_with_a_rule_that_never_fired_fails_and_says_what_came() -> None:
    def leave(optional: bool) -> None:
        with Cluster() as kafka:
            kafka.on("OffsetCommit", client_id="app-*").drop_response(times=1, optional=optional)
            host, _, port = kafka.bootstrap_servers.rpartition(":")
            with Connection.open(host, int(port), 5_000_000, "other-1") as connection:
                connection.call(ApiKey.HEARTBEAT, 4, HEARTBEAT)

    with pytest.raises(RuleNeverFired) as failure:
        leave(optional=False)
    assert str(failure.value) == (
        "The rule on(\"OffsetCommit\", client_id='app-*').drop_response(times=1) never fired; "
        "no OffsetCommit request of a client came at all."
    )
    assert isinstance(failure.value, AssertionError)
    leave(optional=True)


def test_another_exception_is_not_hidden_by_a_rule_that_never_fired() -> None:
    def fail() -> None:
        with Cluster() as kafka:
            kafka.on("Produce").drop_request()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_assert_fired_counts_what_came_instead(kafka: Cluster, raw: Callable[..., Any]) -> None:
    rule = kafka.on("Heartbeat", client_id="app-9").drop_request(optional=True)
    raw(ApiKey.HEARTBEAT, HEARTBEAT)
    with pytest.raises(RuleNeverFired, match=r"what came: \d+ Heartbeat of raw"):
        rule.assert_fired()
    with pytest.raises(CrucibleTimeout, match="has fired 0 of 1 times"):
        rule.wait_fired(timeout=0.05)


# Rules that can never match


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda kafka: kafka.on("OffsetComit"), "unknown: did you mean OffsetCommit"),
        (lambda kafka: kafka.on("ShareFetch"), "is not served"),
        (lambda kafka: kafka.on("Fetch", versions=99), "has 4 to 18, so the rule can never match"),
        (lambda kafka: kafka.on("Produce", session=True), "only a Fetch has sessions"),
        (lambda kafka: kafka.on("Fetch", session="old"), "one of new, incremental, closing"),
        (lambda kafka: kafka.on("Fetch", sender="me"), "one of client, node, any"),
        (lambda kafka: kafka.on("Fetch", node=4), "There is no node 4"),
        (lambda kafka: kafka.on("EndTxn", transaction="Open"), "one of Empty, Ongoing"),
        (lambda kafka: kafka.on("Fetch").drop_request(nth=0), "nth is 0"),
        (lambda kafka: kafka.on("Fetch").drop_request(probability=2), "probability is 2"),
        (lambda kafka: kafka.on("Fetch").respond_error("NOT_COORDINATR"), "did you mean NOT_COORDINATOR"),
        (lambda kafka: kafka.on("Fetch").respond_error("NONE"), "NONE is no error"),
        (lambda kafka: kafka.on("Heartbeat").respond_error("NOT_COORDINATOR", partition=0), "no error code for a part"),
        (lambda kafka: kafka.on("WriteTxnMarkers").throttle(5), "has no throttle time"),
        (lambda kafka: kafka.on("Fetch").delay_request(-1), "seconds is -1"),
        (lambda kafka: kafka.on("Fetch").delay_request(nan), "seconds is nan"),
        (lambda kafka: kafka.on("Fetch").delay_response(inf), "seconds is inf"),
        (lambda kafka: kafka.on("Fetch", partition=-1), "partition is -1"),
        (lambda kafka: kafka.on("Produce", group="g"), "Produce names no group"),
        (lambda kafka: kafka.on("Fetch", group="g"), "Fetch names no group"),
        (lambda kafka: kafka.on(["Heartbeat", "SyncGroup"], topic="t"), "Heartbeat or SyncGroup names no topic"),
        (lambda kafka: kafka.on("Fetch", transactional_id="x"), "names no transactional id"),
        (lambda kafka: kafka.on("Produce").respond_error("MESSAGE_TOO_LARGE", topic="t"), "give partition, too"),
    ],
)
def test_impossible_rule_is_refused_at_once(kafka: Cluster, make: Callable[[Cluster], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(kafka)
    assert kafka.rules == []


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda kafka: kafka.on(5), "api is 5: give a string"),
        (lambda kafka: kafka.on(b"Fetch"), "api is b'Fetch'"),
        (lambda kafka: kafka.on("Fetch", client_id=5), "client_id is 5: give a string"),
        (lambda kafka: kafka.on("Fetch", topic=b"t"), "topic is b't': give a string"),
        (lambda kafka: kafka.on("Heartbeat", group=5), "group is 5"),
        (lambda kafka: kafka.on("Fetch", node="0"), "node is '0': give a whole number"),
        (lambda kafka: kafka.on("Fetch", partition="0"), "partition is '0': give a whole number"),
        (lambda kafka: kafka.on("Fetch", versions="3"), "give a version, or the lowest and the highest"),
        (lambda kafka: kafka.on("Fetch", session=1.5), "session is 1.5"),
        (lambda kafka: kafka.on("Fetch", time=1), "time: the counts are"),
        (lambda kafka: kafka.on("Fetch", clientid="x"), "clientid: .* Did you mean client_id"),
        (lambda kafka: kafka.on("Fetch").hang(tiems=1), "tiems: .* Did you mean times"),
        (lambda kafka: kafka.on("Fetch").hang(nth="1"), "nth is '1'"),
        (lambda kafka: kafka.on("Fetch").hang(times=2.5), "times is 2.5: give a whole number"),
        (lambda kafka: kafka.on("Fetch").hang(probability="1"), "probability is '1': give a number"),
        (lambda kafka: kafka.on("Fetch").delay_request("1"), "seconds is '1': give a number"),
        (lambda kafka: kafka.on("Fetch").damage_response("3"), "position is '3'"),
        (lambda kafka: kafka.on("Fetch").respond_error(5), "error is 5: give a string"),
    ],
)
def test_wrong_type_is_refused_before_it_ends_a_node(
    kafka: Cluster, make: Callable[[Cluster], Any], sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        make(kafka)
    assert kafka.rules == []


def test_errors_of_items_are_not_at_the_top_level(kafka: Cluster) -> None:
    kafka.on("Metadata", client_id="app-1").respond_error("LEADER_NOT_AVAILABLE", times=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "app-1"})
    producer.produce(TOPIC, b"x")
    assert producer.flush(LIMIT_S) == 0
    responses = kafka.frames(api="Metadata", client_id="app-1", direction="response")
    (refusal,) = [response for response in responses if response.fault]
    assert refusal.error == "NONE"
    assert refusal.body["brokers"]
    assert [topic["error_code"] for topic in refusal.body["topics"]] == ["LEADER_NOT_AVAILABLE"]


def test_consumer_sees_an_error_of_all_partitions_that_it_fetches(kafka: Cluster) -> None:
    rule = kafka.on("Fetch", client_id="app-1").respond_error("TOPIC_AUTHORIZATION_FAILED")
    consumer = consumer_of(kafka, "unauthorized")
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    message = consumer.poll(LIMIT_S)
    consumer.close()
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == ConfluentError.TOPIC_AUTHORIZATION_FAILED
    rule.assert_fired()


# Errors for every API


@pytest.mark.parametrize("name", sorted(API_KEYS))
def test_every_api_has_a_place_for_an_error(name: str) -> None:
    key = API_KEYS[name]
    assert has_place(key, VERSIONS[key][:2], of_partition=False)


def test_error_for_items_is_made_from_the_request() -> None:
    item: Any = TxnOffsetCommitRequestPartition
    offsets = (item(partition_index=3, committed_offset=9, committed_metadata=""),)
    commit = TxnOffsetCommitRequest(
        transactional_id="x",  # type: ignore[arg-type]
        group_id="g",  # type: ignore[arg-type]
        producer_id=1,  # type: ignore[arg-type]
        producer_epoch=0,  # type: ignore[arg-type]
        topics=(TxnOffsetCommitRequestTopic(name=TOPIC, partitions=offsets),),  # type: ignore[arg-type]
    )
    body: Any = sent_and_read(ApiKey.TXN_OFFSET_COMMIT, 3, commit)
    assert [
        (topic.name, partition.partition_index, partition.error_code)
        for topic in body.topics
        for partition in topic.partitions
    ] == [(TOPIC, 3, ErrorCode.not_coordinator)]
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))  # type: ignore[arg-type]
    for version in (2, 6):
        (found,) = sent_and_read(ApiKey.FIND_COORDINATOR, version, find).coordinators
        assert found.error_code == ErrorCode.not_coordinator
        assert found.node_id == -1
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout=None)  # type: ignore[arg-type]
    assert sent_and_read(ApiKey.INIT_PRODUCER_ID, 4, init).producer_id == -1


@pytest.mark.parametrize("version", [3, 5])
def test_one_of_several_partitions_is_refused(version: int) -> None:
    topic: Any = AddPartitionsToTxnTopic
    transaction: Any = AddPartitionsToTxnTransaction
    request = AddPartitionsToTxnRequest(
        transactions=(
            transaction(
                transactional_id="x",
                producer_id=1,
                producer_epoch=0,
                verify_only=False,
                topics=(topic(name=TOPIC, partitions=(0, 1, 2)), topic(name="u", partitions=(1,))),
            ),
        )
    )
    rest, part = split(request, TOPIC, 1, lambda _: None)
    assert [list(each.partitions) for each in rest.transactions[0].topics] == [[0, 2], [1]]
    assert split(part, TOPIC, 1, lambda _: None)[0] is None
    made = refused_items(ApiKey.ADD_PARTITIONS_TO_TXN, version, part, int(ErrorCode.invalid_txn_state))
    (of_transaction,) = read_back(ApiKey.ADD_PARTITIONS_TO_TXN, version, made).results_by_transaction
    (of_topic,) = of_transaction.topic_results
    assert [(result.partition_index, result.partition_error_code) for result in of_topic.results_by_partition] == [
        (1, ErrorCode.invalid_txn_state)
    ]


def sent_and_read(api_key: int, version: int, request: object) -> Any:
    """Return the refusal of a request as a client reads it."""
    made = refused(api_key, version, request, int(ErrorCode.not_coordinator))
    assert made is not None, f"{api_name(api_key)} cannot be refused"
    return read_back(api_key, version, made)


def read_back(api_key: int, version: int, body: object) -> Any:
    frame = b"".join(bytes(part) for part in encode_response(api_key, version, 1, body))
    return decode_response(api_key, version, memoryview(frame)[4:])[1]


# Stock clients at APIs that few tests think of


def transactional(kafka: Cluster, transactional_id: str) -> Producer:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": transactional_id}
    producer = Producer({**settings, "retry.backoff.ms": 10})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    return producer


def test_lost_coordinator_at_the_end_of_a_transaction_is_retried(kafka: Cluster) -> None:
    producer = transactional(kafka, "ender")
    producer.produce(TOPIC, b"ended", partition=2)
    rule = kafka.on("EndTxn", transactional_id="ender").respond_error("NOT_COORDINATOR", times=1)
    producer.commit_transaction(LIMIT_S)
    rule.assert_fired(1)
    assert [record.committed for record in kafka.records(TOPIC, 2) if record.value == b"ended"] == [True]
    assert len(kafka.frames(api="EndTxn", direction="request")) >= 2


def test_fenced_end_of_a_transaction_is_fatal_and_commits_nothing(kafka: Cluster) -> None:
    producer = transactional(kafka, "fenced-ender")
    producer.produce(TOPIC, b"fenced", partition=2)
    rule = kafka.on("EndTxn", transactional_id="fenced-ender").respond_error("PRODUCER_FENCED", times=1)
    with pytest.raises(KafkaException) as failure:
        producer.commit_transaction(LIMIT_S)
    assert failure.value.args[0].fatal()
    rule.assert_fired(1)
    assert [record.committed for record in kafka.records(TOPIC, 2) if record.value == b"fenced"] == [False]


@pytest.mark.parametrize(("error", "commits"), [("COORDINATOR_LOAD_IN_PROGRESS", True), ("ILLEGAL_GENERATION", False)])
def test_offsets_of_a_transaction_are_refused(kafka: Cluster, error: str, commits: bool) -> None:
    group = f"of-{error}"
    producer = transactional(kafka, f"mover-{error}")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    rule = kafka.on("TxnOffsetCommit", group=group).respond_error(error, times=1)
    offsets = [TopicPartition(TOPIC, 0, 5)]
    try:
        metadata = consumer.consumer_group_metadata()
        if commits:
            producer.send_offsets_to_transaction(offsets, metadata, LIMIT_S)
            producer.commit_transaction(LIMIT_S)
        else:
            with pytest.raises(KafkaException) as failure:
                producer.send_offsets_to_transaction(offsets, metadata, LIMIT_S)
            assert failure.value.args[0].txn_requires_abort()
            producer.abort_transaction(LIMIT_S)
    finally:
        consumer.close()
    rule.assert_fired(1)
    deadline = time.monotonic() + LIMIT_S
    wanted = {(TOPIC, 0): 5} if commits else {}
    while kafka.committed(group) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kafka.committed(group) == wanted


def test_member_that_its_coordinator_forgot_joins_again(kafka: Cluster) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "forgotten", "client.id": "member"}
    consumer = Consumer({**settings, "heartbeat.interval.ms": 50, "session.timeout.ms": 500})
    rule = kafka.on("Heartbeat", group="forgotten").respond_error("UNKNOWN_MEMBER_ID", times=1)
    assigned: list[int] = []
    try:
        consumer.subscribe([TOPIC], on_assign=lambda _, partitions: assigned.append(len(partitions)))
        deadline = time.monotonic() + LIMIT_S
        while len(assigned) < 2 and time.monotonic() < deadline:
            consumer.poll(0.02)
    finally:
        consumer.close()
    rule.assert_fired(1)
    assert assigned == [3, 3]


@pytest.mark.thorough
def test_threads_may_create_and_remove_rules_at_once(kafka: Cluster) -> None:
    def use(count: int) -> list[int]:
        kept = [kafka.on("Fetch", client_id=f"nobody-{number}").hang(optional=True) for number in range(count)]
        for rule in kept[::2]:
            rule.remove()
        kafka.settle_rules(0)
        return [rule.spec.id for rule in kept]

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            ids = [each for ids in pool.map(use, [20] * 4) for each in ids]
    finally:
        sys.setswitchinterval(interval_s)
    assert len({*ids}) == len(ids)
    assert len(kafka.rules) == len(ids) // 2
