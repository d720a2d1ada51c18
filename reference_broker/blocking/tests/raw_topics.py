"""Topics and records for tests, by single requests to a broker process."""

from datetime import timedelta
from typing import Any

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from reference_broker.blocking.transport import Connection
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.records.record import Record, build
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

LIMIT_US = 10_000_000


def call(node: NodeAddress, api_key: int, version: int, body: object) -> Any:
    with Connection.open(node.host, node.port, LIMIT_US, "tests") as connection:
        return connection.call(api_key, version, body)


def create_topic(node: NodeAddress, name: str, partitions: int) -> None:
    topic = CreatableTopic(
        name=TopicName(name), num_partitions=i32(partitions), replication_factor=i16(1), assignments=(), configs=()
    )
    timeout = i32Timedelta.parse(timedelta(seconds=5))
    [row] = call(node, 19, 5, CreateTopicsRequest(topics=(topic,), timeout=timeout)).topics
    assert row.error_code.value == 0


def produce(node: NodeAddress, topic: str, partition: int, *values: str) -> None:
    data = build([Record(timestamp_ms=1, value=value.encode()) for value in values])
    rows = [ProducePartition(partition, data)]
    body = ProduceRequest(acks=-1, timeout_ms=5000, topics=[ProduceTopic(topic, bytes(16), rows)])
    [response] = call(node, 0, 9, body).responses
    assert response.partitions[0].error_code == 0
