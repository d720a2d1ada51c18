"""Measures how long stock consumers take to read a whole partition, which is assigned by hand."""

import re
import time
from pathlib import Path

import confluent_kafka

from bench.peers.java import run_java
from bench.peers.node import PeerError

READ_LIMIT_S = 120.0
CHUNK = 10_000

_FIRST_ANSWER = "org.apache.kafka.common.requests.FetchResponse$$Lambda"
_END = "org.apache.kafka.clients.consumer.CloseOptions"
_LOADED = re.compile(r"^\[([\d.]+)s\] (\S+)", re.M)


def java_consumer_s(bootstrap: str, topic: str, records: int, folder: Path) -> float:
    """Returns the seconds that ``kafka-console-consumer`` reads, with Kafka's defaults and without printing.

    The time runs from the first fetch answer to the last record. Java logs when it loads a class, and each of the two
    moments loads a class of its own. So the start and the end of the virtual machine are left out; they take longer
    than the reading. Raises PeerError.
    """
    log = folder / "classes.log"
    options = ["-Xmx512m", f"-Xlog:class+load=info:file={log}:uptime"]
    words = ["--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest"]
    words += ["--max-messages", str(records), "--formatter", "org.apache.kafka.tools.consumer.NoOpMessageFormatter"]
    _, errors = run_java("org.apache.kafka.tools.consumer.ConsoleConsumer", words, READ_LIMIT_S, options)
    if f"total of {records} messages" not in errors:
        raise PeerError(f"Kafka's console consumer did not read all records: {errors.strip().splitlines()[-1:]}")
    return reading_s(log.read_text())


def reading_s(class_log: str) -> float:
    """Returns the seconds between the first lines of the two classes in Java's log of loaded classes.

    Raises PeerError if one of them is missing.
    """
    loaded = [(float(at_s), name) for at_s, name in _LOADED.findall(class_log)]
    began = next((at_s for at_s, name in loaded if name.startswith(_FIRST_ANSWER)), None)
    ended = next((at_s for at_s, name in loaded if name == _END), None)
    if began is None or ended is None or ended <= began:
        raise PeerError("Java's log of loaded classes does not tell when the consumer read")
    return ended - began


def librdkafka_s(
    bootstrap: str,
    topic: str,
    records: int,
    folder: Path,  # noqa: ARG001
    isolation: str = "read_committed",
) -> float:
    """Returns the seconds that confluent-kafka reads with its defaults, from the first record to the last chunk.

    Raises PeerError.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",  # It joins no group.
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        first = _count(consumer.consume(1, timeout=READ_LIMIT_S))
        began = time.perf_counter()
        read = first
        while read < records:
            read += _count(consumer.consume(min(CHUNK, records - read), timeout=READ_LIMIT_S))
        return time.perf_counter() - began
    finally:
        consumer.close()


def _count(messages: list[confluent_kafka.Message]) -> int:
    """Raises PeerError when nothing came, or when an error came."""
    if not messages or any(message.error() for message in messages):
        raise PeerError(f"librdkafka read nothing more: {[message.error() for message in messages][:1]}")
    return len(messages)
