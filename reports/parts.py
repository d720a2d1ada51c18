"""How a run's history grows while the run goes on: each writer's files come in parts.

A Parquet file without its footer cannot be read, so a writer ends its files now and then and goes on in new ones. A
file that is not whole has the suffix ``.open``. After a writer has ended a part of all its tables, it says in its
*progress* how many parts are whole. Together they hold all that the writer had recorded until then, so a reader who
takes just these never sees the runs of an operation without the operation.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from reports.columns import Table

OPEN = ".open"
"""The suffix of a file that is still written."""
ROLL_S = 30
"""A part of the history holds so much of a run."""
_SUFFIX = ".progress.json"
_FOLDER = "history"


@dataclass(frozen=True, slots=True)
class Progress:
    """``parts`` of the writer are whole. ``until_us`` is when the last of them was ended, since the run's start.
    ``closed`` says that no more will come."""

    writer: str
    parts: int
    until_us: int
    closed: bool = False


def part_of(run_dir: Path, table: Table, writer: str, part: int = 0) -> Path:
    """The file that ``writer`` (a worker's name) adds to a table. The first part has no number in its name."""
    pattern = run_dir / table.path
    named = f"{writer}.{part:04}" if part else writer
    return pattern.with_name(pattern.name.replace("*", f"-{named}").lstrip("-"))


def tell(run_dir: Path, progress: Progress) -> None:
    """Writes a writer's progress whole or not at all."""
    path = run_dir / _FOLDER / f"{progress.writer}{_SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = path.with_suffix(OPEN)
    waiting.write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")
    waiting.replace(path)


def told(run_dir: Path) -> list[Progress]:
    """The progress of each writer that has ended a part."""
    files = sorted((run_dir / _FOLDER).glob(f"*{_SUFFIX}"))
    return [Progress(**json.loads(each.read_text(encoding="utf-8"))) for each in files]


def whole_parts(run_dir: Path, table: Table, progress: Progress) -> Iterator[Path]:
    """The files that a writer has added to a table, as far as it says that they are whole."""
    for part in range(progress.parts):
        path = part_of(run_dir, table, progress.writer, part)
        if path.exists():
            yield path
