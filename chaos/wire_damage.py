"""Turns over one bit of a frame on its way, and says what the receiver makes of the bytes.

A frame is given with its length, as it stands on the wire. What nothing checks is known: a frame has no checksum, and
the CRC of a batch leaves out its base offset and leader epoch. So a scenario chooses the ``part`` that may be struck.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from reference_broker.apis.registry import SERVED
from reference_broker.core.events import Request
from reference_broker.records.batch import CRC_FROM, LENGTH_OVERHEAD_BYTES, InvalidRecords, iterate
from reference_broker.serve.requests import decode
from reference_broker.wire.fetch import FetchResponse
from reference_broker.wire.frames import FrameReader
from reference_broker.wire.produce import ProduceRequest

LENGTH_BYTES = 4
"""The size of a frame's length, of a batch's length, and of the length before records in a version without tags."""
BATCH_LENGTH_FROM = 8
"""The position of the length in a batch, behind its base offset. Its CRC does not cover it."""
CRC_FIELD_FROM = 17
"""The position of the CRC in a batch. Damage to the CRC itself is found as damage to what it covers is."""
MAX_FRAME_BYTES = 64 << 20


class Damaged(NamedTuple):
    """A frame in which the byte at ``position`` was ``old`` and is ``new`` now."""

    frame: bytes
    position: int
    old: int
    new: int

    @property
    def told(self) -> str:
        return f"byte {self.position} of {len(self.frame)}: {self.old:#04x} became {self.new:#04x}"


def has_part(part: str, body: object) -> bool:
    """Returns whether a frame with this body has bytes of the part. ``anywhere`` and ``length`` are in every frame."""
    return part != "checksummed" or any(True for records in _records(body) for _ in _batches(records))


def damaged(frame: bytes, body: object, part: str, random: Random) -> Damaged:
    """Returns the frame with one bit of the part turned over. Each byte of the part is struck with the same chance."""
    spots = _spots(frame, body, part)
    number = random.randrange(sum(map(len, spots)))
    for spot in spots:
        if number < len(spot):
            break
        number -= len(spot)
    position, struck = spot[number], bytearray(frame)
    struck[position] ^= 1 << random.randrange(8)
    return Damaged(bytes(struck), position, frame[position], struck[position])


def _spots(frame: bytes, body: object, part: str) -> Sequence[range]:
    if part == "anywhere":
        return (range(len(frame)),)
    spots: list[range] = [] if part == "checksummed" else [range(LENGTH_BYTES)]
    end = 0
    for records in _records(body):
        start = frame.index(bytes(records), end)
        end = start + len(records)
        for position, size in _batches(records):
            batch = start + position
            if part == "checksummed":
                spots.append(range(batch + CRC_FIELD_FROM, batch + size))
            else:
                spots.append(range(batch + BATCH_LENGTH_FROM, batch + BATCH_LENGTH_FROM + LENGTH_BYTES))
    return spots


def _records(body: object) -> Iterator[bytes | memoryview]:
    """Yields the records of each partition in the order in which they stand in the frame."""
    if isinstance(body, ProduceRequest):
        yield from (each.records for topic in body.topics for each in topic.partitions if each.records)
    elif isinstance(body, FetchResponse):
        yield from (each.records for topic in body.responses for each in topic.partitions if each.records)


def _batches(records: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yields position and size of each batch that is there as a whole and has a body."""
    try:
        for position, header in iterate(records):
            if header.size_bytes > CRC_FROM:
                yield position, header.batch_length + LENGTH_OVERHEAD_BYTES
    except InvalidRecords:
        return  # A client may send what is no batch. It has no checksummed part.


class RequestStream:
    """What a node makes of a connection's bytes from the first damaged frame on.

    A damaged length shifts where the next frames begin, so all later requests of the connection come through here.
    """

    def __init__(self) -> None:
        self._reader = FrameReader(MAX_FRAME_BYTES)

    def arrived(self, connection: int, frame: bytes) -> Iterator[Request]:
        """Yields the requests that are complete now, decoded by the server's own code. Raises ProtocolError where the
        server closes the connection."""
        self._reader.feed(frame)
        while True:
            found = self._reader.next_frame()
            if found is None:
                return
            yield decode(connection, found, SERVED)
