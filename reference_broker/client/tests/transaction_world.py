"""A naive broker for tests of the transactional producer: one node, one clock, and responses that a test may script.

It implements the transactions' rules as far as a client can see them, from KIP-98 and KIP-890: epochs, the partitions
of a transaction, the effect of a commit or an abort on the records. It has no timeouts, no expiry and no log.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.metadata.v13.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i32Timedelta, i64

from reference_broker.client.group_requests import GroupRequest, MemberIdentity
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_manager import TransactionConfig
from reference_broker.client.transactional_producer import ProducerConfig, TransactionalProducer
from reference_broker.records.batch import read_header
from reference_broker.records.record import Record, read_records
from reference_broker.wire.apis import ApiKey, is_flexible
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import decode_request, encode_request
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from reference_broker.wire.retired_fields import MetadataResponse

NODE = NodeAddress(1, "one", 9092)
FOO0, FOO1, BAR0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)
ME = MemberIdentity("g", 3, "member")
OFFSETS = {FOO0: OffsetToCommit(7)}
BACKOFF_US = 100
NOTHING = i32Timedelta.parse(timedelta(0))
LOST = "lost"
"""A scripted outcome: the broker applies the request, and the response is lost."""
NOT_ARRIVED = "not arrived"
Scripted = ErrorCode | str


def record(value: str) -> Record:
    return Record(timestamp_ms=0, key=None, value=value.encode())


@dataclass(slots=True)
class NaiveBroker:
    """``level`` is its transaction.version. ``committed`` and ``aborted`` have the values of ended transactions, and
    ``offsets`` those of committed ones in the group. ``script`` maps an API to the outcomes of its next requests: an
    error, LOST or NOT_ARRIVED. ``ended_as`` is the epoch and the outcome of the last EndTxn that was applied."""

    level: int
    producer_id: int = 50
    epoch: int = -1
    open: set[TopicPartition | str] = field(default_factory=set)
    is_ongoing: bool = False
    pending: list[tuple[TopicPartition, str]] = field(default_factory=list)
    pending_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    committed: list[tuple[TopicPartition, str]] = field(default_factory=list)
    aborted: list[tuple[TopicPartition, str]] = field(default_factory=list)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    script: dict[ApiKey, deque[Scripted]] = field(default_factory=dict)
    requests: list[tuple[str, int]] = field(default_factory=list)
    ended_as: tuple[int, bool] | None = None
    sequences: dict[tuple[TopicPartition, int, int], int] = field(default_factory=dict)
    features_epoch: int = 1

    def will(self, key: ApiKey, *outcomes: Scripted) -> None:
        self.script.setdefault(key, deque()).extend(outcomes)

    def versions(self) -> ApiVersionsResponse:
        newest = {0: 13, 3: 13, 10: 6, 22: 5, 24: 5, 25: 4, 26: 5, 28: 5}
        level = FinalizedFeatureKey(
            name="transaction.version", max_version_level=i16(self.level), min_version_level=i16(0)
        )
        return ApiVersionsResponse(
            error_code=ErrorCode.none,
            api_keys=tuple(
                ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(version))
                for key, version in newest.items()
            ),
            throttle_time=NOTHING,
            finalized_features_epoch=i64(self.features_epoch),
            finalized_features=(level,),
        )

    def respond(self, request: GroupRequest) -> object | None:
        """Apply the request. Return the response, or None if it is lost."""
        key = ApiKey(request.api_key)
        body = through_the_wire(request)
        self.requests.append((key.name.lower(), request.api_version))
        scripted = self.script.get(key)
        outcome: Scripted = scripted.popleft() if scripted else ErrorCode.none
        if outcome == NOT_ARRIVED:
            return None
        response: object = getattr(self, f"_{key.name.lower()}")(body, request.api_version, outcome)
        return None if outcome == LOST else response

    def _is_ours(self, producer_id: int, epoch: int) -> bool:
        return (producer_id, epoch) == (self.producer_id, self.epoch)

    def _metadata(self, body: Any, _version: int, _outcome: Scripted) -> MetadataResponse:
        partitions = tuple(
            MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(number),
                leader_id=BrokerId(1),
                leader_epoch=i32(0),
                replica_nodes=(),
                isr_nodes=(),
                offline_replicas=(),
            )
            for number in range(2)
        )
        return MetadataResponse(
            throttle_time=NOTHING,
            brokers=(MetadataResponseBroker(node_id=BrokerId(1), host="one", port=i32(9092), rack=None),),
            cluster_id=None,
            controller_id=BrokerId(1),
            error_code=ErrorCode.none,
            topics=tuple(
                MetadataResponseTopic(error_code=ErrorCode.none, name=topic.name, topic_id=None, partitions=partitions)
                for topic in body.topics
            ),
        )

    def _find_coordinator(self, body: Any, _version: int, outcome: Scripted) -> FindCoordinatorResponse:
        (key,) = body.coordinator_keys
        assert (int(body.key_type), key) in ((0, "g"), (1, "tx"))
        found = Coordinator(
            key=key,
            node_id=BrokerId(1),
            host="one",
            port=i32(9092),
            error_code=outcome if isinstance(outcome, ErrorCode) else ErrorCode.none,
            error_message=None,
        )
        return FindCoordinatorResponse(throttle_time=NOTHING, coordinators=(found,))

    def _init_producer_id(self, body: Any, _version: int, outcome: Scripted) -> InitProducerIdResponse:
        error = _error(outcome, lambda: self._init(int(body.producer_id), int(body.producer_epoch)))
        return InitProducerIdResponse(
            throttle_time=NOTHING,
            error_code=error,
            producer_id=ProducerId(-1 if error else self.producer_id),
            producer_epoch=i16(-1 if error else self.epoch),
        )

    def _init(self, producer_id: int, epoch: int) -> ErrorCode:
        if producer_id >= 0 and not self._is_ours(producer_id, epoch):
            return ErrorCode.producer_fenced
        self._finish(committed=False)
        self.epoch += 1
        return ErrorCode.none

    def fence(self) -> None:
        """Start another producer with the same ID."""
        self._init(-1, -1)

    def _take_part(self, body: Any, added: set[TopicPartition | str]) -> ErrorCode:
        if not self._is_ours(body.producer_id, body.producer_epoch):
            return ErrorCode.producer_fenced
        self.open |= added
        self.is_ongoing = True
        return ErrorCode.none

    def _add_partitions_to_txn(self, body: Any, _version: int, outcome: Scripted) -> AddPartitionsToTxnResponse:
        (transaction,) = body.transactions
        wanted = {topic.name: [int(number) for number in topic.partitions] for topic in transaction.topics}
        added = {TopicPartition(topic, number) for topic, numbers in wanted.items() for number in numbers}
        error = _error(outcome, lambda: self._take_part(transaction, {*added}))
        results = tuple(
            AddPartitionsToTxnTopicResult(
                name=TopicName(topic),
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(partition_index=i32(number), partition_error_code=error)
                    for number in numbers
                ),
            )
            for topic, numbers in wanted.items()
        )
        result = AddPartitionsToTxnResult(transactional_id=TransactionalId("tx"), topic_results=results)
        return AddPartitionsToTxnResponse(
            throttle_time=NOTHING, error_code=ErrorCode.none, results_by_transaction=(result,)
        )

    def _add_offsets_to_txn(self, body: Any, _version: int, outcome: Scripted) -> AddOffsetsToTxnResponse:
        error = _error(outcome, lambda: self._take_part(body, {body.group_id}))
        return AddOffsetsToTxnResponse(throttle_time=NOTHING, error_code=error)

    def _txn_offset_commit(self, body: Any, version: int, outcome: Scripted) -> TxnOffsetCommitResponse:
        wanted = {
            TopicPartition(topic.name, int(partition.partition_index)): int(partition.committed_offset)
            for topic in body.topics
            for partition in topic.partitions
        }

        def act() -> ErrorCode:
            if not self._is_ours(body.producer_id, body.producer_epoch):
                return ErrorCode.invalid_producer_epoch
            if version >= 5 and self.level >= 2:
                self._take_part(body, {body.group_id})
            if body.group_id not in self.open:
                return ErrorCode.invalid_txn_state
            self.pending_offsets.update(wanted)
            return ErrorCode.none

        error = _error(outcome, act)
        return TxnOffsetCommitResponse(
            throttle_time=NOTHING,
            topics=tuple(
                TxnOffsetCommitResponseTopic(
                    name=TopicName(topic),
                    partitions=(TxnOffsetCommitResponsePartition(partition_index=i32(number), error_code=error),),
                )
                for topic, number in wanted
            ),
        )

    def _produce(self, body: ProduceRequest, version: int, outcome: Scripted) -> ProduceResponse:
        assert body.transactional_id == "tx"
        topics = []
        for topic in body.topics:
            partitions = [
                self._produced(
                    TopicPartition(topic.topic, partition.partition), bytes(partition.records or b""), version, outcome
                )
                for partition in topic.partitions
            ]
            topics.append(ProduceTopicResponse(topic.topic, topic.topic_id, partitions))
        return ProduceResponse(topics)

    def _produced(
        self, partition: TopicPartition, data: bytes, version: int, outcome: Scripted
    ) -> ProducePartitionResponse:
        error = _error(outcome, lambda: self._append(partition, data, version))
        return ProducePartitionResponse(partition.partition, int(error), -1 if error else 10)

    def _append(self, partition: TopicPartition, data: bytes, version: int) -> ErrorCode:
        header = read_header(data)
        assert header.is_transactional
        if not self._is_ours(header.producer_id, header.producer_epoch):
            return ErrorCode.invalid_producer_epoch
        if version >= 12 and self.level >= 2:
            self._take_part(header, {partition})
        if partition not in self.open:
            return ErrorCode.invalid_txn_state
        key = partition, header.producer_id, header.producer_epoch
        expected = self.sequences.get(key, 0)
        if header.base_sequence < expected:
            return ErrorCode.duplicate_sequence_number
        if header.base_sequence > expected:
            return ErrorCode.out_of_order_sequence_number
        self.sequences[key] = expected + header.record_count
        self.pending += [(partition, (each.value or b"").decode("latin-1")) for each in read_records(data)]
        return ErrorCode.none

    def _end_txn(self, body: Any, version: int, outcome: Scripted) -> EndTxnResponse:
        error = _error(outcome, lambda: self._end(body, version))
        has_owner = version >= 5 and not error
        return EndTxnResponse(
            throttle_time=NOTHING,
            error_code=error,
            producer_id=ProducerId(self.producer_id if has_owner else -1),
            producer_epoch=i16(self.epoch if has_owner else -1),
        )

    def _end(self, body: Any, version: int) -> ErrorCode:
        epoch, committed = int(body.producer_epoch), bool(body.committed)
        if self.ended_as == (epoch, committed) and not self.is_ongoing:
            return ErrorCode.none
        if not self._is_ours(body.producer_id, epoch):
            return ErrorCode.producer_fenced
        if not self.is_ongoing and (self.level < 2 or committed):
            return ErrorCode.invalid_txn_state
        self._finish(committed)
        self.ended_as = (epoch, committed)
        self.epoch += version >= 5
        return ErrorCode.none

    def _finish(self, committed: bool) -> None:
        (self.committed if committed else self.aborted).extend(self.pending)
        if committed:
            self.offsets.update(self.pending_offsets)
        self.pending, self.pending_offsets = [], {}
        self.open.clear()
        self.is_ongoing = False


def _error(outcome: Scripted, act: Callable[[], ErrorCode]) -> ErrorCode:
    return outcome if isinstance(outcome, ErrorCode) and outcome else act()


def through_the_wire(request: GroupRequest) -> Any:
    """Return the request as the broker decodes it, in its version."""
    frame = b"".join(encode_request(request.api_key, request.api_version, 1, "c", request.body))
    header_bytes = 4 + 2 + 2 + 4 + 2 + len("c") + is_flexible(request.api_key, request.api_version)
    return decode_request(request.api_key, request.api_version, memoryview(frame), header_bytes)


@dataclass(slots=True)
class ProducerWorld:
    """One producer and one naive broker, with a clock that advances to the producer's next wake-up."""

    broker: NaiveBroker
    producer: TransactionalProducer
    now_us: int = 0

    @classmethod
    def of(cls, level: int) -> "ProducerWorld":
        config = ProducerConfig((NODE,), TransactionConfig("tx", backoff_us=BACKOFF_US), backoff_us=BACKOFF_US)
        world = cls(NaiveBroker(level), TransactionalProducer(config))
        world.producer.learn_versions(NODE, world.broker.versions())
        return world

    def turn(self) -> bool:
        """Run what is due. Return whether anything was."""
        requests = self.producer.next_requests(self.now_us)
        for channel, request in requests:
            body = self.broker.respond(request)
            if body is None:
                self.producer.failed(channel, self.now_us)
            else:
                self.producer.responded(channel, self.now_us, body)
        return bool(requests)

    def run(self, turns: int = 60, until_us: int = 1_000_000) -> None:
        """Run until nothing is due before ``until_us``."""
        for _ in range(turns):
            if not self.turn():
                wake = self.producer.wake_at_us
                if wake is None or wake > self.now_us + until_us:
                    return
                assert wake > self.now_us, "it wants to wake, and then does nothing"
                self.now_us = wake
        raise AssertionError(f"still busy after {turns} turns: {self.broker.requests[-6:]}")

    def ready(self) -> "ProducerWorld":
        self.producer.init()
        self.run()
        return self

    def names(self) -> list[str]:
        """Return the requests since the last call, without metadata."""
        names = [name for name, _ in self.broker.requests if name != "metadata"]
        self.broker.requests.clear()
        return names
