"""Stock consumers that read a whole partition, assigned by hand, and how long the reading took."""

import re
import subprocess
import time
from pathlib import Path

import confluent_kafka

from bench.peers.errors import PeerError
from bench.peers.jars import kafka_classpath

LIMIT_S = 120.0
CHUNK = 10_000

_FIRST_ANSWER = "org.apache.kafka.common.requests.FetchResponse$$Lambda"
_END = "org.apache.kafka.clients.consumer.CloseOptions"
_LOADED = re.compile(r"^\[([\d.]+)s\] (\S+)", re.M)


def java_consumer_s(bootstrap: str, topic: str, records: int, folder: Path) -> float:
    """``kafka-console-consumer`` by partition, printing nothing, with Kafka's defaults.

    From the first fetch answer to the last record: Java logs when it loads a class, and the two moments each load one
    of their own. The virtual machine's start and end, longer than the reading, are left out. Raises PeerError.
    """
    log = folder / "classes.log"
    command = [
        "java",
        "-Xmx512m",
        "-XX:-UsePerfData",
        f"-Xlog:class+load=info:file={log}:uptime",
        "-cp",
        kafka_classpath(),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "earliest",
        "--max-messages",
        str(records),
        "--formatter",
        "org.apache.kafka.tools.consumer.NoOpMessageFormatter",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0 or f"total of {records} messages" not in done.stderr:
        raise PeerError(f"Kafka's console consumer failed: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
    return reading_s(log.read_text())


def reading_s(class_log: str) -> float:
    """Seconds between the two classes in Java's log of loaded classes, each at its first line. Raises PeerError."""
    loaded = [(float(at_s), name) for at_s, name in _LOADED.findall(class_log)]
    began = next((at_s for at_s, name in loaded if name.startswith(_FIRST_ANSWER)), None)
    ended = next((at_s for at_s, name in loaded if name == _END), None)
    if began is None or ended is None or ended <= began:
        raise PeerError("Java's log of loaded classes does not tell when the consumer read")
    return ended - began


def librdkafka_s(bootstrap: str, topic: str, records: int, folder: Path) -> float:  # noqa: ARG001
    """confluent-kafka with its defaults, in large chunks: from the first chunk to the last. Raises PeerError."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}  # There are no groups.
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        first = _count(consumer.consume(1, timeout=LIMIT_S))
        began = time.perf_counter()
        read = first
        while read < records:
            read += _count(consumer.consume(min(CHUNK, records - read), timeout=LIMIT_S))
        return time.perf_counter() - began
    finally:
        consumer.close()


def _count(messages: list[confluent_kafka.Message]) -> int:
    """Raises PeerError when nothing came, or an error."""
    if not messages or any(message.error() for message in messages):
        raise PeerError(f"librdkafka read nothing more: {[message.error() for message in messages][:1]}")
    return len(messages)
