"""The history of a benchmark's load: the sequences that were sent and read, and counts by second.

A benchmark has no row for each operation. A row is a run of consecutive sequences, so hours of a load are small.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from reports.columns import Moment, Row, Table, table

LOAD_TABLES: dict[type[Row], Table] = {}


@table("load_spans", "history/load_spans*.parquet", LOAD_TABLES)
@dataclass(slots=True)
class LoadSpan(Row):
    """Consecutive sequences of a writer in a partition with the same outcome, or which one reader read in this order. A
    span ends with its second."""

    kind: Annotated[str, "ok, info (unknown), fail or aborted; read; damaged, whose values prove nothing"]
    subscription: Annotated[int, "of the reader, from 0; -1 for what was sent"]
    client: Annotated[str, "that sent or read it"]
    number: Annotated[int, "ascends with each of the client's spans"]
    topic: str
    partition: int
    writer: Annotated[str, "of the values; empty for damaged ones"]
    first_sequence: int
    records: int
    first_us: Annotated[int, Moment("of the first")]
    last_us: Annotated[int, Moment("of the last")]


@table("load_seconds", "history/load_seconds*.parquet", LOAD_TABLES)
@dataclass(slots=True)
class LoadSecondRow(Row):
    """One second of one worker, in records."""

    worker: int
    second: Annotated[int, "since the start of the load"]
    offered: int
    sent: int
    acknowledged: int
    failed: int
    read: int
    cpu_permille: int
    wanted_permille: int
    lag_us: int


SPANS = LOAD_TABLES[LoadSpan]
SECONDS = LOAD_TABLES[LoadSecondRow]
RUN_NAME = "load-run.json"
"""The file in the folder of a load's run that says how it is judged, and what the ledger found."""


class JudgedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The content of that file."""

    workers: int
    subscriptions: int
    exactly_once: bool
    compacted_keys: int = 0
    """That take turns in each partition of compacted topics; 0: nothing is compacted."""
    found: dict[str, int | str]
    """By the ledger."""
