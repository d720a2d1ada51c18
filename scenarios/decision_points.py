"""Decision points: the places at which the broker's rules decide.

A point is declared once, by a comment above the statement that decides::

    # Decision session-epoch (F-6): expected | another
    if request.epoch == session.epoch:

It has a name, the clauses whose rule decides there, and two outcomes: first the one for a true condition, then the one
for a false condition. The condition is that of the ``if``, ``elif`` or ``while`` statement on the next line of code,
of the conditional expression or comprehension in it, or the truth value that it returns or assigns. Above ``try`` the
outcomes are: an exception was caught, or none was raised.

A comment costs a broker nothing. ``chaos.sim.decision_counts`` counts the outcomes of a simulated run. Outcomes that no
run can reach are listed in ``reference_broker/unreached.toml``, each with the reason.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from scenarios.fields import did_you_mean

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "reference_broker"
"""The package whose modules declare points."""
UNREACHED: Final = ROOT / PACKAGE / "unreached.toml"
_MARK = re.compile(
    r"^\s*# Decision (?P<name>[a-z0-9-]+) \((?P<clauses>[A-Z]-\d+(, [A-Z]-\d+)*)\): (?P<yes>[^|]+) \| (?P<no>[^|]+)$"
)
_BEGINS = re.compile(r"^\s*# Decision\b")


class PointError(ValueError):
    """A comment declares no point that can be counted. The message names file, line and the fix."""


@dataclass(frozen=True, slots=True)
class Point:
    """One decision point."""

    name: str
    clauses: tuple[str, ...]
    outcomes: tuple[str, str]
    """The outcomes of a true and of a false condition."""
    path: str
    """relative to the project's root"""
    line: int
    """of the comment, from 1"""

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def outcome(self, number: int) -> str:
        """Return ``NAME=OUTCOME`` of outcome 0 or 1."""
        return f"{self.name}={self.outcomes[number]}"


@cache
def declared_points(root: Path = ROOT) -> tuple[Point, ...]:
    """Return every point of the broker in this clone, in the order of paths and lines. Raise PointError."""
    paths = sorted((root / PACKAGE).rglob("*.py"))
    points = [point for path in paths if "tests" not in path.parts for point in points_of(path.read_text(), path)]
    seen: dict[str, Point] = {}
    for point in points:
        if point.name in seen:
            raise PointError(f"{point.where}: {point.name} is declared in {seen[point.name].where} too")
        seen[point.name] = point
    return tuple(points)


def points_of(source: str, path: Path) -> Iterator[Point]:
    """Yield the points that a file declares. Raise PointError."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    if "# Decision" not in source:
        return
    for number, line in enumerate(source.splitlines(), 1):
        if match := _MARK.match(line):
            clauses = tuple(match["clauses"].split(", "))
            yield Point(match["name"], clauses, (match["yes"].strip(), match["no"].strip()), name, number)
        elif _BEGINS.match(line):
            raise PointError(f"{name}:{number}: write '# Decision NAME (CLAUSES): OUTCOME | OUTCOME'")


@cache
def outcome_names() -> tuple[str, ...]:
    """Return ``NAME=OUTCOME`` of every outcome: those of point k at 2k and 2k + 1."""
    return tuple(point.outcome(side) for point in declared_points() for side in (0, 1))


def place_of(outcome: str) -> int:
    """Return the place of ``NAME=OUTCOME`` in ``outcome_names``. Raise PointError."""
    names = outcome_names()
    if outcome not in names:
        near = did_you_mean(outcome, names)
        raise PointError(f"there is no outcome {outcome!r}{near + '?' if near else ''}; `crucible points` lists them")
    return names.index(outcome)


@cache
def reasons_unreached(path: Path = UNREACHED) -> dict[str, str]:
    """Return why no run reaches an outcome, by ``NAME=OUTCOME``. Raise PointError for an outcome that does not exist
    and for an empty reason."""
    with path.open("rb") as file:
        reasons = {str(outcome): str(why) for outcome, why in tomllib.load(file)["unreached"].items()}
    for outcome, why in reasons.items():
        place_of(outcome)
        if not why.strip():
            raise PointError(f"{path.name}: {outcome} has no reason")
    return reasons
