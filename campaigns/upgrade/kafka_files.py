"""Kafka's files of a partition: read and written without code of the broker.

What is proven of the broker's snapshots must not rest on the broker's own readers. Formats: record batches of magic 2
(Kafka's protocol guide), ``.snapshot`` (ProducerSnapshot.json, version 1), ``.index`` and ``.timeindex`` (OffsetIndex
and TimeIndex), and the text files of checkpoints.
"""

from collections.abc import Iterable, Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c


class UpgradeError(Exception):
    """A directory cannot be taken over, or a broker did not do what was requested. The message is one sentence."""


NAME_DIGITS = 20
MAGIC = 2
HEADER = Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and maximal timestamp, producer ID
and epoch, base sequence, number of records."""
LENGTH_OVERHEAD_BYTES = 12
EPOCH_AT, MAGIC_AT = 12, 16
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = 0, 1
_OFFSET, _EPOCH = Struct(">q"), Struct(">i")
_MARKER_VALUE = Struct(">hi")
"""Version and coordinator epoch."""
_CONTROL_KEY = Struct(">hh")
SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhiqiqiq")
_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")


class UnknownFormat(Exception):  # noqa: N818 - says what was found
    """A file is not what its format says. The message is one sentence."""


class FileBatch(NamedTuple):
    """One batch of a segment file."""

    position: int
    size_bytes: int
    """Of the whole batch at ``position``."""
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_end: bool
    """Its record is a transaction marker."""
    coordinator_epoch: int
    """of the marker, or -1"""


class ProducerRow(NamedTuple):
    """A producer as a snapshot has it. -1 means none, in all but the ID."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    open_from: int


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:0{NAME_DIGITS}d}{suffix}"


def offsets_of(folder: Path, suffix: str) -> list[int]:
    """The offsets in the names of a partition's files, sorted."""
    stems = (path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}"))
    return sorted(int(stem) for stem in stems if len(stem) == NAME_DIGITS and stem.isdecimal())


def batches(path: Path) -> Iterator[FileBatch]:
    """The batches of a segment. What follows the last whole one is omitted, as in Kafka after a crash. Raise
    UnknownFormat for batches from before Kafka 0.11."""
    size = path.stat().st_size
    if size < HEADER.size:
        return
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        at = 0
        while at + HEADER.size <= size:
            base, length, epoch, magic, _, attributes, delta, _, newest, who, fence, sequence, _ = HEADER.unpack_from(
                data, at
            )
            whole = length + LENGTH_OVERHEAD_BYTES
            if magic != MAGIC:
                raise UnknownFormat(f"{path} has a batch of magic {magic} at byte {at}; only {MAGIC} can be read.")
            if whole < HEADER.size or at + whole > size:
                return
            type_, coordinator = _control(data, at + HEADER.size) if attributes & CONTROL else (-1, -1)
            is_end, is_transactional = type_ in (ABORT, COMMIT), bool(attributes & TRANSACTIONAL)
            name = (who, fence, sequence)
            yield FileBatch(at, whole, base, base + delta, epoch, newest, *name, is_transactional, is_end, coordinator)
            at += whole


def placed(batch: bytes, offset: int, leader_epoch: int) -> bytes:
    """The same batch at another offset and in another leader epoch. Its CRC covers neither."""
    return _OFFSET.pack(offset) + batch[8:EPOCH_AT] + _EPOCH.pack(leader_epoch) + batch[MAGIC_AT:]


def _control(data: mmap, at: int) -> tuple[int, int]:
    """The type in the key of a control record that begins at ``at``, and the coordinator epoch in its value: length,
    attributes, timestamp and offset deltas and the length of the key come before them."""
    _, at = _varint(data, at)
    at += 1
    for _ in range(2):
        _, at = _varint(data, at)
    length, at = _varint(data, at)
    if length < _CONTROL_KEY.size:
        return -1, -1
    type_ = int(_CONTROL_KEY.unpack_from(data, at)[1])
    length, at = _varint(data, at + length)
    return type_, int(_MARKER_VALUE.unpack_from(data, at)[1]) if length >= _MARKER_VALUE.size else -1


def _varint(data: mmap, at: int) -> tuple[int, int]:
    """Return a zigzag number and where the next field begins."""
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at


# --- snapshots ------------------------------------------------------------------------------------------------------


def snapshot_rows(data: bytes) -> dict[int, ProducerRow]:
    """The producers of a snapshot by ID. Raise UnknownFormat if it is not whole."""
    head = _SNAPSHOT_HEAD.size
    if len(data) < head + _COUNT.size:
        raise UnknownFormat(f"a snapshot has only {len(data)} bytes.")
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    (count,) = _COUNT.unpack_from(data, head)
    if version != SNAPSHOT_VERSION or crc != crc32c(data[head:]):
        raise UnknownFormat(f"a snapshot has version {version}, and its checksum is {crc:#x}, not that of its bytes.")
    if len(data) != head + _COUNT.size + count * _PRODUCER.size:
        raise UnknownFormat(f"a snapshot of {count} producers has {len(data)} bytes.")
    rows = (ProducerRow(*fields) for fields in _PRODUCER.iter_unpack(data[head + _COUNT.size :]))
    return {row.producer_id: row for row in rows}


def snapshot_file(rows: Iterable[ProducerRow]) -> bytes:
    packed = [_PRODUCER.pack(*row) for row in rows]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def whole_snapshots(folder: Path) -> frozenset[int]:
    """The offsets of a partition's snapshots whose checksums fit."""
    return frozenset(
        offset for offset in offsets_of(folder, ".snapshot") if _is_whole(folder / file_name(offset, ".snapshot"))
    )


def _is_whole(path: Path) -> bool:
    try:
        snapshot_rows(path.read_bytes())
    except (OSError, UnknownFormat):
        return False
    return True


# --- indexes and checkpoints ----------------------------------------------------------------------------------------


def offset_index(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return an offset index of ``entries``: the last offset of a batch, relative to the segment's base, and the
    position of the batch."""
    return b"".join(_OFFSET_ENTRY.pack(*entry) for entry in entries)


def time_index(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return a time index of ``entries``: a timestamp in ms, and an offset relative to the segment's base."""
    return b"".join(_TIME_ENTRY.pack(*entry) for entry in entries)


def checkpoint(rows: Iterable[str]) -> str:
    """A checkpoint file of version 0: the version, the number of rows, the rows."""
    lines = list(rows)
    return "\n".join(["0", str(len(lines)), *lines, ""])


def checkpoint_rows(path: Path) -> list[list[str]]:
    """The rows of such a file as words. None are in a file that is missing. Raise UnknownFormat."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) < 2 or lines[0].strip() != "0" or lines[1].strip() != str(len(lines) - 2):
        raise UnknownFormat(f"{path} is no checkpoint file.")
    return [line.split() for line in lines[2:]]


def properties(path: Path) -> Mapping[str, str]:
    """The pairs of a Java properties file. A file that is missing has none."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}
