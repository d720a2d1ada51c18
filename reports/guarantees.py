"""The table of contents of what is judged: one row per guarantee, with the job that finds its breaches."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from reports.jobs import (
    commit_regression,
    corrupt_value,
    duplicate,
    eviction_rules,
    fetch_gap,
    group_skip,
    inconsistent_offsets,
    lost_metadata,
    lost_write,
    mirror_complete,
    no_fetch_before_epoch,
    nonmonotonic_metadata_epoch,
    nonmonotonic_poll,
    nonmonotonic_send,
    one_abort_per_begin,
    one_leader_per_epoch,
    one_partition_leader_per_epoch,
    poll_skip,
    redelivery,
    rewinds,
    session_epoch_order,
    session_lost,
    snapshot_transfer_bounded,
    torn_metadata,
    unrequested_partition,
    unseen,
)
from reports.jobs.config import JobConfig
from reports.read_tables import Tables


@dataclass(frozen=True, slots=True)
class Guarantee:
    """``needs``: tables without which it is not checked. ``evidence``: the fact that says how much was looked at.
    ``found_in``: a table in which every breach has a row; where it is absent there is none, and nothing to compute.
    ``about``: a run that exercises none of these clauses may leave nothing to judge; empty: every run must."""

    name: str
    breach: str
    needs: tuple[str, ...]
    evidence: str
    unit: str
    transform: Callable[[Tables, JobConfig], DataFrame]
    always: bool = False  # required of every run, whatever the scenario lists
    about: tuple[str, ...] = ()
    found_in: str = ""


REPLICATION = ("F-22",)
_LOG = ("operations", "runs")
_POLL = ("operations", "runs", "assignments")
_ADMIN = ("operations", "changes")

GUARANTEES: tuple[Guarantee, ...] = (
    Guarantee(
        "inconsistent-offsets",
        "Two different values were seen at one offset.",
        _LOG,
        "records_read",
        "records read",
        inconsistent_offsets.transform,
    ),
    Guarantee(
        "duplicate",
        "A value lies at two offsets under one producer ID.",
        _LOG,
        "idempotent_records_read",
        "records of idempotent producers read",
        duplicate.transform,
    ),
    Guarantee(
        "lost-write",
        "An acknowledged record was overtaken by reads and never read.",
        _LOG,
        "records_acked",
        "records acknowledged",
        lost_write.transform,
    ),
    Guarantee(
        "unseen",
        "An acknowledged record was not read by the end, though its partition was read to the end.",
        (*_LOG, "ends"),
        "records_acked",
        "records acknowledged",
        unseen.transform,
    ),
    Guarantee(
        "corrupt-value",
        "A value was read that no writer of this run made.",
        _LOG,
        "records_read",
        "records read",
        corrupt_value.transform,
        always=True,
    ),
    Guarantee(
        "poll-skip",
        "A fetcher's next read jumped over records that exist.",
        _POLL,
        "read_runs",
        "runs of records read",
        poll_skip.transform,
    ),
    Guarantee(
        "nonmonotonic-poll",
        "A fetcher's next read went back.",
        _POLL,
        "read_runs",
        "runs of records read",
        nonmonotonic_poll.transform,
    ),
    Guarantee(
        "int-poll-skip",
        "One read left out records between two that it holds.",
        _LOG,
        "read_runs",
        "runs of records read",
        poll_skip.transform_inside,
    ),
    Guarantee(
        "int-nonmonotonic-poll",
        "One read holds records out of order.",
        _LOG,
        "read_runs",
        "runs of records read",
        nonmonotonic_poll.transform_inside,
    ),
    Guarantee(
        "nonmonotonic-send",
        "A producer's later send was given an earlier offset.",
        _LOG,
        "acked_sends",
        "acknowledged sends",
        nonmonotonic_send.transform,
    ),
    Guarantee(
        "unrequested-partition",
        "A response named a partition that the fetcher was not asking for.",
        ("operations", "positions", "assignments"),
        "positions",
        "partition answers",
        unrequested_partition.transform,
    ),
    Guarantee(
        "fetch-gap",
        "A fetcher stands below the high watermark once all is quiet.",
        ("operations", "assignments", "ends"),
        "assignments",
        "assignments",
        fetch_gap.transform,
    ),
    Guarantee(
        "session-epoch-order",
        "A node accepted a wrong session epoch or refused the right one.",
        ("trace",),
        "session_requests",
        "incremental fetches",
        session_epoch_order.transform,
    ),
    Guarantee(
        "session-lost",
        "A node forgot a fetch session that it had neither closed nor evicted.",
        ("trace",),
        "session_requests",
        "incremental fetches",
        session_lost.transform,
    ),
    Guarantee(
        "eviction-rules",
        "A fetch session was evicted without a valid reason, or there were more than slots.",
        ("trace",),
        "sessions_created",
        "sessions created",
        eviction_rules.transform,
    ),
    Guarantee(
        "torn-metadata",
        "A part of a transaction was seen, or two nodes held different metadata at one offset.",
        ("operations",),
        "metadata_looks",
        "metadata answers and published images",
        torn_metadata.transform,
    ),
    Guarantee(
        "lost-metadata",
        "An acknowledged change of metadata is gone, came twice, or nobody asked for it.",
        _ADMIN,
        "described_changes",
        "changes of topics asked for, and described at the end",
        lost_metadata.transform,
    ),
    Guarantee(
        "one-leader-per-epoch",
        "Two nodes led the quorum in one epoch.",
        ("trace",),
        "leader_elections",
        "elections won",
        one_leader_per_epoch.transform,
    ),
    Guarantee(
        "one-partition-leader-per-epoch",
        "Two nodes led a partition in one leader epoch.",
        ("trace",),
        "partition_leaderships",
        "leaderships of replicated partitions begun",
        one_partition_leader_per_epoch.transform,
        about=REPLICATION,
    ),
    Guarantee(
        "one-abort-per-begin",
        "A metadata transaction was closed twice, or not before the next one.",
        ("trace",),
        "metadata_markers",
        "committed markers noted",
        one_abort_per_begin.transform,
    ),
    Guarantee(
        "snapshot-transfer-bounded",
        "A download fetched again what it held already.",
        ("trace",),
        "download_chunks",
        "chunks of snapshots received",
        snapshot_transfer_bounded.transform,
        about=("S-8", "S-11"),
    ),
    Guarantee(
        "nonmonotonic-metadata-epoch",
        "A client or a node took metadata older than what it had, or an epoch was committed twice.",
        ("metadata_epochs",),
        "metadata_epochs",
        "metadata answers taken",
        nonmonotonic_metadata_epoch.transform,
    ),
    Guarantee(
        "commit-regression",
        "A committed offset, its metadata epoch or its generation went back.",
        ("operations", "commits"),
        "offsets_committed",
        "offsets committed",
        commit_regression.transform,
    ),
    Guarantee(
        "no-fetch-before-epoch",
        "A consumer fetched before its metadata was as new as its offset's epoch.",
        ("operations", "positions", "commits", "metadata_epochs"),
        "epochs_learnt",
        "offsets learnt with a metadata epoch",
        no_fetch_before_epoch.transform,
        about=("M-9", "M-13"),
    ),
    Guarantee(
        "rewinds",
        "A position was called out of range, though nothing was truncated or deleted there.",
        ("operations", "positions", "commits"),
        "positions",
        "partition answers",
        rewinds.transform,
        found_in="resets",
    ),
    Guarantee(
        "redelivery",
        "A partition's next owner read records again that the group had committed.",
        ("operations", "runs", "commits", "memberships"),
        "partitions_given",
        "partitions given to members",
        redelivery.transform,
    ),
    Guarantee(
        "group-skip",
        "A group left out records of a partition between two that it read.",
        ("operations", "runs", "memberships"),
        "partitions_given",
        "partitions given to members",
        group_skip.transform,
    ),
    Guarantee(
        "mirror-complete",
        "A record of the source is not in the cluster that its mirror copied to.",
        ("operations", "runs", "ends", "target_runs"),
        "records_at_target",
        "records read at the target",
        mirror_complete.transform,
    ),
)
