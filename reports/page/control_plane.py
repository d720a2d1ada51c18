"""The control plane's tables: failovers of the controller, and snapshots that nodes fetched from each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reports.collect import Findings
from reports.page import words


@dataclass(frozen=True, slots=True)
class Failover:
    """The loss of an active controller, and the next one."""

    node: int
    epoch: int
    next_node: int
    next_epoch: int
    at_us: int
    cause: str
    without_us: int
    """The time from the loss of one active controller to the next."""
    accepted_us: int | None
    """The time until a client's request was accepted again; None if no admin sent one."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The download of a snapshot by one node."""

    node: int
    snapshot: str
    size_bytes: int
    received_bytes: int
    beyond_bytes: int
    """Received more than once."""
    allowed_bytes: int
    """The largest chunk for each start."""
    starts: int
    resumes: int
    resumed_at: int
    discarded: int
    at_us: int
    took_us: int
    finished: bool


def failovers(findings: Findings) -> list[Failover]:
    rows = sorted(findings.failovers, key=lambda row: row["active_us"])
    return [
        Failover(
            row["node"],
            row["epoch"],
            row["next_node"],
            row["next_epoch"],
            row["lost_us"],
            row["cause"],
            row["active_us"] - row["lost_us"],
            None if row["accepted_us"] is None else row["accepted_us"] - row["lost_us"],
        )
        for row in rows
    ]


def transfers(findings: Findings) -> list[Transfer]:
    return [_transfer(row) for row in sorted(findings.transfers, key=lambda row: (row["from_us"], row["node"]))]


def _transfer(row: dict[str, Any]) -> Transfer:
    size, received = row["size_bytes"] or 0, row["received_bytes"]
    return Transfer(
        row["node"],
        f"{row['end_offset']}-{row['epoch']}",
        size,
        received,
        max(0, received - size),
        row["largest_chunk_bytes"] * row["starts"],
        row["starts"],
        row["resumes"],
        row["resumed_at"],
        row["discarded"],
        row["from_us"],
        row["until_us"] - row["from_us"],
        bool(row["finished"]),
    )


def summary(rows: Sequence[Failover]) -> str:
    if not rows:
        return ""
    if len(rows) < words.MIN_MEDIAN_SAMPLES:
        return "There are too few for a median."
    return words.median_and_worst([row.without_us for row in rows])
