"""The tagged fields in the Fetch requests of replicas."""

from typing import Any

import pytest

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import NO_DIRECTORY_ID, NO_HIGH_WATERMARK, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.messages import decode_request, encode_request

HEAD = "000001f4 00000001 00100000 00 00000000 ffffffff"
TOPIC = "02" + "00" * 15 + "01"
PARTITION = "00000000 00000003 0000000000000009 00000002 ffffffffffffffff 0000004d"
DIRECTORY = bytes(range(16))
DIRECTORY_TAG = "00 10" + DIRECTORY.hex()
WATERMARK_TAG = "01 08 0000000000000007"
END = "00 01 01"


def body(version: int, tags: str, end: str = "00") -> Any:
    text = f"{HEAD} {TOPIC} 02 {PARTITION} {tags} {END} {end}"
    return decode_request(ApiKey.FETCH, version, bytes.fromhex(text), 0)


def partition_of(version: int, tags: str) -> FetchPartition:
    partition: FetchPartition = body(version, tags).topics[0].partitions[0]
    return partition


def test_replica_s_fetch_18_byte_by_byte() -> None:
    """KIP-853's directory, KIP-903's replica state, KIP-1166's high watermark."""
    partition = FetchPartition(0, 9, 77, 3, 2, -1, DIRECTORY, 7)
    request = FetchRequest(
        replica_id=2,
        min_bytes=1,
        max_bytes=1 << 20,
        cluster_id="c",
        replica_epoch=5,
        topics=[FetchTopic("", bytes(15) + b"\x01", [partition])],
    )
    state = "00 02 0263 01 0d 00000002 0000000000000005 00"
    text = f"{HEAD} {TOPIC} 02 {PARTITION} 02 {DIRECTORY_TAG} {WATERMARK_TAG} {END} 02 {state}"
    frame = b"".join(encode_request(ApiKey.FETCH, 18, 1, None, request))
    assert frame[15:].hex(" ", 1) == bytes.fromhex(text).hex(" ", 1)
    assert decode_request(ApiKey.FETCH, 18, frame, 15) == request


@pytest.mark.parametrize(
    ("version", "directory", "high_watermark"),
    [(16, NO_DIRECTORY_ID, NO_HIGH_WATERMARK), (17, DIRECTORY, NO_HIGH_WATERMARK), (18, DIRECTORY, 7)],
)
def test_tags_of_later_versions_are_unknown_ones(version: int, directory: bytes, high_watermark: int) -> None:
    partition = partition_of(version, f"02 {DIRECTORY_TAG} {WATERMARK_TAG}")
    assert (partition.replica_directory_id, partition.high_watermark) == (directory, high_watermark)


def test_fields_unknown_to_older_version_are_omitted() -> None:
    partition = FetchPartition(0, 9, 77, 3, 2, -1, DIRECTORY, 7)
    response = [FetchTopic("", bytes(16), [partition])]
    plain = [FetchTopic("", bytes(16), [FetchPartition(0, 9, 77, 3, 2)])]
    frames = [
        b"".join(encode_request(ApiKey.FETCH, 16, 1, None, FetchRequest(topics=each))) for each in (response, plain)
    ]
    assert frames[0] == frames[1]


def test_no_high_watermark_yet_differs_from_telling_none() -> None:
    assert partition_of(18, "01 01 08 ffffffffffffffff").high_watermark == -1
    assert partition_of(18, "00").high_watermark == NO_HIGH_WATERMARK


@pytest.mark.parametrize(
    "tags",
    [
        "01 00 0f" + "11" * 15,
        "01 00 11" + "11" * 17,
        "01 01 07" + "00" * 7,
        "01 01 09" + "00" * 9,
        "01 01 08" + "00" * 4,
    ],
)
def test_tagged_field_of_the_wrong_size_is_refused(tags: str) -> None:
    with pytest.raises(ProtocolError):
        body(18, tags)
