"""Record values that prove themselves, and spans of such records.

A value is (writer, sequence, CRC), padded to a given size. The layout is big-endian: magic ``CV`` (2 bytes), CRC-32C of
all that follows (4), length of the writer's name (1), sequence (8), the name in UTF-8, padding. No two values of a run
of the fleet are equal, because a writer's name is unique in it and its sequence only rises. A tombstone has no value,
so a header of the record has what would be its value.

A ``ValueSpan`` is a series of records that follow each other both in offset and in one writer's sequence. Any
irregularity ends it. The history has them in the table ``runs``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from reference_broker.client.partitions import TopicPartition
from reports.rows import SpanRow

HEAD: Final = Struct(">2sI")
_BODY: Final = Struct(">Bq")
MAGIC: Final = b"CV"
NAME_AT: Final = HEAD.size + _BODY.size
MAX_NAME_BYTES: Final = 255
PROOF: Final = "proof"
"""The name of the header that proves a tombstone."""


class Value(NamedTuple):
    """The content of a record value."""

    writer: str  # empty for foreign or damaged values
    sequence: int  # -1 for foreign or damaged values
    valid: bool  # False for foreign or damaged values


FOREIGN: Final = Value("", -1, False)


def smallest_size_bytes(writer: str) -> int:
    return NAME_AT + len(writer.encode())


class ValueMaker:
    """Make one writer's values, all of ``size_bytes``.

    :raises ValueError: the name is empty or too long, or does not fit the size.
    """

    __slots__ = ("_name_bytes", "_tail")

    def __init__(self, writer: str, size_bytes: int, padding: bytes = b"") -> None:
        name = writer.encode()
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise ValueError(f"a writer's name has 1 to {MAX_NAME_BYTES} bytes, {writer!r} has {len(name)}")
        room = size_bytes - NAME_AT - len(name)
        if room < 0:
            raise ValueError(f"a value of {writer} needs {NAME_AT + len(name)} bytes, {size_bytes} were given")
        pattern = padding or b"."
        self._tail = name + (pattern * (room // len(pattern) + 1))[:room]
        self._name_bytes = len(name)

    def make(self, sequence: int) -> bytes:
        body = _BODY.pack(self._name_bytes, sequence)
        return HEAD.pack(MAGIC, crc32c(self._tail, crc32c(body))) + body + self._tail


def read_value(value: bytes | memoryview | None) -> Value:
    """Read a record's value. It is FOREIGN unless magic, length and CRC are right."""
    if value is None or len(value) < NAME_AT:
        return FOREIGN
    magic, crc = HEAD.unpack_from(value)
    name_bytes, sequence = _BODY.unpack_from(value, HEAD.size)
    end = NAME_AT + name_bytes
    if magic != MAGIC or name_bytes == 0 or end > len(value) or crc32c(value[HEAD.size :]) != crc:
        return FOREIGN
    return Value(bytes(value[NAME_AT:end]).decode(errors="replace"), sequence, True)


def read_record(value: bytes | memoryview | None, headers: Sequence[tuple[str, bytes | None]]) -> Value:
    """Read what proves a record: its value or, of a tombstone, its header."""
    return read_value(dict(headers).get(PROOF) if value is None else value)


@dataclass(frozen=True, slots=True)
class ValueSpan:
    """Successive records of one writer."""

    first_offset: int
    count: int
    producer_id: int
    writer: str  # empty for foreign or damaged values
    first_sequence: int  # -1 for foreign or damaged values
    valid: bool

    def tail(self, from_offset: int) -> "ValueSpan | None":
        """Return the part of the span from an offset on."""
        skipped = max(0, from_offset - self.first_offset)
        if skipped >= self.count:
            return None
        if skipped == 0:
            return self
        sequence = self.first_sequence + skipped if self.writer else self.first_sequence
        return replace(
            self, first_offset=self.first_offset + skipped, count=self.count - skipped, first_sequence=sequence
        )


def read_row(
    process: str, index: int, position: int, partition: TopicPartition, span: ValueSpan, isolation: int = 0
) -> SpanRow:
    """Make the row of a span that was read. It is the ``position``-th of its operation. ``isolation`` is the reader's,
    as Fetch carries it."""
    return SpanRow(
        process,
        index,
        position,
        "read",
        partition.topic,
        partition.partition,
        span.first_offset,
        span.count,
        span.producer_id,
        span.writer,
        span.first_sequence,
        span.valid,
        isolation=isolation,
    )


def joins(span: ValueSpan, count: int, after: ValueSpan) -> bool:
    """Return whether ``after`` continues exactly where ``span`` ends, if that has grown to ``count`` records."""
    return (
        after.first_offset == span.first_offset + count
        and after.writer == span.writer
        and after.producer_id == span.producer_id
        and after.valid == span.valid
        and (not span.writer or after.first_sequence == span.first_sequence + count)
    )


def compress(parts: Iterable[ValueSpan]) -> list[ValueSpan]:
    """Return the fewest spans with the same content, in the same order."""
    out: list[ValueSpan] = []
    span: ValueSpan | None = None
    count = 0
    for part in parts:
        if span is not None and joins(span, count, part):
            count += part.count
            continue
        if span is not None:
            out.append(span if span.count == count else replace(span, count=count))
        span, count = part, part.count
    if span is not None:
        out.append(span if span.count == count else replace(span, count=count))
    return out
