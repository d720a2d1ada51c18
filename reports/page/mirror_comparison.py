"""Writes comparison.html for runs with a mirror.

It shows what the mirror copied twice and how far it was behind, with the mechanism and without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from reports.jobs.mirror import SLOT_US
from reports.judge import Judged
from reports.mirrored import mirrored, rewinds, tracks
from reports.page import words
from reports.page.comparison import Lines, table, write_page
from reports.page.render import run_seconds
from reports.plots import mirror_comparison as pictures
from reports.plots.catalogue import Makers, drawn

_CAPTIONS = {
    "positions": "The partition that was rewound most. Where the line falls, the mirror began anew and copied records "
    "again.",
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


_LINES: Mapping[str, Lines] = {
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
        ("metadata answers with an epoch, taken", attrgetter("taken"), words.count),
        ("dropped, since they were older", attrgetter("dropped"), words.count),
    ),
}


def write_mirror_comparison(folder: Path, judged: Sequence[Judged], runs: Sequence[Numbers]) -> Path:
    """``folder`` must exist. Figures are copied there as PNG. Each of the ``runs`` had a mirror."""
    with_mirror = [one for one in judged if one.manifest.variant and one.findings.mirrors]
    return write_page(
        folder,
        with_mirror,
        [run.name for run in runs],
        compared="a mirror compared",
        differs="mechanism",
        groups=table(_LINES, runs),
        notes=notes(with_mirror),
        drawings=drawn(_makers(with_mirror, runs), _CAPTIONS, folder, "comparison-"),
    )


def notes(judged: Sequence[Judged]) -> list[str]:
    found = [
        "The runs were played one after the other with the same load, faults and seed. A run without the mechanism is "
        "expected to rewind, and what only the mechanism gives is not asked of it."
    ]
    if judged[0].manifest.world == "sim":
        found.append("The runs were simulated. Their times are virtual.")
    found.append(
        "Positions and lags are shown in steps of a quarter of a second, so a line does not show shorter rewinds."
    )
    found.append("In the pictures the runs are moved so that the first fault strikes at the same time in all of them.")
    return found


def _makers(judged: Sequence[Judged], runs: Sequence[Numbers]) -> Makers:
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
