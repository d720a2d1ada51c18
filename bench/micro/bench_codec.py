"""Measures the codecs of the hot path, which turn frames into values and back."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, encode_request, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

FETCH_VERSION = 12
PRODUCE_VERSION = 9
BATCH = build([Record(at, 1_800_000_000_000, None, b"x" * 100, ()) for at in range(150)])


def _frame(api_key: int, version: int, body: object) -> memoryview:
    """Make a request frame as it comes from the socket, without its length."""
    return memoryview(b"".join(encode_request(api_key, version, 1, "micro", body)))[4:]


def _decode(api_key: int, version: int, frame: memoryview) -> object:
    _, offset = read_request_header(frame)
    return decode_request(api_key, version, frame, offset)


@pytest.mark.benchmark(group="decode a request")
@pytest.mark.parametrize("partitions", [0, 1, 100, 1_000])
def bench_decode_fetch(benchmark: BenchmarkFixture, partitions: int) -> None:
    topics = [FetchTopic("hot", NO_TOPIC_ID, [FetchPartition(p, 0, 1 << 20) for p in range(partitions)])]
    frame = _frame(ApiKey.FETCH, FETCH_VERSION, FetchRequest(topics=topics if partitions else []))
    decoded = benchmark(_decode, ApiKey.FETCH, FETCH_VERSION, frame)
    assert isinstance(decoded, FetchRequest)
    assert sum(len(topic.partitions) for topic in decoded.topics) == partitions


@pytest.mark.benchmark(group="decode a request")
def bench_decode_produce_of_8_batches(benchmark: BenchmarkFixture) -> None:
    topic = ProduceTopic("perf", NO_TOPIC_ID, [ProducePartition(p, BATCH) for p in range(8)])
    frame = _frame(ApiKey.PRODUCE, PRODUCE_VERSION, ProduceRequest(-1, 30_000, [topic]))
    decoded = benchmark(_decode, ApiKey.PRODUCE, PRODUCE_VERSION, frame)
    assert isinstance(decoded, ProduceRequest)
    assert len(decoded.topics[0].partitions) == 8
    benchmark.extra_info["bytes"] = len(frame)


@pytest.mark.benchmark(group="encode a response")
@pytest.mark.parametrize("partitions", [0, 1, 100])
def bench_encode_fetch(benchmark: BenchmarkFixture, partitions: int) -> None:
    data = [PartitionData(p, 0, 150, 150, 0, records=BATCH) for p in range(partitions)]
    response = FetchResponse(0, 7, [FetchTopicResponse("hot", NO_TOPIC_ID, data)] if partitions else [])
    buffers = benchmark(encode_response, ApiKey.FETCH, FETCH_VERSION, 1, response)
    assert sum(len(buffer) for buffer in buffers) > partitions * len(BATCH)
