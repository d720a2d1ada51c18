"""History rows as typed values, one class a table of reports/schema.py, fields in the schema's order.

Times in rows are what the behaviour's clock showed (``now.mono_us``); the recorder subtracts the run's start.
Rows are written once and never changed; not frozen only because that doubles the cost of making one.
"""

from dataclasses import dataclass
from typing import TypeAlias

END_OF_RUN_US = 2**63 - 1
"""``AssignmentRow.until_us`` of an assignment that lasted to the end; never shifted."""


@dataclass(slots=True)
class OperationRow:
    """Table operations: one client operation, written when its end is known."""

    process: str
    index: int
    f: str
    type: str
    intended_us: int
    invoke_us: int
    complete_us: int
    node: int = -1
    error: str | None = None
    session_id: int = 0
    session_epoch: int = -1
    answered_session_id: int = -1
    partitions_sent: int = 0
    partitions_answered: int = -1
    request_bytes: int = 0
    response_bytes: int = 0


@dataclass(slots=True)
class RunRow:
    """Table runs: records sent or read, consecutive in offset and in the writer's sequence."""

    process: str
    index: int
    position: int
    kind: str
    topic: str
    partition: int
    first_offset: int
    count: int
    producer_id: int
    writer: str
    first_sequence: int
    valid: bool
    acks: int = 0


@dataclass(slots=True)
class PositionRow:
    """Table positions: what a fetch response said of one partition."""

    process: str
    index: int
    topic: str
    partition: int
    fetch_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    error: str | None


@dataclass(slots=True)
class AssignmentRow:
    """Table assignments. A seek ends one assignment and begins another."""

    process: str
    topic: str
    partition: int
    from_us: int
    until_us: int
    from_offset: int


@dataclass(slots=True)
class EndRow:
    """Table ends: the log's bounds at the final read."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    end_us: int


@dataclass(slots=True)
class ChangeRow:
    """Table changes: what an admin's request asked of one topic, and what came of it."""

    process: str
    index: int
    change: str
    topic: str
    topic_set: str
    topics_wanted: int
    partitions_wanted: int
    value: int
    type: str
    attempts: int
    error: str | None


@dataclass(slots=True)
class MetadataReadRow:
    """Table metadata_reads: how one topic of the admins looked at one node; only where that is news."""

    process: str
    index: int
    node: int
    topic: str
    topic_set: str
    topics_wanted: int
    partitions_wanted: int
    partitions_seen: int
    present: bool
    topic_id: str
    value: int = -1
    final: bool = False


HistoryRow: TypeAlias = OperationRow | RunRow | PositionRow | AssignmentRow | EndRow | ChangeRow | MetadataReadRow
"""What behaviours record. LATENCY and LOAD rows are derived from operations by the recorder."""


@dataclass(slots=True)
class LatencyRow:
    """Table latency: how many operations of one second fell in one bucket."""

    operation: str
    measure: str
    worker: str
    second: int
    bucket: int
    low_us: int
    high_us: int
    count: int


@dataclass(slots=True)
class LoadRow:
    """Table load: what a worker offered and managed in one second."""

    worker: str
    second: int
    offered: int
    sent: int
    completed: int
    failed: int
    max_slip_us: int
    cpu_permille: int
    wanted_permille: int = 0
    lag_us: int = 0
