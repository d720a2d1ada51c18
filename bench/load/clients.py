"""The client libraries that a benchmark can use (`--client`)."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bench.load.producer import LoadPlan, LoadProducer, Settled
from bench.load.reader import LoadReader, ReadPlan, Taken
from reference_broker.client.partitions import TopicPartition

NATIVE: Final = "native"
JAVA: Final = "java"
CLIENTS: Final = (NATIVE, "librdkafka", "kafka-python", JAVA)
"""``native`` is this suite's own generator, and ``java`` stands for Kafka's perf tests. All others are libraries whose
clients run in Locust's users."""

Bootstrap = Sequence[tuple[str, int]]


class Client(Protocol):
    def run(self) -> None: ...

    def stop(self) -> None: ...


class ProducerClient(Client, Protocol):
    plan: LoadPlan


class ReaderClient(Client, Protocol):
    plan: ReadPlan
    paused: bool

    @property
    def lag(self) -> int: ...

    def position(self, partition: TopicPartition) -> int: ...


MakesProducer = Callable[[LoadPlan, Bootstrap, Callable[[Settled], None]], ProducerClient]
MakesReader = Callable[[ReadPlan, Bootstrap, Callable[[Taken], None]], ReaderClient]


def makers(client: str) -> tuple[MakesProducer, MakesReader]:
    """Return what makes a library's producers and readers. Only a chosen library is imported."""
    if client == "librdkafka":
        from bench.load import librdkafka

        return librdkafka.producer, librdkafka.reader
    if client == "kafka-python":
        from bench.load import kafka_python

        return kafka_python.producer, kafka_python.reader
    assert client == NATIVE, f"{client!r} runs in no user of Locust"
    return LoadProducer, LoadReader
