"""The page that compares variants of one scenario.

The runs had the same load, faults and seed, were played one after the other, and have a verdict each. The page shows
the costs and savings of fetch sessions: bytes, resent partitions, time to recover from a lost response, and the node's
time. For scenarios with a mirror it compares runs with and without metadata epochs instead.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from reports.job_rows import Row, Rows
from reports.jobs.mirror import SLOT_US
from reports.judge import Progress, RunReport, compute_reports, silent
from reports.mirrored import mirrored, rewinds, tracks
from reports.page import words
from reports.page.render import environment, run_seconds
from reports.plots.catalogue import Makers, drawn
from reports.plots.comparison import (
    Measured,
    Served,
    draw_bytes_per_fetch,
    draw_growth,
    draw_overview,
    draw_partitions,
    draw_recovery,
    draw_service,
)
from reports.plots.mirror import MirrorRun, draw_lags, draw_positions
from reports.verdict import Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reports.collect import Findings


COMPARISON_VERSION = 3
ORDER = ("final", "first", "none")
PAGE_NAME = "comparison.html"
NUMBERS_NAME = "comparison.json"


@dataclass(frozen=True, slots=True)
class Compared:
    """A written comparison. Its runs are in the order of revisions."""

    page: Path
    """comparison.html; a JSON file with the same numbers is beside it."""
    verdicts: tuple[Verdict, ...]
    measured: tuple[Measured, ...]


def compare_runs(
    run_dirs: Sequence[Path], out: Path, spark: "SparkSession | None" = None, progress: Progress = silent
) -> Compared:
    """Judge the runs (each report goes to its RUN_DIR/report) and write the comparison to ``out``.

    Raise ManifestError and SetupError as ``compute_reports`` does.
    """

    computed = compute_reports(run_dirs, None, None, spark, progress)
    reports = sorted(computed, key=lambda report: _place(report.manifest.revision))
    measured = tuple(measure(_name(report), report.findings) for report in reports)
    out.mkdir(parents=True, exist_ok=True)
    mirrors = [
        mirror_numbers(_name(report), report)
        for report in reports
        if report.manifest.variant and report.findings.mirrors
    ]
    page = write_mirror_comparison(out, reports, mirrors) if mirrors else write_comparison(out, reports, measured)
    numbers = {
        "version": COMPARISON_VERSION,
        "scenario": reports[0].manifest.scenario,
        "seed": reports[0].manifest.seed,
        "runs": [asdict(report) for report in measured],
        "mirrors": [asdict(report) for report in mirrors],
    }
    (out / NUMBERS_NAME).write_text(json.dumps(numbers, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return Compared(page, tuple(report.verdict for report in reports), measured)


def _place(revision: str) -> int:
    return ORDER.index(revision) if revision in ORDER else len(ORDER)


def _name(report: RunReport) -> str:
    return report.manifest.variant or report.manifest.revision or report.manifest.run_id or report.manifest.scenario


def measure(revision: str, findings: "Findings") -> Measured:
    sums: Row = dict(findings.sent_again[0]) if findings.sent_again else {}
    ended = sorted(findings.recoveries, key=lambda row: int(row["recovered_us"]))
    spent = [row["request_bytes"] + row["response_bytes"] for row in ended]
    return Measured(
        revision=revision,
        fetches=sums.get("fetches", 0),
        named=sums.get("named", 0),
        returned=sums.get("returned", 0),
        full_again=sums.get("requests_again", 0),
        named_again=sums.get("named_again", 0),
        sent_again=sums.get("returned_again", 0),
        losses=len(ended),
        recovered_us=tuple(int(row["recovered_us"]) for row in ended),
        requests_us=tuple(sorted(int(row["requests_us"]) for row in ended)),
        recovery_bytes=sum(spent) / len(spent) if any(spent) else None,
        clients=_served([row for row in findings.costs if not row["follower"]]),
        followers=_served([row for row in findings.costs if row["follower"]]),
    )


def _served(rows: "Rows") -> Served:
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


MEANINGS = {
    "final": "sessions as Apache Kafka has them: 32-bit epochs, a full fetch after a lost response",
    "first": "sessions as KIP-227 first had them: 64-bit sequence numbers, the request resent after a lost response",
    "none": "no sessions: each fetch and each response names all its partitions",
}
_CAPTIONS = {
    "overview": "Each bar begins at zero, so lengths are ratios. Figures are means that include full fetches, unless "
    "the title says otherwise.",
    "bytes": "What a fetch costs on the wire, without the records, which are the same for all. The axis is "
    "logarithmic.",
    "partitions": "How many partitions a fetch names, and how many its response holds. Below are those that came again "
    "after a lost response or in a new session. The axis is logarithmic.",
    "service": "The node's processor time for one fetch: it decodes the request, looks up the records and encodes the "
    "response. The wait for data does not count.",
    "recovery": "Each dot is a fetch whose response did not come. It shows the time of the requests that followed, "
    "until a good response. The wait for the lost response, the fetcher's pause and its new connection are not in it, "
    "because they are the same for all. If the lost response was empty, the next request waits for data, too.",
    "growth": "The node's time grows with what the response holds, not with what the session holds.",
}


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _two(value: float) -> str:
    return f"{value:,.2f}"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of the table."""

    title: str
    cells: tuple[str, ...]
    """In the order of the runs."""


Lines: TypeAlias = Sequence[tuple[str, Callable[[Any], float | None], Callable[[Any], str]]]
"""The lines of one group of the table: a title, a run's value, and how that is written."""

_LINES: Mapping[str, Lines] = {
    "Fetchers": (
        ("fetches served", attrgetter("fetches"), words.count),
        ("request bytes a fetch", attrgetter("clients.request_bytes"), words.size),
        ("response bytes a fetch", attrgetter("clients.response_bytes"), words.size),
        ("of these without records", attrgetter("clients.overhead_bytes"), words.size),
        ("partitions named a fetch", lambda one: _share(one.named, one.fetches), _two),
        ("partitions in a response", lambda one: _share(one.returned, one.fetches), _two),
    ),
    "The node's time": (
        ("a fetch, mean", attrgetter("clients.mean_us"), words.micros),
        ("a fetch, median of the usual kind", attrgetter("clients.p50_us"), words.micros),
        ("a fetch, 99 % of the usual kind", attrgetter("clients.p99_us"), words.micros),
        ("all fetches", lambda one: one.clients.total_us or None, words.micros),
    ),
    "Lost responses": (
        ("fetches whose response did not come", attrgetter("losses"), words.count),
        ("requests until the next good response, median", attrgetter("requests_median_us"), words.micros),
        ("with pauses and connecting, median", attrgetter("recovery_median_us"), words.micros),
        ("bytes until then, mean", attrgetter("recovery_bytes"), words.size),
        ("requests in full or sent again", attrgetter("full_again"), words.count),
        ("partitions named again", attrgetter("named_again"), words.count),
        ("partitions sent again", attrgetter("sent_again"), words.count),
    ),
    "Followers": (
        ("fetches served", lambda one: one.followers.fetches or None, words.count),
        ("of these in full", lambda one: one.followers.full if one.followers.fetches else None, words.count),
        ("request bytes a fetch", attrgetter("followers.request_bytes"), words.size),
        ("response bytes a fetch without records", attrgetter("followers.overhead_bytes"), words.size),
        ("partitions named a fetch", attrgetter("followers.named"), _two),
        ("the node's time a fetch, mean", attrgetter("followers.mean_us"), words.micros),
    ),
}


def write_comparison(folder: Path, reports: Sequence[RunReport], runs: Sequence[Measured]) -> Path:
    """``folder`` must exist. Figures are copied there as PNG."""
    return write_page(
        folder,
        reports,
        [run.revision for run in runs],
        compared="fetch sessions compared",
        differs="sessions",
        groups=table(_LINES, runs),
        notes=comparison_notes(reports, runs),
        drawings=drawn(_makers(reports, runs), _CAPTIONS, folder, "comparison-"),
    )


def write_page(folder: Path, reports: Sequence[RunReport], names: Sequence[str], **context: Any) -> Path:
    """``names`` distinguish the runs. ``context`` has the other values of the template."""
    runs = [_head(report, name, folder) for report, name in zip(reports, names, strict=True)]
    template = environment().get_template("comparison.html.j2")
    page = folder / PAGE_NAME
    page.write_text(template.render(manifest=reports[0].manifest, runs=runs, **context), encoding="utf-8")
    return page


def _head(report: RunReport, name: str, folder: Path) -> dict[str, Any]:
    verdict = report.verdict
    return {
        "revision": name,
        "meaning": MEANINGS.get(name, ""),
        "outcome": verdict.outcome.name.lower(),
        "summary": verdict.summary,
        "reasons": verdict.reasons,
        "report": relpath(verdict.report, folder) if verdict.report is not None else "",
        "repeat": verdict.repeat_command,
    }


def table(groups: Mapping[str, Lines], runs: Sequence[Any]) -> list[tuple[str, list[Line]]]:
    """The table as groups of lines. It omits a line that no run has, and a group without lines."""
    shown = []
    for group, lines in groups.items():
        with_values = []
        for title, value_of, text in lines:
            values = [value_of(run) for run in runs]
            if any(value is not None for value in values):
                cells = (words.NONE if value is None else text(value) for value in values)
                with_values.append(Line(title, tuple(cells)))
        if with_values:
            shown.append((group, with_values))
    return shown


def comparison_notes(reports: Sequence[RunReport], runs: Sequence[Measured]) -> list[str]:
    notes = [
        "The runs were played one after the other with the same load, faults and seed. Fetchers are a closed loop: one "
        "that gets its responses faster fetches more often. So compare what one fetch costs, and not sums of bytes."
    ]
    if reports[0].manifest.world == "sim":
        notes.append("The runs were simulated. Partitions are exact, times are virtual, and bytes are not counted.")
    if not any(report.clients.fetches for report in runs):
        notes.append("The nodes left no costs of single fetches (table fetch_costs).")
    seconds = [report.manifest.duration_us / 1e6 for report in reports]
    if max(seconds) > 1.1 * min(seconds):
        times = ", ".join(f"{second:.0f} s" for second in seconds)
        notes.append(f"The runs were not equally long ({times}), so compare only what one fetch costs.")
    notes += [
        f"The run of {run.revision} did not pass: {report.verdict.summary}"
        for report, run in zip(reports, runs, strict=True)
        if report.verdict.exit_code
    ]
    return notes


def _makers(reports: Sequence[RunReport], runs: Sequence[Measured]) -> Makers:
    curves = {run.revision: report.findings.costs_by_size for report, run in zip(reports, runs, strict=True)}
    return {
        "overview": lambda: draw_overview(runs),
        "bytes": lambda: draw_bytes_per_fetch(runs),
        "partitions": lambda: draw_partitions(runs),
        "service": lambda: draw_service(runs),
        "growth": lambda: draw_growth(curves),
        "recovery": lambda: draw_recovery(runs),
    }


_MIRROR_CAPTIONS = {
    "positions": "The partition that was rewound most. Where the line falls, the mirror started again and copied "
    "records again.",
    "lag": "How old the oldest record was that the mirror had not reached, in the worst partition.",
}


@dataclass(frozen=True, slots=True)
class MirrorNumbers:
    """The mirror of one run, over all topics."""

    name: str
    records: int
    again: int
    rewinds: int
    farthest: int
    median_lag_us: float
    worst_lag_us: int
    added_us: int
    """The most that one rewind added to the lag."""
    out_of_range: int
    """Positions that were called out of range although nothing was truncated or deleted there."""
    taken: int
    dropped: int
    held: int | None
    held_twice: int | None
    """in the cluster that was copied to, at the end"""


def mirror_numbers(name: str, report: RunReport) -> MirrorNumbers:
    copies, facts = mirrored(report.findings), report.findings.facts
    return MirrorNumbers(
        name,
        sum(copy.records for copy in copies),
        sum(copy.again for copy in copies),
        sum(copy.rewinds for copy in copies),
        max((copy.farthest for copy in copies), default=0),
        max((copy.median_lag_us for copy in copies), default=0),
        max((copy.worst_lag_us for copy in copies), default=0),
        max((copy.added_us for copy in copies), default=0),
        report.findings.found["rewinds"].total,
        facts.get("metadata_epochs", 0),
        facts.get("metadata_dropped", 0),
        _sum([copy.held for copy in copies]),
        _sum([copy.held_twice for copy in copies]),
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


_MIRROR_LINES: Mapping[str, Lines] = {
    "The mirror": (
        ("records copied", attrgetter("records"), words.count),
        ("of these twice", attrgetter("again"), words.count),
        ("records in the other cluster at the end", attrgetter("held"), words.count),
        ("of these held twice", attrgetter("held_twice"), words.count),
        ("times it went back", attrgetter("rewinds"), words.count),
        ("farthest back, offsets", attrgetter("farthest"), words.count),
    ),
    "Lag behind the source": (
        ("usual", attrgetter("median_lag_us"), words.micros),
        ("worst", attrgetter("worst_lag_us"), words.micros),
        ("added by a rewind, at most", attrgetter("added_us"), words.micros),
    ),
    "Why": (
        ("positions called out of range without reason", attrgetter("out_of_range"), words.count),
        ("metadata responses with an epoch, taken", attrgetter("taken"), words.count),
        ("dropped, since they were older", attrgetter("dropped"), words.count),
    ),
}


def write_mirror_comparison(folder: Path, reports: Sequence[RunReport], runs: Sequence[MirrorNumbers]) -> Path:
    """``folder`` must exist. Figures are copied there as PNG. Each of the ``runs`` had a mirror."""
    with_mirror = [report for report in reports if report.manifest.variant and report.findings.mirrors]
    return write_page(
        folder,
        with_mirror,
        [run.name for run in runs],
        compared="a mirror compared",
        differs="mechanism",
        groups=table(_MIRROR_LINES, runs),
        notes=mirror_notes(with_mirror),
        drawings=drawn(_mirror_makers(with_mirror, runs), _MIRROR_CAPTIONS, folder, "comparison-"),
    )


def mirror_notes(reports: Sequence[RunReport]) -> list[str]:
    notes = [
        "The runs were played one after the other with the same load, faults and seed. A run without the mechanism is "
        "expected to rewind, and what only the mechanism gives is not required of it."
    ]
    if reports[0].manifest.world == "sim":
        notes.append("The runs were simulated. Their times are virtual.")
    notes.append(
        "Positions and lags are shown in steps of a quarter of a second, so a line does not show shorter rewinds."
    )
    notes.append("In the pictures the runs are moved so that the first fault fires at the same time in all of them.")
    return notes


def _mirror_makers(reports: Sequence[RunReport], runs: Sequence[MirrorNumbers]) -> Makers:
    shown = [
        _moved(
            MirrorRun(run.name, tracks(report.findings), rewinds(report.findings), report.findings.fault_hits),
            reports[0],
        )
        for report, run in zip(reports, runs, strict=True)
    ]
    seconds = max(run_seconds(report.manifest, report.findings) for report in reports)
    return {"positions": lambda: draw_positions(shown, seconds), "lag": lambda: draw_lags(shown, seconds)}


def _moved(run: MirrorRun, other: RunReport) -> MirrorRun:
    """Move a run in time by whole steps, so that its first fault fires when that of the other run does."""
    ours, theirs = (
        min((int(hit["at_us"]) for hit in hits), default=None) for hits in (run.hits, other.findings.fault_hits)
    )
    steps = 0 if ours is None or theirs is None else round((theirs - ours) / SLOT_US)
    known = {place: replace(track, first=track.first + steps) for place, track in run.known.items()}
    back = [replace(rewind, at_us=rewind.at_us + steps * SLOT_US) for rewind in run.rewinds]
    return replace(run, known=known, rewinds=back)
