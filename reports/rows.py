"""The history's rows, one class for each table. Only this module declares the columns' names and types.

All numbers are int64 with the unit in the name. Times are microseconds from one clock for the whole machine. Rows that
the fleet records are written once and never changed. They are not frozen, because frozen rows cost twice as much to
make.

The last two tables have the frames that passed the proxy before a broker that is not ours.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from reports.columns import Later, Moment, Row, table

END_OF_RUN_US = 2**63 - 1
"""``AssignmentRow.until_us`` of an assignment that lasted to the end. It is never shifted."""

Process: TypeAlias = Annotated[str, "as in operations"]
OperationIndex: TypeAlias = Annotated[int, "the operation it belongs to"]
Group: TypeAlias = Annotated[str, "the group's ID"]
Writer: TypeAlias = Annotated[str, "the client that made the values, as in runs"]
FirstSequence: TypeAlias = Annotated[int, "that writer's number of the first value"]


@table("operations", "history/operations*.parquet")
@dataclass(slots=True)
class OperationRow(Row):
    """One client operation: Jepsen's invocation and completion in one row."""

    process: Annotated[str, "the logical client, with one operation at a time"]
    index: Annotated[int, "number of the operation within its process, from 0"]
    f: Annotated[str, "fetch, produce, final_read, metadata, connect, create_topics, metadata_read, ..."]
    type: Annotated[str, "ok: it happened; fail: it did not; info: unknown (timeout, lost connection, no end)"]
    intended_us: Annotated[int, Moment("when the open-loop schedule wanted it sent; = invoke_us if unscheduled")]
    invoke_us: Annotated[int, Moment("when it was sent")]
    complete_us: Annotated[int, Moment("when its end was known; for info: when the client stopped waiting")]
    node: Annotated[int, "node ID it was sent to, -1 unknown"] = -1
    error: Annotated[str | None, "Kafka's error name, or timeout / disconnected / refused; null if none"] = None
    session_id: Annotated[int, "fetch: session ID in the request, else 0"] = 0
    session_epoch: Annotated[int, "fetch: session epoch in the request, else -1"] = -1
    response_session_id: Annotated[int, "fetch: session ID in the response, -1 if none came"] = -1
    partitions_sent: Annotated[int, "partitions named in the request"] = 0
    partitions_returned: Annotated[int, "partitions in the response, -1 if none came"] = -1
    request_bytes: Annotated[int, "size of the request frame"] = 0
    response_bytes: Annotated[int, "size of the response frame, 0 if none came"] = 0


@table("runs", "history/runs*.parquet")
@dataclass(slots=True)
class SpanRow(Row):
    """Span of consecutive records that were sent or read: consecutive offsets *and* sequences of one writer. Any
    irregularity ends a span. The table's name does not mean a scenario's run.

    A record value is (writer, sequence, CRC); see bench/fleet/values.py."""

    process: Process
    index: OperationIndex
    position: Annotated[int, "order of the span within its operation, from 0"]
    kind: Annotated[str, "send or read"]
    topic: str
    partition: int
    first_offset: Annotated[int, "of the span's first record; send: -1 if unknown (not acknowledged)"]
    count: Annotated[int, "records in the span, >= 1"]
    producer_id: Annotated[int, "read: from the batch; send: used by the writer; -1 none"]
    writer: Annotated[str, "the client that made the values; empty: not a value of ours (foreign or corrupt)"]
    first_sequence: Annotated[int, "the writer's number of the first value; rises by one along the span"]
    valid: Annotated[bool, "every value's CRC was right"]
    acks: Annotated[int, Later("send: as in the request, -1 all in-sync replicas, 1 the leader; read: 0")] = 0
    isolation: Annotated[int, Later("read: 1 of a reader with read_committed, 0 of another; send: 0")] = 0


@table("keyed_writes", "history/keyed_writes*.parquet")
@dataclass(slots=True)
class KeyedWriteRow(Row):
    """One record that was sent to a compacted topic, with its key. It belongs to a span that its writer sent."""

    process: Annotated[str, "as in operations; also the writer of the values"]
    index: OperationIndex
    topic: str
    partition: int
    sequence: Annotated[int, "the writer's number of the record"]
    key: str
    is_tombstone: bool
    delete_retention_us: Annotated[int, "delete.retention.ms of the topic: the least time that a tombstone stays"]


@table("views", "history/views*.parquet")
@dataclass(slots=True)
class ViewRow(Row):
    """The view of a reader of a whole compacted topic: of each key the newest record that it has read, unless that is a
    tombstone. Each partition has also a row without a key, which says only how far it was read."""

    process: Process
    topic: str
    partition: int
    isolation: Annotated[int, "1 of a reader with read_committed, 0 of another"]
    from_us: Annotated[int, Moment("when the reader began at the start of the log")]
    at_us: Annotated[int, Moment("when it held this")]
    position: Annotated[int, "the next offset that it would have read"]
    key: Annotated[str, "empty: none"]
    offset: Annotated[int, "of the record; -1 without a key"]
    writer: Writer
    sequence: Annotated[int, "that writer's number of the record; -1 without a key"]


@table("positions", "history/positions*.parquet")
@dataclass(slots=True)
class PositionRow(Row):
    """One partition of a fetch response (only partitions in the response)."""

    process: Process
    index: OperationIndex
    topic: str
    partition: int
    fetch_offset: Annotated[int, "the fetcher's position when the response came"]
    next_offset: Annotated[int, "its position after the response"]
    high_watermark: Annotated[int, "in the response, -1 none"]
    log_start_offset: Annotated[int, "in the response, -1 none"]
    error: Annotated[str | None, "partition's error name, null if none"]
    last_stable_offset: Annotated[int, Later("in the response, -1 none")] = -1
    leader_epoch: Annotated[int, Later("that the request named and the response did not refuse, -1 none")] = -1
    tombstone_horizon: Annotated[int, Later("below which tombstones may be gone; -1: the response had none")] = -1


@table("assignments", "history/assignments*.parquet")
@dataclass(slots=True)
class AssignmentRow(Row):
    """The range that a fetcher was to read, from when to when. A seek ends one assignment and begins another."""

    process: Process
    topic: str
    partition: int
    from_us: Annotated[int, Moment("assigned from")]
    until_us: Annotated[int, Moment("until (a forget was acknowledged), or 2^63-1 for the end of the run")]
    from_offset: Annotated[int, "the position it started at (or -1: the log's start)"]


@table("ends", "history/ends*.parquet")
@dataclass(slots=True)
class EndRow(Row):
    """Each partition once all was quiet. The final read notes the log's bounds. A partition that does not
    exist any more has an empty log."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    end_us: Annotated[int, Moment("when it was read")]
    last_stable_offset: Annotated[int, Later("in the response with the high watermark, -1 none")] = -1
    error: Annotated[str | None, Later("Kafka's error name if the partition does not exist any more, else null")] = None
    size_bytes: Annotated[int, Later("bytes of the batches that the read returned from the log's start on")] = 0
    retention_ms: Annotated[
        int | None,
        Later("as described of its topic, -1 no limit; null: the log begins at 0, compacts, or DescribeConfigs failed"),
    ] = None
    retention_bytes: Annotated[int | None, Later("as retention_ms")] = None
    segment_bytes: Annotated[int | None, Later("segment.bytes as described of its topic; null as retention_ms")] = None


@table("changes", "history/changes*.parquet")
@dataclass(slots=True)
class ChangeRow(Row):
    """Admin requests and their results, with one row for each topic. The topics of one create request are
    a set: they are changed and deleted together, and no name is used twice."""

    process: Process
    index: Annotated[int, "the operation it belongs to: create_topics, delete_topics or alter_configs"]
    change: Annotated[str, "create, delete or configure"]
    topic: str
    topic_set: Annotated[str, "the topics that were created by the same request have the same one"]
    topics_wanted: Annotated[int, "topics in the set"]
    partitions_wanted: Annotated[int, "partitions of the topic"]
    value: Annotated[int, "configure: the requested value (retention.ms), else -1"]
    type: Annotated[str, "ok, fail or info, as in operations, for this topic"]
    attempts: Annotated[int, "how often the request was sent"]
    error: Annotated[str | None, "the topic's error name in the last response; null if none"]


@table("metadata_reads", "history/metadata_reads*.parquet")
@dataclass(slots=True)
class MetadataReadRow(Row):
    """The admins' topics in Metadata responses. There is a row where a topic differs from the reader's last response
    from that node, and at the end one for each topic at each node."""

    process: Process
    index: Annotated[int, "the operation it belongs to: metadata_read or final_describe"]
    node: Annotated[int, "the node that responded"]
    topic: str
    topic_set: Annotated[str, "as in changes; known by the topic's name"]
    topics_wanted: Annotated[int, "topics in the set"]
    partitions_wanted: Annotated[int, "partitions that the topic was created with"]
    partitions_seen: Annotated[int, "partitions in the response"]
    present: Annotated[bool, "the topic was in the response"]
    topic_id: Annotated[str, "its ID, as Kafka writes UUIDs in hex; empty if absent"]
    value: Annotated[int, "final: retention.ms as that node describes it if an admin set it, else -1"] = -1
    final: Annotated[bool, "read once all was quiet"] = False


@table("commits", "history/commits*.parquet")
@dataclass(slots=True)
class CommitRow(Row):
    """Committed offsets as a group's members wrote and read them, with one row for each partition of each OffsetCommit
    and OffsetFetch response. Without the group protocol the generation is -1 and the member ID empty."""

    process: Process
    index: OperationIndex
    kind: Annotated[
        str,
        "commit, fetched: to and from the coordinator; stored, loaded: kept outside; transaction: sent as part of the "
        "transaction that has this operation",
    ]
    group: Group
    generation: Annotated[int, "commit: in the request; fetched: the member's own; -1 none"]
    member_id: Annotated[str, "as generation; empty: none"]
    topic: str
    partition: int
    offset: Annotated[int, "the next offset to read; fetched: -1 if nothing is committed"]
    leader_epoch: Annotated[int, "in the request or response, -1 none"]
    metadata_epoch: Annotated[int, "in the request or response, -1 none (always in versions without the field)"]
    draft: Annotated[bool, "a draft version, which has the field metadata_epoch"]
    error: Annotated[str | None, "the partition's error name, or timeout / disconnected; null if none"]
    at_us: Annotated[int, Moment("when the response came; without one, when the client stopped waiting")]


@table("transactions", "history/transactions*.parquet")
@dataclass(slots=True)
class TransactionRow(Row):
    """One transaction of a producer, written at its end as far as the producer can know.

    Each transaction is one operation (``f`` is transaction) with the spans that it sent. The operation is ok if it is
    known to be committed, fail if it is known not to be, or if no request made it, and info if that is unknown."""

    process: Process
    index: OperationIndex
    transactional_id: str
    producer_id: Annotated[int, "that it was sent with, -1 none"]
    producer_epoch: Annotated[int, "that it was sent with, -1 none"]
    requested_end: Annotated[
        str, "commit or abort, by EndTxn; nothing: the producer died inside, or met an error before"
    ]
    outcome: Annotated[str, "of that request: ok, failed or unknown"]
    error: Annotated[
        str | None, "Kafka's error name, or timeout; not_added: its coordinator never knew it; null if none"
    ]
    timeout_us: Annotated[int, "its coordinator aborts it after this time"]
    from_us: Annotated[int, Moment("when it began")]
    at_us: Annotated[int, Moment("when EndTxn was first sent, or at least wanted; without that, when it was abandoned")]
    until_us: Annotated[int, Moment("when its outcome was known, or no longer awaited")]


@table("described_transactions", "history/described_transactions*.parquet")
@dataclass(slots=True)
class DescribedTransactionRow(Row):
    """An open transaction in one partition as a janitor read it, and whether it aborted it. A partition in which
    nothing was open has one row with producer_id -1. All rows of one search belong to one operation (``f`` is
    find_hanging)."""

    process: Process
    index: OperationIndex
    topic: str
    partition: int
    producer_id: Annotated[int, "by DescribeProducers, -1 if nothing is open"]
    producer_epoch: Annotated[int, "by DescribeProducers, -1 if nothing is open"]
    start_offset: Annotated[int, "of the transaction, by DescribeProducers, -1 if nothing is open"]
    transactional_id: Annotated[str, "that ListTransactions names for this producer ID, empty if none"]
    found: Annotated[str, "nothing, young (not looked up), known (its coordinator knows the partition) or hanging"]
    queried_us: Annotated[int, Moment("when DescribeProducers was sent")]
    received_us: Annotated[int, Moment("when the last response of the lookup had come")]
    abort: Annotated[str, "the result of WriteTxnMarkers: ok, Kafka's error name, or unknown; empty if not sent"] = ""
    abort_us: Annotated[int, Moment("when the abort was requested; without that = received_us")] = 0
    abort_end_us: Annotated[
        int, Moment("when the response came, or was no longer awaited; without that = received_us")
    ] = 0


@table("transforms", "history/transforms*.parquet")
@dataclass(slots=True)
class TransformRow(Row):
    """The output of a worker that consumes, transforms and produces: spans of consecutive source offsets, whose records
    became consecutive values of the worker in one partition of the target."""

    process: Process
    index: Annotated[int, "the transaction's operation"]
    group: Group
    topic: Annotated[str, "of the source"]
    partition: Annotated[int, "of the source"]
    source_offset: Annotated[int, "of the span's first record"]
    count: Annotated[int, "records in the span, >= 1"]
    target_topic: str
    target_partition: int
    writer: Writer
    first_sequence: FirstSequence


@table("memberships", "history/memberships*.parquet")
@dataclass(slots=True)
class MembershipRow(Row):
    """Events of members of groups: a row for each join, and for each partition that was given or taken away."""

    process: Process
    group: Group
    member_id: Annotated[str, "as the coordinator gave it"]
    generation: Annotated[int, "joined, assigned: the new one; others: the one that it was in"]
    event: Annotated[
        str,
        "joined: in the generation with its part known; assigned; revoked: released, as the protocol requires; "
        "lost: taken without that; left: what it does from then on, it does as a new client",
    ]
    topic: Annotated[str, "assigned, revoked, lost: of the partition; else empty"]
    partition: Annotated[int, "assigned, revoked, lost; else -1"]
    at_us: Annotated[int, Moment("when the member knew it")]
    since_us: Annotated[
        int,
        Moment("joined: when it sent its first request; revoked, lost: when the partition was assigned; else = at_us"),
    ]


@table("metadata_epochs", "history/metadata_epochs*.parquet")
@dataclass(slots=True)
class MetadataEpochRow(Row):
    """The metadata epochs that Metadata responses of draft versions had, and whether the client took the response."""

    process: Process
    index: OperationIndex
    node: Annotated[int, "the node that responded"]
    metadata_epoch: Annotated[int, "in the response; -1: the node has had no update yet"]
    accepted: Annotated[bool, "false: dropped whole, since an earlier response had a greater one"]
    at_us: Annotated[int, Moment("when the response came")]


@table("resets", "history/resets*.parquet")
@dataclass(slots=True)
class ResetRow(Row):
    """Positions that moved without a record read: where a fetcher was and where it went on."""

    process: Process
    index: Annotated[int, "the operation whose response led to it"]
    topic: str
    partition: int
    from_offset: Annotated[int, "the position before, -1 none"]
    to_offset: Annotated[int, "the position after; -1: not known yet"]
    reason: Annotated[
        str,
        "what led to it: OFFSET_OUT_OF_RANGE; truncated: the leader's log ends below it (KIP-320); no_offset: nothing "
        "was committed",
    ]
    metadata_epoch: Annotated[int, "of the last accepted metadata, -1 none"]
    at_us: Annotated[int, Moment("when the position was moved")]


@table("copies", "history/copies*.parquet")
@dataclass(slots=True)
class CopyRow(Row):
    """Records that a mirror wrote to the target cluster: spans of consecutive source offsets and of one writer's
    sequences, acknowledged by the target at consecutive offsets."""

    process: Process
    index: Annotated[int, "the operation that wrote it"]
    topic: Annotated[str, "of the source"]
    partition: Annotated[int, "of the source, and of the target"]
    source_offset: Annotated[int, "of the span's first record"]
    count: Annotated[int, "records in the span, >= 1"]
    target_offset: Annotated[int, "where the first was written; -1 if not acknowledged"]
    writer: Writer
    first_sequence: FirstSequence
    at_us: Annotated[int, Moment("when it was acknowledged")]


@table("target_runs", "history/target_runs*.parquet")
@dataclass(slots=True)
class TargetSpanRow(Row):
    """Records of a mirror's target cluster at the end: spans of consecutive offsets and of one writer's sequences."""

    topic: Annotated[str, "of both clusters"]
    partition: Annotated[int, "of both clusters"]
    first_offset: Annotated[int, "of the span, in the target"]
    count: Annotated[int, "records in the span; 0: the partition was read to its end, which is first_offset"]
    writer: Writer
    first_sequence: FirstSequence


@table("faults", "faults.parquet")
@dataclass(frozen=True, slots=True)
class FaultRow(Row):
    """Each fault (or preset) with the state at which it fired. A fault that never fired has no row here."""

    name: Annotated[str, "the fault's name in the scenario"]
    kind: Annotated[str, "place + effect, e.g. response_dropped, node_killed, link_cut"]
    at_us: Annotated[int, Moment("when it began")]
    until_us: Annotated[int, Moment("when it ended (healed, restarted); = at_us for a momentary one")]
    target: Annotated[str, "node-0, link client-node-0, client fetcher-3, ..."]
    hit: Annotated[int, "1 for the first time this rule fired, 2 for the second, ..."]
    client_id: Annotated[str, "of the frame that was hit, or empty"] = ""
    api_key: Annotated[int, "of the frame that was hit, or -1"] = -1
    session_id: Annotated[int, "of the frame that was hit, or 0"] = 0
    session_epoch: Annotated[int, "of the frame that was hit, or -1"] = -1
    detail: Annotated[str, "anything more that shows that it happened"] = ""


RESPONSE = "_response"
"""The end of a kind of FaultRow that reports what became of an earlier hit of the same fault."""
_FORMER_RESPONSE = "_answered"  # in older runs


def is_hit(kind: str) -> bool:
    """Return whether a FaultRow of this kind counts as one hit of its fault. Only hits prove that a fault fired."""
    return not kind.endswith((RESPONSE, _FORMER_RESPONSE))


@table("trace", "trace/node*.parquet")
@dataclass(frozen=True, slots=True)
class TraceRow(Row):
    """Steps of the nodes in their order: requests, replies and notes that the checks of the mechanisms need."""

    node: Annotated[int, "node ID"]
    incarnation: Annotated[int, "0 for the first start of the node's process, 1 after one restart, ..."]
    seq: Annotated[int, "order within (node, incarnation)"]
    at_us: Annotated[int, Moment("of the event")]
    what: Annotated[str, "request, reply, or a note's name: session_created, session_closed, ..."]
    connection: Annotated[int, "-1 if none"] = -1
    client_id: str = ""
    api_key: Annotated[int, "-1 if none"] = -1
    api_version: Annotated[int, "-1 if none"] = -1
    session_id: Annotated[int, "0 if none; of the request, for a reply too"] = 0
    session_epoch: Annotated[int, "-1 if none; of the request, for a reply too"] = -1
    response_session_id: Annotated[int, "reply to a fetch: its session ID, else 0"] = 0
    error: Annotated[int, "reply: top-level error code, else 0"] = 0
    detail: Annotated[str, "notes: their fields as JSON with sorted keys, else empty"] = ""


@table("latency", "latency/*.parquet")
@dataclass(slots=True)
class LatencyRow(Row):
    """Lossless histograms: how many operations of a worker's second fell in a bucket (width <= 1 %,
    bench/fleet/recorder.py)."""

    operation: Annotated[str, "as operations.f"]
    measure: Annotated[str, "service (from the send) or response (from the intended send)"]
    worker: str
    second: Annotated[int, "of completion, since the run's start"]
    bucket: Annotated[int, "bucket number; bounds in report columns low_us, high_us"]
    low_us: Annotated[int, "the bucket's lower bound, inclusive"]
    high_us: Annotated[int, "its upper bound, exclusive"]
    count: int


@table("load", "history/load*.parquet")
@dataclass(slots=True)
class LoadRow(Row):
    """Offered and achieved load of each worker by the second."""

    worker: str
    second: Annotated[int, "since the run's start"]
    offered: Annotated[int, "operations whose intended time lay in it"]
    sent: Annotated[int, "operations sent in it"]
    completed: Annotated[int, "operations ended ok in it"]
    failed: Annotated[int, "operations ended fail or info in it"]
    max_slip_us: Annotated[int, "worst invoke - intended of an operation sent in it"]
    cpu_permille: Annotated[int, "worker process's processor time, 1000 = one core busy"]
    wanted_permille: Annotated[int, Later("its loop's processor time and waiting for one, 1000 = never asleep")] = 0
    lag_us: Annotated[int, Later("how late its own timer was at worst")] = 0


@table("fetch_costs", "trace/fetch_costs*.parquet")
@dataclass(frozen=True, slots=True)
class FetchCost(Row):
    """Cost of each fetch for the node that served it, one row for each response, also to followers. The comparison of
    the session's revisions reads it."""

    at_us: Annotated[int, Moment("when the response was handed to the connection")]
    node: Annotated[int, "the node that served it"]
    client_id: Annotated[str, "the client; node-N for a follower, as it names itself"]
    revision: Annotated[str, "final: Fetch with 32-bit epochs; first: with 64-bit sequences; none: no session"]
    full: Annotated[bool, "the request named all that is wanted (it opened a session, or there is none)"]
    request_bytes: Annotated[int, "size of the request frame with its length"]
    response_bytes: Annotated[int, "size of the response frame with its length, records included"]
    named: Annotated[int, "partitions named in the request; forgotten ones not counted"]
    sent: Annotated[int, "partitions in the response"]
    record_bytes: Annotated[int, "bytes of record batches in the response"]
    service_us: Annotated[int, "the node's time for it (decode, look up, encode), without the wait for data"]


@table("broker", "trace/broker*.parquet")
@dataclass(frozen=True, slots=True)
class BrokerSample(Row):
    """Samples of each node's metrics and process, once a second."""

    node: int
    at_us: Annotated[int, Moment("when it was requested")]
    metric: Annotated[str, "Kafka's name of the metric, or process_cpu_permille, process_rss_bytes"]
    value: int


HistoryRow: TypeAlias = (
    OperationRow
    | SpanRow
    | KeyedWriteRow
    | ViewRow
    | PositionRow
    | AssignmentRow
    | EndRow
    | ChangeRow
    | MetadataReadRow
    | CommitRow
    | TransactionRow
    | DescribedTransactionRow
    | TransformRow
    | MembershipRow
    | MetadataEpochRow
    | ResetRow
    | CopyRow
    | TargetSpanRow
)
"""Rows that behaviours record. Latency and load are derived from operations by the recorder."""


@table("frames", "trace/frames*.parquet")
@dataclass(frozen=True, slots=True)
class FrameRow(Row):
    """Frames through the proxy between clients and an external broker, with one row for each request."""

    node: Annotated[int, "the node that got the request"]
    nodes: Annotated[int, "nodes of the cluster; where it is one, no session is a follower's"]
    source: Annotated[int, "the node that sent it, or -1: a client"]
    connection: Annotated[int, "number of the connection through the proxy; below -1: one of a rule's own"]
    client_id: str
    api_key: int
    api_version: int
    session_id: Annotated[int, "fetch: in the request, else 0"]
    session_epoch: Annotated[int, "fetch: in the request, else -1"]
    what: Annotated[
        str,
        "response; response_taken: by a rule; lost: the connection ended first; no_response: acks=0",
    ]
    seq: Annotated[int, "when it went to the node, in the order of all requests and responses that passed"]
    at_us: Annotated[int, Moment("when it went to the node")]
    response_seq: Annotated[int, "when the node's response came, in that order; -1: none came"]
    until_us: Annotated[int, Moment("when the node's response came, or the connection ended")]
    error: Annotated[int, "the response's own error code, else 0"]
    response_session_id: Annotated[int, "fetch: in the response, else 0"]
    throttle_ms: Annotated[int, "fetch: the wait that the response demands; then it may omit everything, else 0"]
    request_bytes: int
    response_bytes: Annotated[int, "0 if none came"]


@table("frame_lines", "trace/frame_lines*.parquet")
@dataclass(frozen=True, slots=True)
class FrameLineRow(Row):
    """The partitions in the fetches of ``frames`` and in their responses, from version 7 on, which has sessions."""

    seq: Annotated[int, "of the request, as in frames"]
    node: Annotated[int, "as in frames"]
    kind: Annotated[str, "named or forgotten: in the request; returned: in the response"]
    topic: Annotated[str, "its name or, from version 13 on, its ID in hex"]
    partition: int
    offset: Annotated[int, "named: the offset to fetch from, else -1"] = -1
    high_watermark: Annotated[int, "returned, else -1"] = -1
    log_start_offset: Annotated[int, "returned, else -1"] = -1
    error: Annotated[int, "returned: the partition's error code, else 0"] = 0
    record_bytes: Annotated[int, "returned: bytes of its record batches, else 0"] = 0
    points_on: Annotated[bool, "returned: it has a diverging epoch or a preferred read replica"] = False
