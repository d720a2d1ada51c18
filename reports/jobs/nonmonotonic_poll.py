"""nonmonotonic-poll: a fetcher's next read goes back. int-nonmonotonic-poll: the same inside one read."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import LOG, POLL, Judging
from reports.jobs.polls import gone_back, steps_between_operations, steps_inside_operations
from reports.read_tables import Tables

NAME = "nonmonotonic-poll"
INT_NAME = "int-nonmonotonic-poll"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    steps = tables.once("between", steps_between_operations)
    return _rows(gone_back(steps), NAME, "Read to offset %s, then from %s again.")


def transform_inside(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    steps = tables.once("inside", steps_inside_operations)
    return _rows(gone_back(steps), INT_NAME, "One read holds offset %s, then %s again.")


def _rows(steps: DataFrame, name: str, told: str) -> DataFrame:
    return anomalies(steps, name, sentence(told, F.col("expected") - 1, "first_offset"), offset=F.col("first_offset"))


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
