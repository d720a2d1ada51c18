"""Verbs on a whole cluster: leaders, coordinators, the controller, sessions, logs, producers, features and versions."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka import TopicPartition as Partition
from kafka.errors import OffsetOutOfRangeError
from kio.schema.metadata.v13.request import MetadataRequest

from crucible_kafka import Cluster, CrucibleError, NotPossible
from crucible_kafka.library.imitation import RELEASES, versions_of
from reference_broker.blocking.transport import Connection, LostError
from reference_broker.wire.apis import VERSIONS, ApiKey

LIMIT_S = 20
ALL_BROKERS = MetadataRequest(topics=(), include_topic_authorized_operations=False)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    """Three nodes on threads of this process."""
    with Cluster(nodes=3, processes=False) as cluster:
        cluster.create_topic("orders", partitions=3)
        yield cluster


@pytest.fixture(scope="module")
def single() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def produce(cluster: Cluster, topic: str, *values: str, key: str | None = None, **config: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **config})
    for value in values:
        producer.produce(topic, value=value, key=key, partition=0)
    assert producer.flush(LIMIT_S) == 0


def consumer_of(cluster: Cluster, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def read_one(consumer: Consumer) -> bytes | None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            value = message.value()
            return bytes(value) if value is not None else None
    return None


# Leaders and the controller


def test_leader_moves_and_clients_follow(kafka: Cluster) -> None:
    before = kafka.leader("orders", 0)
    after = kafka.move_leader("orders", 0)
    assert after != before
    assert kafka.leader("orders", 0) == after
    produce(kafka, "orders", "moved")
    assert b"moved" in [record.value for record in kafka.records("orders", 0)]
    assert kafka.move_leader("orders", 0, to=before) == before
    assert kafka.move_leader("orders", 0, to=before) == before


def test_leader_moves_only_to_a_replica_in_sync(kafka: Cluster, single: Cluster) -> None:
    kafka.create_topic("alone", replicas=1)
    with pytest.raises(NotPossible, match="create it with replicas=3"):
        kafka.move_leader("alone")
    other = (kafka.leader("alone") + 1) % 3
    with pytest.raises(NotPossible, match=f"node {other} is not in sync at alone-0"):
        kafka.move_leader("alone", to=other)
    with pytest.raises(NotPossible, match="give nodes=3"):
        single.move_leader("x")
    with pytest.raises(CrucibleError, match="does not exist"):
        kafka.move_leader("nothing")
    with pytest.raises(ValueError, match="no partition 7"):
        kafka.move_leader("orders", 7)


@pytest.mark.thorough
def test_isr_is_shortened_and_grows_again(kafka: Cluster) -> None:
    kafka.create_topic("shrunk", replicas=3)
    leader = kafka.leader("shrunk")
    follower = kafka.node((leader + 1) % 3)
    follower.isolate()
    try:
        kafka.shrink_isr("shrunk", 0, to=[number for number in range(3) if number != follower.id])
        assert follower.id not in kafka.active_controller().command("topic", name="shrunk")["isr"][0]
        with pytest.raises(NotPossible, match="its leader"):
            kafka.shrink_isr("shrunk", 0, to=[follower.id])
    finally:
        follower.heal()
    kafka.await_in_sync(follower.id, LIMIT_S)


def test_controller_moves(kafka: Cluster) -> None:
    before = kafka.active_controller().id
    after = kafka.move_controller()
    assert after != before
    assert kafka.active_controller().id == after
    kafka.create_topic("after-election")
    wanted = (after + 1) % 3
    assert kafka.move_controller(to=wanted, limit_s=LIMIT_S) == wanted


def test_coordinator_moves_while_its_group_reads(kafka: Cluster) -> None:
    kafka.create_topic("read", replicas=3)
    produce(kafka, "read", "one", "two")
    consumer = consumer_of(kafka, "movers")
    try:
        consumer.subscribe(["read"])
        assert read_one(consumer) == b"one"
        consumer.commit(asynchronous=False)
        before = kafka.coordinator("movers")
        after = kafka.move_coordinator("movers")
        assert after != before
        assert kafka.committed("movers") == {("read", 0): 1}
        assert read_one(consumer) == b"two"
        consumer.commit(asynchronous=False)
        assert kafka.committed("movers") == {("read", 0): 2}
        (group,) = [each for each in kafka.groups() if each.group_id == "movers"]
        assert group.coordinator == after
    finally:
        consumer.close()


def test_coordinator_of_a_transactional_id_moves(kafka: Cluster) -> None:
    kafka.create_topic("paid", replicas=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "payer"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce("paid", value="x")
    producer.flush(LIMIT_S)
    before = kafka.coordinator(transactional_id="payer")
    assert kafka.move_coordinator(transactional_id="payer") != before
    producer.commit_transaction(LIMIT_S)
    assert [record.committed for record in kafka.records("paid")] == [True]
    with pytest.raises(ValueError, match="either a group or transactional_id"):
        kafka.move_coordinator()


# Sessions, producers and transactions


def test_evicted_sessions_are_opened_again(single: Cluster) -> None:
    single.create_topic("watched")
    consumer = KafkaConsumer(bootstrap_servers=single.bootstrap_servers, client_id="watcher", fetch_max_wait_ms=50)
    try:
        consumer.assign([Partition("watched", 0)])
        deadline = time.monotonic() + LIMIT_S
        while not single.sessions() and time.monotonic() < deadline:
            consumer.poll(timeout_ms=50)
        (before,) = single.sessions()
        assert before.client_id == "watcher"
        assert single.evict_sessions("nobody*") == 0
        assert single.evict_sessions("watch*") == 1
        while not single.sessions() and time.monotonic() < deadline:
            consumer.poll(timeout_ms=50)
        (after,) = single.sessions()
        assert after.session_id != before.session_id
    finally:
        consumer.close(autocommit=False)
    errors = [frame.error for frame in single.frames(api="Fetch", client_id="watcher", direction="response")]
    assert "FETCH_SESSION_ID_NOT_FOUND" in errors


def test_forgotten_producer_starts_anew(single: Cluster) -> None:
    single.create_topic("idem")
    producer = Producer({"bootstrap.servers": single.bootstrap_servers, "enable.idempotence": True})
    producer.produce("idem", value="a")
    assert producer.flush(LIMIT_S) == 0
    (known,) = {record.producer_id for record in single.records("idem")}
    assert single.expire_producer("idem", producer_id=known + 1) == 0
    assert single.expire_producer("idem", producer_id=known) == 1
    assert single.expire_producer("idem") == 0
    producer.produce("idem", value="b")
    producer.flush(LIMIT_S)
    assert [record.value for record in single.records("idem")] == [b"a", b"b"]


def test_expired_transactional_id_is_unknown_to_its_producer(single: Cluster) -> None:
    single.create_topic("tx")
    producer = Producer({"bootstrap.servers": single.bootstrap_servers, "transactional.id": "idle"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce("tx", value="x")
    producer.flush(LIMIT_S)
    with pytest.raises(NotPossible, match="idle is Ongoing, so it cannot expire"):
        single.expire_transactional_id("idle")
    producer.commit_transaction(LIMIT_S)
    single.expire_transactional_id("idle")
    assert [transaction.transactional_id for transaction in single.transactions()] == []
    producer.begin_transaction()

    def commit() -> None:
        producer.produce("tx", value="y")
        producer.commit_transaction(LIMIT_S)

    with pytest.raises(KafkaException):
        commit()


# Logs and metadata


def test_records_are_deleted_below_an_offset(single: Cluster) -> None:
    single.create_topic("trimmed")
    produce(single, "trimmed", "a", "b", "c")
    assert single.delete_records("trimmed", 0, before=2) == 2
    assert [record.offset for record in single.records("trimmed")] == [2]
    assert single.delete_records("trimmed") == 3
    assert single.records("trimmed") == []
    with pytest.raises(CrucibleError, match="OFFSET_OUT_OF_RANGE"):
        single.delete_records("trimmed", 0, before=99)


def test_truncated_log_goes_on_in_a_new_epoch_on_all_replicas(kafka: Cluster) -> None:
    kafka.create_topic("cut", replicas=3)
    for value in "abcd":
        produce(kafka, "cut", value)
    leader = kafka.leader("cut")
    assert kafka.truncate("cut", 0, to=2, limit_s=LIMIT_S) == 2
    assert kafka.leader("cut") == leader
    produce(kafka, "cut", "e")
    (before, _, after) = kafka.records("cut")
    assert [before.value, after.value] == [b"a", b"e"]
    assert after.leader_epoch > before.leader_epoch
    kafka.await_in_sync((leader + 1) % 3, LIMIT_S)
    moved = kafka.move_leader("cut")
    assert moved != leader
    assert [record.value for record in kafka.records("cut")] == [b"a", b"b", b"e"]
    with pytest.raises(ValueError, match="to is 3, and cut-0 has offsets 0 to 2: give one of its offsets"):
        kafka.truncate("cut", 0, to=3)


def test_consumer_that_was_ahead_of_a_truncation_finds_out(single: Cluster) -> None:
    single.create_topic("lossy")
    for value in "abc":
        produce(single, "lossy", value)
    consumer = Consumer(
        {"bootstrap.servers": single.bootstrap_servers, "group.id": "ahead", "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([TopicPartition("lossy", 0, 0)])
        assert [read_one(consumer) for _ in "abc"] == [b"a", b"b", b"c"]
        single.truncate("lossy", 0, to=1)
        produce(single, "lossy", "d", "e")
        deadline = time.monotonic() + LIMIT_S
        errors: list[KafkaError | None] = []
        while not errors and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            errors = [message.error()] if message is not None and message.error() else []
    finally:
        consumer.close()
    (error,) = errors
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "truncat" in str(error)


def test_request_beyond_the_end_of_a_truncated_log_is_out_of_range(single: Cluster) -> None:
    single.create_topic("short")
    for value in "abc":
        produce(single, "short", value)
    single.truncate("short", 0, to=1)
    consumer = KafkaConsumer(bootstrap_servers=single.bootstrap_servers, auto_offset_reset="none")
    try:
        consumer.assign([Partition("short", 0)])
        consumer.seek(Partition("short", 0), 3)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.poll(timeout_ms=LIMIT_S * 1000)
    finally:
        consumer.close(autocommit=False)
    single.node(0).restart()
    assert [record.value for record in single.records("short")] == [b"a"]
    with pytest.raises(CrucibleError, match="does not exist"):
        single.truncate("nothing", 0, to=0)
    with pytest.raises(ValueError, match="to is 7, and short-0 has offsets 0 to 0"):
        single.truncate("short", 0, to=7)


def test_compaction_keeps_the_newest_record_of_each_key(single: Cluster) -> None:
    single.create_topic("table", config={"cleanup.policy": "compact"})
    produce(single, "table", "1", "2", "3", key="k")
    produce(single, "table", "x", key="other")
    assert len(single.records("table")) == 4
    single.compact("table")
    assert [(record.key, record.value) for record in single.records("table")] == [(b"k", b"3"), (b"other", b"x")]
    single.create_topic("plain")
    with pytest.raises(NotPossible, match=r"cleanup\.policy"):
        single.compact("plain")


def test_all_replicas_are_rolled_and_compacted(kafka: Cluster) -> None:
    kafka.create_topic("wide", partitions=2, replicas=3, config={"cleanup.policy": "compact"})
    produce(kafka, "wide", "1", "2", key="k")
    kafka.compact("wide")
    for _ in range(3):
        assert [record.value for record in kafka.records("wide", 0)] == [b"2"]
        kafka.move_leader("wide", 0)


def test_snapshot_of_the_metadata_is_made(kafka: Cluster) -> None:
    kafka.create_topic("before-snapshot")
    kafka.snapshot()
    for number in range(3):
        newest, published = kafka.node(number).command("newest_snapshot")
        assert newest > 0
        assert published >= newest - 1


def test_feature_is_lowered_and_raised(kafka: Cluster) -> None:
    level = kafka.features()["transaction.version"]
    kafka.set_feature("transaction.version", level - 1)
    assert kafka.features().get("transaction.version", 0) == level - 1
    kafka.set_feature("transaction.version", level)
    assert kafka.features()["transaction.version"] == level
    with pytest.raises(CrucibleError, match=r"refused to set metadata\.version to 9999"):
        kafka.set_feature("metadata.version", 9999)


# What clients see


def raw_call(cluster: Cluster, api_key: int, version: int, body: object) -> Any:
    host, _, port = cluster.node(0).address.rpartition(":")
    with Connection.open(host, int(port), 5_000_000, "raw") as connection:
        return connection.call(api_key, version, body)


@pytest.mark.parametrize("release", ["1.1", "2.8", "3.9"])
def test_clients_work_with_an_older_release(release: str) -> None:
    with Cluster() as kafka:
        kafka.max_versions(release)
        kafka.create_topic("old")
        produce(kafka, "old", "x")
        consumer = consumer_of(kafka, "old-readers")
        try:
            consumer.subscribe(["old"])
            assert read_one(consumer) == b"x"
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        highest = versions_of(release)
        frames = [each for each in kafka.frames() if each.is_request and each.api != "ApiVersions"]
        assert frames
        for frame in frames:
            key = next(key for key in VERSIONS if ApiKey(key).name.replace("_", "").lower() == frame.api.lower())
            assert frame.version <= highest[key], f"{frame.api} v{frame.version} in {release}"
        kafka.node(0).restart()
        with pytest.raises(LostError):
            raw_call(kafka, ApiKey.METADATA, 13, ALL_BROKERS)
        kafka.max_versions(None)
        assert raw_call(kafka, ApiKey.METADATA, 13, ALL_BROKERS).brokers


def test_versions_hold_from_the_start_on() -> None:
    with Cluster(versions="2.8") as kafka, pytest.raises(LostError):
        raw_call(kafka, ApiKey.METADATA, 13, ALL_BROKERS)
    with pytest.raises(ValueError, match="give a release"):
        Cluster(versions="5.0")


def test_api_is_not_offered_at_all(single: Cluster) -> None:
    single.create_topic("listed")
    single.max_versions({"DescribeCluster": -1, "metadata": 8})
    try:
        assert AdminClient({"bootstrap.servers": single.bootstrap_servers}).list_topics(timeout=LIMIT_S).topics
        (last,) = single.frames(api="Metadata", direction="request")[-1:]
        assert last.version <= 8
    finally:
        single.max_versions(None)


def test_limits_that_cannot_be_are_refused(single: Cluster) -> None:
    with pytest.raises(ValueError, match=r"give a release from 1\.0 to 4\.1"):
        single.max_versions("0.9")
    with pytest.raises(ValueError, match="served from 4 to 18"):
        single.max_versions({"Fetch": 2})
    with pytest.raises(ValueError, match="did you mean Fetch"):
        single.max_versions({"Fetsch": 5})


def test_no_release_has_more_than_is_served() -> None:
    for release in RELEASES:
        for key, highest in versions_of(release).items():
            assert highest <= VERSIONS[key][1], f"{ApiKey(key).name} in {release}"
    assert versions_of("2.8")[ApiKey.FETCH] == 12
    assert versions_of("2.8")[ApiKey.DESCRIBE_TRANSACTIONS] == -1


def test_another_address_is_in_responses(single: Cluster) -> None:
    single.advertise("localhost", 5)
    try:
        response = raw_call(single, ApiKey.METADATA, 13, ALL_BROKERS)
        assert [(broker.host, broker.port) for broker in response.brokers] == [("localhost", 5)]
        single.create_topic("reached")
        assert single.coordinator("somebody") == 0
    finally:
        host, _, port = single.node(0).address.rpartition(":")
        single.advertise(host, int(port))


def test_offsets_of_a_partition_are_kept_by_the_coordinator_that_was_killed(kafka: Cluster) -> None:
    consumer = consumer_of(kafka, "survivors")
    try:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        dead = kafka.node(kafka.coordinator("survivors"))
        dead.kill()
        assert kafka.coordinator("survivors") != dead.id
        assert kafka.committed("survivors") == {("orders", 0): 1}
        dead.restart()
    finally:
        consumer.close()


def test_verbs_do_not_wait_for_a_node_that_is_isolated(kafka: Cluster) -> None:
    kafka.create_topic("cut-off", partitions=3)
    produce(kafka, "cut-off", "before")
    old = kafka.leader("cut-off", 0)
    kafka.node(old).isolate()
    try:
        kafka.create_topic("others", limit_s=LIMIT_S)
        if kafka.leader("cut-off", 0) == old:
            kafka.move_leader("cut-off", 0, limit_s=LIMIT_S)
        new = kafka.leader("cut-off", 0)
        assert new != old
        produce(kafka, "cut-off", "after", **{"bootstrap.servers": kafka.node(new).address})
        assert [record.value for record in kafka.records("cut-off", 0)] == [b"before", b"after"]
    finally:
        kafka.node(old).heal()
