"""The tables of transactions: their ends, the cost of each fault, and stalls of the last stable offset."""

from dataclasses import dataclass

from reports.collect import Findings
from reports.job_rows import Row
from reports.jobs.transactions import NO_FAULT, WHOLE_RUN
from reports.page.groups import cause
from reports.page.latency import quantile
from reports.page.words import count, micros

MAX_STALLS = 20
COUNTS = ("begun", "committed", "aborted", "aborts_requested", "undecided", "fenced")


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of transactions by kind of producer. The records are the inputs of workers; None for writers."""

    name: str
    producers: int
    counts: tuple[int, ...]
    """As COUNTS."""
    records: int | None
    records_committed: int | None


@dataclass(frozen=True, slots=True)
class Times:
    """Durations. A quantile is None if there are too few samples."""

    name: str
    count: int
    p50_us: int | None
    p99_us: int | None
    max_us: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Transactions that were open during a fault."""

    fault: str
    begun: int
    committed: int
    aborted: int
    undecided: int
    fenced: int
    longest_us: int | None
    """None if no end was requested."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which the last stable offset did not move behind the high watermark."""

    topic: str
    partition: int
    offset: int
    at_us: int
    lasted_us: int
    behind: int
    moved: bool
    """False if it still was there when it was last seen."""
    cause: str


def ends(findings: Findings) -> list[Ends]:
    """Writers come before workers."""
    return [
        Ends(
            f"workers of {row['group']}" if row["group"] else "writers",
            row["producers"],
            tuple(row[name] for name in COUNTS),
            row["records"] if row["group"] else None,
            row["records_committed"] if row["group"] else None,
        )
        for row in sorted(findings.transactions, key=lambda row: str(row["group"]))
    ]


def decided(findings: Findings) -> list[Times]:
    """Commits come before aborts."""
    whole = [row for row in findings.decided if row["second"] == WHOLE_RUN]
    return [
        _times(row, row["requested_end"]) for row in sorted(whole, key=lambda row: row["requested_end"] != "commit")
    ]


def stall_times(findings: Findings) -> list[Times]:
    return [_times(row, row["topic"]) for row in sorted(findings.stable_offsets, key=lambda row: str(row["topic"]))]


def costs(findings: Findings) -> list[Cost]:
    """The faults in the order of their beginning, and at last what no fault touched. Nothing if no fault fired."""
    rows = {row["fault"]: row for row in findings.transactions_around_faults}
    begun = sorted(findings.faults, key=lambda row: (row["from_us"], row["name"]))
    names = list(dict.fromkeys(row["name"] for row in begun if row["name"] in rows))
    return [Cost(**rows[name]) for name in (*names, NO_FAULT) if name in rows] if names else []


def stalls(findings: Findings) -> list[Stall]:
    """The longest ones come first."""
    rows = sorted(findings.stalls, key=lambda row: (row["from_us"] - row["until_us"], row["topic"], row["partition"]))
    return [
        Stall(
            row["topic"],
            row["partition"],
            row["offset"],
            row["from_us"],
            row["until_us"] - row["from_us"],
            row["behind"],
            row["moved"],
            cause(findings, row["from_us"], row["until_us"]),
        )
        for row in rows[:MAX_STALLS]
    ]


def tiles(findings: Findings) -> list[tuple[str, str, str]]:
    """Value, title, what it is, as the page's other tiles."""
    if not findings.transactions:
        return []
    begun, committed, undecided = (
        sum(row[name] for row in findings.transactions) for name in ("begun", "committed", "undecided")
    )
    more = f"of {count(begun)} begun, {count(undecided)} undecided"
    made = [(count(committed), "transactions committed", more)]
    longest = stalls(findings)
    if longest:
        made.append((micros(longest[0].lasted_us), "stable offset behind", "one partition, at worst"))
    return made


def _times(row: Row, name: str) -> Times:
    return Times(name, row["count"], quantile(row, "p50_us", 2), quantile(row, "p99_us", 100), row["max_us"])
