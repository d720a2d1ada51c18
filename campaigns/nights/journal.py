"""A night's rows while it is played: lines of JSON, each kept as soon as its play has ended.

A line is in the page cache before the night goes on, so a SIGKILL loses none. At the end of each stage all rows are
written as Parquet, and at the night's end the journal goes.
"""

import fcntl
import os
from collections import defaultdict
from pathlib import Path
from typing import TypeVar

import msgspec

from reports.columns import Row
from reports.night import NIGHT_TABLES, write_rows

NAME = "journal.jsonl"
KINDS = {table.name: kind for kind, table in NIGHT_TABLES.items()}

R = TypeVar("R", bound=Row)


class BusyError(Exception):
    """Somebody else plays this night at the moment."""


class Journal:
    """The rows of one night. Only one process may have it open."""

    def __init__(self, folder: Path) -> None:
        """Opens the journal, or makes a new one. Raises BusyError."""
        self._path = folder / NAME
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise BusyError(f"another process plays the night in {folder}: wait for it, or stop it") from None
        self.rows: defaultdict[type[Row], list[Row]] = defaultdict(list)
        for line in self._whole_lines():
            name, values = msgspec.json.decode(line)
            kind = KINDS[name]
            self.rows[kind].append(kind(*values))

    def _whole_lines(self) -> list[bytes]:
        """A power loss may have torn the last line. It goes, so that the next one does not continue it."""
        text = self._path.read_bytes()
        whole, mark, _torn = text.rpartition(b"\n")
        os.ftruncate(self._descriptor, len(whole) + len(mark))
        return whole.splitlines()

    def add(self, row: Row) -> None:
        self.rows[type(row)].append(row)
        line = msgspec.json.encode((NIGHT_TABLES[type(row)].name, row.values()))
        os.write(self._descriptor, line + b"\n")

    def of(self, kind: type[R]) -> list[R]:
        return [each for each in self.rows[kind] if isinstance(each, kind)]

    def write_tables(self, folder: Path) -> None:
        """Writes all tables of the night, also those that have no rows."""
        for kind in NIGHT_TABLES:
            write_rows(folder, kind, self.rows[kind])

    def close(self, done: bool) -> None:
        """``done``: the night has ended and its tables are written, so nobody needs the journal."""
        if done:
            self._path.unlink()
        os.close(self._descriptor)


def is_left(folder: Path) -> bool:
    """Whether the night was stopped before all of its rows were written as tables."""
    return (folder / NAME).exists()
