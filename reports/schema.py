"""The history schema: the tables that a run leaves as Parquet. ``reports/rows.py`` and
``frame_rows.py`` declare their columns.

Writers (fleet recorder, simulator, suite) turn it into pyarrow schemas, and Spark jobs into StructTypes. All numbers
are int64 with the unit in the name. Times ``*_us`` are microseconds since the run's start (manifest.json:
``start_wall_us``), from one clock for the whole machine.
"""

import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from reports import frame_rows, rows
from reports.columns import ROW_TABLES, Table

TABLES: tuple[Table, ...] = tuple(ROW_TABLES.values())
FAULTS = ROW_TABLES[rows.FaultRow]
TRACE = ROW_TABLES[rows.TraceRow]
FETCH_COSTS = ROW_TABLES[rows.FetchCost]
FRAMES = ROW_TABLES[frame_rows.FrameRow]
FRAME_LINES = ROW_TABLES[frame_rows.FrameLineRow]
BROKER = ROW_TABLES[rows.BrokerSample]


def arrow_schema(table: Table) -> Any:
    """The table's pyarrow schema. pyarrow is imported only now."""
    import pyarrow as pa

    kinds = {"int64": pa.int64(), "float64": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
    return pa.schema([pa.field(each.name, kinds[each.kind], each.nullable) for each in table.columns])


FOOTER_BYTES = 3_500
"""A Parquet file of ours describes its columns in about so much, however few rows it has."""


REMOTE_FILES = "remote_files.json"
"""Stands in the folder of a run whose history lies elsewhere: each URL, with the path in the run and the size."""


def files_of(run_dir: Path, table: Table) -> list[str]:
    """The table's files in a run's folder, without empty ones. They are URLs if the history lies elsewhere."""
    if (elsewhere := _remote_files(run_dir)) is not None:
        return sorted(url for url, (path, size) in elsewhere.items() if fnmatch(path, table.path) and size > 0)
    return sorted(str(path) for path in run_dir.glob(table.path) if path.stat().st_size > 0)


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
