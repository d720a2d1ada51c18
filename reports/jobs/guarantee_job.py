"""The Spark job of one guarantee, and the columns that all violations share.

A module of ``reports/jobs`` has a function with the decorator ``GuaranteeJob`` for each guarantee whose violations it
finds in a history. ``guarantee_jobs`` collects these functions, so a new one needs no entry elsewhere. A job builds its
result with ``anomalies``, and the details with ``sentence``.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports import jobs
from reports.guarantees import GUARANTEES, Guarantee
from reports.jobs.expressions import without_presets
from reports.read_tables import Tables

REPLICATION = ("F-22",)
"""Runs with replicated partitions exercise this clause."""
LOG = ("operations", "runs")
POLL = ("operations", "runs", "assignments")
ADMIN = ("operations", "changes")
COMPACTION = "a write that lets a cleaner take the record, in a compacted topic"
A_READ = "a read of the record, if only the last one"
A_COMMIT = "a commit that is under way and explains the offset"
THE_END = "the end, of which it speaks"


@dataclass(slots=True, kw_only=True)
class GuaranteeJob:
    """A decorator of the function that finds the violations of a guarantee, with the tables and the evidence that it
    requires. The function has the guarantee's name, with underscores."""

    needs: tuple[str, ...]
    """Tables; without one of them the guarantee is not judged."""
    evidence: str
    """The fact (``facts.py``) that says how much there was to judge."""
    unit: str
    """What ``evidence`` counts, as a plural noun."""
    about: tuple[str, ...] = ()
    """A run that exercises none of these clauses may lack evidence; () means no run may."""
    found_in: str = ""
    """A table with a row for each violation; without it there is nothing to compute."""
    instead: tuple[str, ...] = ()
    """Tables that replace those of ``needs``."""
    early: Callable[[Tables], DataFrame] | None = None
    """Used instead of ``find`` while the run goes on."""
    excused_by: str = ""
    """What may follow in a run that goes on and excuse an apparent violation; judged at the end then."""
    reads_to_end: bool = False
    """Not judged unless all written partitions were read to their end."""
    name: str = field(init=False)
    find: Callable[[Tables], DataFrame] = field(init=False)

    def __call__(self, find: Callable[[Tables], DataFrame]) -> Self:
        self.name, self.find = find.__name__.replace("_", "-"), find
        return self

    def missing(self, present: Collection[str]) -> list[str]:
        """Return the tables that are missing to judge this run."""
        if self.instead and all(name in present for name in self.instead):
            return []
        return [name for name in self.needs if name not in present]

    def is_judged_early(self, compacted: bool) -> bool:
        """Return whether a part of the history can prove a violation. ``compacted``: the run writes compacted topics.

        A part of the history is all that each process has recorded up to some moment, which differs among them.
        """
        return not self.excused_by or (self.excused_by == COMPACTION and not compacted)

    @property
    def guarantee(self) -> Guarantee:
        return GUARANTEES[self.name]


@cache
def guarantee_jobs() -> tuple[GuaranteeJob, ...]:
    """Return the jobs of all guarantees that a history can violate, in the order of ``GUARANTEES``."""
    modules = [import_module(f"{jobs.__name__}.{module.name}") for module in iter_modules(jobs.__path__)]
    by_name = {job.name: job for module in modules for job in vars(module).values() if isinstance(job, GuaranteeJob)}
    unknown = [name for name in by_name if name not in GUARANTEES]
    assert not unknown, f"a job judges {unknown}, which reports/guarantees.py does not name"
    return tuple(by_name[name] for name in GUARANTEES if name in by_name)


_DOES_NOT_APPLY = {"topic": "", "partition": -1, "offset": -1, "process": "", "index": -1}
_NUMBERS = ("run", "partition", "offset", "index", "at_us")


def anomalies(frame: DataFrame, detail: Column, **given: Column | str | int) -> DataFrame:
    """Return the violations with the columns run, topic, partition, offset, process, index, at_us and detail.

    Each column is the frame's column of that name, unless ``given`` names or makes another one. A column that the frame
    lacks does not apply to the violation. The time is ``at_us`` or, if the frame has no such column, the end of the
    operation, ``complete_us``.
    """
    columns: dict[str, Column | str | int] = {"run": "run"}
    for name, nothing in _DOES_NOT_APPLY.items():
        columns[name] = name if name in frame.columns else F.lit(nothing)
    columns["at_us"] = "at_us" if "at_us" in frame.columns else "complete_us"
    made = {name: _column(column) for name, column in (columns | given).items()}
    shaped = {name: column.cast("long") if name in _NUMBERS else column for name, column in made.items()}
    return frame.select(*(column.alias(name) for name, column in shaped.items()), detail.alias("detail"))


def metadata_log_anomalies(frame: DataFrame, detail: Column, **given: Column | str | int) -> DataFrame:
    """Return violations of the quorum or of the metadata log, as ``anomalies`` does."""
    return anomalies(frame, detail, topic=F.lit("__cluster_metadata"), partition=0, **given)


def _column(value: Column | str | int) -> Column:
    if isinstance(value, Column):
        return value
    return F.col(value) if isinstance(value, str) else F.lit(value)


def sentence(template: str, *columns: str | Column) -> Column:
    """Format the columns as ``printf`` does; every column is a %s."""
    return F.format_string(template, *(_column(column).cast("string") for column in columns))


def counted(count: str | Column, singular: str, plural: str) -> Column:
    """Return ``singular`` if the count is 1, else ``plural``, whose %s is the count."""
    return F.when(_column(count) == 1, F.lit(singular)).otherwise(sentence(plural, count))


LOSING_KINDS = "^(node_|host_lost|directory_|files_|rolling_|disk_(error|full|write|bit)|link_(cut|down))"
"""Faults that can lose a broker's data or partition it from the others. Slow and lost frames cannot."""
_LOSES = f"mark.kind rlike '{LOSING_KINDS}'"
_ACKNOWLEDGED = ("lost-write", "unseen", "lost-transaction")
"""The time of these violations is that of the acknowledgement, so the cause of the loss came later."""
_LOSSES = tuple(name for name, guarantee in GUARANTEES.items() if guarantee.keeps_writes)


def with_active_fault(violations: DataFrame, faults: DataFrame) -> DataFrame:
    """Add the column ``fault``, the fault that best explains each violation, by an as-of join.

    Active faults come first, then faults of this client, then the latest fault. The loss of records is attributed to a
    fault that can lose records, if there is one: to the first one since the acknowledgement if the record was
    acknowledged, and otherwise to the latest one before. The faults are broadcast. ``violations`` must be small, which
    it is because it holds examples only.
    """
    # The aliases are "violation" and "mark", a fault. The number keeps violations apart that have equal columns.
    numbered = violations.withColumn("number", F.monotonically_increasing_id()).alias("violation")
    marks = F.broadcast(without_presets(faults)).alias("mark")

    # 1. Candidates: the faults that began before the violation. The time of a loss is that of its acknowledgement, so
    #    faults that can lose records and end after it are candidates, too.
    explains_loss = F.col("violation.guarantee").isin(*_LOSSES) & F.expr(_LOSES)
    is_acknowledged = F.col("violation.guarantee").isin(*_ACKNOWLEDGED)
    since_acknowledged = explains_loss & is_acknowledged & F.expr("mark.until_us >= violation.at_us")
    began_before = F.expr("mark.at_us <= violation.at_us")
    same_run = F.expr("mark.run = violation.run")
    joined = numbered.join(marks, same_run & (since_acknowledged | began_before), "left")

    # 2. The best candidate of a violation has the greatest score. Structs are compared field by field.
    loss_rank = F.when(since_acknowledged, 2).when(explains_loss, 1).otherwise(0).alias("loss_rank")
    earliest_first = F.when(since_acknowledged, -F.col("mark.at_us")).otherwise(0).alias("earliest_first")
    active = F.expr("mark.until_us >= violation.at_us and mark.at_us <= violation.at_us").alias("active")
    same_client = F.expr("mark.client_id = violation.process and violation.process != ''").alias("same_client")
    latest_first, named_by = "mark.at_us", ("mark.until_us", "mark.name", "mark.hit")
    score = F.struct(loss_rank, earliest_first, active, same_client, latest_first, *named_by)
    best = F.max(F.when(F.col("mark.name").isNotNull(), score)).alias("best")

    # 3. Its text, such as "link_cut #2", "1.5 s after link_cut #2", or "0.3 s before node_killed #1".
    named = sentence("%s #%s", "best.name", "best.hit")
    since_s = F.format_number((F.col("at_us") - F.col("best.until_us")) / 1e6, 1)
    before_s = F.format_number((F.col("best.at_us") - F.col("at_us")) / 1e6, 1)
    text = (
        F.when(F.col("best").isNull(), "")
        .when(F.col("best.active"), named)
        .when(F.col("best.at_us") > F.col("at_us"), F.concat(before_s, F.lit(" s before "), named))
        .otherwise(F.concat(since_s, F.lit(" s after "), named))
    )
    ranked = joined.groupBy("number", *(f"violation.{name}" for name in violations.columns)).agg(best)
    return ranked.select(*violations.columns, text.alias("fault"))
