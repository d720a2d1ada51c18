"""The verdict on a run in progress.

Its complete parts are a history in which only pending operations have no rows yet. Only guarantees whose violations no
later row can excuse are judged (``GuaranteeJob.excused_by``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.compacted_topics import has_keyed
from reports.jobs.expressions import READER
from reports.jobs.guarantee_job import GuaranteeJob, guarantee_jobs
from reports.parts import read_progress, whole_parts
from reports.read_tables import JobConfig, RunConfig, Tables, reading
from reports.rows import END_OF_RUN_US
from reports.schema import TABLES, history_bytes
from reports.spark import sized_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TakeTrace = Callable[[Path], None]
"""Writes the trace of all nodes up to now below the folder of a history."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The first violation of a guarantee in a history, and the number of all its violations."""

    guarantee: str
    total: int
    at_us: int
    detail: str


@dataclass(frozen=True, slots=True)
class EarlyVerdict:
    """The guarantees that were judged before the end of a run, and their violations."""

    until_us: int
    """The history of every writer is whole up to this time."""
    operations: int
    judged: tuple[str, ...]
    violations: tuple[Violation, ...]


def early_verdict(
    run_dir: Path,
    scratch: Path,
    spark: "SparkSession",
    take_trace: TakeTrace,
    config: RunConfig | None = None,
) -> EarlyVerdict | None:
    """Judge the whole parts of the run, or return None if there are none. Keep the folder ``scratch`` between calls.

    The traces are read after the clients' history, because they explain it and must extend further.
    """
    until_us = link_whole_parts(run_dir, scratch)
    if until_us is None:
        return None
    take_trace(scratch)
    with sized_for(spark, history_bytes([scratch])), reading_part(spark, [scratch], [config or RunConfig()]) as tables:
        jobs = early_jobs(tables)
        violations = [violation for job in jobs for violation in first_violation(job, tables)]
        operations = tables.operations.count()
    return EarlyVerdict(until_us, operations, tuple(job.name for job in jobs), tuple(violations))


def link_whole_parts(run_dir: Path, scratch: Path) -> int | None:
    """Link the complete parts of a run into the folder ``scratch``. Return the time up to which the parts of all
    writers extend."""
    progress = read_progress(run_dir)
    for writer in progress:
        for table in TABLES:
            for part in whole_parts(run_dir, table, writer):
                link = scratch / part.relative_to(run_dir)
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.symlink_to(part.resolve())
    running = [writer.until_us for writer in progress if not writer.closed]
    return min(running or [writer.until_us for writer in progress], default=None)


@contextmanager
def reading_part(spark: "SparkSession", run_dirs: Sequence[Path], configs: Sequence[RunConfig]) -> Iterator[Tables]:
    """Provide the tables of parts of histories."""
    with reading(spark, run_dirs, JobConfig(runs=dict(enumerate(configs)))) as tables:
        yield of_a_part(tables)


def of_a_part(tables: Tables) -> Tables:
    """Exclude the records of operations that have no row yet, and add the current assignments.

    An assignment gets its row when it ends. The next one resets the fetcher's position, so it must be known, too.
    """
    ended = tables.assignments.where(F.col("until_us") != END_OF_RUN_US)
    last = ended.groupBy(*READER).agg(F.max("until_us").alias("from_us"))
    following = last.select(
        *READER, "from_us", F.lit(END_OF_RUN_US).alias("until_us"), F.lit(-1).cast("long").alias("from_offset")
    )
    return replace(
        tables,
        reads=tables.reads.where("complete_us >= 0"),
        sends=tables.sends.where("complete_us >= 0"),
        assignments=tables.assignments.unionByName(following),
    )


def early_jobs(tables: Tables) -> list[GuaranteeJob]:
    """Return the jobs of the guarantees that can be judged by these parts of histories."""
    compacted = has_keyed(tables)
    present = {name for _, name in tables.present}
    return [
        job
        for job in guarantee_jobs()
        if job.is_judged_early(compacted)
        and all(need in present for need in job.needs)
        and (not job.found_in or job.found_in in present)
    ]


def first_violation(job: GuaranteeJob, tables: Tables) -> list[Violation]:
    """Return the first violation that the job finds in all of these runs, if any."""
    first = F.min(F.struct("at_us", "detail")).alias("first")
    counted = violations_of(job, tables).agg(F.count("*").alias("total"), first).collect()[0]
    return [Violation(job.name, counted["total"], *counted["first"])] if counted["total"] else []


def violations_of(job: GuaranteeJob, tables: Tables) -> DataFrame:
    return (job.early or job.find)(tables)
