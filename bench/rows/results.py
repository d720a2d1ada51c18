"""Benchmark results: samples and figures with their spread, stored as JSON with machine and commit, printed as a table.

Brokers take turns, and each pair has the reverse order of the one before (``alternate``). So a drift of the machine
affects all of them alike.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from bench.machine import ROOT, commit, machine

STORE = ROOT / ".benchmarks" / "crucible"
SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """Several measurements of one thing."""

    values: tuple[float, ...]  # in ``unit``, in the order in which they were taken
    unit: str

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        spread = f" ({_short(low)}-{_short(high)})" if len(self.values) > 1 else ""
        return f"{_short(self.median)}{spread} {self.unit}"


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One line of the table."""

    work: str
    reference: Figure
    peer: Figure | None = None
    ratio: Figure | None = None  # how many times better the reference is, pair by pair; None without a peer
    goal: str = ""  # which ratio or bound was to be reached, in words
    reached: bool | None = None  # whether the goal was reached; None without a goal
    at_least: float | None = None  # the goal, if it is a ratio
    less_is_better: bool | None = None  # None without a peer to be better than
    nodes: int = 1  # size of each broker's cluster


@dataclass(frozen=True, slots=True)
class Series:
    """One broker's points. Each has a place on the x axis and what was measured there."""

    name: str
    points: tuple[tuple[float, Figure], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Growth of a cost."""

    title: str
    grows_with: str  # the x axis, with its unit
    cost: str  # the y axis, without its unit
    series: tuple[Series, ...]


@dataclass(slots=True)
class Results:
    """All measurements of a run."""

    peer: str | None
    rows: list[ResultRow] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # rows that could not be measured, with the reason

    def beside(
        self,
        work: str,
        figures: tuple[Figure, Figure | None],
        less_is_better: bool,
        at_least: float | None = None,
        nodes: int = 1,
    ) -> None:
        """Add a row, with its ratio if there is a peer. ``at_least`` is the ratio to reach, or None without a goal.
        ``nodes`` is the size of each cluster."""
        reference, peer = figures
        if peer is None:
            self.rows.append(ResultRow(work, reference, nodes=nodes))
            return
        ratio = better_lower(reference, peer) if less_is_better else better_higher(reference, peer)
        goal = "" if at_least is None else f"at least {at_least:g} x"
        reached = None if at_least is None else ratio.median >= at_least
        self.rows.append(ResultRow(work, reference, peer, ratio, goal, reached, at_least, less_is_better, nodes))

    def store(self, folder: Path = STORE) -> Path:
        """Write the next numbered JSON file below ``folder`` and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(p.stem.split("_")[0]) for p in folder.glob("[0-9]*_*.json")), default=0)
        now = datetime.now(UTC)
        path = folder / f"{number:04d}_{now:%Y%m%d_%H%M%S}.json"
        document = {
            "schema_version": SCHEMA_VERSION,
            "datetime": now.isoformat(timespec="seconds"),
            "machine": machine(),
            "commit": commit(),
            "peer": self.peer,
            "settings": self.settings,
            "missing": self.missing,
            "rows": [asdict(row) for row in self.rows],
            "curves": [asdict(curve) for curve in self.curves],
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
        return path


def better_lower(reference: Figure, peer: Figure) -> Figure:
    """Return how many times better the reference is, pair by pair, for figures where less is better."""
    return Figure(tuple(b / a for a, b in zip(reference.values, peer.values, strict=True)), "x")


def better_higher(reference: Figure, peer: Figure) -> Figure:
    """Do the same for figures where more is better."""
    return Figure(tuple(a / b for a, b in zip(reference.values, peer.values, strict=True)), "x")


def table(rows: Sequence[ResultRow]) -> list[tuple[str, str, str, str, str]]:
    """Return the cells of each row: work, reference, peer, ratio, and the goal with its verdict."""
    marks = {None: "", True: "reached", False: "missed"}
    return [
        (
            row.work,
            str(row.reference),
            str(row.peer or ""),
            str(row.ratio or ""),
            f"{row.goal}: {marks[row.reached]}" if row.goal else "",
        )
        for row in rows
    ]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


Each = TypeVar("Each")


def alternate(brokers: Sequence[Each], pairs: int) -> Iterator[tuple[int, Each]]:
    """Yield the number of the pair and the broker, in the order AB BA AB ..."""
    for pair in range(pairs):
        for broker in brokers if pair % 2 == 0 else reversed(brokers):
            yield pair, broker


class Samples:
    """Values of one thing in ``unit``, by broker, in the order of pairs."""

    def __init__(self, names: Sequence[str], unit: str) -> None:
        self._values: dict[str, list[float]] = {name: [] for name in names}
        self._unit = unit

    def add(self, name: str, value: float) -> None:
        self._values[name].append(value)

    def figures(self) -> tuple[Figure, Figure | None]:
        """Return the figure of the reference, which is named first, and that of the peer, if there is one."""
        reference, *peer = [Figure(tuple(values), self._unit) for values in self._values.values()]
        return reference, peer[0] if peer else None

    def figure(self, name: str) -> Figure:
        return Figure(tuple(self._values[name]), self._unit)
