"""Settings: defaults, units, and one sentence for each mistake."""

import pytest

from reference_broker.configuration.broker_config import (
    BROKER_KEYS,
    BROKER_SYNONYMS,
    DIFFERENT_DEFAULTS,
    TOPICS_ALONE,
    BrokerConfig,
    ConfigError,
)
from reference_broker.configuration.consistency import doubtful
from reference_broker.configuration.topic_config import TOPIC_KEYS, parse_topic_configs


def test_defaults_equal_kafkas_unless_table_gives_reason() -> None:
    config = BrokerConfig()
    assert config.max_incremental_fetch_session_cache_slots == 1000
    assert config.producer_id_expiration_ms == 86_400_000
    assert config.socket_request_max_bytes == 104_857_600
    assert all(name in BROKER_KEYS and why for name, why in DIFFERENT_DEFAULTS.items())


def test_given_keys_are_remembered_in_a_fixed_order() -> None:
    config = BrokerConfig.parse({"num.partitions": " 4 ", "fetch.max.bytes": "2048"})
    assert (config.num_partitions, config.given) == (4, ("fetch.max.bytes", "num.partitions"))
    given = [(key.name, value) for key, value, was_given in config.describe() if was_given]
    assert given == [("fetch.max.bytes", 2048), ("num.partitions", 4)]


@pytest.mark.parametrize(
    ("pairs", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4", "log.retention.hours": "1"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_finer_unit_wins(pairs: dict[str, str], retention_ms: int) -> None:
    assert BrokerConfig.parse(pairs).log_retention_ms == retention_ms


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ({"log.segment.byte": "1"}, "Unknown broker config name: log.segment.byte; did you mean log.segment.bytes?"),
        (
            {"leader.imbalance.per.broker.percentage": "5"},
            "leader.imbalance.per.broker.percentage would have no effect on this broker; remove it.",
        ),
        (
            {"compression.gzip.level": "0"},
            "compression.gzip.level is '0': give -1 or a whole number from 1 to 9.",
        ),
        ({"zzz": "1"}, "Unknown broker config name: zzz; remove it."),
        ({"num.partitions": "many"}, "num.partitions is 'many': give a whole number from 1 to 10000."),
        ({"num.partitions": "0"}, "num.partitions is 0: give a whole number from 1 to 10000."),
        ({"fetch.max.bytes": "9999999999"}, "fetch.max.bytes is 9999999999: give a whole number of at least 1024."),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable is 'yes': give true or false."),
        (
            {"log.cleaner.min.cleanable.ratio": "1.5"},
            "log.cleaner.min.cleanable.ratio is 1.5: give a number from 0 to 1.",
        ),
        (
            {"log.cleaner.min.cleanable.ratio": "nan"},
            "log.cleaner.min.cleanable.ratio is nan: give a number from 0 to 1.",
        ),
        (
            {"crucible.unknown.producer.id.policy": "maybe"},
            "crucible.unknown.producer.id.policy is 'maybe': give accept or reject.",
        ),
        ({"log.cleanup.policy": "delete,burn"}, "log.cleanup.policy is 'burn': give delete or compact."),
        ({"advertised.listeners": "SSL://h:1"}, "advertised.listeners is 'SSL://h:1': give one PLAINTEXT://HOST:PORT."),
        ({"advertised.listeners": "host"}, "advertised.listeners is 'host': give one PLAINTEXT://HOST:PORT."),
        (
            {"advertised.listeners": "host:99999"},
            "advertised.listeners is 'host:99999': give one PLAINTEXT://HOST:PORT.",
        ),
    ],
)
def test_config_error_is_one_sentence_with_key_and_fix(pairs: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.parse(pairs)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("pairs", "names"),
    [
        (
            {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
            "log.cleaner.min.compaction.lag.ms",
        ),
    ],
)
def test_contradicting_settings_are_refused(pairs: dict[str, str], names: str) -> None:
    with pytest.raises(ConfigError, match=f"{names} is .* lower it"):
        BrokerConfig.parse(pairs)


@pytest.mark.parametrize(
    ("text", "address"),
    [("PLAINTEXT://h.example:19092", ("h.example", 19092)), ("[::1]:5", ("::1", 5)), ("", None)],
)
def test_advertised_address_is_host_and_port(text: str, address: tuple[str, int] | None) -> None:
    announced = BrokerConfig.parse({"advertised.listeners": text}).listener_plan().advertised
    assert [(each.host, each.port) for each in announced] == ([] if address is None else [address])


def test_topics_log_settings_are_its_own_over_the_brokers() -> None:
    config = BrokerConfig.parse({"log.segment.bytes": "5000", "crucible.unknown.producer.id.policy": "reject"})
    log_config = config.log_config({"retention.ms": "7", "cleanup.policy": "compact, delete"})
    assert (log_config.segment_bytes, log_config.retention_ms) == (5000, 7)
    assert (log_config.is_compacted, log_config.has_delete_policy) == (True, True)
    assert log_config.unknown_producer_id_policy == "reject"
    assert config.topic_defaults().segment_bytes == 5000


def test_each_topic_setting_has_a_broker_setting_of_the_same_kind_and_default() -> None:
    assert {*BROKER_SYNONYMS, *TOPICS_ALONE} == set(TOPIC_KEYS)
    for topic_name, broker_name in BROKER_SYNONYMS.items():
        topic_key, broker_key = TOPIC_KEYS[topic_name], BROKER_KEYS[broker_name]
        assert (topic_key.kind, topic_key.default) == (broker_key.kind, broker_key.default)


@pytest.mark.parametrize(
    ("pairs", "doubts"),
    [
        ({"message.max.bytes": "200000000"}, ["message.max.bytes"]),
        ({"min.insync.replicas": "2"}, ["min.insync.replicas"]),
        (
            {"log.preallocate": "true", "log.segment.delete.delay.ms": "1"},
            ["log.preallocate", "log.segment.delete.delay.ms"],
        ),
        ({"message.max.bytes": "100000000", "log.roll.jitter.hours": "1"}, []),
    ],
)
def test_doubtful_settings_that_kafka_accepts_are_reported(pairs: dict[str, str], doubts: list[str]) -> None:
    assert [setting for setting, _ in doubtful(BrokerConfig.parse(pairs))] == doubts


KAFKAS_RANGES = {
    "cleanup.policy": (["", "delete", "compact,delete", "delete,delete", " delete"], ["DELETE", ",", "delete,"]),
    "compression.gzip.level": (["-1", "1", "9"], ["-2", "0", "10"]),
    "compression.lz4.level": (["1", "17"], ["0", "18"]),
    "compression.zstd.level": (["-131072", "0", "22"], ["-131073", "23"]),
    "file.delete.delay.ms": (["0"], ["-1"]),
    "follower.replication.throttled.replicas": (["0:1"], ["none"]),
    "internal.segment.bytes": (["14", "100"], ["many"]),
    "leader.replication.throttled.replicas": (["*", "", "0:1", "0:1,1:2", "0:1,"], ["x", "none", "0"]),
    "preallocate": (["true", "FALSE"], ["x"]),
    "segment.jitter.ms": (["0", "100000"], ["-1"]),
}
"""Texts that a running Apache Kafka 4.1.1 took in CreateTopics, and those that it refused with INVALID_CONFIG."""


@pytest.mark.parametrize("name", KAFKAS_RANGES)
def test_topic_config_accepts_kafkas_range(name: str) -> None:
    taken, refused = KAFKAS_RANGES[name]
    for text in taken:
        parse_topic_configs({name: text})
    for text in refused:
        with pytest.raises(ConfigError):
            parse_topic_configs({name: text})


def test_empty_cleanup_policy_keeps_every_record() -> None:
    config = BrokerConfig().log_config({"cleanup.policy": ""})
    assert (config.is_compacted, config.has_delete_policy) == (False, False)


def test_internal_segment_bytes_wins_over_segment_bytes() -> None:
    config = BrokerConfig().log_config({"internal.segment.bytes": "300", "segment.bytes": "5000"})
    assert config.segment_bytes == 300


def test_contradicting_topic_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms is 9, above"):
        parse_topic_configs({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})
