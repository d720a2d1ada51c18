"""The tables of consumer groups: rebalances, and moves of their coordinators."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from reports.collect import Findings
from reports.job_rows import without_presets
from reports.page import words

_SLACK_US = 1_000_000
"""A fault that ended no longer ago than this still explains what began then."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance of a group."""

    group: str
    generation: int
    members: int
    at_us: int
    took_us: int
    slowest_us: int
    free_us: int | None
    """The longest time that a partition had no owner meanwhile; None if each had one."""
    cause: str


@dataclass(frozen=True, slots=True)
class Move:
    """A group's move to another coordinator."""

    group: str
    node: int
    next_node: int
    at_us: int
    without_us: int
    """The time from the last commit at a node to the first at the next node."""
    loaded_us: int | None
    """The time until the next node had loaded."""
    records: int | None
    failed: int
    cause: str


def rebalances(findings: Findings) -> list[Rebalance]:
    rows = sorted(findings.rebalances, key=lambda row: (row["from_us"], row["group"]))
    free: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in sorted(findings.ownerless, key=lambda row: row["until_us"]):
        free[row["group"]].append((row["until_us"], row["until_us"] - row["from_us"]))
    return [
        Rebalance(
            row["group"],
            row["generation"],
            row["members"],
            row["from_us"],
            row["until_us"] - row["from_us"],
            row["slowest_us"],
            _longest_free(free[row["group"]], row["from_us"], row["until_us"]),
            cause(findings, row["from_us"], row["until_us"]),
        )
        for row in rows
    ]


def _longest_free(free: Sequence[tuple[int, int]], from_us: int, until_us: int) -> int | None:
    """The longest of the times without an owner that ended with this generation. ``free`` has the end and the length of
    each, in the order of their ends."""
    first = bisect_left(free, from_us, key=lambda span: span[0])
    behind = bisect_right(free, until_us, key=lambda span: span[0])
    return max((length for _, length in free[first:behind]), default=None)


def coordinators(findings: Findings) -> list[Move]:
    rows = sorted(findings.coordinators, key=lambda row: (row["last_us"], row["group"]))
    return [
        Move(
            row["group"],
            row["node"],
            row["next_node"],
            row["last_us"],
            row["first_us"] - row["last_us"],
            None if row["loaded_us"] is None else row["loaded_us"] - row["last_us"],
            row["records"],
            row["failed"],
            cause(findings, row["last_us"], row["first_us"]),
        )
        for row in rows
    ]


def cause(findings: Findings, from_us: int, until_us: int) -> str:
    """The latest fault that was in force, or had just ended, at some moment between the two times."""
    faults = [
        row
        for row in without_presets(findings.fault_hits)
        if row["at_us"] <= until_us and row["until_us"] >= from_us - _SLACK_US
    ]
    last = max(faults, key=lambda row: (row["at_us"], row["name"]), default=None)
    return "" if last is None else str(last["name"])


def summary(rows: Sequence[Rebalance]) -> str:
    if len(rows) < words.MIN_MEDIAN_SAMPLES:
        return ""
    return words.median_and_worst([row.took_us for row in rows])
