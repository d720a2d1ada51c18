"""The trace's notes on quorum, metadata log, snapshots and replicas, with the fields that jobs ask for as columns."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables

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
TRUNCATED: Final = ("truncated", "truncated_below_high_watermark")


def notes(tables: Tables, *names: str) -> DataFrame:
    """Rows of ``tables.notes`` of these names: run, node, incarnation, seq, at_us, what, detail."""
    return tables.notes.where(F.col("what").isin(*names))


def number(field: str) -> Column:
    return F.get_json_object("detail", f"$.{field}").cast("long").alias(field)


def text(field: str) -> Column:
    return F.get_json_object("detail", f"$.{field}").alias(field)
