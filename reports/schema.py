"""The history schema: what a run leaves as Parquet, column by column. The one home of these names.

Writers (fleet recorder, simulator, suite) turn it into pyarrow schemas, Spark jobs into StructTypes; this
module itself needs neither. All numbers are int64 with the unit in the name; times ``*_us`` are microseconds
since the run's start (manifest.json: ``start_wall_us``), from one clock for the whole machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCHEMA_VERSION = 1

Kind = Literal["int64", "string", "bool"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    doc: str
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """``path``: glob below the run folder; several writers add files of their own to it."""

    name: str
    path: str
    doc: str
    columns: tuple[Column, ...]


OPERATIONS = Table(
    "operations",
    "history/operations*.parquet",
    "One client operation: Jepsen's invocation and completion in one row.",
    (
        Column("process", "string", "who did it; one logical client, one operation at a time"),
        Column("index", "int64", "number of the operation within its process, from 0"),
        Column("f", "string", "fetch, produce, final_read, metadata, connect, create_topics, metadata_read, ..."),
        Column("type", "string", "ok: it happened; fail: it did not; info: unknown (timeout, lost connection, no end)"),
        Column("intended_us", "int64", "when the open-loop schedule wanted it sent; = invoke_us if unscheduled"),
        Column("invoke_us", "int64", "when it was sent"),
        Column("complete_us", "int64", "when its end was known; for info: when the client gave up"),
        Column("node", "int64", "node ID it was sent to, -1 unknown"),
        Column("error", "string", "Kafka's error name, or timeout / disconnected / refused; null if none", True),
        Column("session_id", "int64", "fetch: session ID in the request, else 0"),
        Column("session_epoch", "int64", "fetch: session epoch in the request, else -1"),
        Column("answered_session_id", "int64", "fetch: session ID in the response, -1 if none came"),
        Column("partitions_sent", "int64", "partitions named in the request"),
        Column("partitions_answered", "int64", "partitions in the response, -1 if none came"),
        Column("request_bytes", "int64", "size of the request frame"),
        Column("response_bytes", "int64", "size of the response frame, 0 if none came"),
    ),
)

RUNS = Table(
    "runs",
    "history/runs*.parquet",
    "Records sent or read, as runs of consecutive offsets *and* sequences of one writer; broken at any "
    "irregularity. A record value is (writer, sequence, CRC); see bench/fleet/values.py.",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation it belongs to"),
        Column("position", "int64", "order of the run within its operation, from 0"),
        Column("kind", "string", "send or read"),
        Column("topic", "string", ""),
        Column("partition", "int64", ""),
        Column("first_offset", "int64", "of the run's first record; send: -1 if unknown (not acknowledged)"),
        Column("count", "int64", "records in the run, >= 1"),
        Column("producer_id", "int64", "read: from the batch; send: used by the writer; -1 none"),
        Column("writer", "string", "who made the values; empty: not a value of ours (foreign or corrupt)"),
        Column("first_sequence", "int64", "the writer's number of the first value; rises by one along the run"),
        Column("valid", "bool", "every value's CRC was right"),
        Column("acks", "int64", "send: as the request asked, -1 all in-sync replicas, 1 the leader; read: 0", True),
    ),
)

POSITIONS = Table(
    "positions",
    "history/positions*.parquet",
    "What a fetch response said of one partition (only partitions in the response).",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation it belongs to"),
        Column("topic", "string", ""),
        Column("partition", "int64", ""),
        Column("fetch_offset", "int64", "the fetcher's position when the response came"),
        Column("next_offset", "int64", "its position after the response"),
        Column("high_watermark", "int64", "as answered, -1 none"),
        Column("log_start_offset", "int64", "as answered, -1 none"),
        Column("error", "string", "partition's error name, null if none", True),
    ),
)

ASSIGNMENTS = Table(
    "assignments",
    "history/assignments*.parquet",
    "What a fetcher was asked to read, from when to when.",
    (
        Column("process", "string", "as in operations"),
        Column("topic", "string", ""),
        Column("partition", "int64", ""),
        Column("from_us", "int64", "assigned from"),
        Column("until_us", "int64", "until (a forget was acknowledged), or 2^63-1 for the end of the run"),
        Column("from_offset", "int64", "the position it started at (or -1: the log's start)"),
    ),
)

ENDS = Table(
    "ends",
    "history/ends*.parquet",
    "Each partition once all was quiet: the judge's idea of the log's bounds (from the final read).",
    (
        Column("topic", "string", ""),
        Column("partition", "int64", ""),
        Column("log_start_offset", "int64", ""),
        Column("high_watermark", "int64", ""),
        Column("end_us", "int64", "when it was read"),
    ),
)

CHANGES = Table(
    "changes",
    "history/changes*.parquet",
    "What admin requests asked, one row a topic. The topics of one create request are a set: they are changed and "
    "deleted together, and no name is used twice.",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation it belongs to: create_topics, delete_topics or alter_configs"),
        Column("change", "string", "create, delete or configure"),
        Column("topic", "string", ""),
        Column("topic_set", "string", "the topics that were created by the same request have the same one"),
        Column("topics_wanted", "int64", "topics in the set"),
        Column("partitions_wanted", "int64", "partitions of the topic"),
        Column("value", "int64", "configure: the value asked for (retention.ms), else -1"),
        Column("type", "string", "ok, fail or info, as in operations, for this topic"),
        Column("attempts", "int64", "how often the request was sent"),
        Column("error", "string", "the topic's error name in the last answer; null if none", True),
    ),
)

METADATA_READS = Table(
    "metadata_reads",
    "history/metadata_reads*.parquet",
    "What Metadata answers said of the admins' topics: a row where a topic differs from the reader's last answer of "
    "that node, and at the end each topic at each node once.",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation it belongs to: metadata_read or final_describe"),
        Column("node", "int64", "who answered"),
        Column("topic", "string", ""),
        Column("topic_set", "string", "as in changes; told by the topic's name"),
        Column("topics_wanted", "int64", "topics in the set"),
        Column("partitions_wanted", "int64", "partitions that the topic was asked to have"),
        Column("partitions_seen", "int64", "partitions in the answer"),
        Column("present", "bool", "the topic was in the answer"),
        Column("topic_id", "string", "its ID, as Kafka writes UUIDs in hex; empty if absent"),
        Column("value", "int64", "final: retention.ms as that node describes it if an admin set it, else -1"),
        Column("final", "bool", "read once all was quiet"),
    ),
)

FAULTS = Table(
    "faults",
    "faults.parquet",
    "Each fault (or preset) with the state at which it fired. A fault that never fired has no row here.",
    (
        Column("name", "string", "the fault's name in the scenario"),
        Column("kind", "string", "place + effect, e.g. response_dropped, node_killed, link_cut"),
        Column("at_us", "int64", "when it began"),
        Column("until_us", "int64", "when it ended (healed, restarted); = at_us for a momentary one"),
        Column("target", "string", "node-0, link client-node-0, client fetcher-3, ..."),
        Column("hit", "int64", "1 for the first time this rule fired, 2 for the second, ..."),
        Column("client_id", "string", "of the frame that was hit, or empty"),
        Column("api_key", "int64", "of the frame that was hit, or -1"),
        Column("session_id", "int64", "of the frame that was hit, or 0"),
        Column("session_epoch", "int64", "of the frame that was hit, or -1"),
        Column("detail", "string", "anything more that shows that it happened"),
    ),
)

TRACE = Table(
    "trace",
    "trace/node*.parquet",
    "What the nodes did, in order: requests, replies and notes that the checks of the mechanisms need.",
    (
        Column("node", "int64", "node ID"),
        Column("incarnation", "int64", "0 for the first start of the node's process, 1 after one restart, ..."),
        Column("seq", "int64", "order within (node, incarnation)"),
        Column("at_us", "int64", ""),
        Column("what", "string", "request, reply, or a note's name: session_created, session_closed, ..."),
        Column("connection", "int64", "-1 if none"),
        Column("client_id", "string", ""),
        Column("api_key", "int64", "-1 if none"),
        Column("api_version", "int64", "-1 if none"),
        Column("session_id", "int64", "0 if none; of the request, for a reply too"),
        Column("session_epoch", "int64", "-1 if none; of the request, for a reply too"),
        Column("answered_session_id", "int64", "reply to a fetch: the session ID answered, else 0"),
        Column("error", "int64", "reply: top-level error code, else 0"),
        Column("detail", "string", "notes: their fields as JSON with sorted keys, else empty"),
    ),
)

LATENCY = Table(
    "latency",
    "latency/*.parquet",
    "Lossless histograms: how many operations of a worker's second fell in a bucket (width <= 1 %, "
    "bench/fleet/histogram.py).",
    (
        Column("operation", "string", "as operations.f"),
        Column("measure", "string", "service (from the send) or response (from the intended send)"),
        Column("worker", "string", ""),
        Column("second", "int64", "of completion, since the run's start"),
        Column("bucket", "int64", "bucket number; bounds in report columns low_us, high_us"),
        Column("low_us", "int64", "the bucket's lower bound, inclusive"),
        Column("high_us", "int64", "its upper bound, exclusive"),
        Column("count", "int64", ""),
    ),
)

LOAD = Table(
    "load",
    "history/load*.parquet",
    "What each worker offered and managed, second by second.",
    (
        Column("worker", "string", ""),
        Column("second", "int64", "since the run's start"),
        Column("offered", "int64", "operations whose intended time lay in it"),
        Column("sent", "int64", "operations sent in it"),
        Column("completed", "int64", "operations ended ok in it"),
        Column("failed", "int64", "operations ended fail or info in it"),
        Column("max_slip_us", "int64", "worst invoke - intended of an operation sent in it"),
        Column("cpu_permille", "int64", "worker process's processor time, 1000 = one core busy"),
        Column("wanted_permille", "int64", "its loop's processor time and waiting for one, 1000 = never asleep", True),
        Column("lag_us", "int64", "how late its own timer was at worst", True),
    ),
)

FETCH_COSTS = Table(
    "fetch_costs",
    "trace/fetch_costs*.parquet",
    "What each fetch cost the node that served it: one row an answer, followers' fetches too. Laid side by side by the "
    "comparison of the session's revisions.",
    (
        Column("at_us", "int64", "when the answer was handed to the connection"),
        Column("node", "int64", "who served it"),
        Column("client_id", "string", "who asked; node-N for a follower, as it names itself"),
        Column("revision", "string", "final: Fetch with 32-bit epochs; first: with 64-bit sequences; none: no session"),
        Column("full", "bool", "the request named all that is wanted (it opened a session, or there is none)"),
        Column("request_bytes", "int64", "size of the request frame with its length"),
        Column("response_bytes", "int64", "size of the response frame with its length, records included"),
        Column("named", "int64", "partitions named in the request; forgotten ones not counted"),
        Column("sent", "int64", "partitions in the response"),
        Column("record_bytes", "int64", "bytes of record batches in the response"),
        Column("service_us", "int64", "the node's time for it (decode, look up, encode), without the wait for data"),
    ),
)

BROKER = Table(
    "broker",
    "trace/broker*.parquet",
    "Samples of each node's metrics and process, once a second.",
    (
        Column("node", "int64", ""),
        Column("at_us", "int64", ""),
        Column("metric", "string", "Kafka's name of the metric, or process_cpu_permille, process_rss_bytes"),
        Column("value", "int64", ""),
    ),
)

COMMITS = Table(
    "commits",
    "history/commits*.parquet",
    "Committed offsets as a group's members wrote and read them: one row a partition of each OffsetCommit and "
    "OffsetFetch answer.",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation it belongs to"),
        Column("kind", "string", "commit, fetched: to and from the coordinator; stored, loaded: kept outside"),
        Column("group", "string", "the group's ID"),
        Column("generation", "int64", "commit: in the request; fetched: the member's own; -1 none"),
        Column("member_id", "string", "as generation; empty: none"),
        Column("topic", "string", ""),
        Column("partition", "int64", ""),
        Column("offset", "int64", "the next offset to read; fetched: -1 if nothing is committed"),
        Column("leader_epoch", "int64", "as sent or answered, -1 none"),
        Column("metadata_epoch", "int64", "as sent or answered, -1 none (always in versions without the field)"),
        Column("draft", "bool", "a draft version, which has the field metadata_epoch"),
        Column("error", "string", "the partition's error name, or timeout / disconnected; null if none", True),
        Column("at_us", "int64", "when the answer came; without one, when the client gave up"),
    ),
)

MEMBERSHIPS = Table(
    "memberships",
    "history/memberships*.parquet",
    "What members of groups lived through: a row a join, a row a partition that was given or taken away.",
    (
        Column("process", "string", "as in operations"),
        Column("group", "string", "the group's ID"),
        Column("member_id", "string", "as the coordinator gave it"),
        Column("generation", "int64", "joined, assigned: the new one; others: the one that it was in"),
        Column(
            "event",
            "string",
            "joined: in the generation with its part known; assigned; revoked: given up as the "
            "protocol asks; lost: taken without that; left: what it does from then on, it does as a new client",
        ),
        Column("topic", "string", "assigned, revoked, lost: of the partition; else empty"),
        Column("partition", "int64", "assigned, revoked, lost; else -1"),
        Column("at_us", "int64", "when the member knew it"),
        Column(
            "since_us",
            "int64",
            "joined: when it began to ask; revoked, lost: when the partition was assigned; else = at_us",
        ),
    ),
)

METADATA_EPOCHS = Table(
    "metadata_epochs",
    "history/metadata_epochs*.parquet",
    "The metadata epochs that Metadata answers of draft versions carried, and whether the client took the answer.",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation it belongs to"),
        Column("node", "int64", "who answered"),
        Column("metadata_epoch", "int64", "as answered; -1: the node has had no update yet"),
        Column("accepted", "bool", "false: dropped whole, since an answer before it had a greater one"),
        Column("at_us", "int64", "when the answer came"),
    ),
)

RESETS = Table(
    "resets",
    "history/resets*.parquet",
    "Positions that moved without a record read: where a fetcher was and where it went on.",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation whose answer led to it"),
        Column("topic", "string", ""),
        Column("partition", "int64", ""),
        Column("from_offset", "int64", "the position before, -1 none"),
        Column("to_offset", "int64", "the position after; -1: not known yet"),
        Column(
            "reason",
            "string",
            "what led to it: OFFSET_OUT_OF_RANGE; truncated: the leader's log ends below it "
            "(KIP-320); no_offset: nothing was committed",
        ),
        Column("metadata_epoch", "int64", "of the last accepted metadata, -1 none"),
        Column("at_us", "int64", "when the position was moved"),
    ),
)

COPIES = Table(
    "copies",
    "history/copies*.parquet",
    "What a mirror wrote to the target cluster: runs of consecutive source offsets and of one writer's sequences, "
    "acknowledged by the target at consecutive offsets.",
    (
        Column("process", "string", "as in operations"),
        Column("index", "int64", "the operation that wrote it"),
        Column("topic", "string", "of the source"),
        Column("partition", "int64", "of the source, and of the target"),
        Column("source_offset", "int64", "of the run's first record"),
        Column("count", "int64", "records in the run, >= 1"),
        Column("target_offset", "int64", "where the first was written; -1 if not acknowledged"),
        Column("writer", "string", "who made the values, as in runs"),
        Column("first_sequence", "int64", "that writer's number of the first value"),
        Column("at_us", "int64", "when it was acknowledged"),
    ),
)

TARGET_RUNS = Table(
    "target_runs",
    "history/target_runs*.parquet",
    "What the cluster that a mirror copied to holds at the end: runs of consecutive offsets and of one writer's "
    "sequences.",
    (
        Column("topic", "string", "of both clusters"),
        Column("partition", "int64", "of both clusters"),
        Column("first_offset", "int64", "of the run, in the target"),
        Column("count", "int64", "records in the run; 0: the partition was read to its end, which is first_offset"),
        Column("writer", "string", "who made the values, as in runs"),
        Column("first_sequence", "int64", "that writer's number of the first value"),
    ),
)

TABLES: tuple[Table, ...] = (
    OPERATIONS,
    RUNS,
    POSITIONS,
    ASSIGNMENTS,
    ENDS,
    CHANGES,
    METADATA_READS,
    COMMITS,
    MEMBERSHIPS,
    METADATA_EPOCHS,
    RESETS,
    COPIES,
    TARGET_RUNS,
    FAULTS,
    TRACE,
    LATENCY,
    LOAD,
    FETCH_COSTS,
    BROKER,
)


def files_of(run_dir: Path, table: Table) -> list[str]:
    """The table's files in a run's folder, empty ones left out."""
    return sorted(str(path) for path in run_dir.glob(table.path) if path.stat().st_size > 0)


def history_bytes(run_dirs: Sequence[Path]) -> int:
    """Size of all tables of these runs, as stored."""
    names = [name for folder in run_dirs for table in TABLES for name in files_of(folder, table)]
    return sum(Path(name).stat().st_size for name in names)
