"""Writes comparison.html for runs with a mirror.

It shows what the mirror copied twice and how far it was behind, with the mechanism and without.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from reports.comparison import PAGE_NAME
from reports.jobs.mirror import SLOT_US
from reports.judge import Judged
from reports.mirrored import mirrored, rewinds, tracks
from reports.page import words
from reports.page.comparison import Line, drawn, head, line_of
from reports.page.render import FOLDER, environment, run_seconds
from reports.plots import mirror_comparison as pictures

_CAPTIONS = {
    "positions": "The partition that was rewound most. Where the line falls, the mirror began anew and copied again "
    "what it had copied.",
    "lag": "How old the oldest record was that the mirror had not reached, in the worst partition.",
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """The mirror of one run, over all topics.

    ``added_us`` is the most that one rewind added to the lag. ``out_of_range`` counts positions that were called out of
    range although nothing was truncated or deleted there.
    """

    name: str
    records: int
    again: int
    rewinds: int
    farthest: int
    median_lag_us: float
    worst_lag_us: int
    added_us: int
    out_of_range: int
    taken: int
    dropped: int
    held: int | None
    held_twice: int | None
    """in the cluster that was copied to, at the end"""


def numbers_of(name: str, one: Judged) -> Numbers:
    copies, facts = mirrored(one.findings), one.findings.facts
    return Numbers(
        name,
        sum(each.records for each in copies),
        sum(each.again for each in copies),
        sum(each.rewinds for each in copies),
        max((each.farthest for each in copies), default=0),
        max((each.median_lag_us for each in copies), default=0),
        max((each.worst_lag_us for each in copies), default=0),
        max((each.added_us for each in copies), default=0),
        one.findings.found["rewinds"].total,
        facts.get("metadata_epochs", 0),
        facts.get("metadata_dropped", 0),
        _sum([each.held for each in copies]),
        _sum([each.held_twice for each in copies]),
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None


def write_mirror_comparison(folder: Path, judged: Sequence[Judged], runs: Sequence[Numbers]) -> Path:
    """``folder`` must exist. Figures are copied there as PNG. Each of the ``runs`` had a mirror."""
    with_mirror = [one for one in judged if one.manifest.variant and one.findings.mirrors]
    page = folder / PAGE_NAME
    context = {
        "manifest": judged[0].manifest,
        "compared": "a mirror compared",
        "differs": "mechanism",
        "runs": [head(one, run.name, folder) for one, run in zip(with_mirror, runs, strict=True)],
        "groups": table(runs),
        "notes": notes(with_mirror),
        "drawings": drawn(folder, _makers(with_mirror, runs), _CAPTIONS),
        "style": (FOLDER / "style.css").read_text(encoding="utf-8"),
        "script": (FOLDER / "script.js").read_text(encoding="utf-8"),
    }
    page.write_text(environment().get_template("comparison.html.j2").render(**context), encoding="utf-8")
    return page


def table(runs: Sequence[Numbers]) -> list[tuple[str, list[Line]]]:
    """The table as groups of lines. It leaves out a line that no run has."""
    groups = [
        (
            "The mirror",
            [
                line_of("records copied", [one.records for one in runs], words.count),
                line_of("of these twice", [one.again for one in runs], words.count),
                line_of("records in the other cluster at the end", [one.held for one in runs], words.count),
                line_of("of these held twice", [one.held_twice for one in runs], words.count),
                line_of("times it went back", [one.rewinds for one in runs], words.count),
                line_of("farthest back, offsets", [one.farthest for one in runs], words.count),
            ],
        ),
        (
            "Lag behind the source",
            [
                line_of("usual", [one.median_lag_us for one in runs], words.micros),
                line_of("worst", [one.worst_lag_us for one in runs], words.micros),
                line_of("added by a rewind, at most", [one.added_us for one in runs], words.micros),
            ],
        ),
        (
            "Why",
            [
                line_of(
                    "positions called out of range without reason", [one.out_of_range for one in runs], words.count
                ),
                line_of("metadata answers with an epoch, taken", [one.taken for one in runs], words.count),
                line_of("dropped, since they were older", [one.dropped for one in runs], words.count),
            ],
        ),
    ]
    return [(title, [line for line in lines if line is not None]) for title, lines in groups]


def notes(judged: Sequence[Judged]) -> list[str]:
    found = [
        "The runs were played one after the other with the same load, faults and seed; a run without the mechanism is "
        "expected to rewind, and what only the mechanism gives is not asked of it."
    ]
    if judged[0].manifest.world == "sim":
        found.append("The runs were simulated: their times are virtual.")
    found.append("Positions and lags are told in steps of a quarter of a second: a line does not show shorter rewinds.")
    found.append("In the pictures the runs are moved so that the first fault strikes at the same time in all of them.")
    return found


def _makers(judged: Sequence[Judged], runs: Sequence[Numbers]) -> dict[str, Callable[[], Figure | None]]:
    shown = [
        _moved(pictures.Run(run.name, tracks(one.findings), rewinds(one.findings), one.findings.fault_hits), judged[0])
        for one, run in zip(judged, runs, strict=True)
    ]
    seconds = max(run_seconds(one.manifest, one.findings) for one in judged)
    return {"positions": lambda: pictures.positions(shown, seconds), "lag": lambda: pictures.lags(shown, seconds)}


def _moved(run: pictures.Run, other: Judged) -> pictures.Run:
    """Moves a run in time by whole steps, so that its first fault strikes when that of the other run does."""
    ours, theirs = (
        min((int(hit["at_us"]) for hit in hits), default=None) for hits in (run.hits, other.findings.fault_hits)
    )
    steps = 0 if ours is None or theirs is None else round((theirs - ours) / SLOT_US)
    known = {place: replace(track, first=track.first + steps) for place, track in run.known.items()}
    back = [replace(each, at_us=each.at_us + steps * SLOT_US) for each in run.rewinds]
    return replace(run, known=known, rewinds=back)
