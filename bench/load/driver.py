"""OpenMessaging Benchmark's driver file for Kafka (``--driver``): settings of producers, consumers and topics.

The texts in it are Java properties with the names of Kafka's clients. Each name is carried out, has no meaning here
(``NOTES``), or ends with one sentence. Files: https://github.com/openmessaging/benchmark (``driver-kafka``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from bench.load.yaml_file import YamlError, read_yaml
from reference_broker.client.consumer import READ_COMMITTED, READ_UNCOMMITTED
from reference_broker.client.producer import MAX_IN_FLIGHT
from reference_broker.records.compression import Compression

KAFKA_DRIVER: Final = "io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver"
ALL_REPLICAS: Final = -1


class DriverError(Exception):
    """The message is one sentence that names the file and the key."""


@dataclass(slots=True)
class Driver:
    """The settings of a driver file. None and the numbers here are Kafka's own defaults, for a run without one."""

    name: str = ""
    replication: int | None = None
    acks: int | None = None
    idempotent: bool | None = None
    compression: str | None = None
    batch_bytes: int = 16_384
    linger_ms: float = 5.0  # since Kafka 4.0
    requests_in_flight: int = MAX_IN_FLIGHT
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    isolation_level: int | None = None
    partition_max_bytes: int = 1 << 20
    fetch_max_bytes: int = 50 << 20
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 100
    topic_settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """A sentence for each name that has no meaning here."""


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    name: str = ""
    driver_class: str
    replication_factor: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    reset: bool = False
    topic_config: str = ""
    common_config: str = ""
    producer_config: str = ""
    consumer_config: str = ""


def read_driver(path: Path) -> Driver:
    """:raises DriverError: it cannot be read, or cannot be carried out."""
    try:
        table = read_yaml(path)
    except YamlError as error:
        raise DriverError(str(error)) from error
    try:
        return driver_of(table)
    except DriverError as error:
        raise DriverError(f"{path.name}: {error}.") from error


def driver_of(table: Any) -> Driver:
    """:raises DriverError: the table cannot be carried out; the message has no full stop."""
    if not isinstance(table, Mapping):
        raise DriverError("is no driver file, whose keys are driverClass, topicConfig, producerConfig and so on")
    try:
        file = msgspec.convert(dict(table), _File)
    except msgspec.ValidationError as error:
        raise DriverError(str(error).replace(" - at `$.", " in `").replace("Object", "The file")) from error
    if file.driver_class != KAFKA_DRIVER:
        raise DriverError(f"driverClass {file.driver_class} is not carried out: only {KAFKA_DRIVER} is")
    driver = Driver(file.name, file.replication_factor, topic_settings=dict(properties_of(file.topic_config)))
    for where, text, known in (
        ("commonConfig", file.common_config, COMMON),
        ("producerConfig", file.producer_config, {**COMMON, **PRODUCER}),
        ("consumerConfig", file.consumer_config, {**COMMON, **CONSUMER}),
    ):
        for name, value in properties_of(text):
            _apply(driver, where, name, value, known)
    if driver.acks in (0, 1) and driver.idempotent is None:
        driver.idempotent = False  # as in Kafka's producer
    if driver.idempotent and driver.acks in (0, 1):
        raise DriverError("enable.idempotence needs acks=all")
    if driver.idempotent is not False and driver.requests_in_flight > MAX_IN_FLIGHT:
        raise DriverError(
            f"max.in.flight.requests.per.connection is {driver.requests_in_flight}, "
            f"and an idempotent producer may have {MAX_IN_FLIGHT}"
        )
    if file.reset:
        driver.notes.append("reset: topics are new for each run and deleted after it, so no old ones are")
    return driver


def properties_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of Java properties, a line each."""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        at = min((stripped.find(each) for each in "=:" if each in stripped), default=-1)
        if at <= 0:
            raise DriverError(f"{stripped!r} is no property: write NAME=VALUE")
        yield stripped[:at].strip(), stripped[at + 1 :].strip()


Sets = Callable[[Driver, str], None]
"""Sets what a property says. Raises ValueError with the end of a sentence."""


def _apply(driver: Driver, where: str, name: str, value: str, known: Mapping[str, Sets]) -> None:
    if name.startswith(("sasl.", "ssl.")) or (name == "security.protocol" and value != "PLAINTEXT"):
        raise DriverError(f"{name} is not carried out: connections of benchmarks are PLAINTEXT")
    sets = known.get(name)
    if sets is not None:
        try:
            sets(driver, value)
        except ValueError as error:
            raise DriverError(f"{name}={value} in {where} {error}") from error
    elif name in NOTES:
        driver.notes.append(f"{name}: {NOTES[name]}")
    else:
        near = get_close_matches(name, [*known, *NOTES], 1)
        raise DriverError(f"{where} has no {name}" + (f" (but {near[0]})" if near else ""))


def _number(attribute: str, low: float, high: float, whole: bool = True) -> Sets:
    def set_to(driver: Driver, text: str) -> None:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise ValueError("is no number") from None
        if not low <= value <= high:
            raise ValueError(f"is not between {low:,.0f} and {high:,.0f}")
        setattr(driver, attribute, value)

    return set_to


def _choice(attribute: str, values: Mapping[str, object]) -> Sets:
    def set_to(driver: Driver, text: str) -> None:
        if text not in values:
            raise ValueError(f"is none of {', '.join(values)}")
        setattr(driver, attribute, values[text])

    return set_to


def _acks(driver: Driver, text: str) -> None:
    _choice("acks", {"all": ALL_REPLICAS, "-1": ALL_REPLICAS, "1": 1, "0": 0})(driver, text)


def _transactional_id(_: Driver, __: str) -> None:
    raise ValueError("is set by this suite: write crucible: {transactions: ...} into the workload")


_INT: Final = 2**31 - 1
_BYTES: Final = 1 << 30
COMMON: Final[Mapping[str, Sets]] = {"request.timeout.ms": _number("request_timeout_ms", 1, _INT)}
PRODUCER: Final[Mapping[str, Sets]] = {
    "acks": _acks,
    "batch.size": _number("batch_bytes", 0, _BYTES),
    "compression.type": _choice("compression", {each.name.lower(): each.name.lower() for each in Compression}),
    "delivery.timeout.ms": _number("delivery_timeout_ms", 1, _INT),
    "enable.idempotence": _choice("idempotent", {"true": True, "false": False}),
    "linger.ms": _number("linger_ms", 0, 60_000, whole=False),
    "max.in.flight.requests.per.connection": _number("requests_in_flight", 1, 1_000),
    "transactional.id": _transactional_id,
}
CONSUMER: Final[Mapping[str, Sets]] = {
    "fetch.max.bytes": _number("fetch_max_bytes", 0, _INT),
    "fetch.max.wait.ms": _number("fetch_max_wait_ms", 0, _INT),
    "fetch.min.bytes": _number("fetch_min_bytes", 0, _INT),
    "isolation.level": _choice(
        "isolation_level", {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
    ),
    "max.partition.fetch.bytes": _number("partition_max_bytes", 0, _INT),
}
_OWN_LOOP: Final = "this suite's clients have no such queue or poll loop"
_OWN_RETRIES: Final = "batches are sent again until the delivery timeout"
_POSITIONS: Final = "topics are new, and read from their start"
NOTES: Final[Mapping[str, str]] = {
    "bootstrap.servers": "the brokers are those of --target",
    "client.id": "it is the name of each producer and reader",
    "security.protocol": "it is PLAINTEXT",
    "key.serializer": "keys are bytes",
    "value.serializer": "values are bytes",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes",
    "retries": _OWN_RETRIES,
    "retry.backoff.ms": _OWN_RETRIES,
    "retry.backoff.max.ms": _OWN_RETRIES,
    "reconnect.backoff.ms": _OWN_RETRIES,
    "reconnect.backoff.max.ms": _OWN_RETRIES,
    "buffer.memory": _OWN_LOOP,
    "max.block.ms": _OWN_LOOP,
    "max.poll.records": _OWN_LOOP,
    "max.poll.interval.ms": _OWN_LOOP,
    "max.request.size": "a request has at most 16 batches",
    "partitioner.class": "batches go to the partitions in turn",
    "partitioner.ignore.keys": "batches go to the partitions in turn",
    "send.buffer.bytes": "sockets have the system's buffers",
    "receive.buffer.bytes": "sockets have the system's buffers",
    "connections.max.idle.ms": "no connection is idle for long",
    "metadata.max.age.ms": "metadata is fetched again after errors",
    "transaction.timeout.ms": "it is 60 s",
    "check.crcs": "each batch's CRC is checked",
    "group.id": "readers are assigned their partitions, unless the workload has crucible: {groups: true}",
    "group.instance.id": "readers are assigned their partitions",
    "partition.assignment.strategy": "readers are assigned their partitions",
    "session.timeout.ms": "it is Kafka's default",
    "heartbeat.interval.ms": "it is Kafka's default",
    "auto.offset.reset": _POSITIONS,
    "enable.auto.commit": _POSITIONS,
    "auto.commit.interval.ms": _POSITIONS,
    "allow.auto.create.topics": "topics are created before the load",
}
"""Names that change nothing here, with the reason."""
