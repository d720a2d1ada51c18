"""Wild records: batches with and without a producer ID, and deletions at all kinds of offsets."""

from collections.abc import Iterator
from random import Random
from typing import Any

from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i16, i32, i64

from bench.fleet.behaviours.bodies import milliseconds
from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.behaviours.wild_records import TO_HIGH_WATERMARK, WildRecords, WildRecordsRequest
from reference_broker.records.batch import read_header
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.produce import ProducePartitionResponse, ProduceResponse, ProduceTopicResponse

NONE = ErrorCode.none


def initialized(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=milliseconds(0), error_code=NONE, producer_id=ProducerId(producer_id), producer_epoch=i16(0)
    )


def appended(partition: TopicPartition, error: int, base_offset: int) -> ProduceResponse:
    data = ProducePartitionResponse(partition.partition, error, base_offset)
    return ProduceResponse([ProduceTopicResponse(partition.topic, b"", [data])])


def played(count: int, refused: int = 0) -> Iterator[tuple[WildRecordsRequest, int]]:
    """Yield the requests of one client, each with the end of its partition. Every ``refused``-th batch is refused."""
    client, ends, producers, batches = WildRecords("w", "t", 2, Random(1)), dict[Any, int](), 0, 0
    for _ in range(count):
        request = client.next_request(5)
        yield request, ends.get(request.partition, 0)
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            producers += 1
            assert client.responded(request, initialized(producers)) == 0
        elif request.api_key == ApiKey.PRODUCE:
            assert request.partition is not None
            batches += 1
            error = ErrorCode.not_leader_or_follower if refused and batches % refused == 0 else 0
            end = ends.get(request.partition, 0)
            ends[request.partition] = end if error else end + 1
            assert client.responded(request, appended(request.partition, error, end)) == error


def test_batches_follow_each_other_in_a_producers_sequence() -> None:
    next_sequences: dict[tuple[int, TopicPartition | None], int] = {}
    kinds = set()
    for request, _ in played(2000, refused=9):
        if request.api_key == ApiKey.PRODUCE:
            header = read_header(request.body.topics[0].partitions[0].records)
            kinds.add((header.producer_id >= 0, request.body.acks))
            if header.producer_id >= 0:
                key = header.producer_id, request.partition
                assert header.base_sequence == next_sequences.get(key, 0)
                next_sequences[key] = header.base_sequence + header.record_count
    assert kinds == {(True, -1), (False, -1), (False, 1)}
    assert len({producer for producer, _ in next_sequences}) > 10, "a refused batch ends the use of an ID"


def test_deletions_are_at_the_end_within_and_beyond() -> None:
    seen = set()
    for request, end in played(2000):
        if request.api_key == ApiKey.DELETE_RECORDS and end > 1:
            offset = int(request.body.topics[0].partitions[0].offset)
            place = "within" if 0 < offset < end else "beyond" if offset > end else offset if offset <= 0 else "end"
            seen.add(place)
    assert seen == {TO_HIGH_WATERMARK, 0, "within", "end", "beyond"}


def test_error_of_a_deletion_is_returned() -> None:
    client = WildRecords("w", "t", 2, Random(1))
    request = next(each for each, _ in played(100) if each.api_key == ApiKey.DELETE_RECORDS)
    result = DeleteRecordsPartitionResult(
        partition_index=i32(0), low_watermark=i64(-1), error_code=ErrorCode.offset_out_of_range
    )
    topic = DeleteRecordsTopicResult(name=TopicName("t"), partitions=(result,))
    body = DeleteRecordsResponse(throttle_time=milliseconds(0), topics=(topic,))
    assert client.responded(request, body) == ErrorCode.offset_out_of_range
    assert client.responded(request, None) == 0
