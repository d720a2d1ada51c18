"""Lists each clause with the code that names it, the tests that prove it and the scenarios that use it.

The list is made from the sources each time. Only ``reference_broker/clauses.toml`` is typed by hand.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("reference_broker", "chaos", "bench", "scenarios", "reports")
_ID = re.compile(r"\b([DFGSHTPME])-(\d{1,2})\b")


@dataclass(frozen=True, slots=True)
class Clause:
    """``code``, ``tests`` and ``scenarios`` say where the clause is named: paths relative to the clone, tests as
    path::name."""

    id: str
    text: str
    code: tuple[str, ...]
    tests: tuple[str, ...]
    scenarios: tuple[str, ...]

    @property
    def status(self) -> str:
        """``proven and exercised``, ``proven`` (no scenario names it), ``not proven``."""
        if not self.tests:
            return "not proven"
        return "proven and exercised" if self.scenarios else "proven"


def all_clauses(root: Path = ROOT) -> tuple[Clause, ...]:
    """Returns every clause of ``reference_broker/clauses.toml`` in its order."""
    code, tests, used = _naming_code(root), marked_tests(root), _used_by_scenarios(root)
    return tuple(
        Clause(each, text, tuple(code.get(each, ())), tuple(tests.get(each, ())), tuple(used.get(each, ())))
        for each, text in texts(root).items()
    )


def marked_tests(root: Path = ROOT) -> dict[str, list[str]]:
    """Maps each ID that ``pytest.mark.clause`` names to the tests (path::name) with that mark."""
    tests: dict[str, list[str]] = {}
    for path in _sources(root):
        if _is_test(path):
            for name, ids in _marked(ast.parse(path.read_text())):
                for each in ids:
                    tests.setdefault(each, []).append(f"{path.relative_to(root).as_posix()}::{name}")
    return tests


def _naming_code(root: Path) -> dict[str, list[str]]:
    code: dict[str, list[str]] = {}
    for path in _sources(root):
        relative = path.relative_to(root).as_posix()
        if not _is_test(path) and "/tests/" not in relative:
            for each in sorted({f"{room}-{number}" for room, number in _ID.findall(path.read_text())}):
                code.setdefault(each, []).append(relative)
    return code


def _is_test(path: Path) -> bool:
    return path.name.startswith(("test_", "bench_"))


def texts(root: Path = ROOT) -> dict[str, str]:
    """Maps each clause ID to the clause's one line."""
    with (root / "reference_broker" / "clauses.toml").open("rb") as file:
        rooms = tomllib.load(file)
    return {
        f"{letter}-{number}": text
        for letter, room in rooms.items()
        for number, text in room.items()
        if number != "title"
    }


def _sources(root: Path) -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((root / room).rglob("*.py"))


def _marked(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields each marked test (class or function) with the IDs that its marks name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, tuple(each for decorator in node.decorator_list for each in _ids(decorator))


def _ids(node: ast.AST) -> tuple[str, ...]:
    """Returns the arguments if the node is ``pytest.mark.clause(...)``, else nothing."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clause"):
        return ()
    return tuple(str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def _used_by_scenarios(root: Path) -> dict[str, list[str]]:
    used: dict[str, list[str]] = {}
    for path in sorted((root / "scenarios").glob("*.toml")):
        with path.open("rb") as file:
            for each in tomllib.load(file).get("clauses", ()):
                used.setdefault(each, []).append(path.stem)
    return used
