"""The matrix of scenario x world x target over the nights, as cells with links, and rates of red plays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from reports.job_rows import Row, Rows
from reports.statistics.confidence import wilson

Tone: TypeAlias = Literal["passed", "failed", "mixed", "invalid", "crashed"]
Link: TypeAlias = Callable[[str, str], str]
"""From a night and a run's folder in it to the address of the run's page. It is empty if there is none."""
SIGNS: dict[Tone, str] = {"passed": "✓", "failed": "✕", "mixed": "~", "invalid": "?", "crashed": "!"}
MEANINGS: dict[Tone, str] = {
    "passed": "all plays passed",
    "failed": "all plays failed",
    "mixed": "some plays passed, some did not",
    "invalid": "no play showed anything",
    "crashed": "a play crashed",
}
OUTCOMES = ("passed", "failed", "invalid", "crashed")


@dataclass(frozen=True, slots=True)
class Run:
    href: str
    outcome: str
    seed: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The outcomes of one scenario in one world on one target in one night."""

    tone: Tone
    counts: str
    href: str
    """The only run's page."""
    seeds: str
    worst: str
    command: str
    runs: tuple[Run, ...]

    @property
    def sign(self) -> str:
        return SIGNS[self.tone]

    @property
    def text(self) -> str:
        return f"{self.counts}. {self.worst}" if self.worst else self.counts


@dataclass(frozen=True, slots=True)
class Line:
    """One scenario in one world on one target, over all nights."""

    scenario: str
    world: str
    target: str
    cells: tuple[Cell | None, ...]
    """In the order of the nights. None: not played."""
    plays: int
    reds: int
    invalid: int
    is_steady: bool = field(default=True)


def lines(rows: Rows, nights: Sequence[str], link: Link) -> list[Line]:
    """A line for each scenario, world and target that was played in these nights."""
    places = sorted({(row["scenario"], row["world"], row["target"]) for row in rows if row["night"] in nights})
    known = {(row["scenario"], row["world"], row["target"], row["night"]): row for row in rows}
    return [_line(place, [known.get((*place, night)) for night in nights], link) for place in places]


def _line(place: tuple[str, str, str], rows: Sequence[Row | None], link: Link) -> Line:
    played = [row for row in rows if row is not None]
    cells = tuple(None if row is None else _cell(row, link) for row in rows)
    return Line(
        *place,
        cells=cells,
        plays=sum(row["passed"] + row["failed"] + row["crashed"] for row in played),
        reds=sum(row["failed"] + row["crashed"] for row in played),
        invalid=sum(row["invalid"] for row in played),
        is_steady=all(cell is None or cell.tone == "passed" for cell in cells),
    )


def _cell(row: Row, link: Link) -> Cell:
    runs = tuple(
        Run(link(row["night"], played["run_dir"]), played["outcome"], played["seed"]) for played in row["runs"]
    )
    first, last = row["first_seed"], row["last_seed"]
    counts = ", ".join(f"{row[name]:,} {name}" for name in OUTCOMES if row[name])
    worst = "" if row["outcome"] == "PASSED" else ": ".join(part for part in (row["guarantee"], row["detail"]) if part)
    return Cell(
        tone=_tone(row),
        counts=counts,
        href=runs[0].href if len(runs) == 1 else "",
        seeds=f"seed {first}" if first == last else f"seeds from {first} to {last}",
        worst=worst,
        command=row["command"],
        runs=tuple(run for run in runs if run.href),
    )


def _tone(row: Row) -> Tone:
    if row["crashed"]:
        return "crashed"
    outcomes: list[Tone] = [name for name in ("passed", "failed", "invalid") if row[name]]
    return outcomes[0] if len(outcomes) == 1 else "mixed"


@dataclass(frozen=True, slots=True)
class Rate:
    """Rates go from 0 to 1. Plays that showed nothing (INVALID) do not count."""

    line: Line
    rate: float
    low: float
    high: float


def red_rates(lines: Sequence[Line]) -> list[Rate]:
    """Return the red rates of what was red sometimes, and of all that is played live, the greatest first."""
    uncertain = [line for line in lines if line.plays and (0 < line.reds < line.plays or line.world == "live")]
    rates = [Rate(line, line.reds / line.plays, *wilson(line.reds, line.plays)) for line in uncertain]
    return sorted(rates, key=lambda rate: (-rate.rate, -rate.high, rate.line.scenario, rate.line.target))


def percent(share: float) -> str:
    """0 %, 0.4 %, 12 %."""
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 or 0.99 < share < 1 else f"{100 * share:.0f} %"
