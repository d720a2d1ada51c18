"""A backlog to drain (`consumerBacklogSizeGB`): readers pause until it has its size, and then drain it.

Producers never pause. ``WorkloadGenerator.buildAndDrainBacklog`` of OpenMessaging's project counts each subscription's
own records, and calls the backlog drained when the share ``backlogDrainRatio`` of it is gone, or when 1,000 records are
left.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from bench.load.workload import UnplayableError, Workload

GIB: Final = 1 << 30
DRAINED_RECORDS: Final = 1_000
"""A backlog of at most this number of records counts as drained, whatever the ratio."""
LIMIT_S: Final = 600.0
"""Limit of draining, and of building beyond three times the time that the rate needs."""
_POLL_S: Final = 0.1
_PROGRESS_S: Final = 1.0
RECORD_BYTES: Final = 10
"""About what a batch adds to each value on the disk."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a backlog. Records are those of all subscriptions."""

    size_bytes: int
    records: int  # of this size
    build_s: float
    drain_s: float
    drained_per_s: float  # records that readers read in a second until it was drained


class Leader(Protocol):
    """The interface of the leader of a run's workers."""

    def command(self, command: str) -> None: ...

    def counts(self) -> tuple[int, int] | None:
        """Return the records acknowledged and read so far; None if nothing is known yet."""


class BacklogError(Exception):
    """It was not built or drained in time. The message is the end of a sentence."""


def build_and_drain(
    workload: Workload, records_per_s: float, leader: Leader, progress: Callable[[str], None]
) -> Backlog:
    """Pause the readers, wait for the backlog, and let them drain it.

    :raises BacklogError: one of both took too long.
    """
    size_bytes = int(workload.consumer_backlog_size_gb * GIB)
    records = size_bytes // workload.record_bytes
    remaining = max(DRAINED_RECORDS, int((1 - workload.backlog_drain_ratio) * records))
    subscriptions = workload.subscriptions_per_topic

    def until(is_enough: Callable[[int], bool], limit_s: float, what: str) -> tuple[float, int]:
        """Wait, and return the seconds that it took and how many records were read meanwhile."""
        start_s = shown_s = time.monotonic()
        first_read: int | None = None
        while time.monotonic() < start_s + limit_s:
            counts = leader.counts()
            if counts is not None:
                acknowledged, read = counts
                first_read = read if first_read is None else first_read
                backlog = subscriptions * acknowledged - read
                if is_enough(backlog):
                    return time.monotonic() - start_s, read - first_read
                if time.monotonic() >= shown_s + _PROGRESS_S:
                    shown_s = time.monotonic()
                    progress(f"{what} the backlog: {max(0, backlog):,} of {records:,} records")
            time.sleep(_POLL_S)
        raise BacklogError(f"{what} the backlog of {size_bytes / GIB:g} GB took more than {limit_s:,.0f} s")

    build_limit_s = LIMIT_S + 3 * records / (records_per_s * subscriptions)
    leader.command("pause_readers")
    build_s, _ = until(lambda backlog: backlog >= records, build_limit_s, "building")
    leader.command("resume_readers")
    drain_s, read = until(lambda backlog: backlog <= remaining, LIMIT_S, "draining")
    return Backlog(
        size_bytes=size_bytes, records=records, build_s=build_s, drain_s=drain_s, drained_per_s=read / drain_s
    )


def check_space(workload: Workload, records_per_s: float, seconds: float, replication: int, folder: Path) -> None:
    """Check that what a run writes fits into the free space of a folder.

    ``seconds`` is the duration of warm-up and load. A run without a rate is not limited by this.

    :raises UnplayableError: it does not.
    """
    records = records_per_s * seconds
    if workload.consumer_backlog_size_gb:
        records += workload.consumer_backlog_size_gb * GIB / workload.record_bytes / workload.subscriptions_per_topic
    wanted_bytes = records * (workload.record_bytes + RECORD_BYTES) * replication
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes > free_bytes:
        raise UnplayableError(
            f"it writes about {wanted_bytes / GIB:,.1f} GB, and {folder} has {free_bytes / GIB:,.1f} GB free: "
            "choose a smaller backlog, a lower rate or a shorter time"
        )
