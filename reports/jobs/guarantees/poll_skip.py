"""poll-skip: a fetcher's next read jumps over records that exist. int-poll-skip: the same inside one read."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, counted, sentence
from reports.jobs.shared.judging import LOG, POLL, Judging
from reports.jobs.shared.polls import skipped, steps_between_operations, steps_inside_operations
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    return _jumped(tables, steps_between_operations, "It read to offset %s, and then from %s")


def transform_inside(tables: Tables) -> DataFrame:
    return _jumped(tables, steps_inside_operations, "One read holds offset %s, and then %s")


def _jumped(tables: Tables, steps: Callable[[Tables], DataFrame], told: str) -> DataFrame:
    jumps = skipped(tables, tables.once(steps))
    detail = sentence(
        told + ". %s, from offset %s.",
        F.col("expected") - 1,
        "first_offset",
        counted("skipped", "One record is left out", "%s records are left out"),
        "first_skipped",
    )
    return anomalies(jumps, detail, offset="first_skipped")


JUDGED = Judging(
    "poll-skip",
    needs=POLL,
    evidence="read_runs",
    unit="runs of records read",
    find=transform,
)

JUDGED_INSIDE = Judging(
    "int-poll-skip",
    needs=LOG,
    evidence="read_runs",
    unit="runs of records read",
    find=transform_inside,
)
