"""The same Fetch request to several brokers, and their responses in words that can be compared.

Topic IDs and session IDs differ between brokers; everything else of a response is kept. A deleted topic leaves its ID
behind: its *label*, such as ``b#2``, represents that ID, or its name where a version has no IDs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.create_topics.v7.request import CreatableReplicaAssignment, CreatableTopic
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta, i64

from bench.fleet.behaviours.bodies import create_topics_request, delete_topics_request
from reference_broker.blocking.transport import Connection
from reference_broker.records.batch import iterate
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from reference_broker.wire.retired_fields import MetadataRequest

UNKNOWN = "unknown"
UNKNOWN_ID = bytes(range(1, 17))
NOW_MS = int(time.time() * 1000)
"""Younger than any retention time."""
ALL = 1 << 20
OF_DELETED = "#"
TIMEOUT_MS = 10_000
METADATA_VERSION, CREATE_VERSION, DELETE_VERSION = 12, 7, 6
PROBE_VERSION = 12
SETTLED_LIMIT_S = 30.0
AGAIN_AFTER_S = 0.005


@dataclass(slots=True)
class FetchSide:
    """One broker, or a cluster whose nodes hold replicas of all partitions. Node 0 leads them. ``connections`` are to
    its nodes, by ID. ``topic_ids`` are by label, and ``session_ids`` by the number of the walk's session."""

    connections: Sequence[Connection]
    topic_ids: dict[str, bytes] = field(default_factory=lambda: {UNKNOWN: UNKNOWN_ID})
    session_ids: dict[int, int] = field(default_factory=dict)

    @property
    def leader(self) -> Connection:
        return self.connections[0]

    def learn_ids(self, topics: Mapping[str, int]) -> None:
        """Wait until each node knows the leaders of all partitions of these topics, and of no other topic."""
        for connection in self.connections:
            while not self._knows(connection, topics):
                time.sleep(AGAIN_AFTER_S)

    def _knows(self, connection: Connection, topics: Mapping[str, int]) -> bool:
        everything = MetadataRequest(topics=None, include_topic_authorized_operations=False)
        response = connection.call(ApiKey.METADATA, METADATA_VERSION, everything)
        found = {str(topic.name): topic for topic in response.topics}
        led = {
            name: sum(int(partition.leader_id) >= 0 for partition in topic.partitions) for name, topic in found.items()
        }
        if led == topics:
            self.topic_ids |= {name: topic.topic_id.bytes for name, topic in found.items()}
        return led == topics

    def topic(self, label: str, version: int) -> tuple[str, bytes]:
        return ("", self.topic_ids[label]) if version >= 13 else (label.partition(OF_DELETED)[0], NO_TOPIC_ID)

    def label(self, topic: str, topic_id: bytes) -> str:
        return topic or next(label for label, each in self.topic_ids.items() if each == topic_id)

    def create(self, name: str, partitions: int) -> None:
        """Create a topic with a replica on each node."""
        nodes = tuple(BrokerId(number) for number in range(len(self.connections)))
        placed = tuple(
            CreatableReplicaAssignment(partition_index=i32(index), broker_ids=nodes) for index in range(partitions)
        )
        topic = CreatableTopic(
            name=TopicName(name),
            num_partitions=i32(-1),
            replication_factor=i16(-1),
            assignments=placed,
            configs=(),
        )
        response = self.leader.call(ApiKey.CREATE_TOPICS, CREATE_VERSION, create_topics_request([topic], TIMEOUT_MS))
        assert [int(each.error_code) for each in response.topics] == [0], response

    def delete(self, name: str) -> None:
        response = self.leader.call(ApiKey.DELETE_TOPICS, DELETE_VERSION, delete_topics_request([name], TIMEOUT_MS))
        assert [int(each.error_code) for each in response.responses] == [0], response

    def await_replicas(self, topic: str, partition: int, start: int, end: int) -> None:
        """Wait until each node serves all records from ``start`` to ``end``, all of them committed, and until the
        leader sends consumers in a follower's rack there, since it knows how far that one is."""
        wanted = ((topic, FetchPartition(partition, end, 0)),)
        for node in range(len(self.connections)):
            at_node = FetchSpec(PROBE_VERSION, None, 0, -1, wanted, node=node)
            self._until(at_node, lambda row: (row.log_start_offset, row.high_watermark) == (start, end))
        for node in range(1, len(self.connections)):
            from_rack = FetchSpec(PROBE_VERSION, None, 0, -1, wanted, rack=f"rack-{node}")
            self._until(from_rack, lambda row, node=node: row.preferred == node)  # type: ignore[misc]

    def _until(self, spec: "FetchSpec", is_settled: Callable[["PartitionRow"], bool]) -> None:
        deadline = time.monotonic() + SETTLED_LIMIT_S
        while True:
            (row,) = fetch(self, spec)[0].rows
            if row.error_code == ErrorCode.none and is_settled(row):
                return
            assert time.monotonic() < deadline, f"node {spec.node} did not settle: {row}"
            time.sleep(AGAIN_AFTER_S)


@dataclass(frozen=True, slots=True)
class FetchSpec:
    """One fetch in terms of the walk. ``session`` is the number of one of its sessions. If it is None, ``session_id``
    is sent as it is."""

    version: int
    session: int | None
    session_id: int
    epoch: int
    wanted: tuple[tuple[str, FetchPartition], ...] = ()
    forgotten: tuple[tuple[str, int], ...] = ()
    max_bytes: int = ALL
    isolation_level: int = 0
    node: int = 0
    rack: str = ""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of a response. ``leader`` is -1 and -1 if it names none. ``batches`` has base offset,
    leader epoch and checksum of each."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    leader: tuple[int, int]
    preferred: int
    batches: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class FetchReply:
    """``session``: none, the requested one, or new."""

    error_code: int
    session: str
    rows: tuple[PartitionRow, ...]

    def order_of_data(self) -> list[tuple[str, int]]:
        """Return the partitions with records in the order in which they use up the byte limit."""
        return [(row.topic, row.partition) for row in self.rows if row.batches]


def fetch(side: FetchSide, spec: FetchSpec) -> tuple[FetchReply, int]:
    """The response and the session ID that it carries."""
    requested_id = spec.session_id if spec.session is None else side.session_ids[spec.session]
    wanted = [FetchTopic(*side.topic(label, spec.version), [one]) for label, one in spec.wanted]
    forgotten = [ForgottenTopic(*side.topic(label, spec.version), [index]) for label, index in spec.forgotten]
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=spec.max_bytes,
        isolation_level=spec.isolation_level,
        session_id=requested_id,
        session_epoch=spec.epoch,
        topics=wanted,
        forgotten=forgotten,
        rack_id=spec.rack,
    )
    response = side.connections[spec.node].call(ApiKey.FETCH, spec.version, request)
    assert isinstance(response, FetchResponse)
    session = "none" if response.session_id == 0 else "same" if response.session_id == requested_id else "new"
    rows = [
        PartitionRow(
            side.label(topic.topic, topic.topic_id),
            data.partition,
            data.error_code,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) if data.diverging_epoch else None,
            (data.current_leader.leader_id, data.current_leader.leader_epoch) if data.current_leader else (-1, -1),
            data.preferred_read_replica,
            tuple((each.base_offset, each.leader_epoch, each.crc) for _, each in iterate(data.records or b"")),
        )
        for topic in response.responses
        for data in topic.partitions
    ]
    return FetchReply(response.error_code, session, tuple(rows)), response.session_id


def one_batch(records: int, value_bytes: int) -> bytes:
    return bytes(build([Record(timestamp_ms=NOW_MS, value=bytes(value_bytes))] * records))


def produce(side: FetchSide, topic: str, partition: int, batches: int, batch: bytes) -> None:
    """Each batch in a request of its own, as brokers take one a partition."""
    for _ in range(batches):
        named = [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(partition, batch)])]
        response = side.leader.call(ApiKey.PRODUCE, 9, ProduceRequest(-1, TIMEOUT_MS, named))
        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partitions[0].error_code == ErrorCode.none


def delete_records(side: FetchSide, topic: str, partition: int, offset: int) -> None:
    one = DeleteRecordsPartition(partition_index=i32(partition), offset=i64(offset))
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=TopicName(topic), partitions=(one,)),),
        timeout=i32Timedelta.parse(timedelta(milliseconds=TIMEOUT_MS)),
    )
    response = side.leader.call(ApiKey.DELETE_RECORDS, 2, request)
    assert [int(topic_partition.error_code) for topic_partition in response.topics[0].partitions] == [0], response
    assert [int(topic_partition.low_watermark) for topic_partition in response.topics[0].partitions] == [offset], (
        response
    )
