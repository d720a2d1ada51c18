"""The metadata log on disk, read byte by byte by Kafka's formats, without the broker's own codecs (T-1).

Kafka's dump tool checks the same where its jars are available (``bench/peers/tests/test_metadata_files.py``).
"""

from collections.abc import Iterator
from struct import unpack_from

import pytest

from reference_broker.core.tests.node_world import NodeWorld, create_request
from reference_broker.ports.disk import MemoryDisk
from reference_broker.wire.apis import ApiKey

BEGIN, END, ABORT = 23, 24, 25
"""The apiKey of BeginTransactionRecord.json, EndTransactionRecord.json and AbortTransactionRecord.json."""
TOPIC, PARTITION = 2, 3
BATCH_BYTES = 512
CONTROL_BIT = 0x20


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an unsigned varint and its end."""
    value = shift = 0
    while True:
        byte = data[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position


def signed(data: bytes, position: int) -> tuple[int, int]:
    value, position = varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def batches(data: bytes) -> Iterator[list[bytes] | None]:
    """Yield the values of the records of each batch (message format v2), None for a control batch."""
    position = 0
    while position < len(data):
        (length,) = unpack_from(">i", data, position + 8)
        assert data[position + 16] == 2, "the magic byte"
        (attributes,) = unpack_from(">h", data, position + 21)
        (count,) = unpack_from(">i", data, position + 57)
        at, values = position + 61, []
        for _ in range(count):
            size, at = signed(data, at)
            end = at + size
            _, at = signed(data, at + 1)
            _, at = signed(data, at)
            key_bytes, at = signed(data, at)
            value_bytes, at = signed(data, at + max(key_bytes, 0))
            values.append(data[at : at + value_bytes])
            assert at + value_bytes + 1 == end, "no headers"
            at = end
        yield None if attributes & CONTROL_BIT else values
        assert 12 + length <= BATCH_BYTES
        position += 12 + length


def kinds(disk: MemoryDisk) -> list[list[int]]:
    """Return the types of the records of each batch of the log. A record starts with its frame's version, type and
    version."""
    found = []
    for name in sorted(path for path in disk.files if path.startswith("__cluster_metadata-0/") and path[-4:] == ".log"):
        for values in batches(bytes(disk.files[name])):
            if values is not None:
                assert all(value[0] == 1 for value in values), "the frame's version"
                found.append([varint(value, 1)[0] for value in values])
    return found


def world_of(disk: MemoryDisk) -> NodeWorld:
    return NodeWorld(disk, crucible_metadata_batch_max_bytes=str(BATCH_BYTES))


@pytest.mark.clause("T-1")
def test_change_larger_than_batch_is_between_transaction_markers() -> None:
    disk = MemoryDisk()
    world = world_of(disk)
    before = len(kinds(disk))
    world.create("t", 200)
    begin, *between, end = kinds(disk)[before:]
    assert (begin, end) == ([BEGIN], [END])
    written = [kind for batch in between for kind in batch]
    assert len(between) > 1
    assert set(written) == {TOPIC, PARTITION}
    assert written.count(PARTITION) == 200


@pytest.mark.clause("T-1")
def test_unfinished_transaction_is_followed_by_abort() -> None:
    disk = MemoryDisk()
    world = world_of(disk)
    before = len(kinds(disk))
    world.send(ApiKey.CREATE_TOPICS, 7, create_request("t", 200))
    for _ in range(6):
        world.step()
    again = MemoryDisk()
    again.files = {path: bytearray(data) for path, data in disk.files.items()}
    unfinished = kinds(again)[before:]
    assert unfinished[0] == [BEGIN]
    assert [END] not in unfinished, "the node was killed within the transaction"
    after = world_of(again)
    assert kinds(again)[before + len(unfinished)] == [ABORT]
    assert "t" not in after.node.broker.controller.image.topics
