"""Produce and Fetch in few words: what many cases need, with fetch sessions (KIP-227) and batches to send."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.probe.case import NotAdvertised
from bench.probe.context import ByKey, ProbeContext, Topic, single
from bench.probe.conversation import Conversation
from reference_broker.blocking.transport import EncodedRequest
from reference_broker.records.batch import CRC_FROM, BatchHeader, InvalidRecords, checksum, read_header, write_header
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_records
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.produce import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceTopic

PRODUCE, FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
ALL_REPLICAS = -1
PLENTY = 1 << 20
TIMEOUT_MS = 5_000
IDS_SINCE = 13
"""From this version on, Produce and Fetch name topics by their IDs."""


def now_ms() -> int:
    return int(time.time() * 1000)


def batch(*values: bytes, timestamp_ms: int | None = None, compression: int = 0, **options: Any) -> bytes:
    """One batch with a record for each value, all with one timestamp (None: now). ``options``: of ``build``."""
    at_ms = now_ms() if timestamp_ms is None else timestamp_ms
    records = [Record(timestamp_ms=at_ms, value=value) for value in values or (b"value",)]
    return build(records, compression=Compression(compression), **options)


def altered(data: bytes, **fields: int) -> bytes:
    """The batch with other values in its header, and a checksum that is right unless it is given."""
    header = read_header(data)._replace(**fields)
    plain = write_header(header)[CRC_FROM:] + data[61:]
    crc = fields.get("crc", checksum(plain))
    return write_header(header._replace(crc=crc))[:CRC_FROM] + plain


def named(topic: Topic, version: int) -> tuple[str, bytes]:
    """The topic's name or its ID, whichever the version has, and nothing for the other."""
    return ("", topic.id) if version >= IDS_SINCE else (topic.name, NO_TOPIC_ID)


# Produce


def produce_request(
    topic: Topic, version: int, batches: Mapping[int, bytes], acks: int = ALL_REPLICAS
) -> ProduceRequest:
    """``batches``: by partition."""
    partitions = [ProducePartition(index, data) for index, data in batches.items()]
    return ProduceRequest(acks, TIMEOUT_MS, [ProduceTopic(*named(topic, version), partitions)])


def produce(
    at: ProbeContext,
    topic: Topic,
    data: bytes,
    partition: int = 0,
    acks: int = ALL_REPLICAS,
    on: Conversation | None = None,
) -> ProducePartitionResponse:
    """Write one batch and return the result of its partition."""
    version = at.version(PRODUCE)
    response = at.call(PRODUCE, produce_request(topic, version, {partition: data}, acks), version, on)
    result = single(response, "responses", "partitions")
    assert isinstance(result, ProducePartitionResponse)
    return result


def write(at: ProbeContext, topic: Topic, *batches: bytes, partition: int = 0) -> None:
    """Write batches that the broker must take."""
    for data in batches:
        at.expect(
            "error code of a produce that prepares", produce(at, topic, data, partition).error_code, ErrorCode.none
        )


# Fetch


def wanted(partition: int = 0, offset: int = 0, max_bytes: int = PLENTY, **more: Any) -> FetchPartition:
    return FetchPartition(partition, offset, max_bytes, **more)


def fetch_request(
    at: ProbeContext,
    topics: Iterable[tuple[Topic, Sequence[FetchPartition]]],
    forgotten: Iterable[tuple[Topic, Sequence[int]]] = (),
    **fields: Any,
) -> FetchRequest:
    """Do not wait, unless ``fields`` have a ``max_wait_ms``."""
    version = at.version(FETCH)
    return FetchRequest(
        topics=[FetchTopic(*named(topic, version), list(partitions)) for topic, partitions in topics],
        forgotten=[ForgottenTopic(*named(topic, version), list(partitions)) for topic, partitions in forgotten],
        **{"max_wait_ms": 0, **fields},
    )


def fetch(
    at: ProbeContext, topic: Topic, *partitions: FetchPartition, on: Conversation | None = None, **fields: Any
) -> FetchResponse:
    """Fetch partitions of one topic; its first one from the start if none is named."""
    request = fetch_request(at, [(topic, partitions or (wanted(),))], **fields)
    response = at.call(FETCH, request, on=on)
    assert isinstance(response, FetchResponse)
    return response


def send_fetch(at: ProbeContext, topic: Topic, *partitions: FetchPartition, **fields: Any) -> EncodedRequest:
    """Send a fetch on the case's own connection, whose response is read with ``at.main.receive``."""
    return at.send(FETCH, fetch_request(at, [(topic, partitions or (wanted(),))], **fields))


def fetch_one(at: ProbeContext, topic: Topic, partition: FetchPartition | None = None, **fields: Any) -> PartitionData:
    """Fetch one partition and return its data."""
    response = fetch(at, topic, partition or wanted(), **fields)
    at.expect("error code of the response", response.error_code, ErrorCode.none)
    rows = [data for each in response.responses for data in each.partitions]
    at.expect("number of partitions in the response", len(rows), 1)
    return rows[0]


def rows(response: FetchResponse) -> dict[int, PartitionData]:
    """The data of each partition, in a response about one topic."""
    return ByKey({data.partition: data for each in response.responses for data in each.partitions})


def headers(data: PartitionData) -> list[BatchHeader]:
    """The headers of the whole batches. A batch that is cut off at the end is omitted, as clients do."""
    found, position, raw = [], 0, bytes(data.records or b"")
    while len(raw) - position >= 61:
        header = read_header(raw, position)
        if position + header.size_bytes > len(raw) or header.size_bytes < 61:
            break
        found.append(header)
        position += header.size_bytes
    return found


def records(data: PartitionData) -> list[Record]:
    """The records of the whole batches. Bytes that are none give an empty list."""
    found: list[Record] = []
    position, raw = 0, bytes(data.records or b"")
    try:
        for header in headers(data):
            found += read_records(raw[position : position + header.size_bytes])
            position += header.size_bytes
    except InvalidRecords:
        return []
    return found


def values(data: PartitionData) -> list[bytes | None]:
    return [record.value for record in records(data)]


def log_end(at: ProbeContext, topic: Topic, partition: int = 0) -> int:
    """The high watermark of a partition, which is where its log ends on one node."""
    result = fetch_one(at, topic, wanted(partition, 0, 1))
    return result.high_watermark


CLOSE, OPEN = -1, 0
"""Session epochs with a meaning of their own."""


class ProbeSession:
    """It counts its own epochs."""

    def __init__(self, at: ProbeContext, topic: Topic, *partitions: FetchPartition, **fields: Any) -> None:
        self._at, self._topic = at, topic
        self.first = self._fetch(0, OPEN, partitions or (wanted(),), (), **fields)
        at.expect("error code of the response that opens the session", self.first.error_code, ErrorCode.none)
        if self.first.session_id == 0:
            raise NotAdvertised("the broker made no session, as it may")
        self.id = self.first.session_id
        self.epoch = 1

    def next(
        self, *partitions: FetchPartition, forget: Sequence[int] = (), epoch: int | None = None, **fields: Any
    ) -> FetchResponse:
        """The next incremental fetch, or one with another epoch, which does not count."""
        response = self._fetch(self.id, self.epoch if epoch is None else epoch, partitions, forget, **fields)
        if epoch is None:
            self.epoch += 1
        return response

    def _fetch(
        self, session_id: int, epoch: int, partitions: Sequence[FetchPartition], forget: Sequence[int], **fields: Any
    ) -> FetchResponse:
        topics = [(self._topic, partitions)] if partitions else []
        forgotten = [(self._topic, forget)] if forget else []
        on = fields.pop("on", None)
        request = fetch_request(self._at, topics, forgotten, session_id=session_id, session_epoch=epoch, **fields)
        response = self._at.call(FETCH, request, on=on)
        assert isinstance(response, FetchResponse)
        return response
