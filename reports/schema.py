"""The Parquet schema. ``reports/rows.py`` declares the columns.

Writers (fleet recorder, simulator, suite) turn it into pyarrow schemas, and Spark jobs into StructTypes. All numbers
are int64 with the unit in the name. Times ``*_us`` are microseconds since the run's start (manifest.json:
``start_wall_us``), from one clock for the whole machine.
"""

import json
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from reports import rows
from reports.columns import ROW_TABLES, Table

TABLES: tuple[Table, ...] = tuple(ROW_TABLES.values())
FAULTS = ROW_TABLES[rows.FaultRow]
TRACE = ROW_TABLES[rows.TraceRow]
FETCH_COSTS = ROW_TABLES[rows.FetchCost]
FRAMES = ROW_TABLES[rows.FrameRow]
FRAME_LINES = ROW_TABLES[rows.FrameLineRow]
BROKER = ROW_TABLES[rows.BrokerSample]


def arrow_schema(table: Table) -> Any:
    """The table's pyarrow schema. pyarrow is imported only now."""
    import pyarrow as pa

    kinds = {"int64": pa.int64(), "float64": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
    return pa.schema([pa.field(column.name, kinds[column.kind], column.nullable) for column in table.columns])


FOOTER_BYTES = 3_500
"""About what the description of the columns takes in a Parquet file of ours, however few rows it has."""


REMOTE_FILES = "remote_files.json"
"""Is in the folder of a run whose history is elsewhere: each URL, with the path in the run and the size."""


FORMER_PATHS = {"described_transactions": "history/told_transactions*.parquet"}
"""Tables of older runs that had other files."""
FORMER_COLUMNS = {
    "response_session_id": "answered_session_id",
    "partitions_returned": "partitions_answered",
    "response_seq": "answered_seq",
    "response_bytes": "answer_bytes",
    "requested_end": "asked",
    "queried_us": "asked_us",
    "received_us": "told_us",
}
"""Columns that had another name in older runs."""


def files_of(run_dir: Path, table: Table) -> list[str]:
    """The table's files in a run's folder, without empty ones. They are URLs if the history is elsewhere."""
    patterns = (table.path, FORMER_PATHS.get(table.name, table.path))
    if (elsewhere := _remote_files(run_dir)) is not None:
        named = (
            (url, size)
            for url, (path, size) in elsewhere.items()
            if any(fnmatch(path, pattern) for pattern in patterns)
        )
        return sorted(url for url, size in named if size > 0)
    files = {str(path) for pattern in patterns for path in run_dir.glob(pattern) if path.stat().st_size > 0}
    return sorted(files)


def stored_files(run_dir: Path) -> dict[str, int]:
    """Return the size in bytes of each file of a table, by its path in the run, also where the history is elsewhere."""
    patterns = {pattern for table in TABLES for pattern in (table.path, FORMER_PATHS.get(table.name, table.path))}
    if (elsewhere := _remote_files(run_dir)) is not None:
        return dict(elsewhere.values())
    files = {path for pattern in patterns for path in run_dir.glob(pattern)}
    return {path.relative_to(run_dir).as_posix(): path.stat().st_size for path in sorted(files)}


PARQUET_MARK = b"PAR1"
"""Begins and ends a Parquet file."""


def damaged_file(run_dirs: Sequence[Path]) -> Path | None:
    """The first file of a table, in a folder on this machine, that is no whole Parquet file; None if all are."""
    here = (folder for folder in run_dirs if _remote_files(folder) is None)
    files = (Path(name) for folder in here for table in TABLES for name in files_of(folder, table))
    return next((file for file in files if not is_whole(file)), None)


def is_whole(parquet: Path) -> bool:
    """Return whether the file begins and ends as a Parquet file does."""
    size, mark = parquet.stat().st_size, len(PARQUET_MARK)
    with parquet.open("rb") as file:
        first = file.read(mark)
        file.seek(max(0, size - 2 * mark))
        footer_bytes, last = int.from_bytes(file.read(mark), "little"), file.read(mark)
    return first == last == PARQUET_MARK and footer_bytes + 3 * mark <= size


def history_bytes(run_dirs: Sequence[Path]) -> int:
    """The stored size of all tables of these runs, without what each file takes on top of its rows."""
    sizes: list[int] = []
    for folder in run_dirs:
        elsewhere = _remote_files(folder)
        if elsewhere is not None:
            sizes += (size for _, size in elsewhere.values())
        else:
            sizes += (Path(name).stat().st_size for table in TABLES for name in files_of(folder, table))
    return sum(max(0, size - FOOTER_BYTES) for size in sizes)


def _remote_files(run_dir: Path) -> dict[str, tuple[str, int]] | None:
    listing = run_dir / REMOTE_FILES
    return json.loads(listing.read_text(encoding="utf-8")) if listing.exists() else None


def documented() -> str:
    """The tables as a Markdown page, generated from their declarations."""
    lines = [
        "# The history of a run",
        "",
        "Each run leaves these tables as Parquet files below its folder. `.venv/bin/python -m reports.schema >",
        "docs/history.md` makes this page. Moments are microseconds since the start of the run. `operations` has one",
        "row for each request or attempt of a client: `f` says what it did, and `type` how that ended, as in Jepsen's",
        "histories (`ok`, `fail`, or `info` where that is unknown). Other tables name an operation by `process` and",
        "`index`.",
        "",
        "```python",
        "import pyarrow.dataset",
        "",
        'pyarrow.dataset.dataset(sorted(run.glob("history/operations*.parquet"))).to_table().to_pandas()',
        "```",
    ]
    for table in sorted(TABLES, key=lambda table: table in (FRAMES, FRAME_LINES)):
        lines += ["", f"## {table.name}", "", f"`{table.path}`: {' '.join(table.doc.split())}", ""]
        lines += ["| column | type | what it says |", "| --- | --- | --- |"]
        lines += [f"| {column.name} | {column.kind} | {_meaning(column.doc)} |" for column in table.columns]
    return "\n".join(lines) + "\n"


def _meaning(doc: str) -> str:
    return doc.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(documented())
