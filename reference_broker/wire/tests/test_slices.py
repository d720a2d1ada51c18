"""Large messages are read and written in slices: the result is the same, no slice is long, and a request that holds too
much is refused before it is read."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema

from reference_broker.core.tests.test_any_request import Anything
from reference_broker.ports.slicing import WIRE_UNITS_PER_SLICE, Sliced
from reference_broker.wire import fetch_requests
from reference_broker.wire.apis import DRAFTS, FIRST_DRAFT_VERSION, VERSIONS, ApiKey
from reference_broker.wire.drafts import LAYOUTS
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from reference_broker.wire.frames import RequestHeader, read_request_header, write_request_header
from reference_broker.wire.messages import (
    body_class,
    decode_request,
    decode_request_in_slices,
    decode_response,
    encode_request,
    encode_response,
    encode_response_in_slices,
)
from reference_broker.wire.primitives import MAX_STRING_BYTES, uvarint
from reference_broker.wire.produce import MAX_TOPICS_AND_PARTITIONS, ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.request_limits import MAX_ITEMS, MAX_REQUEST_BYTES, TooMuchError
from reference_broker.wire.schema import SchemaField, schema_fields

ResultT = TypeVar("ResultT")


def every_version() -> Iterator[tuple[int, int]]:
    for key, (low, high, _) in VERSIONS.items():
        if key not in (ApiKey.FETCH, ApiKey.PRODUCE):
            yield from ((int(key), version) for version in range(low, high + 1))
    yield from (draft for draft in DRAFTS if draft[0] != ApiKey.FETCH)


EVERY_VERSION = list(every_version())


def finished(work: Sliced[ResultT]) -> tuple[ResultT, int]:
    """The result, and in how many slices it was made."""
    slices = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: ResultT = end.value
            return result, slices
        slices += 1


def layout(key: int, version: int) -> type:
    draft = LAYOUTS.get((key, version))
    return load_request_schema(key, version) if draft is None else draft[0]


def frame_of(key: int, version: int, body: Any) -> tuple[memoryview, int]:
    """The frame without its length, and where the body begins."""
    out = bytearray(write_request_header(RequestHeader(key, version, 9, "client")))
    encoder(layout(key, version), layout(key, version))(out, body)
    frame = memoryview(bytes(out))
    return frame, read_request_header(frame)[1]


@pytest.mark.thorough
@given(st.sampled_from(EVERY_VERSION), st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples * 3)
def test_request_read_in_slices_is_the_same(api: tuple[int, int], random: Any) -> None:
    frame, offset = frame_of(*api, Anything(random, []).entity(layout(*api)))
    body, _ = finished(decode_request_in_slices(*api, frame, offset))[0]
    assert body == decode_request(*api, frame, offset)


@pytest.mark.thorough
@given(st.sampled_from([each for each in EVERY_VERSION if each not in LAYOUTS]), st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples * 3)
def test_response_written_in_slices_is_the_same(api: tuple[int, int], random: Any) -> None:
    kind = load_response_schema(*api)
    out = bytearray(b"\0\0\0\0\0")
    encoder(kind, kind)(out, Anything(random, []).entity(kind))
    frame = bytes(out) if encode_response_header_bytes(*api) == 5 else bytes(out[1:])
    _, body = decode_response(*api, memoryview(frame))
    whole = b"".join(encode_response(*api, 9, body))
    assert b"".join(finished(encode_response_in_slices(*api, 9, body))[0]) == whole


def encode_response_header_bytes(key: int, version: int) -> int:
    low, high, flexible = VERSIONS[key]
    assert low <= version <= high
    return 5 if version >= flexible and key != ApiKey.API_VERSIONS else 4


def arrays_of(kind: type) -> Iterator[tuple[str, ...]]:
    for field in schema_fields(kind):
        if field.is_array and field.tag is None:
            yield (field.name,)
            if field.struct is not None:
                yield from ((field.name, *rest) for rest in arrays_of(field.struct))


def of_arrays() -> Iterator[tuple[int, int, tuple[str, ...]]]:
    newest = {(int(key), high) for key, (_, high, _) in VERSIONS.items()}
    for key, version in EVERY_VERSION:
        if (key, version) in newest or (key, version) in LAYOUTS:
            yield from ((key, version, path) for path in arrays_of(layout(key, version)))


def plain(field: SchemaField) -> Any:
    if field.is_array:
        return ()
    if field.struct is not None:
        return None if field.nullable else holding(field.struct, (), 0)
    return "" if field.kind == "string" else field.default


def holding(kind: type, path: tuple[str, ...], count: int) -> Any:
    """A struct of defaults whose array at ``path`` has ``count`` items."""
    values = {field.name: plain(field) for field in schema_fields(kind)}
    for field in schema_fields(kind):
        if path and field.name == path[0]:
            inner = holding(field.struct, path[1:], count) if field.struct is not None else _item(field)
            values[field.name] = (inner,) * (count if len(path) == 1 else 1)
    return kind(**values)


def _item(field: SchemaField) -> Any:
    return {"string": "", "bytes": b"", "uuid": None}.get(field.kind, 0)


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version", "path"), list(of_arrays()))
def test_array_of_any_request_is_read_in_short_slices_up_to_its_limit_and_refused_beyond(
    key: int, version: int, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 3000
    monkeypatch.setitem(MAX_ITEMS, key, limit)
    frame, offset = frame_of(key, version, holding(layout(key, version), path, limit - len(path) + 1))
    (_, items), slices = finished(decode_request_in_slices(key, version, frame, offset))
    assert 0 < items <= limit
    assert slices >= items // WIRE_UNITS_PER_SLICE
    beyond, offset = frame_of(key, version, holding(layout(key, version), path, 8 * limit + 8))
    with pytest.raises(TooMuchError, match=f"the limit is {limit}"):
        finished(decode_request_in_slices(key, version, beyond, offset))


@pytest.mark.thorough
@pytest.mark.parametrize("inner", [1, 5, 31, 33])
def test_many_short_arrays_are_read_in_as_many_slices_as_a_long_one(inner: int) -> None:
    kind = layout(ApiKey.OFFSET_COMMIT, 8)
    one = holding(kind, ("topics", "partitions"), inner)
    frame, offset = frame_of(ApiKey.OFFSET_COMMIT, 8, replace(one, topics=one.topics * (19_000 // (inner + 1))))
    (_, items), slices = finished(decode_request_in_slices(ApiKey.OFFSET_COMMIT, 8, frame, offset))
    assert items > 18_000
    assert slices >= items // WIRE_UNITS_PER_SLICE


@pytest.mark.parametrize("inner", [1, 5, 31, 33])
def test_many_short_arrays_are_written_in_as_many_slices_as_a_long_one(inner: int) -> None:
    kind = body_class(ApiKey.OFFSET_COMMIT, "response")
    one = holding(kind, ("topics", "partitions"), inner)
    outer = 19_000 // (inner + 1)
    body = replace(one, throttle_time=timedelta(0), topics=one.topics * outer)
    frame, slices = finished(encode_response_in_slices(ApiKey.OFFSET_COMMIT, 8, 9, body))
    assert frame == encode_response(ApiKey.OFFSET_COMMIT, 8, 9, body)
    assert slices >= outer * (inner + 1) // WIRE_UNITS_PER_SLICE


@pytest.mark.thorough
def test_items_of_nested_arrays_count_together() -> None:
    names = MAX_ITEMS[ApiKey.DELETE_RECORDS] * 2 // 3
    kind = layout(ApiKey.DELETE_RECORDS, 2)
    one = holding(kind, ("topics", "partitions"), 1)
    frame, offset = frame_of(ApiKey.DELETE_RECORDS, 2, type(one)(topics=one.topics * names, timeout=one.timeout))
    with pytest.raises(TooMuchError, match="the limit is 40000"):
        finished(decode_request_in_slices(ApiKey.DELETE_RECORDS, 2, frame, offset))


@pytest.mark.thorough
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("version", [3, 9, 13])
def test_produce_of_too_many_topics_and_partitions_is_refused(version: int, partitions: int) -> None:
    topic = ProduceTopic("", bytes(16), [ProducePartition(0, None)] * partitions)
    for topics, refused in (
        (MAX_TOPICS_AND_PARTITIONS // (partitions + 1), False),
        (MAX_TOPICS_AND_PARTITIONS, True),
    ):
        body = ProduceRequest(-1, 1000, [topic] * topics + [topic] * (refused and not partitions))
        frame = memoryview(b"".join(encode_request(ApiKey.PRODUCE, version, 9, "c", body)))[4:]
        offset = read_request_header(frame)[1]
        if refused:
            with pytest.raises(TooMuchError, match=f"the limit is {MAX_TOPICS_AND_PARTITIONS}"):
                decode_request(ApiKey.PRODUCE, version, frame, offset)
        else:
            decode_request(ApiKey.PRODUCE, version, frame, offset)


@pytest.mark.parametrize("version", [4, 5, 9, 12, 13, 17, 1000, 1001])
def test_fetch_of_too_many_topics_and_partitions_is_refused_before_they_are_read(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, most, few = FetchPartition(0, 0, 1), 2000, 100
    monkeypatch.setattr(fetch_requests, "MAX_TOPICS_AND_PARTITIONS", most)

    def named(topics: int, partitions: int) -> list[FetchTopic]:
        return [FetchTopic("", bytes(16), [one] * partitions)] * topics

    def forgotten(topics: int, partitions: int) -> list[ForgottenTopic]:
        return [ForgottenTopic("", bytes(16), [0] * partitions)] * topics

    bodies = [
        (FetchRequest(topics=named(1, most - 1)), True),
        (FetchRequest(topics=named(most // 2, 1)), True),
        (FetchRequest(topics=named(1, most)), False),
        (FetchRequest(topics=named(most + 1, 0)), False),
        (FetchRequest(topics=named(few, most // few)), False),
    ]
    if 7 <= version < FIRST_DRAFT_VERSION:
        bodies += [
            (FetchRequest(forgotten=forgotten(1, most)), False),
            (FetchRequest(forgotten=forgotten(most + 1, 0)), False),
            (FetchRequest(topics=named(1, most // 2), forgotten=forgotten(1, most // 2)), False),
            (FetchRequest(topics=named(1, most // 2), forgotten=forgotten(1, most // 2 - 2)), True),
        ]
    for body, is_read in bodies:
        frame = memoryview(b"".join(encode_request(ApiKey.FETCH, version, 9, "c", body)))[4:]
        offset = read_request_header(frame)[1]
        if is_read:
            decode_request(ApiKey.FETCH, version, frame, offset)
        else:
            with pytest.raises(TooMuchError, match=f"the limit is {most}"):
                decode_request(ApiKey.FETCH, version, frame, offset)


@pytest.mark.thorough
@pytest.mark.parametrize("version", [4, 5, 9, 12, 13, 17, 1000, 1001])
@pytest.mark.parametrize(("topics", "partitions"), [(4000, 1), (20, 500), (2, 4500)])
def test_large_fetch_read_in_slices_is_the_same_and_no_slice_is_long(
    version: int, topics: int, partitions: int
) -> None:
    rows = [FetchPartition(index, 7, 8) for index in range(partitions)]
    ids = [number.to_bytes(16, "big") if version >= 13 else bytes(16) for number in range(topics)]
    names = ["" if 13 <= version < FIRST_DRAFT_VERSION else f"topic-{number}" for number in range(topics)]
    body = FetchRequest(topics=[FetchTopic(name, topic_id, rows) for name, topic_id in zip(names, ids, strict=True)])
    lost = 4000 if 7 <= version < FIRST_DRAFT_VERSION else 0
    if lost:
        body = replace(body, forgotten=[ForgottenTopic(names[0], ids[0], [1, 2])] * lost)
    frame = memoryview(b"".join(encode_request(ApiKey.FETCH, version, 9, "c", body)))[4:]
    offset = read_request_header(frame)[1]
    (read, items), slices = finished(decode_request_in_slices(ApiKey.FETCH, version, frame, offset))
    assert read == decode_request(ApiKey.FETCH, version, frame, offset)
    assert isinstance(read, FetchRequest)
    assert [[partition.fetch_offset for partition in topic.partitions] for topic in read.topics] == [
        [7] * partitions
    ] * topics
    assert len(read.forgotten) == lost
    assert items == topics * (partitions + 1) + 3 * lost
    assert slices >= (topics * partitions + lost) / WIRE_UNITS_PER_SLICE


@pytest.mark.parametrize("where", ["header", "body"])
def test_many_tagged_fields_are_refused_before_they_are_read(where: str) -> None:
    header = write_request_header(RequestHeader(ApiKey.METADATA, 9, 9, "c"))
    tags = b"\xff\xff\xff\x7f" + b"\x63\0" * 2_000_000
    frame = memoryview(header[:-1] + tags if where == "header" else header + b"\x01\0\0\0" + tags)
    with pytest.raises(ProtocolError, match="tagged fields; the limit is 32"):
        finished(decode_request_in_slices(ApiKey.METADATA, 9, frame, read_request_header(frame)[1]))


def test_string_beyond_its_limit_is_refused() -> None:
    header = write_request_header(RequestHeader(ApiKey.METADATA, 9, 9, "c"))
    frame = memoryview(header + b"\x02" + uvarint(MAX_STRING_BYTES + 2) + bytes(2 * MAX_STRING_BYTES))
    with pytest.raises(ProtocolError, match=f"a string of {MAX_STRING_BYTES + 1} bytes"):
        finished(decode_request_in_slices(ApiKey.METADATA, 9, frame, read_request_header(frame)[1]))


def test_tagged_string_as_long_as_a_string_may_be_is_read() -> None:
    body = holding(layout(ApiKey.FETCH_SNAPSHOT, 1), (), 0)
    body = replace(body, cluster_id="x" * 32_767)
    frame, offset = frame_of(ApiKey.FETCH_SNAPSHOT, 1, body)
    read, _ = finished(decode_request_in_slices(ApiKey.FETCH_SNAPSHOT, 1, frame, offset))[0]
    assert read == decode_request(ApiKey.FETCH_SNAPSHOT, 1, frame, offset)


def test_request_of_more_bytes_than_its_limit_is_refused() -> None:
    header = write_request_header(RequestHeader(ApiKey.SYNC_GROUP, 4, 9, "c"))
    frame = memoryview(header + bytes(MAX_REQUEST_BYTES))
    with pytest.raises(TooMuchError, match="SyncGroup request has"):
        finished(decode_request_in_slices(ApiKey.SYNC_GROUP, 4, frame, len(header)))
