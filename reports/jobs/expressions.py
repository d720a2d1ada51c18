"""Expressions and joins that several jobs share, and the notes of the trace. Conditions are written in Spark's SQL."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables, together

PARTITION: Final = ["run", "topic", "partition"]
OPERATION: Final = ["run", "process", "index"]
"""The columns that together name one client operation."""
READER: Final = ["run", "process", "topic", "partition"]
"""The columns that together name one client's way through one partition."""


def second_of(time_us: str | Column) -> Column:
    """The second since the run's start that contains a time."""
    return F.floor((F.col(time_us) if isinstance(time_us, str) else time_us) / 1_000_000).cast("long")


def node_name(node: str) -> Column:
    return F.concat(F.lit("node-"), node)


def so_far(in_order: WindowSpec) -> WindowSpec:
    """The rows up to this one, with it."""
    return in_order.rowsBetween(Window.unboundedPreceding, 0)


def before(in_order: WindowSpec) -> WindowSpec:
    """The rows before this one."""
    return in_order.rowsBetween(Window.unboundedPreceding, -1)


def first_rows(frame: DataFrame, most: int, in_order: WindowSpec) -> DataFrame:
    """The first ``most`` rows of each part of the window, numbered from 1 in the column ``n``."""
    return frame.withColumn("n", F.row_number().over(in_order)).where(F.col("n") <= most)


def without_presets(faults: DataFrame) -> DataFrame:
    """FAULTS without presets, which are no faults but the state in which a run begins. Each ends when it began, or
    later."""
    return faults.where("not startswith(kind, 'preset')").withColumn("until_us", F.greatest("at_us", "until_us"))


def with_operation(frame: DataFrame, tables: Tables, *columns: str, how: str = "inner") -> DataFrame:
    """Add these columns of the client operation to which each row belongs."""
    operations = tables.operations.select(*OPERATION, *columns)
    return together(frame, "run", "process").join(together(operations, "run", "process"), OPERATION, how)


def without_match(frame: DataFrame, others: DataFrame, keys: Sequence[str], condition: str) -> DataFrame:
    """Exclude each row for which ``others`` has a row with the same ``keys`` that meets the condition.

    The condition calls the two rows ``this`` and ``other``.
    """
    same = [F.col(f"this.{key}") == F.col(f"other.{key}") for key in keys]
    return frame.alias("this").join(others.alias("other"), [*same, F.expr(condition)], "left_anti")


LEADER_ELECTED: Final = "leader_elected"
LEADER_RESIGNED: Final = "leader_resigned"
CONTROLLER_ACTIVATED: Final = "controller_activated"
METADATA_COMMITTED: Final = "metadata_committed"
METADATA_IMAGE: Final = "metadata_image"
LEADS: Final = "leads"
ISR_CHANGED: Final = "isr_changed"
METADATA_EPOCH: Final = "metadata_epoch"
UPDATE_METADATA_APPLIED: Final = "update_metadata_applied"
COORDINATOR_LOADED: Final = "coordinator_loaded"
GROUP_STATE: Final = "group_state"
TRUNCATED: Final = ("truncated", "truncated_below_high_watermark")


def notes(tables: Tables, *names: str) -> DataFrame:
    """Rows of ``tables.notes`` of these names: run, node, incarnation, seq, at_us, what, detail."""
    return tables.notes.where(F.col("what").isin(*names))


def number(field: str) -> Column:
    return F.get_json_object("detail", f"$.{field}").cast("long").alias(field)


def text(field: str) -> Column:
    return F.get_json_object("detail", f"$.{field}").alias(field)
