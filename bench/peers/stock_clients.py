"""Other people's clients under measurement: Kafka's perf test, its console consumer, and librdkafka."""

import re
import time
from pathlib import Path

import confluent_kafka

from bench.peers.kafka import run_java
from bench.peers.node import PeerError

PERF_LIMIT_S = 600.0
_SUMMARY = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec \(.* 99th", re.M)


def producer_perf(
    bootstrap: str, topic: str, records: int, record_bytes: int, transaction_ms: int | None = None
) -> float:
    """Return the records per second of ``kafka-producer-perf-test``, by the last line that it prints.

    The rate is unlimited, acks is all, and batching is the producer's default. ``transaction_ms`` is the length of its
    transactions, or None for none. Raise PeerError.
    """
    words = ["--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)]
    words += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all"]
    if transaction_ms is not None:
        words[:0] = ["--transactional-id", f"id-of-{topic}", "--transaction-duration-ms", str(transaction_ms)]
    printed, _ = run_java("org.apache.kafka.tools.ProducerPerformance", words, PERF_LIMIT_S, ["-Xmx512m"])
    found = _SUMMARY.findall(printed)
    if not found:
        raise PeerError(f"Kafka's producer perf test printed no summary: {printed.strip().splitlines()[-1:]}")
    count, records_per_s = found[-1]
    if int(count) != records:
        raise PeerError(f"Kafka's producer perf test sent {count} of {records} records")
    return float(records_per_s)


READ_LIMIT_S = 120.0
CHUNK = 10_000

_FIRST_RESPONSE = "org.apache.kafka.common.requests.FetchResponse$$Lambda"
_END = "org.apache.kafka.clients.consumer.CloseOptions"
_LOADED = re.compile(r"^\[([\d.]+)s\] (\S+)", re.M)


def java_consumer_s(bootstrap: str, topic: str, records: int, folder: Path) -> float:
    """Return the seconds that ``kafka-console-consumer`` reads, with Kafka's defaults and without printing.

    The time runs from the first fetch response to the last record. Java logs when it loads a class, and each of the two
    moments loads a class of its own. So the start and the end of the virtual machine are omitted; they take longer
    than the reading. Raise PeerError.
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
    """Return the seconds between the first lines of the two classes in Java's log of loaded classes.

    Raise PeerError if one of them is missing.
    """
    loaded = [(float(at_s), name) for at_s, name in _LOADED.findall(class_log)]
    began = next((at_s for at_s, name in loaded if name.startswith(_FIRST_RESPONSE)), None)
    ended = next((at_s for at_s, name in loaded if name == _END), None)
    if began is None or ended is None or ended <= began:
        raise PeerError("Java's log of loaded classes does not show when the consumer read")
    return ended - began


def librdkafka_s(
    bootstrap: str,
    topic: str,
    records: int,
    folder: Path,  # noqa: ARG001
    isolation: str = "read_committed",
) -> float:
    """Return the seconds that confluent-kafka reads with its defaults, from the first record to the last chunk.

    Raise PeerError.
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
    """Raise PeerError when nothing came, or when an error came."""
    if not messages or any(message.error() for message in messages):
        raise PeerError(f"librdkafka read nothing more: {[message.error() for message in messages][:1]}")
    return len(messages)


TRANSFORM_LIMIT_S = 60.0


def transformed_s(bootstrap: str, source: str, target: str, own_id: str, records: int, at_once: int) -> float:
    """Return the seconds from the first record to the last commit. Each transaction has ``at_once`` records at most,
    and the place in partition 0 of ``source`` where reading goes on. Raise PeerError."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": own_id,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": own_id})
    where = [confluent_kafka.TopicPartition(source, 0, 0)]
    try:
        producer.init_transactions(TRANSFORM_LIMIT_S)
        consumer.assign(where)
        done, began = 0, 0.0
        while done < records:
            messages = consumer.consume(min(at_once, records - done), timeout=TRANSFORM_LIMIT_S if not done else 1.0)
            if not messages or any(message.error() for message in messages):
                raise PeerError(f"librdkafka read nothing more: {[message.error() for message in messages][:1]}")
            began = began or time.perf_counter()
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value())
            producer.send_offsets_to_transaction(
                consumer.position(where), consumer.consumer_group_metadata(), TRANSFORM_LIMIT_S
            )
            producer.commit_transaction(TRANSFORM_LIMIT_S)
            done += len(messages)
        return time.perf_counter() - began
    except confluent_kafka.KafkaException as failure:
        raise PeerError(f"librdkafka could not go on: {failure}") from failure
    finally:
        consumer.close()
