"""Writes comparison.html: one self-contained page about several runs of a scenario."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from os.path import relpath
from pathlib import Path
from typing import Any, TypeAlias

from reports.comparison import PAGE_NAME, Measured
from reports.judge import Judged
from reports.page import words
from reports.page.render import environment
from reports.plots import comparison as pictures
from reports.plots.catalogue import Makers, drawn
from reports.plots.overview import overview

MEANINGS = {
    "final": "sessions as Apache Kafka has them: 32-bit epochs, a full fetch after a lost answer",
    "first": "sessions as KIP-227 first had them: 64-bit sequence numbers, the same request again after a lost answer",
    "none": "no sessions: each fetch names and is answered all its partitions",
}
_CAPTIONS = {
    "overview": "Each bar begins at zero, so lengths are ratios. Figures are means that include full fetches, unless "
    "the title says otherwise.",
    "bytes": "What a fetch costs on the wire, without the records, which are the same for all. The axis is "
    "logarithmic.",
    "partitions": "How many partitions a fetch names, and how many its answer holds. Below are those that came again "
    "after a lost answer or in a new session. The axis is logarithmic.",
    "service": "The node's processor time for one fetch: it decodes the request, looks up the records and encodes the "
    "answer. The wait for data does not count.",
    "recovery": "Each dot is a fetch whose answer did not come. It shows the time of the requests that followed, until "
    "a good answer. The wait for the lost answer, the fetcher's pause and its new connection are not in it, because "
    "they are the same for all. If the lost answer was empty, the next request waits for data, too.",
    "growth": "The node's time grows with what the answer holds, not with what the session holds.",
}


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _two(value: float) -> str:
    return f"{value:,.2f}"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of the table. ``cells`` stand in the order of the runs."""

    title: str
    cells: tuple[str, ...]


Lines: TypeAlias = Sequence[tuple[str, Callable[[Any], float | None], Callable[[Any], str]]]
"""The lines of one group of the table: a title, a run's value, and how that is written."""

_LINES: Mapping[str, Lines] = {
    "Fetchers": (
        ("fetches answered", attrgetter("fetches"), words.count),
        ("request bytes a fetch", attrgetter("clients.request_bytes"), words.size),
        ("response bytes a fetch", attrgetter("clients.response_bytes"), words.size),
        ("of these without records", attrgetter("clients.overhead_bytes"), words.size),
        ("partitions named a fetch", lambda one: _share(one.named, one.fetches), _two),
        ("partitions answered a fetch", lambda one: _share(one.answered, one.fetches), _two),
    ),
    "The node's time": (
        ("a fetch, mean", attrgetter("clients.mean_us"), words.micros),
        ("a fetch, median of the usual kind", attrgetter("clients.p50_us"), words.micros),
        ("a fetch, 99 % of the usual kind", attrgetter("clients.p99_us"), words.micros),
        ("all fetches", lambda one: one.clients.total_us or None, words.micros),
    ),
    "Lost answers": (
        ("fetches whose answer did not come", attrgetter("losses"), words.count),
        ("asking until the next good answer, median", attrgetter("asking_median_us"), words.micros),
        ("with pauses and connecting, median", attrgetter("recovery_median_us"), words.micros),
        ("bytes until then, mean", attrgetter("recovery_bytes"), words.size),
        ("requests in full or sent again", attrgetter("full_again"), words.count),
        ("partitions named again", attrgetter("named_again"), words.count),
        ("partitions sent again", attrgetter("sent_again"), words.count),
    ),
    "Followers": (
        ("fetches answered", lambda one: one.followers.fetches or None, words.count),
        ("of these in full", lambda one: one.followers.full if one.followers.fetches else None, words.count),
        ("request bytes a fetch", attrgetter("followers.request_bytes"), words.size),
        ("response bytes a fetch without records", attrgetter("followers.overhead_bytes"), words.size),
        ("partitions named a fetch", attrgetter("followers.named"), _two),
        ("the node's time a fetch, mean", attrgetter("followers.mean_us"), words.micros),
    ),
}


def write_comparison(folder: Path, judged: Sequence[Judged], runs: Sequence[Measured]) -> Path:
    """``folder`` must exist. Figures are copied there as PNG."""
    return write_page(
        folder,
        judged,
        [run.revision for run in runs],
        compared="fetch sessions compared",
        differs="sessions",
        groups=table(_LINES, runs),
        notes=notes(judged, runs),
        drawings=drawn(_makers(judged, runs), _CAPTIONS, folder, "comparison-"),
    )


def write_page(folder: Path, judged: Sequence[Judged], names: Sequence[str], **context: Any) -> Path:
    """``names`` tell the runs apart. ``context`` is what else the template shows."""
    runs = [_head(one, name, folder) for one, name in zip(judged, names, strict=True)]
    template = environment().get_template("comparison.html.j2")
    page = folder / PAGE_NAME
    page.write_text(template.render(manifest=judged[0].manifest, runs=runs, **context), encoding="utf-8")
    return page


def _head(one: Judged, name: str, folder: Path) -> dict[str, Any]:
    report = one.verdict.report
    return {
        "revision": name,
        "meaning": MEANINGS.get(name, ""),
        "outcome": one.verdict.outcome.name.lower(),
        "summary": one.verdict.summary,
        "reasons": one.verdict.reasons,
        "report": relpath(report, folder) if report is not None else "",
        "repeat": one.verdict.repeat_command,
    }


def table(groups: Mapping[str, Lines], runs: Sequence[Any]) -> list[tuple[str, list[Line]]]:
    """The table as groups of lines. It leaves out a line that no run has, and a group without lines."""
    shown = []
    for group, lines in groups.items():
        found = []
        for title, value_of, text in lines:
            values = [value_of(one) for one in runs]
            if any(value is not None for value in values):
                cells = (words.NONE if value is None else text(value) for value in values)
                found.append(Line(title, tuple(cells)))
        if found:
            shown.append((group, found))
    return shown


def notes(judged: Sequence[Judged], runs: Sequence[Measured]) -> list[str]:
    found = [
        "The runs were played one after the other with the same load, faults and seed. Fetchers are a closed loop: one "
        "that is answered faster asks more often. So compare what one fetch costs, and not sums of bytes."
    ]
    if judged[0].manifest.world == "sim":
        found.append("The runs were simulated. Partitions are exact, times are virtual, and bytes are not counted.")
    if not any(one.clients.fetches for one in runs):
        found.append("The nodes left no costs of single fetches (table fetch_costs).")
    seconds = [one.manifest.duration_us / 1e6 for one in judged]
    if max(seconds) > 1.1 * min(seconds):
        told = ", ".join(f"{each:.0f} s" for each in seconds)
        found.append(f"The runs were not equally long ({told}), so compare only what one fetch costs.")
    found += [
        f"The run of {run.revision} did not pass: {one.verdict.summary}"
        for one, run in zip(judged, runs, strict=True)
        if one.verdict.exit_code
    ]
    return found


def _makers(judged: Sequence[Judged], runs: Sequence[Measured]) -> Makers:
    curves = {run.revision: one.findings.costs_by_size for one, run in zip(judged, runs, strict=True)}
    return {
        "overview": lambda: overview(runs),
        "bytes": lambda: pictures.bytes_per_fetch(runs),
        "partitions": lambda: pictures.partitions(runs),
        "service": lambda: pictures.service(runs),
        "growth": lambda: pictures.growth(curves),
        "recovery": lambda: pictures.recovery(runs),
    }
