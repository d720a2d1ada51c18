"""damage-kept, judged from outside: what a file was after its damage stays on the disk, under its name or another one.

The records were durable, so they are no torn end of a log. Whoever repairs the node may need what is left of them. Only
files of topics that no client deletes are judged. Kafka: the files of a deleted topic are deleted.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from reports.manifest import Check

GUARANTEE: Final = "damage-kept"


class KeptDamage:
    """``topics`` are those that no client deletes. A file is known by the digest of all its bytes."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = frozenset(topics)
        self._damaged: list[tuple[Path, str, bytes]] = []

    def note(self, folder: Path, paths: Sequence[str]) -> None:
        """Remembers what these files of a stopped node are now. Paths are relative to the node's folder."""
        for path in paths:
            if path.partition("/")[0].rpartition("-")[0] in self._topics:
                self._damaged.append((folder, path, _digest(folder / path)))

    def judged(self, at_us: int) -> tuple[Check, ...]:
        """Returns the check, if anything was damaged. Call it when the nodes have ended."""
        if not self._damaged:
            return ()
        lost = list(self._lost())
        return (
            Check(
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
