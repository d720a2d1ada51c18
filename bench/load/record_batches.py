"""Batches made record by record: their records have headers and different sizes.

``BatchMaker`` writes columns, since all of its records have one layout. Here each record is written by itself, which
costs several times as much (`crucible bench --calibrate` measures a worker with such batches, too). The bytes are those
that ``BatchMaker`` makes where both can make a batch.

The size of a value depends on its writer and sequence alone, so a batch that is made again has the same bytes. Headers
are the same in each record, and a reader expects exactly them: the CRC of a value does not cover them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from statistics import fmean
from struct import Struct
from typing import Annotated, Final

import msgspec
from crc32c import crc32c

from bench.fleet.value_batches import ValueBatches
from bench.fleet.values import HEAD, MAGIC, smallest_size_bytes
from reference_broker.records.record import HeaderPair, zigzag

DRAWS: Final = 4096
"""Number of sizes that are drawn. They follow the distribution exactly, in a random order, and then begin again."""
MIN_SHARE: Final = 1 / 1000
"""A size with less weight than this share of all might not be among the draws."""
SEQUENCE_BITS: Final = 40
"""Above them a sequence has the index of its partition (``producer.SEQUENCES``)."""
_APART: Final = 1021
"""Distance between the first sizes of two partitions, which would otherwise send large values at the same time."""
MAX_VALUE_BYTES: Final = 64 << 20
_BODY: Final = Struct(">Bq")


class MessageSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of values: uniformly distributed between two limits, or drawn by weight."""

    min: Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE_BYTES)] = 0  # in bytes
    max: Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE_BYTES)] = 0  # in bytes
    weights: dict[int, float] = msgspec.field(default_factory=dict)
    """The weight of each size, by size in bytes."""

    @property
    def smallest(self) -> int:
        return min(self.weights, default=self.min)

    @property
    def largest(self) -> int:
        return max(self.weights, default=self.max)

    @property
    def complaint(self) -> str:
        """Reason why no size can be drawn, empty if one can."""
        if bool(self.weights) == bool(self.max):
            return "have min and max, or weights: give one of both"
        if not self.weights:
            return "have a min that is more than max" if self.min > self.max else ""
        total = sum(self.weights.values())
        if any(not weight > 0 or weight < total * MIN_SHARE for weight in self.weights.values()):
            return "have a weight below a thousandth of all weights"
        if self.largest > MAX_VALUE_BYTES:
            return f"have a size of {self.largest:,} bytes; the most are {MAX_VALUE_BYTES:,}"
        return ""

    def drawn(self) -> list[int]:
        """Return DRAWS sizes: the quantiles of the distribution, in an order that is always the same."""
        if self.weights:
            sizes = sorted(self.weights)
            ends = list(accumulate(self.weights[size] for size in sizes))
            found = [sizes[bisect_right(ends, (number + 0.5) / DRAWS * ends[-1])] for number in range(DRAWS)]
        else:
            span = self.max - self.min + 1
            found = [self.min + int((number + 0.5) / DRAWS * span) for number in range(DRAWS)]
        Random("sizes").shuffle(found)
        return found

    @property
    def mean(self) -> float:
        return fmean(self.drawn())


class RecordHeaders(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Headers of each record."""

    count: Annotated[int, msgspec.Meta(ge=1, le=100)]  # number of headers
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 16  # bytes of a value

    @property
    def pairs(self) -> tuple[HeaderPair, ...]:
        chance = Random("headers")
        return tuple((f"h{number}", chance.randbytes(self.size)) for number in range(self.count))

    @property
    def size_bytes(self) -> int:
        """Bytes that the headers add to each record, without the varints."""
        return sum(len(name) + self.size for name, _ in self.pairs)


class RecordBatchMaker(ValueBatches):
    """Makes batches of ``count`` records of one writer, as ``BatchMaker``. Sizes take turns by sequence, and begin
    elsewhere in each writer and partition."""

    def __init__(
        self,
        writer: str,
        count: int,
        sizes: Sequence[int],
        padding: bytes = b"",
        keys: Sequence[bytes] = (),
        headers: Sequence[HeaderPair] = (),
    ) -> None:
        least = smallest_size_bytes(writer)
        if min(sizes) < least:
            raise ValueError(f"a value of {writer} needs {least} bytes, {min(sizes)} were given")
        super().__init__(count)
        self._sizes = sizes
        self._first_size = crc32c(writer.encode())
        name, pattern, room = writer.encode(), padding or b".", max(sizes) - least
        self._tail = memoryview(name + (pattern * (room // len(pattern) + 1))[:room])
        self._head_bytes = least - len(name)
        self._name_bytes = len(name)
        self._keys = [zigzag(len(key)) + key for key in keys] or [zigzag(-1)]
        self._value_sizes = {size: zigzag(size) for size in set(sizes)}
        # Record attributes and the timestamp's delta are 0.
        self._before_keys = [b"\0\0" + zigzag(index) for index in range(count)]
        self._headers = zigzag(len(headers)) + b"".join(
            zigzag(len(text)) + text for name, value in headers for text in (name.encode(), value or b"")
        )

    def plain(self, first_sequence: int) -> bytes:
        sizes, keys, tail, headers = self._sizes, self._keys, self._tail, self._headers
        parts: list[bytes | memoryview] = []
        place = self._first_size + first_sequence + (first_sequence >> SEQUENCE_BITS) * _APART
        for index, before_key in enumerate(self._before_keys):
            sequence = first_sequence + index
            size = sizes[(place + index) % len(sizes)]
            body, rest = _BODY.pack(self._name_bytes, sequence), tail[: size - self._head_bytes]
            key, value_size = keys[sequence % len(keys)], self._value_sizes[size]
            length = len(before_key) + len(key) + len(value_size) + size + len(headers)
            crc = crc32c(rest, crc32c(body))
            parts += (zigzag(length), before_key, key, value_size, HEAD.pack(MAGIC, crc), body, rest, headers)
        return b"".join(parts)
