"""Which bit of a stopped node's files the fault ``disk_bit_flipped`` turns over."""

from collections.abc import Sequence
from typing import NamedTuple

from reference_broker.ports.chance import RandomSource
from reference_broker.records.batch import LENGTH_OVERHEAD_BYTES

MAGIC_AT = 16
"""The byte of a batch that names its format. A start looks at it in every batch, and so finds the damage."""


class Flip(NamedTuple):
    """``bit`` is counted from the start of the file."""

    path: str
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit % 8} of byte {self.bit // 8} of {self.path}"


def is_aimed_at(path: str) -> bool:
    """Whether the file holds records of a client's topic. The path is relative to the node's folder."""
    folder, _, name = path.rpartition("/")
    return name.endswith(".log") and bool(folder) and not folder.startswith("__") and "." not in folder


def aim(files: Sequence[tuple[str, bytes]], random: RandomSource) -> Flip | None:
    """Draws a batch of these files, given as path and content, and a bit of its magic byte. None if there is none."""
    found = [(path, at) for path, content in files if is_aimed_at(path) for at in _batches(content)]
    if not found:
        return None
    path, at = found[random.randint(0, len(found) - 1)]
    return Flip(path, (at + MAGIC_AT) * 8 + random.randint(0, 7))


def _batches(content: bytes) -> list[int]:
    found, at = [], 0
    while at + MAGIC_AT < len(content):
        found.append(at)
        at += LENGTH_OVERHEAD_BYTES + int.from_bytes(content[at + 8 : at + 12], "big")
    return found
