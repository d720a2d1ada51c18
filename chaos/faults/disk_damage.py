"""Damage to a stopped node's files: which bits the fault ``disk_bit_flipped`` flips, and whether the node keeps the
file.

The guarantee damage-kept is judged from outside: what a file was after its damage stays on the disk, under its name or
another one. The records were durable, so they are no torn end of a log, and the person that repairs the node may need
what remains of them. Only files of topics that no client deletes are judged. Kafka: the files of a deleted topic are
deleted.
"""

import hashlib
import string
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from reference_broker.log.checkpoints import PARTITION_METADATA_FILE as PARTITION_METADATA
from reference_broker.ports.node_ports import RandomSource
from reference_broker.records.batch import LENGTH_OVERHEAD_BYTES
from reports.manifest import CheckResult

MAGIC_AT = 16
"""The byte of a batch with its format. A start checks it in each batch, and so finds the damage."""

ONE_TOPIC_ID_IN = 3
"""Every third flip, on average, is in a topic ID, if there is one."""

_TOPIC_ID = b"topic_id: "
_WHOLE_LETTERS = 21
"""Of the 22 letters of a topic ID the last one holds padding, too."""
_ALPHABET = f"{string.ascii_letters}{string.digits}-_".encode()


class Flip(NamedTuple):
    """One flipped bit of a file."""

    path: str
    bit: int
    """Number of the bit, counted from the start of the file."""

    def __str__(self) -> str:
        return f"bit {self.bit % 8} of byte {self.bit // 8} of {self.path}"


def is_aimed_at(path: str) -> bool:
    """Return whether the file holds records of a client's topic, or the ID of that topic. The path is relative to the
    node's folder."""
    folder, _, name = path.rpartition("/")
    is_wanted = name.endswith(".log") or name == PARTITION_METADATA
    return is_wanted and bool(folder) and not folder.startswith("__") and "." not in folder


def flips(files: Sequence[tuple[str, bytes]], random: RandomSource, matching: str | None = None) -> list[Flip]:
    """Draw one bit of these files, given as path and content; or, with the shell pattern ``matching``, one bit of each
    file whose path is like that."""
    if matching is None:
        flips = [aim(files, random)]
    else:
        flips = [aim([(path, content)], random) for path, content in files if fnmatchcase(path, matching)]
    return [flip for flip in flips if flip is not None]


def aim(files: Sequence[tuple[str, bytes]], random: RandomSource) -> Flip | None:
    """Draw a batch of these files and a bit of its magic byte. Sometimes draws a bit of a
    topic's ID instead, so that the file names another topic. None if there is nothing to draw."""
    aimed_files = [(path, content) for path, content in files if is_aimed_at(path)]
    ids = [
        (path, content) for path, content in aimed_files if path.endswith(PARTITION_METADATA) and _TOPIC_ID in content
    ]
    batches = [(path, at) for path, content in aimed_files if path.endswith(".log") for at in _batches(content)]
    if ids and (not batches or random.randint(1, ONE_TOPIC_ID_IN) == 1):
        path, content = ids[random.randint(0, len(ids) - 1)]
        bits = _bits_of_id(content)
        return Flip(path, bits[random.randint(0, len(bits) - 1)])
    if not batches:
        return None
    path, at = batches[random.randint(0, len(batches) - 1)]
    return Flip(path, (at + MAGIC_AT) * 8 + random.randint(0, 7))


def _batches(content: bytes) -> list[int]:
    positions, at = [], 0
    while at + MAGIC_AT < len(content):
        positions.append(at)
        at += LENGTH_OVERHEAD_BYTES + int.from_bytes(content[at + 8 : at + 12], "big")
    return positions


def _bits_of_id(content: bytes) -> list[int]:
    """The bits whose change leaves a topic ID that can be read."""
    begin = content.index(_TOPIC_ID) + len(_TOPIC_ID)
    return [
        at * 8 + bit
        for at in range(begin, min(begin + _WHOLE_LETTERS, len(content)))
        for bit in range(8)
        if content[at] ^ 1 << bit in _ALPHABET
    ]


GUARANTEE: Final = "damage-kept"


class DamageCheck:
    """``topics`` are those that no client deletes. A file is known by the digest of all its bytes."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = frozenset(topics)
        self._damaged: list[tuple[Path, str, bytes]] = []

    def note(self, folder: Path, paths: Sequence[str]) -> None:
        """Record the content of these files of a stopped node. Paths are relative to the node's folder."""
        for path in paths:
            if path.partition("/")[0].rpartition("-")[0] in self._topics:
                self._damaged.append((folder, path, _digest(folder / path)))

    def judged(self, at_us: int) -> tuple[CheckResult, ...]:
        """Return the check, if anything was damaged. Call it when the nodes have ended."""
        if not self._damaged:
            return ()
        lost = list(self._lost())
        return (
            CheckResult(
                guarantee=GUARANTEE,
                holds=not lost,
                evidence=len(self._damaged),
                at_us=at_us if lost else -1,
                detail="; ".join(lost),
            ),
        )

    def _lost(self) -> Iterator[str]:
        for folder in dict.fromkeys(folder for folder, _, _ in self._damaged):
            held = {_digest(path) for path in folder.rglob("*") if path.is_file()}
            for other, path, digest in self._damaged:
                if other == folder and digest not in held:
                    yield f"{folder.name}: nothing holds any more what {path} was after its damage"


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
