"""The specification of a load, which the master sends to its workers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from bench.load.connections import ConnectionPlan, connection_plans
from bench.load.producer import LoadPlan, TransactionPlan
from bench.load.reader import ReadPlan
from bench.load.record_batches import MessageSizes, RecordHeaders
from bench.load.transform import TransformPlan
from bench.load.workload import Transactions, Transform, writer_of
from reference_broker.client.consumer import READ_COMMITTED, READ_UNCOMMITTED
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import MAX_IN_FLIGHT
from reference_broker.records.compression import Compression

SPEC_NAME: Final = "load-spec.json"
"""The file in the folder of a run that has its spec."""


class LoadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rates are of all producers together, in records a second; 0 stands for as much as responses allow."""

    bootstrap: list[tuple[str, int]]
    topics: list[str]
    partitions: int  # of each topic
    producers: int  # of each topic
    subscriptions: int
    consumers: int  # of each subscription of a topic
    records_per_s: float
    value_bytes: int
    batch_records: int
    sizes: MessageSizes | None = None
    headers: RecordHeaders | None = None
    compression: str = "none"
    client: str = "native"  # one of ``clients.CLIENTS``
    keys: int = 0
    padding: bytes = b""
    acks: int = -1
    idempotent: bool = True
    requests_in_flight: int = MAX_IN_FLIGHT
    isolation_level: int = READ_UNCOMMITTED
    fetch_sessions: bool = True
    fetch_max_wait_ms: int = 100
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    partition_max_bytes: int = 1 << 20
    transactions: Transactions | None = None
    transform: Transform | None = None
    groups: bool = False
    read_from_start: bool = False
    connections: int = 0
    connections_per_s: float = 0.0
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    workers: int = 1
    out_dir: str = ""

    @property
    def outputs(self) -> list[str]:
        """The topics that are read: those that are written, or the output of a transformation."""
        return self.topics if self.transform is None else [f"{topic}-out" for topic in self.topics]

    @property
    def all_topics(self) -> list[str]:
        return list(dict.fromkeys([*self.topics, *self.outputs]))

    @property
    def reads_committed(self) -> bool:
        return self.transactions is not None or self.transform is not None

    @property
    def transformers(self) -> int:
        return 0 if self.transform is None else len(self.topics) * self.transform.instances

    @property
    def transactional_clients(self) -> int:
        producers = 0 if self.transactions is None else len(self.topics) * self.producers
        return producers + self.transformers

    @property
    def members(self) -> int:
        """Number of clients that are members of groups."""
        readers = len(self.topics) * self.subscriptions * self.consumers if self.groups else 0
        return readers + self.transformers

    @property
    def assigned_by_groups(self) -> int:
        """Number of partitions that groups assign, counted once for each group."""
        groups = self.subscriptions * self.groups + (self.transform is not None)
        return len(self.topics) * self.partitions * groups


def write_spec(spec: LoadSpec, path: Path) -> Path:
    path.write_bytes(msgspec.json.encode(spec))
    return path


def read_spec(path: Path) -> LoadSpec:
    return parse_spec(path.read_bytes())


def parse_spec(text: bytes) -> LoadSpec:
    return msgspec.json.decode(text, type=LoadSpec)


def load_plans(spec: LoadSpec) -> list[LoadPlan]:
    """Return a plan for each producer. Each sends to all partitions of its topic."""
    count = len(spec.topics) * spec.producers
    sizes = () if spec.sizes is None else tuple(spec.sizes.drawn())
    headers = () if spec.headers is None else spec.headers.pairs
    return [
        LoadPlan(
            writer_of(number),
            tuple(TopicPartition(spec.topics[number // spec.producers], index) for index in range(spec.partitions)),
            spec.value_bytes,
            spec.batch_records,
            spec.records_per_s / count,
            acks=spec.acks,
            idempotent=spec.idempotent,
            compression=Compression[spec.compression.upper()],
            keys=spec.keys,
            padding=spec.padding,
            requests_in_flight=spec.requests_in_flight,
            request_timeout_ms=spec.request_timeout_ms,
            delivery_timeout_us=spec.delivery_timeout_ms * 1000,
            transaction=_transaction_plan(spec, number),
            stamps_due_time=spec.transform is not None,
            sizes=sizes,
            headers=headers,
        )
        for number in range(count)
    ]


def _transaction_plan(spec: LoadSpec, number: int) -> TransactionPlan | None:
    """Return the plan of a producer's transactions. Its transactional ID belongs to this run, as its topic does."""
    own = spec.transactions
    if own is None:
        return None
    transactional_id = f"{spec.topics[0]}-{writer_of(number)}"
    return TransactionPlan(transactional_id, own.records, int(own.seconds * 1e6), own.abort_ratio)


def read_plans(spec: LoadSpec) -> Iterator[tuple[int, ReadPlan]]:
    """Yield a subscription's number and a plan for each of its readers, which share the partitions of each topic.
    Readers that catch up are a subscription of their own, the last one."""
    for subscription in range(spec.subscriptions):
        for topic in spec.outputs:
            for consumer in range(spec.consumers):
                # A member of a group names its topic by all partitions.
                share = range(spec.partitions) if spec.groups else range(consumer, spec.partitions, spec.consumers)
                yield (
                    subscription,
                    ReadPlan(
                        f"s{subscription}.{topic}.{consumer}",
                        tuple(TopicPartition(topic, each) for each in share),
                        max_wait_ms=spec.fetch_max_wait_ms,
                        min_bytes=spec.fetch_min_bytes,
                        max_bytes=spec.fetch_max_bytes,
                        partition_max_bytes=spec.partition_max_bytes,
                        isolation_level=READ_COMMITTED if spec.reads_committed else spec.isolation_level,
                        group_id=f"{topic}-s{subscription}" if spec.groups else "",
                        by_record=spec.sizes is not None,
                        headers=None if spec.headers is None else spec.headers.pairs,
                        fetch_sessions=spec.fetch_sessions,
                    ),
                )
    if spec.read_from_start:
        yield from ((spec.subscriptions, _catch_up_plan(spec, topic)) for topic in spec.topics)


def _catch_up_plan(spec: LoadSpec, topic: str) -> ReadPlan:
    return ReadPlan(
        f"catch-up.{topic}",
        tuple(TopicPartition(topic, number) for number in range(spec.partitions)),
        max_bytes=spec.fetch_max_bytes,
        partition_max_bytes=spec.partition_max_bytes,
        isolation_level=READ_COMMITTED if spec.reads_committed else spec.isolation_level,
        fetch_sessions=spec.fetch_sessions,
        by_record=spec.sizes is not None,
        headers=None if spec.headers is None else spec.headers.pairs,
        catches_up=True,
    )


def transform_plans(spec: LoadSpec) -> list[TransformPlan]:
    """Return a plan for each client that consumes one topic, transforms and produces to another."""
    own = spec.transform
    if own is None:
        return []
    return [
        _transform_plan(spec, own, topic, output, instance)
        for topic, output in zip(spec.topics, spec.outputs, strict=True)
        for instance in range(own.instances)
    ]


def _transform_plan(spec: LoadSpec, own: Transform, topic: str, output: str, instance: int) -> TransformPlan:
    name = f"transform.{topic}.{instance}"
    source = ReadPlan(
        name,
        tuple(TopicPartition(topic, number) for number in range(spec.partitions)),
        max_wait_ms=spec.fetch_max_wait_ms,
        min_bytes=spec.fetch_min_bytes,
        max_bytes=spec.fetch_max_bytes,
        partition_max_bytes=spec.partition_max_bytes,
        isolation_level=READ_COMMITTED,
        group_id=f"{topic}-transform",
        fetch_sessions=spec.fetch_sessions,
    )
    sink = LoadPlan(
        name,
        tuple(TopicPartition(output, number) for number in range(spec.partitions)),
        spec.value_bytes,
        spec.batch_records,
        requests_in_flight=spec.requests_in_flight,
        request_timeout_ms=spec.request_timeout_ms,
        delivery_timeout_us=spec.delivery_timeout_ms * 1000,
        transaction=TransactionPlan(
            f"{topic}-transform-{instance}", duration_us=int(own.commit_interval_s * 1e6), abort_ratio=own.abort_ratio
        ),
    )
    return TransformPlan(source, sink)


WorkerPlans = tuple[list[LoadPlan], list[tuple[int, ReadPlan]], list[TransformPlan], list[ConnectionPlan]]


def worker_plans(spec: LoadSpec, index: int) -> WorkerPlans:
    """Return the plans of one worker: each n-th. The numbering continues from producers to readers and so on, so that
    no worker has more clients than Locust gives it users."""
    producers, readers = load_plans(spec), list(read_plans(spec))
    transformers = transform_plans(spec)
    connections = connection_plans(spec.topics, spec.connections, spec.connections_per_s)
    before = len(producers), len(producers) + len(readers), len(producers) + len(readers) + len(transformers)
    return (
        producers[index :: spec.workers],
        readers[(index - before[0]) % spec.workers :: spec.workers],
        transformers[(index - before[1]) % spec.workers :: spec.workers],
        connections[(index - before[2]) % spec.workers :: spec.workers],
    )
