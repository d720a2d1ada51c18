"""Writes comparison.html: one self-contained page about several runs of a scenario."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reports.comparison import PAGE_NAME, Measured
from reports.judge import Judged
from reports.page import words
from reports.page.render import FOLDER, environment
from reports.plots import comparison as pictures
from reports.plots import style
from reports.plots.catalogue import Drawing
from reports.plots.overview import overview

MEANINGS = {
    "final": "sessions as Apache Kafka has them: 32-bit epochs, a full fetch after a lost answer",
    "first": "sessions as KIP-227 first had them: 64-bit sequence numbers, the same request again after a lost answer",
    "none": "no sessions: each fetch names and is answered all its partitions",
}
_CAPTIONS = {
    "overview": "Lengths are ratios: each bar begins at zero. Means, full fetches among them, unless said otherwise.",
    "bytes": "What a fetch costs on the wire, without the records, which are the same for all. Logarithmic.",
    "partitions": "Partitions that a fetch names and that its answer holds; below, those that came again after a lost "
    "answer or a new session. Logarithmic.",
    "service": "Processor time of the node for one fetch: decoding, looking up, encoding, without the wait for data.",
    "recovery": "Each dot is a fetch whose answer did not come: the time of the requests that followed until a good "
    "answer. The wait for the lost one, the fetcher's pause and its new connection, the same for all, are not in it. "
    "Where the lost answer was empty, the next request waits for data, too.",
    "growth": "The node's time grows with what the answer holds, not with what the session holds.",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of the table. ``cells`` stand in the order of the runs."""

    title: str
    cells: tuple[str, ...]


def write_comparison(folder: Path, judged: Sequence[Judged], runs: Sequence[Measured]) -> Path:
    """``folder`` must exist. Figures are copied there as PNG."""
    page = folder / PAGE_NAME
    first = judged[0].manifest
    context = {
        "manifest": first,
        "compared": "fetch sessions compared",
        "differs": "sessions",
        "runs": [head(one, run.revision, folder) for one, run in zip(judged, runs, strict=True)],
        "groups": table(runs),
        "notes": notes(judged, runs),
        "drawings": _drawings(folder, judged, runs),
        "style": (FOLDER / "style.css").read_text(encoding="utf-8"),
        "script": (FOLDER / "script.js").read_text(encoding="utf-8"),
    }
    page.write_text(environment().get_template("comparison.html.j2").render(**context), encoding="utf-8")
    return page


def head(one: Judged, name: str, folder: Path) -> dict[str, Any]:
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


def table(runs: Sequence[Measured]) -> list[tuple[str, list[Line]]]:
    """The table as groups of lines. It leaves out a line that no run has."""
    client, follower = [one.clients for one in runs], [one.followers for one in runs]
    groups = [
        (
            "Fetchers",
            [
                line_of("fetches answered", [one.fetches for one in runs], words.count),
                line_of("request bytes a fetch", [one.request_bytes for one in client], words.size),
                line_of("response bytes a fetch", [one.response_bytes for one in client], words.size),
                line_of("of these without records", [one.overhead_bytes for one in client], words.size),
                line_of("partitions named a fetch", [_share(one.named, one.fetches) for one in runs], _two),
                line_of("partitions answered a fetch", [_share(one.answered, one.fetches) for one in runs], _two),
            ],
        ),
        (
            "The node's time",
            [
                line_of("a fetch, mean", [one.mean_us for one in client], words.micros),
                line_of("a fetch, median of the usual kind", [one.p50_us for one in client], words.micros),
                line_of("a fetch, 99 % of the usual kind", [one.p99_us for one in client], words.micros),
                line_of("all fetches", [one.total_us or None for one in client], words.micros),
            ],
        ),
        (
            "Lost answers",
            [
                line_of("fetches whose answer did not come", [one.losses for one in runs], words.count),
                line_of(
                    "asking until the next good answer, median", [one.asking_median_us for one in runs], words.micros
                ),
                line_of("with pauses and connecting, median", [one.recovery_median_us for one in runs], words.micros),
                line_of("bytes until then, mean", [one.recovery_bytes for one in runs], words.size),
                line_of("requests in full or sent again", [one.full_again for one in runs], words.count),
                line_of("partitions named again", [one.named_again for one in runs], words.count),
                line_of("partitions sent again", [one.sent_again for one in runs], words.count),
            ],
        ),
        (
            "Followers",
            [
                line_of("fetches answered", [one.fetches or None for one in follower], words.count),
                line_of("of these in full", [one.full if one.fetches else None for one in follower], words.count),
                line_of("request bytes a fetch", [one.request_bytes for one in follower], words.size),
                line_of("response bytes a fetch without records", [one.overhead_bytes for one in follower], words.size),
                line_of("partitions named a fetch", [one.named for one in follower], _two),
                line_of("the node's time a fetch, mean", [one.mean_us for one in follower], words.micros),
            ],
        ),
    ]
    shown = [(title, [line for line in lines if line is not None]) for title, lines in groups]
    return [(title, lines) for title, lines in shown if lines]


def line_of(title: str, values: Sequence[float | None], text: Callable[[Any], str]) -> Line | None:
    if all(value is None for value in values):
        return None
    return Line(title, tuple(words.NONE if value is None else text(value) for value in values))


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _two(value: float) -> str:
    return f"{value:,.2f}"


def notes(judged: Sequence[Judged], runs: Sequence[Measured]) -> list[str]:
    found = [
        "The runs were played one after the other with the same load, faults and seed. Fetchers are a closed loop: who "
        "is answered faster asks more often, so compare what one fetch costs, not sums of bytes."
    ]
    if judged[0].manifest.world == "sim":
        found.append("The runs were simulated: partitions are exact, times are virtual, bytes are not counted.")
    if not any(one.clients.fetches for one in runs):
        found.append("The nodes left no costs of single fetches (table fetch_costs).")
    seconds = [one.manifest.duration_us / 1e6 for one in judged]
    if max(seconds) > 1.1 * min(seconds):
        told = ", ".join(f"{each:.0f} s" for each in seconds)
        found.append(f"The runs were not equally long ({told}): compare per fetch only.")
    found += [
        f"The run of {run.revision} did not pass: {one.verdict.summary}"
        for one, run in zip(judged, runs, strict=True)
        if one.verdict.exit_code
    ]
    return found


def _drawings(folder: Path, judged: Sequence[Judged], runs: Sequence[Measured]) -> dict[str, Drawing]:
    curves = {run.revision: one.findings.costs_by_size for one, run in zip(judged, runs, strict=True)}
    makers: dict[str, Callable[[], Figure | None]] = {
        "overview": lambda: overview(runs),
        "bytes": lambda: pictures.bytes_per_fetch(runs),
        "partitions": lambda: pictures.partitions(runs),
        "service": lambda: pictures.service(runs),
        "growth": lambda: pictures.growth(curves),
        "recovery": lambda: pictures.recovery(runs),
    }
    return drawn(folder, makers, _CAPTIONS)


def drawn(
    folder: Path, makers: Mapping[str, Callable[[], Figure | None]], captions: Mapping[str, str]
) -> dict[str, Drawing]:
    """The figures that have enough samples, in the order of ``makers``."""
    drawings = {}
    with style.styled():
        for name, make in makers.items():
            figure = make()
            if figure is not None:
                style.png(figure, folder / f"comparison-{name}.png")
                drawings[name] = Drawing(name, style.svg(figure, name, captions[name]), captions[name])
    return drawings
