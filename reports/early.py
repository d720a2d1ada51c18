"""Judges a run while it goes on, by the part of its history that is whole (``parts.py``).

A part of a history is a history of its own, except that what is under way has left no rows yet. Only guarantees whose
breach nothing can excuse that may still come are judged by it (``EXCUSED_BY`` in ``guarantees.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.guarantees import judged_early
from reports.jobs.compacted_topics import has_keyed
from reports.jobs.expressions import READER
from reports.jobs.guarantee_job import GuaranteeJob, guarantee_jobs
from reports.parts import told, whole_parts
from reports.read_tables import JobConfig, RunConfig, Tables, reading
from reports.rows import END_OF_RUN_US
from reports.schema import TABLES, history_bytes
from reports.spark import sized_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TakeTrace = Callable[[Path], None]
"""Writes what the nodes have traced so far below the folder of a history."""


@dataclass(frozen=True, slots=True)
class Breach:
    """The first breach of a guarantee that the history shows, and how many it shows."""

    guarantee: str
    total: int
    at_us: int
    detail: str


@dataclass(frozen=True, slots=True)
class EarlyVerdict:
    """``until_us`` is how far the history of every writer goes."""

    until_us: int
    operations: int
    judged: tuple[str, ...]
    breaches: tuple[Breach, ...]


def judge_early(run_dir: Path, scratch: Path, spark: "SparkSession", take_trace: TakeTrace) -> EarlyVerdict | None:
    """Judges what is whole by now. Returns None while nothing is. ``scratch`` is a folder that is kept between calls.

    The traces are taken after the clients' history, so that they go farther: they explain it.
    """
    until_us = link_whole_parts(run_dir, scratch)
    if until_us is None:
        return None
    take_trace(scratch)
    with sized_for(spark, history_bytes([scratch])), reading_part(spark, [scratch]) as tables:
        jobs = early_jobs(tables)
        breaches = [each for one in jobs for each in first_breach(one, tables)]
        operations = tables.operations.count()
    return EarlyVerdict(until_us, operations, tuple(one.name for one in jobs), tuple(breaches))


def link_whole_parts(run_dir: Path, scratch: Path) -> int | None:
    """Makes ``scratch`` the folder of a run that holds what is whole by now. Returns how far it goes (see above)."""
    progress = told(run_dir)
    for writer in progress:
        for table in TABLES:
            for part in whole_parts(run_dir, table, writer):
                link = scratch / part.relative_to(run_dir)
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.symlink_to(part.resolve())
    running = [each.until_us for each in progress if not each.closed]
    return min(running or [each.until_us for each in progress], default=None)


@contextmanager
def reading_part(spark: "SparkSession", run_dirs: Sequence[Path]) -> Iterator[Tables]:
    """The tables of parts of histories."""
    config = JobConfig(runs={run: RunConfig() for run in range(len(run_dirs))})
    with reading(spark, run_dirs, config) as tables:
        yield of_a_part(tables)


def of_a_part(tables: Tables) -> Tables:
    """Leaves out runs of operations that have no row yet. An assignment has its row only when it has ended, so the one
    that follows it is added: a fetcher's way begins anew there."""
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
    """The guarantees that can be judged by these parts of histories."""
    compacted = has_keyed(tables)
    present = {name for _, name in tables.present}
    return [
        one
        for one in guarantee_jobs()
        if judged_early(one.name, compacted)
        and all(each in present for each in one.needs)
        and (not one.found_in or one.found_in in present)
    ]


def first_breach(one: GuaranteeJob, tables: Tables) -> list[Breach]:
    """The first breach that the job finds in all of these runs, if there is one."""
    first = F.min(F.struct("at_us", "detail")).alias("first")
    found = breaches_of(one, tables).agg(F.count("*").alias("total"), first).collect()[0]
    return [Breach(one.name, found["total"], *found["first"])] if found["total"] else []


def breaches_of(one: GuaranteeJob, tables: Tables) -> DataFrame:
    return (one.early or one.find)(tables)
