"""poll-skip: a fetcher's next read jumps over records that exist. int-poll-skip: the same inside one read."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import LOG, POLL, Judging
from reports.jobs.polls import skipped, steps_between_operations, steps_inside_operations
from reports.read_tables import Tables

NAME = "poll-skip"
INT_NAME = "int-poll-skip"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    steps = tables.once("between", steps_between_operations)
    return _rows(skipped(tables, steps), NAME, "Read to offset %s, then from %s")


def transform_inside(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    steps = tables.once("inside", steps_inside_operations)
    return _rows(skipped(tables, steps), INT_NAME, "One read holds offset %s, then %s")


def _rows(jumps: DataFrame, name: str, told: str) -> DataFrame:
    detail = sentence(
        told + ": %s records are left out, from offset %s.",
        F.col("expected") - 1,
        "first_offset",
        "skipped",
        "first_skipped",
    )
    return anomalies(jumps, name, detail, offset=F.col("first_skipped"))


JUDGED = Judging(
    NAME,
    needs=POLL,
    evidence="read_runs",
    unit="runs of records read",
    find=transform,
)


JUDGED_INSIDE = Judging(
    INT_NAME,
    needs=LOG,
    evidence="read_runs",
    unit="runs of records read",
    find=transform_inside,
)
