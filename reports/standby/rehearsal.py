"""Plan and run the queries of a verdict before a run has ended.

For a small history it takes longer to describe a query to Spark and to plan it than to run it, and a cold Java needs
twice the time of a warm one. So all queries are described over files that stand in for the tables. The rows in these
files are replaced several times: by one row in each table, then by the whole parts of the current run, and finally by
the whole run.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import schema
from reports.collect import JOBS_AT_ONCE, Findings, Progress, Query, collect, queries
from reports.columns import Table
from reports.decide import decide
from reports.early import link_whole_parts
from reports.job_rows import Row
from reports.manifest import Manifest
from reports.page.render import write_page
from reports.plots.catalogue import drawing_process
from reports.read_tables import (
    DECIDING,
    JobConfig,
    RunConfig,
    Tables,
    gather,
    look_again,
    present_in,
    read_gathered,
    tables_over,
)
from reports.spark import sized_for
from reports.standby.expected import Expected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _ignore(progress: str) -> None:
    """Nobody watches a rehearsal."""


NO_RUN = Manifest(scenario="rehearsal", seed=0, world="live", repeat_command="")
PASSES = 3
"""A fourth gains less than a second."""
_NOTHING = {"int64": 1, "float64": 1.0, "string": "", "bool": False}


@contextmanager
def rehearsing(spark: "SparkSession", expected: Expected) -> "Iterator[Rehearsal]":
    """Provide a rehearsal until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="crucible-rehearsal-") as folder, sized_for(spark, 0):
        files = {table.name: Path(folder) / f"{table.name}.parquet" for table in schema.TABLES}
        for table in schema.TABLES:
            gather([], table, files[table.name], empty=True)
        scans = {name: read_gathered(spark, file) for name, file in files.items()}
        runs = {run: RunConfig(external=int(expected.external)) for run in range(expected.runs)}
        for run, expiration_us in enumerate(expected.producer_expirations_us):
            runs[run] = replace(runs[run], producer_expiration_us=expiration_us)
        with tables_over(scans, expected.present, JobConfig(runs=runs)) as tables:
            yield Rehearsal(tables, files, scans)


class Rehearsal:
    """The queries over ``tables``, each of which is read from one file. It is created by ``rehearsing``."""

    def __init__(self, tables: Tables, files: Mapping[str, Path], scans: "Mapping[str, DataFrame]") -> None:
        self._tables = tables
        self._files = files
        self._scans = scans
        self._described: dict[Query, DataFrame] = {}
        self._planned: dict[Query, DataFrame] = {}
        self._has_rows = False  # whether Spark keeps rows of the files in memory

    def prepare(self, enough: Callable[[], bool], run_dir: Path | None = None, passes: int = PASSES) -> None:
        """Describe all queries, and then run them and draw the page ``passes`` times.

        It returns early once ``enough()``, which is called before each query, is true. ``run_dir`` is the folder of the
        current run.
        """
        drawing_process()
        self._each_of(queries(self._tables, len(self._tables.config.runs)), self._describe, enough)
        for number in range(passes):
            with tempfile.TemporaryDirectory(prefix="crucible-rehearsed-") as scratch:
                if enough():
                    return
                history = Path(scratch)
                if number == 0 or run_dir is None or link_whole_parts(run_dir, history) is None:
                    write_history(history)
                try:
                    findings = self.rehearse(history, enough)
                    if findings is not None:
                        write_page(history, NO_RUN, findings, decide(NO_RUN, findings, history))
                except (
                    Exception
                ):  # A job may require what an unfinished run lacks. What was prepared until then is kept.
                    return

    def rehearse(self, history: Path, enough: Callable[[], bool] = lambda: False) -> Findings | None:
        """Run all queries, and then plan them for the next time. Return None if ``enough()`` became true before."""
        (findings,) = self._findings([history], _ignore, lambda query: [] if enough() else self._rows(query))
        self._forget()
        self._each_of(list(self._described), self._plan, enough)
        return None if enough() else findings

    def suits(self, run_dirs: Sequence[Path], config: JobConfig) -> bool:
        """Return whether these runs have the expected tables, on this machine."""
        present = present_in(run_dirs)
        deciding = {(run, name) for run in range(len(run_dirs)) for name in DECIDING}
        return (
            present <= self._tables.present
            and present & deciding == self._tables.present & deciding
            and all(self._tables.config.runs.get(run) == value for run, value in config.runs.items())
            and not any((folder / schema.REMOTE_FILES).exists() for folder in run_dirs)
        )

    def findings(self, run_dirs: Sequence[Path], progress: Progress) -> list[Findings]:
        """Return the findings of ``collect`` in these runs. ``suits`` must be true for them."""
        if self._has_rows:
            self._forget()
        return self._findings(run_dirs, progress, self._rows)

    def _each_of(self, allowed: Sequence[Query], do: Callable[[Query], None], enough: Callable[[], bool]) -> None:
        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            list(pool.map(lambda query: None if enough() else do(query), allowed))

    def _findings(
        self, run_dirs: Sequence[Path], progress: Progress, run: Callable[[Query], list[Row]]
    ) -> list[Findings]:
        self._has_rows = True
        for table in schema.TABLES:
            gather(run_dirs, table, self._files[table.name], empty=True)
            look_again(self._scans[table.name])
        known = replace(self._tables, present=self._tables.present & present_in(run_dirs))
        return collect(known, len(run_dirs), progress, run=run)

    def _rows(self, query: Query) -> list[Row]:
        self._describe(query)
        planned = self._planned.pop(query, None)
        return query.rows(self._described[query], self._first_rows(query) if planned is None else planned)

    def _describe(self, query: Query) -> None:
        if query not in self._described:
            self._described[query] = query.job(self._tables)

    def _plan(self, query: Query) -> None:
        self._planned[query] = self._first_rows(query)
        self._planned[query]._jdf.queryExecution().executedPlan()

    def _first_rows(self, query: Query) -> "DataFrame":
        """Return a new frame each time, because Spark plans a frame once, and a plan keeps what it has broadcast."""
        return query.first_rows(self._described[query]).select("*")

    def _forget(self) -> None:
        """Drop the rows that were read, and the plans over them, so that the next results have none of them."""
        self._tables.forget()
        self._planned.clear()
        self._has_rows = False


def write_history(run_dir: Path) -> None:
    """Write a history with one row in each table. The rows need not be consistent."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for table in schema.TABLES:
        target = run_dir / table.path.replace("*", "0")
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([_row(table)], schema=schema.arrow_schema(table)), target)


def _row(table: Table) -> dict[str, Any]:
    return {column.name: _NOTHING[column.kind] for column in table.columns}
