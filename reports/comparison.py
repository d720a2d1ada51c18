"""Compares runs of one scenario on one page: several revisions of the fetch session beside each other.

Where a mirror copied, it compares runs with and without metadata epochs instead. The runs had the same load, faults and
seed, and were played one after the other. Each is judged by itself. The page says what sessions cost and spared: bytes,
partitions sent again, time to recover from a lost answer, and the node's time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from reports.judge import Judged, Progress, judge_whole, silent
from reports.verdict import Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reports.collect import Findings, Row

COMPARISON_VERSION = 3
ORDER = ("final", "first", "none")
PAGE_NAME = "comparison.html"
NUMBERS_NAME = "comparison.json"


@dataclass(frozen=True, slots=True)
class Served:
    """What fetches of one kind cost the nodes. Means are of one fetch; None means that there were no fetches."""

    fetches: int = 0
    request_bytes: float | None = None
    response_bytes: float | None = None
    overhead_bytes: float | None = None  # of the response, without its records
    named: float | None = None
    sent: float | None = None
    mean_us: float | None = None
    p50_us: float | None = None  # of the kind that is most frequent, full or incremental
    p99_us: float | None = None
    total_us: int = 0
    full: int = 0  # fetches that named all partitions


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's side of the comparison. Fetches and partitions are those of fetchers that got their answer."""

    revision: str
    fetches: int
    named: int
    answered: int
    full_again: int  # full requests beyond a fetcher's first at a node, and requests sent again
    named_again: int
    sent_again: int
    losses: int
    recovered_us: tuple[int, ...]  # ascending; from giving up on the answer to the next good one
    asking_us: tuple[int, ...]  # ascending; the part of it between requests and their answers
    recovery_bytes: float | None  # mean of requests and responses, until the first good answer
    clients: Served
    followers: Served

    @property
    def recovery_median_us(self) -> float | None:
        return median(self.recovered_us) if self.recovered_us else None

    @property
    def asking_median_us(self) -> float | None:
        return median(self.asking_us) if self.asking_us else None


@dataclass(frozen=True, slots=True)
class Compared:
    """``page`` is comparison.html; the same numbers for programs lie beside it. Runs stand in the order of
    revisions."""

    page: Path
    verdicts: tuple[Verdict, ...]
    measured: tuple[Measured, ...]


def compare_runs(
    run_dirs: Sequence[Path], out: Path, spark: "SparkSession | None" = None, progress: Progress = silent
) -> Compared:
    """Judges the runs (each report goes to its RUN_DIR/report) and writes the comparison to ``out``.

    Raises ManifestError and SetupError as ``judge`` does.
    """
    from reports.page.comparison import write_comparison
    from reports.page.mirror_comparison import numbers_of, write_mirror_comparison

    found = judge_whole(run_dirs, None, None, spark, progress)
    judged = sorted(found, key=lambda one: _place(one.manifest.revision))
    measured = tuple(measure(_name(one), one.findings) for one in judged)
    out.mkdir(parents=True, exist_ok=True)
    mirrors = [numbers_of(_name(one), one) for one in judged if one.manifest.variant and one.findings.mirrors]
    page = write_mirror_comparison(out, judged, mirrors) if mirrors else write_comparison(out, judged, measured)
    numbers = {
        "version": COMPARISON_VERSION,
        "scenario": judged[0].manifest.scenario,
        "seed": judged[0].manifest.seed,
        "runs": [asdict(one) for one in measured],
        "mirrors": [asdict(one) for one in mirrors],
    }
    (out / NUMBERS_NAME).write_text(json.dumps(numbers, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return Compared(page, tuple(one.verdict for one in judged), measured)


def _place(revision: str) -> int:
    return ORDER.index(revision) if revision in ORDER else len(ORDER)


def _name(one: Judged) -> str:
    return one.manifest.variant or one.manifest.revision or one.manifest.run_id or one.manifest.scenario


def measure(revision: str, findings: "Findings") -> Measured:
    sums: Row = dict(findings.sent_again[0]) if findings.sent_again else {}
    ended = sorted(findings.recoveries, key=lambda row: int(row["recovered_us"]))
    spent = [row["request_bytes"] + row["response_bytes"] for row in ended]
    return Measured(
        revision=revision,
        fetches=sums.get("fetches", 0),
        named=sums.get("named", 0),
        answered=sums.get("answered", 0),
        full_again=sums.get("requests_again", 0),
        named_again=sums.get("named_again", 0),
        sent_again=sums.get("answered_again", 0),
        losses=len(ended),
        recovered_us=tuple(int(row["recovered_us"]) for row in ended),
        asking_us=tuple(sorted(int(row["asking_us"]) for row in ended)),
        recovery_bytes=sum(spent) / len(spent) if any(spent) else None,
        clients=_served([row for row in findings.costs if not row["follower"]]),
        followers=_served([row for row in findings.costs if row["follower"]]),
    )


def _served(rows: "Sequence[Row]") -> Served:
    fetches = sum(row["fetches"] for row in rows)
    if not fetches:
        return Served()
    total: Mapping[str, int] = {
        name: sum(row[name] for row in rows)
        for name in ("request_bytes", "response_bytes", "record_bytes", "named", "sent", "service_us")
    }
    usual = max(rows, key=lambda row: row["fetches"])
    return Served(
        fetches,
        total["request_bytes"] / fetches,
        total["response_bytes"] / fetches,
        (total["response_bytes"] - total["record_bytes"]) / fetches,
        total["named"] / fetches,
        total["sent"] / fetches,
        total["service_us"] / fetches,
        usual["p50_us"],
        usual["p99_us"],
        total["service_us"],
        sum(row["fetches"] for row in rows if row["full"]),
    )
