"""Workload files, bad ones too, and what becomes of them."""

from pathlib import Path

import pytest

from bench.load.options import LoadOptions
from bench.load.run import spec_of
from bench.load.spec import LoadSpec, load_plans, read_plans
from bench.load.target import LoadTarget
from bench.load.workload import UnplayableError, Workload, WorkloadError, check_topics, read_workload, workload_of

PRESETS = sorted((Path(__file__).parents[3] / "docs" / "workloads").glob("*.yaml"))
PUBLISHED = """
name: 1 producer / 1 consumer on 1 topic

topics: 1
partitionsPerTopic: 1
keyDistributor: "NO_KEY"
messageSize: 1024
payloadFile: ""
subscriptionsPerTopic: 1
consumerPerSubscription: 1
producersPerTopic: 1
producerRate: 50000
consumerBacklogSizeGB: 0
testDurationMinutes: 15
"""
TARGET = LoadTarget("reference", [("127.0.0.1", 9092)], None)


def test_published_workload_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "1-topic-1-partition-1kb.yaml"
    path.write_text(PUBLISHED)
    workload = read_workload(path)
    assert (workload.partitions_per_topic, workload.message_size, workload.producer_rate) == (1, 1024, 50_000)
    assert (workload.test_duration_minutes, workload.warmup_duration_minutes) == (15, 1)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: str(path.stem))
def test_preset_is_read(path: Path) -> None:
    assert read_workload(path).name


def test_there_are_presets() -> None:
    assert len(PRESETS) >= 10


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (None, "w: is no workload"),
        ({"topics": 0}, "Expected `int` >= 1 in `topics`"),
        ({"messageSise": 100}, "unknown field `messageSise`"),
        ({"producerRate": -1}, "Expected `int` >= 0 in `producerRate`"),
        ({"producerRate": 10**12}, "Expected `int` <= 100000000 in `producerRate`"),
        (
            {"crucible": {"connections": 5, "client": "java"}},
            "the client java does not carry out crucible.connections; native does",
        ),
        ({"testDurationMinutes": 0}, "Expected `float` > 0.0 in `testDurationMinutes`"),
        ({"messageSize": 4}, "too small for a value that proves itself: at least 17"),
        ({"messageSize": 10**9}, "messageSize 1,000,000,000 is too large: the most are 67,108,864 bytes"),
        ({"keyDistributor": "BY_DAY"}, "keyDistributor 'BY_DAY' is none of NO_KEY, KEY_ROUND_ROBIN, RANDOM_NANO"),
        ({"padding": "AAAA"}, "padding is no key of workloads"),
        ({"consumerBacklogSizeGB": 100}, "consumerBacklogSizeGB needs a producerRate"),
        (
            {"consumerBacklogSizeGB": 1, "producerRate": 1, "subscriptionsPerTopic": 0},
            "consumerBacklogSizeGB needs readers: set subscriptionsPerTopic to 1 or more",
        ),
        ({"consumerBacklogSizeGB": -1}, "Expected `float` >= 0.0 in `consumerBacklogSizeGB`"),
        (
            {"consumerBacklogSizeGB": 1, "producerRate": 1, "crucible": {"client": "kafka-python"}},
            "the client kafka-python does not carry out consumerBacklogSizeGB; native does",
        ),
        ({"backlogDrainRatio": 1.5}, "Expected `float` <= 1.0 in `backlogDrainRatio`"),
        ({"topics": 2_000, "partitionsPerTopic": 100}, "200,000 partitions; the most are 100,000"),
        ({"producersPerTopic": 10_001}, "10,002 clients; the most are 10,000"),
        ({"crucible": {"fetchSesions": True}}, "unknown field `fetchSesions` in `crucible`"),
        ({"crucible": {"topicConfig": {"retention.ms": [1]}}}, "got `array` in `crucible.topicConfig[...]`"),
        ({"crucible": {"transactions": {}}}, "transactions end after records or after seconds: give one"),
        ({"crucible": {"transactions": {"records": 5, "abortRatio": 2}}}, "Expected `float` <= 1.0"),
        (
            {"crucible": {"transactions": {"records": 5}, "client": "librdkafka"}},
            "the client librdkafka does not carry out crucible.transactions; native does",
        ),
        ({"crucible": {"connections": 30_000}}, "Expected `int` <= 20000 in `crucible.connections`"),
        ({"crucible": {"connectionStorm": -1}}, "Expected `float` >= 0.0 in `crucible.connectionStorm`"),
        ({"consumerPerSubscription": 3, "partitionsPerTopic": 2}, "a consumer would have no partition"),
    ],
)
def test_bad_workload_ends_with_one_sentence(table: object, complaint: str) -> None:
    with pytest.raises(WorkloadError) as error:
        workload_of(table, "w", "w")
    assert complaint in str(error.value)
    assert str(error.value).count("\n") == 0


def test_files_that_cannot_be_read_end_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_workload(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("topics: [")
    with pytest.raises(WorkloadError, match="is not valid YAML"):
        read_workload(tmp_path / "bad.yaml")


def test_values_are_padded_with_the_payload_file(tmp_path: Path) -> None:
    (tmp_path / "payload").mkdir()
    (tmp_path / "workloads").mkdir()
    (tmp_path / "payload" / "p.data").write_bytes(b"abc")
    path = tmp_path / "workloads" / "w.yaml"
    path.write_text("payloadFile: payload/p.data")
    assert read_workload(path).padding == b"abc"


def test_without_a_payload_file_the_padding_is_random_and_always_the_same(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("{messageSize: 500}")
    first = read_workload(path).padding
    assert (len(first), read_workload(path).padding) == (500, first)
    path.write_text("{useRandomizedPayloads: true, randomBytesRatio: 0.5, messageSize: 500}")
    assert read_workload(path).padding.endswith(bytes(250))


def test_missing_payload_file_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("{payloadFile: payload/none.data, messageSize: 500}")
    with pytest.raises(WorkloadError) as refused:
        read_workload(path)
    assert "w.yaml: payloadFile payload/none.data does not exist" in str(refused.value)
    assert str(tmp_path / "payload" / "none.data") in str(refused.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topics: 1\nmessageSize: 100\ntopics: 2\n", "the key topics is given twice, in lines 1 and 3;"),
        ("{topics: 1, topics: 1}", "the key topics is given twice, in line 1;"),
        ("crucible:\n  groups: true\n  groups: false\n", "the key groups is given twice, in lines 2 and 3;"),
        (
            "crucible:\n  faults:\n    - { kind: node_killed, atS: 1,\n        atS: 2 }\n",
            "key atS is given twice, in lines 3",
        ),
    ],
)
def test_key_that_is_given_twice_is_refused_with_its_lines(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(WorkloadError) as refused:
        read_workload(path)
    assert str(refused.value).startswith("w.yaml: ")
    assert complaint in str(refused.value)


def test_merged_mapping_may_have_keys_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("crucible: {topicConfig: &own {a: 1, b: 2}, brokerConfig: {<<: *own, b: 3}}")
    assert read_workload(path).crucible.broker_settings == {"a": "1", "b": "3"}


def test_settings_of_topics_are_text_for_kafka() -> None:
    table = {
        "crucible": {"topicConfig": {"cleanup.policy": "compact", "segment.ms": 100, "remote.storage.enable": True}}
    }
    settings = workload_of(table, "w", "w").crucible.topic_settings
    assert settings == {"cleanup.policy": "compact", "segment.ms": "100", "remote.storage.enable": "true"}


def test_fetch_sessions_can_be_disabled() -> None:
    assert all(plan.fetch_sessions for _, plan in read_plans(spec()))
    assert not any(plan.fetch_sessions for _, plan in read_plans(spec(crucible={"fetchSessions": False})))


def test_batch_has_no_more_records_than_a_transaction() -> None:
    (plan,) = load_plans(spec(messageSize=100, crucible={"transactions": {"records": 5}}))
    assert plan.batch_records == 5
    (plan,) = load_plans(spec(messageSize=100, crucible={"transactions": {"seconds": 5}}))
    assert plan.batch_records == 163


def test_producers_have_transactional_ids_of_their_own_and_readers_are_read_committed() -> None:
    made = spec(producersPerTopic=3, crucible={"transactions": {"seconds": 0.5, "abortRatio": 0.1}})
    transactions = [plan.transaction for plan in load_plans(made) if plan.transaction is not None]
    assert len({transaction.transactional_id for transaction in transactions}) == 3
    assert {
        (transaction.records, transaction.duration_us, transaction.abort_ratio) for transaction in transactions
    } == {(0, 500_000, 0.1)}
    assert {plan.isolation_level for _, plan in read_plans(made)} == {1}
    assert {plan.isolation_level for _, plan in read_plans(spec())} == {0}


def test_members_of_a_group_name_their_topic_by_all_partitions() -> None:
    made = spec(
        topics=2, partitionsPerTopic=4, subscriptionsPerTopic=2, consumerPerSubscription=2, crucible={"groups": True}
    )
    plans = [plan for _, plan in read_plans(made)]
    assert len({plan.group_id for plan in plans}) == 4
    assert {len(plan.partitions) for plan in plans} == {4}
    assert {plan.group_id for _, plan in read_plans(spec())} == {""}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "cleanup.policy compact needs keys: set keyDistributor to KEY_ROUND_ROBIN"),
        (
            {"keyDistributor": "KEY_ROUND_ROBIN", "producersPerTopic": 2},
            "cleanup.policy compact needs producersPerTopic 1, so that the last record of each key is known",
        ),
    ],
)
def test_compacted_topics_need_keys_of_one_producer(fields: dict[str, object], complaint: str) -> None:
    workload = workload_of(fields, "w", "w")
    with pytest.raises(UnplayableError, match=f"^{complaint}$"):
        check_topics(workload, {"cleanup.policy": "compact,delete"})
    check_topics(workload, {"cleanup.policy": "delete"})
    check_topics(workload_of({"keyDistributor": "KEY_ROUND_ROBIN"}, "w", "w"), {"cleanup.policy": "compact"})


def test_reader_that_catches_up_is_a_subscription_of_its_own() -> None:
    made = spec(topics=2, partitionsPerTopic=3, subscriptionsPerTopic=2, crucible={"readFromStart": True})
    late = [(number, plan) for number, plan in read_plans(made) if plan.catches_up]
    assert [number for number, _ in late] == [2, 2]
    assert [len(plan.partitions) for _, plan in late] == [3, 3]
    assert not [plan for _, plan in read_plans(spec()) if plan.catches_up]
    assert workload_of({"topics": 2, "crucible": {"readFromStart": True}}, "w", "w").clients == 6


def test_keys_take_turns() -> None:
    (plan,) = load_plans(spec(keyDistributor="KEY_ROUND_ROBIN"))
    assert plan.keys == 10_000


def spec(**fields: object) -> LoadSpec:
    topics = int(str(fields.get("topics", 1)))
    return spec_of(
        workload_of(fields, "w", "w"), TARGET, LoadOptions(), [f"t{number}" for number in range(topics)], Path()
    )


def test_each_reader_of_a_subscription_has_partitions_of_its_own() -> None:
    made = spec(topics=2, partitionsPerTopic=5, subscriptionsPerTopic=2, consumerPerSubscription=2)
    plans = list(read_plans(made))
    assert len(plans) == 8
    for subscription in (0, 1):
        held = [partition for number, plan in plans if number == subscription for partition in plan.partitions]
        assert len(held) == len(set(held)) == 10


def test_producers_share_the_rate_and_have_names_of_their_own() -> None:
    plans = load_plans(spec(topics=2, producersPerTopic=3, producerRate=6_000))
    assert [plan.records_per_s for plan in plans] == [1_000.0] * 6
    assert len({plan.process for plan in plans}) == 6
    assert [plan.partitions[0].topic for plan in plans] == ["t0"] * 3 + ["t1"] * 3


@pytest.mark.parametrize(
    ("rate", "size_bytes", "records"),
    [(100, 1024, 1), (2_000, 1024, 10), (1_000_000, 1024, 16), (0, 1024, 16), (0, 100_000, 1)],
)
def test_batch_is_sent_when_full_or_after_linger(rate: int, size_bytes: int, records: int) -> None:
    assert spec(producerRate=rate, messageSize=size_bytes).batch_records == records


def test_workload_has_the_defaults_of_its_file_format() -> None:
    assert Workload().name == ""
