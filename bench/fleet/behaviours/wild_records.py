"""Records of a topic that no other client writes or reads, and requests that delete them (DeleteRecords, KIP-107).

A wild client appends small batches, some without waiting for the replicas, some with a producer ID. It deletes what was
appended: up to the end, to any offset, to one from before, and beyond the end. So logs begin in the middle of segments
and of batches, they are emptied, and followers that come back end below the start of their leader's log.

The history does not contain its records: what it deletes is no loss.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from bench.fleet.behaviours.bodies import init_producer_id_request, milliseconds
from bench.fleet.behaviours.protocol import Chance, TopicPartition
from bench.fleet.values import ValueMaker, smallest_size_bytes
from reference_broker.client.transaction_requests import ProducerIdentity, initialized
from reference_broker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.response import DeleteRecordsResponse

DELETE_RECORDS: Final = 2
PRODUCE: Final = 12
"""The last version that names topics."""
INIT_PRODUCER_ID: Final = 5
DELETE_PERCENT: Final = 35
IDEMPOTENT_PERCENT: Final = 50
MAX_RECORDS: Final = 4
PADDING_BYTES: Final = (0, 60, 200)
TO_HIGH_WATERMARK: Final = -1
WAITS_MS: Final = (0, 300, 1000, 1000)
"""Timeouts of requests in which a leader waits for other replicas."""


@dataclass(frozen=True, slots=True)
class WildRecordsRequest:
    """One request to the leader of a partition, or to any node if it is of none."""

    api_key: int
    version: int
    body: Any
    partition: TopicPartition | None = None
    wait_ms: int = 0
    """how long it allows the broker to wait"""


class WildRecords:
    """The records of one client, and its requests."""

    def __init__(self, writer: str, topic: str, partitions: int, random: Chance) -> None:
        self._writer = writer
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._random = random
        self._made = 0
        self._ends: dict[TopicPartition, int] = {}
        self._producer: ProducerIdentity | None = None
        self._sequences: Counter[TopicPartition] = Counter()

    def next_request(self, wall_ms: int) -> WildRecordsRequest:
        """Return the next request. ``wall_ms`` is the timestamp of its records."""
        random = self._random
        partition = random.choice(self._partitions)
        if random.randrange(100) < DELETE_PERCENT:
            return self._deletion(partition)
        is_idempotent = random.randrange(100) < IDEMPOTENT_PERCENT
        if is_idempotent and self._producer is None:
            return WildRecordsRequest(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID, init_producer_id_request())
        return self._batch(partition, wall_ms, is_idempotent=is_idempotent)

    def _deletion(self, partition: TopicPartition) -> WildRecordsRequest:
        random, end = self._random, self._ends.get(partition, 0)
        within = random.randrange(end + 1)
        offset = random.choice(
            (TO_HIGH_WATERMARK, 0, within, within, max(end - 1, 0), end, end + random.randrange(1, 9))
        )
        wait_ms = random.choice(WAITS_MS)
        entry = DeleteRecordsPartition(partition_index=i32(partition.partition), offset=i64(offset))
        topic = DeleteRecordsTopic(name=TopicName(partition.topic), partitions=(entry,))
        body = DeleteRecordsRequest(topics=(topic,), timeout=milliseconds(wait_ms))
        return WildRecordsRequest(ApiKey.DELETE_RECORDS, DELETE_RECORDS, body, partition, wait_ms)

    def _batch(self, partition: TopicPartition, wall_ms: int, *, is_idempotent: bool) -> WildRecordsRequest:
        random = self._random
        count, wait_ms = random.randint(1, MAX_RECORDS), random.choice(WAITS_MS)
        values = ValueMaker(self._writer, smallest_size_bytes(self._writer) + random.choice(PADDING_BYTES))
        records = [Record(timestamp_ms=wall_ms, value=values.make(self._made + each)) for each in range(count)]
        self._made += count
        producer_id, epoch, sequence = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
        if is_idempotent and self._producer is not None:
            producer_id, epoch, sequence = self._producer.producer_id, self._producer.epoch, self._sequences[partition]
            self._sequences[partition] += count
        data = build(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        acks = -1 if is_idempotent else random.choice((-1, -1, 1))
        topic = ProduceTopic(partition.topic, NO_TOPIC_ID, [ProducePartition(partition.partition, data)])
        return WildRecordsRequest(ApiKey.PRODUCE, PRODUCE, ProduceRequest(acks, wait_ms, [topic]), partition, wait_ms)

    def responded(self, request: WildRecordsRequest, body: object) -> int:
        """Learn from a response, or from the loss of one (None). Return its error code."""
        if request.api_key == ApiKey.PRODUCE:
            return self._appended(request, cast("ProduceResponse | None", body))
        if body is None:
            return 0
        if request.api_key == ApiKey.DELETE_RECORDS:
            return int(cast("DeleteRecordsResponse", body).topics[0].partitions[0].error_code.value)
        found = initialized(body)
        if not isinstance(found, ProducerIdentity):
            return int(found)
        self._producer = found
        self._sequences.clear()
        return 0

    def _appended(self, request: WildRecordsRequest, body: ProduceResponse | None) -> int:
        result = None if body is None else body.responses[0].partitions[0]
        if result is not None and not result.error_code and request.partition is not None:
            self._ends[request.partition] = result.base_offset + 1
            return 0
        self._producer = None  # The batch may have been written or not, so the next sequence is not known.
        return 0 if result is None else result.error_code
