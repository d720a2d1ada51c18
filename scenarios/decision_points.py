"""Decision points: the places at which the broker's rules decide.

A comment at the end of the statement that decides names a point::

    if request.epoch == session.epoch:  # Decision session-epoch

If the line would be too long, the comment is on the line above. ``reference_broker/decisions.toml`` declares each point
under the path of its file, with the clauses whose rule decides there and two outcomes, first the one for a true
condition::

    ["sessions/fetch_session_cache.py"]
    session-epoch = "F-6, F-10: expected | another"

The condition is that of the ``if``, ``elif`` or ``while`` statement, of the conditional expression or comprehension in
the statement, or the truth value that it returns or assigns. The outcomes of ``try`` are: an exception was caught, or
none was raised.

A comment costs a broker nothing. ``chaos.sim.decision_counts`` counts the outcomes of a simulated run. Outcomes that no
run can reach are listed in ``reference_broker/unreached.toml``, each with the reason.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from scenarios.fields import did_you_mean

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "reference_broker"
"""The package whose modules declare points."""
UNREACHED: Final = ROOT / PACKAGE / "unreached.toml"
DECLARATIONS: Final = "decisions.toml"
"""The file in the package that declares them."""
_MARK = re.compile(r"# Decision(?: (?P<name>[a-z0-9-]+))?(?P<rest>.*)$")
_DECLARATION = re.compile(r"(?P<clauses>[A-Z]-\d+(, [A-Z]-\d+)*): (?P<yes>[^|]*[^| ]) \| (?P<no>[^|]*[^| ])")

Declared: TypeAlias = Mapping[str, tuple[tuple[str, ...], tuple[str, str]]]
"""The clauses and the outcomes of each point of a file, by its name."""


class PointError(ValueError):
    """A comment or a declaration makes no point that can be counted. The message names file and fix."""


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
    """of the comment, from 1; the statement is on it or begins on the next line of code"""

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
    declared, points = declarations(root), dict[str, Point]()
    for path in sorted((root / PACKAGE).rglob("*.py")):
        if "tests" in path.parts:
            continue
        of_file = declared.pop(path.relative_to(root / PACKAGE).as_posix(), {})
        marked = list(points_of(path.read_text(), path, of_file))
        for point in marked:
            if point.name in points:
                raise PointError(f"{point.where}: {points[point.name].where} decides {point.name} too")
            points[point.name] = point
        for name in of_file:
            if not any(point.name == name for point in marked):
                raise PointError(f"{DECLARATIONS}: {name} is decided nowhere in {path.name}; remove it, or move it")
    for path_of_none in declared:
        raise PointError(f"{DECLARATIONS}: there is no file {path_of_none}")
    return tuple(points.values())


def declarations(root: Path = ROOT) -> dict[str, Declared]:
    """Return what is declared for each file, by its path in the package. Raise PointError."""
    path = root / PACKAGE / DECLARATIONS
    if not path.exists():
        return {}
    with path.open("rb") as file:
        return {
            of: {name: _declaration(name, str(text)) for name, text in it.items()}
            for of, it in tomllib.load(file).items()
        }


def _declaration(name: str, text: str) -> tuple[tuple[str, ...], tuple[str, str]]:
    match = _DECLARATION.fullmatch(text)
    if match is None:
        raise PointError(f"{DECLARATIONS}: {name}: write 'CLAUSES: OUTCOME | OUTCOME' instead of {text!r}")
    return tuple(match["clauses"].split(", ")), (match["yes"], match["no"])


def points_of(source: str, path: Path, declared: Declared) -> Iterator[Point]:
    """Yield the points that a file marks. Raise PointError."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    if "# Decision" not in source:
        return
    for number, line in enumerate(source.splitlines(), 1):
        match = _MARK.search(line)
        if match is None:
            continue
        if match["name"] is None or match["rest"]:
            raise PointError(f"{name}:{number}: write '# Decision NAME', and the outcomes in {DECLARATIONS}")
        if match["name"] not in declared:
            raise PointError(f"{name}:{number}: declare {match['name']} in {DECLARATIONS}, under this file")
        clauses, outcomes = declared[match["name"]]
        yield Point(match["name"], clauses, outcomes, name, number)


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
