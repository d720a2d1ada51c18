"""The complete parts of a history still being written.

A Parquet file cannot be read without its footer, so a writer closes its files from time to time and continues in new
ones. A file that is not whole has the suffix ``.open``. When a writer has closed a part of all its tables, it writes
the number of whole parts to its *progress*. These parts contain all rows that the writer had recorded until then, so a
reader never sees the spans of an operation without the operation.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from reports.columns import Table

OPEN = ".open"
"""The suffix of a file that is still written."""
ROLL_S = 30
"""The length of a part."""
_SUFFIX = ".progress.json"
_FOLDER = "history"


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of whole parts of one writer."""

    writer: str
    parts: int
    """Number of whole parts."""
    until_us: int
    """When the last of them was closed, since the run's start."""
    closed: bool = False
    """No more parts will follow."""


def part_of(run_dir: Path, table: Table, writer: str, part: int = 0) -> Path:
    """Return the file of a table's part from ``writer`` (a worker's name). Part 0 has no number in its name."""
    pattern = run_dir / table.path
    named = f"{writer}.{part:04}" if part else writer
    return pattern.with_name(pattern.name.replace("*", f"-{named}").lstrip("-"))


def write_progress(run_dir: Path, progress: Progress) -> None:
    """Write the progress of a writer atomically."""
    path = run_dir / _FOLDER / f"{progress.writer}{_SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(OPEN)
    unfinished.write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")
    unfinished.replace(path)


def read_progress(run_dir: Path) -> list[Progress]:
    """Read the progress of each writer that has closed a part."""
    files = sorted((run_dir / _FOLDER).glob(f"*{_SUFFIX}"))
    return [Progress(**json.loads(file.read_text(encoding="utf-8"))) for file in files]


def whole_parts(run_dir: Path, table: Table, progress: Progress) -> Iterator[Path]:
    """Yield the whole files that a writer has added to a table."""
    for part in range(progress.parts):
        path = part_of(run_dir, table, progress.writer, part)
        if path.exists():
            yield path
