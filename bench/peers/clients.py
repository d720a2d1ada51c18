"""Blocking clients: a connection with nothing between the clock and the socket, and a client that retries."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest, PartitionData, TopicData
from kio.schema.types import TopicName
from kio.static.primitive import i32

from bench.fleet.behaviours.bodies import create_topics_request, delete_topics_request, metadata_request, new_topic
from bench.peers.node import PeerError
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

CLIENT_ID = "crucible-bench"
FETCH_VERSION = 12
"""The newest that names topics. So every broker gets the same frames, and no client must look up a topic's ID."""
PRODUCE_VERSION = 9
CREATE_VERSION = 5
TIMEOUT_MS = 10_000
ALL_REPLICAS = -1


def connect(port: int, timeout_s: float = 30.0) -> Connection:
    """Open a connection to a broker on this machine. Raise ConnectError."""
    return Connection.open("127.0.0.1", port, int(timeout_s * 1e6), CLIENT_ID)


def create_topic(connection: Connection, name: str, partitions: int) -> None:
    """Request a topic with one replica and default settings. A refusal shows at the next use of the topic."""
    body = create_topics_request([new_topic(name, partitions, 1, {})], TIMEOUT_MS)
    connection.call(ApiKey.CREATE_TOPICS, CREATE_VERSION, body)


def produce_request(topic: str, partition: int, batch: bytes, timeout_ms: int = TIMEOUT_MS) -> ProduceRequest:
    """Make a request with one batch for one partition. All replicas in sync must acknowledge it."""
    named = ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(partition, batch)])
    return ProduceRequest(ALL_REPLICAS, timeout_ms, [named])


def base_offset(response: object, name: str) -> int:
    """Return the offset of the batch's first record. Raise PeerError if the broker ``name`` refused the batch."""
    assert isinstance(response, ProduceResponse), f"{response} is no response to a produce"
    partition = response.responses[0].partitions[0]
    if partition.error_code:
        raise PeerError(f"{name} refused a record with error {partition.error_code}")
    return partition.base_offset


RETRYING_CLIENT_ID = "crucible-bench-retrying"
METADATA_VERSION = 12
RETRYING_CREATE_VERSION = 7
DELETE_VERSION = 5
"""The newest that names topics."""
QUORUM_VERSION = 1
RETRY_AFTER_S = 0.01
CALL_LIMIT_S = 10.0
METADATA_TOPIC = "__cluster_metadata"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LedPartition:
    leader: int  # a node ID, or -1
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class RetryingClient:
    """Sends each request to one node after the other, with 10 ms between two attempts.

    ``ports`` are those of all nodes on 127.0.0.1. A node that has ended refuses connections at once. The client waits
    ``call_limit_s`` for a silent node. It then sends nothing to that node for ``suspect_s``, even if others still name
    it.
    """

    def __init__(self, ports: Sequence[int], call_limit_s: float = CALL_LIMIT_S, suspect_s: float = 0.0) -> None:
        self._ports = tuple(ports)
        self._call_limit_s = call_limit_s
        self._suspect_s = suspect_s
        self._suspects: dict[int, float] = {}
        self._next = 0
        self._connections: dict[int, Connection] = {}
        self._ports_by_node: dict[int, int] = {}
        self.last_error = "no node responded"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def create_topic(
        self, name: str, partitions: int, replicas: int, limit_s: float, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. "Exists" counts as created, because an attempt whose response was lost may have done it.

        Raise PeerError.
        """
        body = create_topics_request([new_topic(name, partitions, replicas, config or {})], self._call_limit_ms)
        fine = (ErrorCode.none, ErrorCode.topic_already_exists)

        def attempt() -> bool | None:
            response = self._call_controller(ApiKey.CREATE_TOPICS, RETRYING_CREATE_VERSION, body)
            return True if response is not None and self._is_fine(response.topics[0].error_code, fine) else None

        self._until(attempt, limit_s, f"topic {name}")

    def delete_topic(self, name: str, limit_s: float) -> None:
        """Raise PeerError."""
        body = delete_topics_request([name], self._call_limit_ms)
        fine = (ErrorCode.none, ErrorCode.unknown_topic_or_partition)

        def attempt() -> bool | None:
            response = self._call_controller(ApiKey.DELETE_TOPICS, DELETE_VERSION, body)
            return True if response is not None and self._is_fine(response.responses[0].error_code, fine) else None

        self._until(attempt, limit_s, f"deletion of topic {name}")

    def partitions(self, topic: str) -> dict[int, LedPartition]:
        """Return the topic's partitions by the next node's metadata. Empty: it has no such topic, or is silent."""
        response = self._metadata((topic,))
        if response is None:
            return {}
        return {
            int(partition.partition_index): LedPartition(
                int(partition.leader_id)
                if int(partition.error_code) in (ErrorCode.none, ErrorCode.replica_not_available)
                else -1,
                tuple(map(int, partition.replica_nodes)),
                tuple(map(int, partition.isr_nodes)),
            )
            for partition in response.topics[0].partitions
        }

    def led(self, topic: str, partition: int, limit_s: float, other_than: int | None = None) -> LedPartition:
        """Wait until a node other than ``other_than`` leads the partition. Raise PeerError."""

        def attempt() -> LedPartition | None:
            found = self.partitions(topic).get(partition)
            return found if found and found.leader >= 0 and found.leader != other_than else None

        return self._until(attempt, limit_s, f"a leader of {topic}-{partition}")

    def await_replicas(self, topic: str, partitions: int, replicas: int, limit_s: float) -> dict[int, LedPartition]:
        """Wait until every partition has a leader and all its replicas are in sync. Raise PeerError."""

        def attempt() -> dict[int, LedPartition] | None:
            found = self.partitions(topic)
            whole = sum(partition.leader >= 0 and len(partition.isr) == replicas for partition in found.values())
            return found if whole == partitions else None

        return self._until(attempt, limit_s, f"{partitions} partitions with {replicas} replicas in sync", every_s=0.1)

    def acknowledged(self, topic: str, partition: int, batch: bytes, limit_s: float) -> int:
        """Send one batch with acks=all to the leader until it is acknowledged. Return its base offset.

        Raise PeerError.
        """
        body = produce_request(topic, partition, batch, self._call_limit_ms)

        def attempt() -> int | None:
            led = self.partitions(topic).get(partition)
            port = self._ports_by_node.get(led.leader) if led else None
            response = None if port is None else self._call(port, ApiKey.PRODUCE, PRODUCE_VERSION, body)
            if response is None:
                return None
            written = response.responses[0].partitions[0]
            return written.base_offset if self._is_fine(written.error_code, (ErrorCode.none,)) else None

        return self._until(attempt, limit_s, f"an acknowledgement from {topic}-{partition}")

    def named_controller(self) -> int | None:
        """Return the controller by the next node's metadata, or None if it has none or is silent."""
        response = self._metadata(())
        if response is None:
            return None
        controller = int(response.controller_id)
        return controller if controller in {int(broker.node_id) for broker in response.brokers} else None

    def active_controller(self, limit_s: float) -> int:
        """Return the quorum's leader, which Kafka's metadata does not name. Raise PeerError."""
        topic = TopicData(topic_name=TopicName(METADATA_TOPIC), partitions=(PartitionData(partition_index=i32(0)),))
        body = DescribeQuorumRequest(topics=(topic,))

        def attempt() -> int | None:
            response = self._call(self._turn(), ApiKey.DESCRIBE_QUORUM, QUORUM_VERSION, body)
            if response is None or not self._is_fine(response.error_code, (ErrorCode.none,)):
                return None
            leader = int(response.topics[0].partitions[0].leader_id)
            return leader if leader >= 0 else None

        return self._until(attempt, limit_s, "a leader of the quorum")

    @property
    def _call_limit_ms(self) -> int:
        return int(self._call_limit_s * 1000)

    def _until(
        self, attempt: Callable[[], Result | None], limit_s: float, what: str, every_s: float = RETRY_AFTER_S
    ) -> Result:
        deadline = time.perf_counter() + limit_s
        while (response := attempt()) is None:
            if time.perf_counter() > deadline:
                raise PeerError(f"{what} could not be had within {limit_s:g} s; the last error was: {self.last_error}")
            time.sleep(every_s)
        return response

    def _is_fine(self, error_code: int, fine: Sequence[int]) -> bool:
        if error_code in fine:
            return True
        self.last_error = error_name(int(error_code))
        return False

    def _metadata(self, topics: Sequence[str]) -> Any:
        response = self._call(self._turn(), ApiKey.METADATA, METADATA_VERSION, metadata_request(topics))
        if response is not None:
            self._ports_by_node.update({int(broker.node_id): int(broker.port) for broker in response.brokers})
        return response

    def _turn(self) -> int:
        self._next += 1
        return self._ports[self._next % len(self._ports)]

    def _call_controller(self, api_key: int, version: int, body: object) -> Any:
        """Call the node that metadata names as the controller. Kafka names any broker, which forwards the request."""
        response = self._metadata(())
        port = None if response is None else self._ports_by_node.get(int(response.controller_id))
        return None if port is None else self._call(port, api_key, version, body)

    def _call(self, port: int, api_key: int, version: int, body: object) -> Any:
        """Send one request and return the body of the response, or None if there was none."""
        if self._suspects.get(port, 0.0) > time.perf_counter():
            return None
        limit_us = int(self._call_limit_s * 1e6)
        try:
            if port not in self._connections:
                self._connections[port] = Connection.open("127.0.0.1", port, limit_us, RETRYING_CLIENT_ID)
            return self._connections[port].call(api_key, version, body, limit_us)
        except TransportError as failure:
            self.last_error = str(failure)
            if failure.reason == "timeout":
                self._suspects[port] = time.perf_counter() + self._suspect_s
            dropped = self._connections.pop(port, None)
            if dropped is not None:
                dropped.close()
            return None


def batch_of(record_bytes: int, records: int = 1) -> bytes:
    """Make a batch of values of ``record_bytes`` each, the same for every broker."""
    value = bytes(range(256)) * (record_bytes // 256 + 1)
    return build(
        [
            Record(offset=number, timestamp_ms=0, key=None, value=value[:record_bytes], headers=())
            for number in range(records)
        ]
    )
