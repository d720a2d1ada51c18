"""Clauses and their proofs: each with its code, tests, decision points, scenarios and mutants.

The list is made from the sources each time, and what was played comes from the ledger of mutants. Only
``reference_broker/clauses.toml`` is typed by hand.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from scenarios.decision_points import declared_points
from scenarios.ledger import last, proof
from scenarios.revisions import MARK

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("reference_broker", "chaos", "bench", "scenarios", "reports", "campaigns")
_ID = re.compile(r"\b([DFGSHTPMXE])-(\d{1,2})\b")
OWN_ROOMS = ("reference_broker/", "bench/")
_OPEN = "open"
"""The table of ``clauses.toml`` that maps clauses to the reason why no mutant lacks them."""
_WITHOUT_POINTS = "without points"
"""The table of ``clauses.toml`` that maps clauses to the reason why no decision point names them."""
NOT_BUILT = "not built"
"""The reason of a clause that nothing carries out."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause, and where it is named."""

    id: str
    text: str
    code: tuple[str, ...]
    """Paths relative to the clone."""
    tests: tuple[str, ...]
    """As path::name."""
    scenarios: tuple[str, ...]
    mutants: tuple[str, ...] = ()
    """Those that name the clause in their docstring and that a scenario must kill."""
    open: str = ""
    """Why the clause has no mutant, or empty."""
    played: str = "not played"
    """What the ledger knows of the mutants' kills."""
    points: tuple[str, ...] = ()
    """The decision points that name the clause."""
    required_by: tuple[str, ...] = ()
    """The scenarios whose run is INVALID unless it reaches one outcome of these points."""
    pointless: str = ""
    """Why there are no decision points, or empty."""

    @property
    def exercised_by(self) -> tuple[str, ...]:
        """The scenarios that must reach one of its decision points. Without points, those that name the clause."""
        return self.required_by if self.points else self.scenarios

    @property
    def own_tests(self) -> tuple[str, ...]:
        """Tests of the broker's or the client's own behaviour. Others test what judges it, or play scenarios."""
        return tuple(test for test in self.tests if test.startswith(OWN_ROOMS))

    @property
    def status(self) -> str:
        """``open``, ``no test`` or ``no mutant``; or what its mutants prove: ``proven`` (one was killed lately),
        ``stale`` or ``not played``."""
        if self.open:
            return "open"
        if not self.tests:
            return "no test"
        return self.played if self.mutants else "no mutant"

    @property
    def fault(self) -> str:
        """Return what is wrong with the clause's proof in one sentence, or nothing."""
        if self.open and self.mutants:
            return f"{self.id} is listed as open, but the mutant {self.mutants[0]} lacks it"
        if self.open == NOT_BUILT and (self.code or self.tests):
            return f"{self.id} is listed as not built, but {(*self.code, *self.tests)[0]} names it"
        if self.points and self.pointless:
            return f"{self.id} is listed as without points, but {self.points[0]} names it"
        if self.open:
            return ""
        if not self.points and not self.pointless:
            listed = f'list it under ["{_WITHOUT_POINTS}"] in clauses.toml'
            return f"{self.id} has no decision point: name it in one, or {listed}"
        if not self.tests:
            return f"{self.id} has no test: mark one with pytest.mark.clause, or list it under [open] in clauses.toml"
        if not self.mutants:
            return f"{self.id} has no mutant: name it in a mutant's docstring, or list it under [open] in clauses.toml"
        return ""


def all_clauses(root: Path = ROOT) -> tuple[Clause, ...]:
    """Return every clause of ``reference_broker/clauses.toml`` in its order."""
    code, tests, used = _naming_code(root), marked_tests(root), _named_by_scenarios(root, "clauses")
    searches, today = last(), date.today()
    mutants, reasons, pointless = _mutants(root), _reasons(root, _OPEN), _reasons(root, _WITHOUT_POINTS)
    points, required = _points(root), _named_by_scenarios(root, "points")
    return tuple(
        Clause(
            clause_id,
            text,
            tuple(code.get(clause_id, ())),
            tuple(tests.get(clause_id, ())),
            tuple(used.get(clause_id, ())),
            tuple(mutants.get(clause_id, ())),
            reasons.get(clause_id, ""),
            proof([search for (name, _), search in searches.items() if name in mutants.get(clause_id, ())], today),
            tuple(points.get(clause_id, ())),
            tuple(_scenarios_that_reach(points.get(clause_id, ()), required)),
            pointless.get(clause_id, ""),
        )
        for clause_id, text in texts(root).items()
    )


def _reasons(root: Path, table: str) -> dict[str, str]:
    return {clause_id: str(why) for clause_id, why in _tables(root).get(table, {}).items()}


def _points(root: Path) -> dict[str, list[str]]:
    """Map each clause to the names of the decision points that name it."""
    points_by_clause: dict[str, list[str]] = {}
    for point in declared_points(root):
        for clause_id in point.clauses:
            points_by_clause.setdefault(clause_id, []).append(point.name)
    return points_by_clause


def _scenarios_that_reach(points: Sequence[str], required: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the scenarios that require an outcome of one of the points, in the order of their names."""
    return sorted(
        {
            scenario
            for outcome, scenarios in required.items()
            if outcome.partition(MARK)[0].partition("=")[0] in points
            for scenario in scenarios
        }
    )


def marked_tests(root: Path = ROOT) -> dict[str, list[str]]:
    """Map each ID that ``pytest.mark.clause`` names to the tests (path::name) with that mark."""
    tests: dict[str, list[str]] = {}
    for path in _sources(root):
        if _is_test(path):
            for name, ids in _marked_in(path.read_text(encoding="utf-8")):
                for clause_id in ids:
                    tests.setdefault(clause_id, []).append(f"{path.relative_to(root).as_posix()}::{name}")
    return tests


@cache
def _marked_in(source: str) -> list[tuple[str, tuple[str, ...]]]:
    return list(_marked(ast.parse(source))) if ".clause(" in source else []


def _naming_code(root: Path) -> dict[str, list[str]]:
    code: dict[str, list[str]] = {}
    for path in _sources(root):
        relative = path.relative_to(root).as_posix()
        if not _is_test(path) and "/tests/" not in relative:
            for clause_id in sorted({f"{room}-{number}" for room, number in _ID.findall(path.read_text())}):
                code.setdefault(clause_id, []).append(relative)
    return code


def _is_test(path: Path) -> bool:
    return path.name.startswith(("test_", "bench_"))


def texts(root: Path = ROOT) -> dict[str, str]:
    """Map each clause ID to the clause's one line."""
    return {
        f"{letter}-{number}": text
        for letter, room in _tables(root).items()
        for number, text in room.items()
        if number != "title" and letter not in (_OPEN, _WITHOUT_POINTS)
    }


def _tables(root: Path) -> dict[str, dict[str, str]]:
    with (root / "reference_broker" / "clauses.toml").open("rb") as file:
        return tomllib.load(file)


def _sources(root: Path) -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((root / room).rglob("*.py"))


def _marked(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each marked test (class or function) with the IDs that its marks name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, tuple(clause_id for decorator in node.decorator_list for clause_id in _ids(decorator))


def _ids(node: ast.AST) -> tuple[str, ...]:
    """Return the arguments if the node is ``pytest.mark.clause(...)``, else nothing."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clause"):
        return ()
    return tuple(str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def _named_by_scenarios(root: Path, key: str) -> dict[str, list[str]]:
    """Map each word of the scenarios' list ``key`` to the scenarios with that word."""
    used: dict[str, list[str]] = {}
    for path in sorted((root / "scenarios" / "catalogue").glob("*/*.toml"), key=lambda path: path.name):
        with path.open("rb") as file:
            for word in tomllib.load(file).get(key, ()):
                used.setdefault(word, []).append(path.stem)
    return used


def _mutants(root: Path) -> dict[str, list[str]]:
    """Map each clause to the mutants whose docstrings name it, as far as a scenario must kill them."""
    to_kill, mutants = _named_by_scenarios(root, "mutants"), dict[str, list[str]]()
    for path in sorted((root / "chaos" / "mutants").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name in to_kill and any(map(_is_mutant, node.decorator_list)):
                for letter, number in _ID.findall(ast.get_docstring(node) or ""):
                    mutants.setdefault(f"{letter}-{number}", []).append(node.name)
    return mutants


def _is_mutant(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "mutant"
