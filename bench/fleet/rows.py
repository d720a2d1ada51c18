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


@dataclass(slots=True)
class CommitRow:
    """Table commits: an offset that a commit wrote (``commit``) or that an OffsetFetch brought (``fetched``).

    ``generation`` -1 and an empty ``member_id``: no group protocol (offsets outside: kinds ``stored`` and ``loaded``).
    ``draft``: in a version that has the metadata epoch. ``at_us``: when the answer was known.
    """

    process: str
    index: int
    kind: str
    group: str
    generation: int
    member_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata_epoch: int
    draft: bool
    error: str | None
    at_us: int


@dataclass(slots=True)
class MembershipRow:
    """Table memberships: joined, assigned, revoked, lost, left. ``since_us``: of ``joined`` when the first request for
    this generation was sent, of ``revoked`` and ``lost`` when the partition was assigned, else ``at_us``. ``topic`` is
    empty and ``partition`` -1 where the event is about the member."""

    process: str
    group: str
    member_id: str
    generation: int
    event: str
    topic: str
    partition: int
    at_us: int
    since_us: int


@dataclass(slots=True)
class MetadataEpochRow:
    """Table metadata_epochs: the epoch of one Metadata answer, and whether the client took it."""

    process: str
    index: int
    node: int
    metadata_epoch: int
    accepted: bool
    at_us: int


@dataclass(slots=True)
class ResetRow:
    """Table resets: a position that moved without records. ``reason``: OFFSET_OUT_OF_RANGE or NO_OFFSET.
    ``metadata_epoch``: of the client's metadata then, -1 none."""

    process: str
    index: int
    topic: str
    partition: int
    from_offset: int
    to_offset: int
    reason: str
    metadata_epoch: int
    at_us: int


@dataclass(slots=True)
class CopyRow:
    """Table copies: source records written to the target cluster. ``partition``: of both topics; ``target_offset``: of
    the first of them. ``at_us``: when the target acknowledged them."""

    process: str
    index: int
    topic: str
    partition: int
    source_offset: int
    count: int
    target_offset: int
    writer: str
    first_sequence: int
    at_us: int


@dataclass(slots=True)
class TargetRunRow:
    """Table target_runs: records that the cluster holds at the end to which a mirror copied. ``count`` 0: the partition
    was read to its end, which is ``first_offset``."""

    topic: str
    partition: int
    first_offset: int
    count: int
    writer: str
    first_sequence: int


HistoryRow: TypeAlias = (
    OperationRow
    | RunRow
    | PositionRow
    | AssignmentRow
    | EndRow
    | ChangeRow
    | MetadataReadRow
    | CommitRow
    | MembershipRow
    | MetadataEpochRow
    | ResetRow
    | CopyRow
    | TargetRunRow
)
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
