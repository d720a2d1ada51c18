"""OpenMessaging's driver files for Kafka: what is carried out, what has no meaning here, and what is refused."""

from pathlib import Path

import pytest

from bench.load.driver import (
    COMMON,
    CONSUMER,
    KAFKA_DRIVER,
    NOTES,
    PRODUCER,
    Driver,
    DriverError,
    driver_of,
    read_driver,
)
from bench.load.options import LoadOptions
from bench.load.run import spec_of
from bench.load.spec import LoadSpec, load_plans, read_plans
from bench.load.target import LoadTarget
from bench.load.workload import workload_of

PUBLISHED = """
name: Kafka
driverClass: io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver

# Kafka client-specific configuration
replicationFactor: 3
reset: true

topicConfig: |
  min.insync.replicas=2
  # nothing
  flush.messages = 1

commonConfig: |
  bootstrap.servers=${kafkaServiceUrl:-localhost:9092}
  request.timeout.ms=120000

producerConfig: |
  acks=all
  linger.ms=200
  batch.size=1048576
  compression.type=gzip

consumerConfig: |
  auto.offset.reset=earliest
  enable.auto.commit=false
  isolation.level=read_committed
  max.partition.fetch.bytes=10485760
"""
TARGET = LoadTarget("reference", [("127.0.0.1", 9092)], None)


def driver(**sections: str) -> Driver:
    return driver_of({"driverClass": KAFKA_DRIVER, **sections})


def spec(made: Driver, **fields: object) -> LoadSpec:
    return spec_of(workload_of(fields, "w", "w"), TARGET, LoadOptions(driver=made), ["t"], Path())


def test_published_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "kafka-big-batches-gzip.yaml"
    path.write_text(PUBLISHED)
    driver = read_driver(path)
    assert driver.replication == 3
    assert driver.acks == -1
    assert driver.compression == "gzip"
    assert driver.linger_ms == 200
    assert driver.topic_settings == {"min.insync.replicas": "2", "flush.messages": "1"}
    assert (driver.request_timeout_ms, driver.batch_bytes, driver.partition_max_bytes) == (
        120_000,
        1 << 20,
        10 << 20,
    )
    assert [note.partition(":")[0] for note in driver.notes] == [
        *("bootstrap.servers", "auto.offset.reset", "enable.auto.commit", "reset")
    ]


def test_driver_settings_reach_producers_and_readers() -> None:
    made = driver(
        producerConfig="batch.size=8192\nlinger.ms=100\nmax.in.flight.requests.per.connection=2",
        consumerConfig="isolation.level=read_committed\nfetch.max.wait.ms=7\nfetch.min.bytes=8\nfetch.max.bytes=9",
    )
    (producer,) = load_plans(spec(made, messageSize=100, producerRate=500))
    assert (producer.batch_records, producer.requests_in_flight) == (50, 2)
    (producer,) = load_plans(spec(made, messageSize=100, producerRate=500_000))
    assert producer.batch_records == 81
    ((_, reader),) = read_plans(spec(made))
    assert reader.isolation_level == 1
    assert reader.max_wait_ms == 7
    assert reader.min_bytes == 8
    assert reader.max_bytes == 9


def test_without_a_file_kafka_s_defaults_hold() -> None:
    made = spec(Driver())
    assert (made.requests_in_flight, made.request_timeout_ms, made.delivery_timeout_ms) == (5, 30_000, 120_000)
    assert (made.partition_max_bytes, made.fetch_max_bytes, made.isolation_level) == (1 << 20, 50 << 20, 0)


def test_acks_1_and_0_end_idempotence_as_in_kafka() -> None:
    assert driver(producerConfig="acks=1").idempotent is False
    assert (driver(producerConfig="acks=0").acks, driver(producerConfig="acks=0").idempotent) == (0, False)
    assert driver(producerConfig="acks=all").idempotent is None


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"producerConfig": "lingr.ms=1"}, "producerConfig has no lingr.ms (but linger.ms)"),
        ({"consumerConfig": "acks=all"}, "consumerConfig has no acks"),
        ({"producerConfig": "acks=2"}, "acks=2 in producerConfig is none of all, -1, 1, 0"),
        ({"producerConfig": "enable.idempotence=true\nacks=0"}, "enable.idempotence needs acks=all"),
        ({"producerConfig": "linger.ms=soon"}, "linger.ms=soon in producerConfig is no number"),
        ({"producerConfig": "batch.size=-1"}, "batch.size=-1 in producerConfig is not between 0 and"),
        ({"producerConfig": "compression.type=brotli"}, "is none of none, gzip, snappy, lz4, zstd"),
        ({"producerConfig": "enable.idempotence=true\nacks=1"}, "enable.idempotence needs acks=all"),
        ({"producerConfig": "max.in.flight.requests.per.connection=6"}, "an idempotent producer may have 5"),
        ({"producerConfig": "transactional.id=x"}, "write crucible: {transactions: ...} into the workload"),
        ({"commonConfig": "security.protocol=SASL_SSL"}, "security.protocol is not carried out"),
        ({"commonConfig": "sasl.mechanism=PLAIN"}, "sasl.mechanism is not carried out"),
        ({"topicConfig": "cleanup.policy"}, "'cleanup.policy' is no property: write NAME=VALUE"),
        ({"topicconfig": ""}, "The file contains unknown field `topicconfig`"),
        ({"replicationFactor": 0}, "Expected `int` >= 1 in `replicationFactor`"),
        ({"driverClass": "io.openmessaging.benchmark.driver.pulsar.PulsarBenchmarkDriver"}, "is not carried out: only"),
    ],
)
def test_bad_file_ends_with_one_sentence(sections: dict[str, object], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(DriverError) as error:
        driver_of({"driverClass": KAFKA_DRIVER, **sections})
    assert complaint in str(error.value)
    path = tmp_path / "d.yaml"
    path.write_text("driverClass: [")
    with pytest.raises(DriverError, match=r"^d.yaml: is not valid YAML"):
        read_driver(path)
    with pytest.raises(DriverError, match="cannot be read"):
        read_driver(tmp_path / "none.yaml")


def test_no_name_is_both_carried_out_and_without_a_meaning() -> None:
    assert not NOTES.keys() & {*COMMON, *PRODUCER, *CONSUMER}
