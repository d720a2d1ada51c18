"""Plans the queries of a judging, and tries them, before there is a run to judge.

Over a small history it takes longer to describe a query to Spark and to plan it than to answer it, and a cold Java
takes twice the time of a warm one. So all queries are described over files that stand in for the tables. Other rows
take the place of those in the files again and again: first one row in each table, then what is whole of the run that
goes on, and at last the run that is to be judged.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import schema
from reports.collect import JOBS_AT_ONCE, Findings, Progress, Query, Row, collect, queries
from reports.columns import Table
from reports.decide import decide
from reports.early import link_whole_parts
from reports.expected import Expected
from reports.judge import silent
from reports.manifest import Manifest
from reports.page.render import write_page
from reports.plots.helper import helper
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_RUN = Manifest(scenario="rehearsal", seed=0, world="live", repeat_command="")
PASSES = 3
"""A fourth gains less than a second."""
_NOTHING = {"int64": 1, "float64": 1.0, "string": "", "bool": False}


@contextmanager
def rehearsing(spark: "SparkSession", expected: Expected) -> "Iterator[Rehearsal]":
    """A rehearsal that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="crucible-rehearsal-") as folder, sized_for(spark, 0):
        files = {table.name: Path(folder) / f"{table.name}.parquet" for table in schema.TABLES}
        for table in schema.TABLES:
            gather([], table, files[table.name], empty=True)
        scans = {name: read_gathered(spark, file) for name, file in files.items()}
        config = JobConfig(runs={run: RunConfig(foreign=int(expected.foreign)) for run in range(expected.runs)})
        with tables_over(scans, expected.present, config) as tables:
            yield Rehearsal(tables, files, scans)


class Rehearsal:
    """Queries over ``tables``, of which each is a file of its own. Make it by ``rehearsing``."""

    def __init__(self, tables: Tables, files: Mapping[str, Path], scans: "Mapping[str, DataFrame]") -> None:
        self._tables = tables
        self._files = files
        self._scans = scans
        self._described: dict[Query, DataFrame] = {}
        self._planned: dict[Query, DataFrame] = {}
        self._keeps_rows = False

    def prepare(self, enough: Callable[[], bool], run_dir: Path | None = None, passes: int = PASSES) -> None:
        """Describes all queries, and then answers them and draws the page a few times. It ends early if ``enough()``,
        which is asked before each query. ``run_dir`` is the folder of a run that goes on."""
        helper()
        self._each_of(queries(self._tables, len(self._tables.config.runs)), self._describe, enough)
        for number in range(passes):
            with tempfile.TemporaryDirectory(prefix="crucible-rehearsed-") as scratch:
                if enough():
                    return
                history = Path(scratch)
                if number == 0 or run_dir is None or link_whole_parts(run_dir, history) is None:
                    write_history(history)
                try:
                    found = self.rehearse(history, enough)
                    if found is not None:
                        write_page(history, NO_RUN, found, decide(NO_RUN, found, history))
                except Exception:  # A job may expect what a run that goes on has not yet. What is prepared stays.
                    return

    def rehearse(self, history: Path, enough: Callable[[], bool] = lambda: False) -> Findings | None:
        """Answers all queries, and then plans them for the next time. Returns None if it was ``enough()`` before."""
        (found,) = self._answered([history], silent, lambda query: [] if enough() else self._rows(query))
        self._forget()
        self._each_of(list(self._described), self._plan, enough)
        return None if enough() else found

    def suits(self, run_dirs: Sequence[Path], config: JobConfig) -> bool:
        """Whether these runs have what was expected, and lie here."""
        present = present_in(run_dirs)
        deciding = {(run, name) for run in range(len(run_dirs)) for name in DECIDING}
        return (
            present <= self._tables.present
            and present & deciding == self._tables.present & deciding
            and all(self._tables.config.runs.get(run) == each for run, each in config.runs.items())
            and not any((folder / schema.REMOTE_FILES).exists() for folder in run_dirs)
        )

    def judge(self, run_dirs: Sequence[Path], progress: Progress) -> list[Findings]:
        """What ``collect`` finds in these runs, which must suit."""
        if self._keeps_rows:
            self._forget()
        return self._answered(run_dirs, progress, self._rows)

    def _each_of(self, some: Sequence[Query], do: Callable[[Query], None], enough: Callable[[], bool]) -> None:
        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            list(pool.map(lambda query: None if enough() else do(query), some))

    def _answered(
        self, run_dirs: Sequence[Path], progress: Progress, answer: Callable[[Query], list[Row]]
    ) -> list[Findings]:
        self._keeps_rows = True
        for table in schema.TABLES:
            gather(run_dirs, table, self._files[table.name], empty=True)
            look_again(self._scans[table.name])
        known = replace(self._tables, present=self._tables.present & present_in(run_dirs))
        return collect(known, len(run_dirs), progress, answer=answer)

    def _rows(self, query: Query) -> list[Row]:
        self._describe(query)
        planned = self._planned.pop(query, None)
        return query.rows(self._described[query], self._asked(query) if planned is None else planned)

    def _describe(self, query: Query) -> None:
        if query not in self._described:
            self._described[query] = query.job(self._tables)

    def _plan(self, query: Query) -> None:
        self._planned[query] = self._asked(query)
        self._planned[query]._jdf.queryExecution().executedPlan()

    def _asked(self, query: Query) -> "DataFrame":
        """A new frame each time. Spark plans a frame once, and what it has planned keeps what it broadcast."""
        return query.asked(self._described[query]).select("*")

    def _forget(self) -> None:
        """Makes the rows that were read or planned with no part of the next answers."""
        self._tables.forget()
        self._planned.clear()
        self._keeps_rows = False


def write_history(run_dir: Path) -> None:
    """Leaves one row in each table. They show nothing and need not fit together."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for table in schema.TABLES:
        target = run_dir / table.path.replace("*", "0")
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([_row(table)], schema=schema.arrow_schema(table)), target)


def _row(table: Table) -> dict[str, Any]:
    return {column.name: _NOTHING[column.kind] for column in table.columns}
