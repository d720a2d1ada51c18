"""unrequested-partition: a response contains a partition that the fetcher did not ask for, or no longer.

A partition is asked for if it was assigned before the response came, and if no answer had acknowledged its forget when
the request was sent.

The frames before a broker that is not ours show it, too, whoever the client is: a session's answer tells a partition
that no request of the session named since it was last forgotten (``wire_sessions``).
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import READER, with_operation, without_match
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.wire_sessions import lines
from reports.read_tables import Tables

_SAID = [*READER, "index"]


def transform(tables: Tables) -> DataFrame:
    found = _in_the_history(tables)
    return found.unionByName(_on_the_wire(tables)) if tables.runs_with("frame_lines") else found


def _on_the_wire(tables: Tables) -> DataFrame:
    foreign = tables.once(lines).where("judged and told is not null and not named and (not held or forgotten)")
    detail = sentence(
        "%s was answered %s-%s in session %s, in which it did not ask for it.",
        "client_id",
        "topic",
        "partition",
        "session",
    )
    return anomalies(foreign, detail, process="client_id", at_us="until_us")


def _in_the_history(tables: Tables) -> DataFrame:
    answered = with_operation(tables.positions, tables, "f", "invoke_us", "complete_us").where("f = 'fetch'")
    named = answered.withColumn("offset", F.col("fetch_offset"))
    read = tables.reads.where("f = 'fetch'").withColumn("offset", F.col("first_offset"))
    columns = [*_SAID, "invoke_us", "complete_us", "offset"]
    in_force = "other.from_us <= this.complete_us and other.until_us > this.invoke_us"
    foreign = reduce(
        DataFrame.unionByName,
        (without_match(each.select(*columns), tables.assignments, READER, in_force) for each in (named, read)),
    )
    foreign = foreign.groupBy(*_SAID, "invoke_us", "complete_us").agg(F.min("offset").alias("offset"))
    detail = sentence("%s was answered %s-%s, which it was not asking for.", "process", "topic", "partition")
    return anomalies(foreign, detail)


JUDGED = Judging(
    "unrequested-partition",
    needs=("operations", "positions", "assignments"),
    evidence="positions",
    unit="partition answers",
    find=transform,
)
