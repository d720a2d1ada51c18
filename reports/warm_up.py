"""Makes Java and Spark warm before there is a run to judge.

A cold Java takes twice the processor time of a warm one: it loads some twenty thousand classes and interprets them
first. So the jobs run over a history of one row in each table, and then over what is whole of the run that is to be
judged. A page is written of what they find.
"""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import schema
from reports.columns import Table
from reports.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_RUN = Manifest(scenario="warm-up", seed=0, world="live", repeat_command="")
PASSES = 3
"""A fourth gains less than a second."""
_NOTHING = {"int64": 1, "float64": 1.0, "string": "", "bool": False}


def warm_up(spark: "SparkSession", enough: Callable[[], bool], run_dir: Path | None = None) -> None:
    """Runs all jobs a few times. It ends early if ``enough()``, which is asked before each query. ``run_dir`` is the
    folder of a run that goes on."""
    from reports.early import link_whole_parts

    for number in range(PASSES):
        with tempfile.TemporaryDirectory(prefix="crucible-warm-up-") as scratch:
            if number == 0 or run_dir is None or link_whole_parts(run_dir, Path(scratch)) is None:
                write_history(Path(scratch))
            _judge(Path(scratch), spark, enough)


def warm_up_once(spark: "SparkSession", scratch: Path) -> None:
    """Runs all jobs over one row in each table, which it leaves in ``scratch``."""
    write_history(scratch)
    _judge(scratch, spark, lambda: False)


def _judge(run_dir: Path, spark: "SparkSession", enough: Callable[[], bool]) -> None:
    from reports.collect import JOBS_AT_ONCE, findings_of, queries
    from reports.decide import decide
    from reports.jobs.shared.config import JobConfig, RunConfig
    from reports.page.render import write_page
    from reports.read_tables import reading
    from reports.spark import sized_for

    if enough():
        return
    with sized_for(spark, 0), reading(spark, [run_dir], JobConfig(runs={0: RunConfig()})) as tables:
        asked = queries(tables, 1)
        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            answers = list(pool.map(lambda query: [] if enough() else query.rows(), asked))
        if enough():
            return
        (found,) = findings_of(tables, 1, list(zip(asked, answers, strict=True)))
    write_page(run_dir, NO_RUN, found, decide(NO_RUN, found, run_dir))


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
