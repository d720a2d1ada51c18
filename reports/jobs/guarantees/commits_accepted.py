"""commits-accepted, as far as a group's members tell: a commit is refused that should have passed.

M-7: a coordinator refuses a commit if the last one for the partition had a greater metadata epoch. So some commit with
a greater epoch must have begun before the refusal came, and no acknowledged commit may be known to have followed it.
M-11: a commit in a version without the epoch leaves -1, and any epoch may follow it. An unknown version, an invalid
request or an unknown error of the server is never right. The simulator also judges refusals of unknown topics.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.commits import STORED, requests, with_known_before, written
from reports.jobs.shared.expressions import without_match
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables

OLDER = "INVALID_METADATA_EPOCH"
NEVER_RIGHT = ("UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST")


def transform(tables: Tables) -> DataFrame:
    asked = tables.once(requests).where("kind = 'commit'")
    commits = written(tables)
    older = asked.where(F.col("error") == OLDER)
    followed = with_known_before(older, "invoke_us", commits.where("end = 'ok'"), F.col("invoke_us"))
    may_be_last = (
        "other.stored_epoch > this.metadata_epoch and other.invoke_us < this.at_us "
        "and other.until_us >= coalesce(this.known, -1)"
    )
    wrong = without_match(followed, commits, STORED, may_be_last).select(asked.columns)
    wrong = wrong.unionByName(asked.where(F.col("error").isin(*NEVER_RIGHT)))
    detail = sentence(
        "A commit of %s with offset %s and metadata epoch %s was refused: %s.",
        "process",
        "offset",
        "metadata_epoch",
        "error",
    )
    return anomalies(wrong, detail)


JUDGED = Judging(
    "commits-accepted",
    needs=("operations", "commits"),
    evidence="offsets_committed",
    unit="offsets committed",
    find=transform,
)
