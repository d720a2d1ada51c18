"""Gathers a table's files of several runs in one file, with a leading ``run`` column (0, 1, ...).

Spark opens each file anew in each of its hundreds of small stages, and finds a row's run only by the text of its file's
path. With dozens of runs that takes minutes, and most of a verdict's time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reports.columns import Table
from reports.errors import SetupError
from reports.schema import arrow_schema, files_of

ROWS_AT_ONCE = 1 << 18


def gather(run_dirs: Sequence[Path], table: Table, target: Path, empty: bool = False) -> bool:
    """Writes the rows of all runs to the file ``target``. Returns False if no run has the table, and then writes
    nothing, or with ``empty`` a file without rows.

    A column that a file lacks is null. It holds about ROWS_AT_ONCE rows in memory at a time.
    Raises SetupError for a file that is damaged or has a column of another type.
    """
    files = [(run, name) for run, folder in enumerate(run_dirs) for name in files_of(folder, table)]
    if not files and not empty:
        return False
    schema = arrow_schema(table)
    schema = pa.schema([pa.field("run", pa.int64(), nullable=False), *(each.with_nullable(True) for each in schema)])
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(target, schema) as writer:
        for piece in _pieces(files, schema):
            waiting.append(piece)
            if sum(each.num_rows for each in waiting) >= ROWS_AT_ONCE:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return bool(files)


def _pieces(files: Sequence[tuple[int, str]], schema: pa.Schema) -> Iterator[pa.Table]:
    for run, name in files:
        try:
            yield from _pieces_of(run, name, schema)
        except (pa.ArrowException, OSError) as wrong:
            reason = str(wrong).partition("\n")[0].partition(". ")[0].rstrip(".")
            raise SetupError(f"{name} cannot be read as Parquet: {reason}.") from wrong


def _pieces_of(run: int, name: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with pq.ParquetFile(name) as file:
        known = [each for each in schema.names if each in file.schema_arrow.names]
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=known):
            columns = {each: batch.column(each).cast(schema.field(each).type) for each in known}
            columns["run"] = pa.repeat(pa.scalar(run, pa.int64()), batch.num_rows)
            absent = {each: pa.nulls(batch.num_rows, schema.field(each).type) for each in schema.names}
            yield pa.table({**absent, **columns}, schema=schema)
