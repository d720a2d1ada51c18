"""Find circles of imports, also of type hints.

Call ``python -m tools.import_circles``.

Imports under ``if TYPE_CHECKING`` never happen, and imports inside functions happen later. A circle of those does no
harm, but it shows modules that are one mechanism.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import click

Function = ast.FunctionDef | ast.AsyncFunctionDef
Block = ast.stmt | ast.excepthandler | ast.match_case
"""Nodes that may contain an import."""


def first_circle(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Return the modules of one circle, each before one that it imports, and the first again at the end. The list is
    empty if there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def circles(imports: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Return all sets of two or more modules each of which imports all others, directly or by way of others of the set.

    The search is Tarjan's for strongly connected components, without recursion.
    """
    found: list[set[str]] = []
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    for root in imports:
        pending = [] if root in order else [(root, iter(imports[root]))]
        if pending:
            order[root] = lowest[root] = len(order)
            path.append(root)
        while pending:
            module, following = pending[-1]
            for imported in following:
                if imported not in order:
                    order[imported] = lowest[imported] = len(order)
                    path.append(imported)
                    pending.append((imported, iter(imports[imported])))
                    break
                if imported in path:
                    lowest[module] = min(lowest[module], order[imported])
            else:
                pending.pop()
                if pending:
                    lowest[pending[-1][0]] = min(lowest[pending[-1][0]], lowest[module])
                if lowest[module] == order[module]:
                    at = path.index(module)
                    if len(path) > at + 1:
                        found.append(set(path[at:]))
                    del path[at:]
    return found


def imports_at_run_time(
    root: Path, packages: Sequence[str], *, inside_functions: bool = False, for_type_hints: bool = False
) -> dict[str, set[str]]:
    """Return by module what it imports of these packages. ``root`` is the folder that holds the packages."""
    files = {_module(path.relative_to(root)): path for name in packages for path in (root / name).rglob("*.py")}
    return {name: _imported(name, path, files, inside_functions, for_type_hints) for name, path in files.items()}


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if path.stem == "__init__" else parts)


def _imported(
    module: str, path: Path, known: Collection[str], inside_functions: bool, for_type_hints: bool
) -> set[str]:
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    return {
        name
        for each in _imports(path)
        if (inside_functions or not each.inside_function) and (for_type_hints or not each.for_type_hints)
        for name in _names(each.statement, package, known)
        if name in known
    }


@dataclass(frozen=True, slots=True)
class _Import:
    statement: ast.Import | ast.ImportFrom
    inside_function: bool
    for_type_hints: bool


@cache
def _imports(path: Path) -> tuple[_Import, ...]:
    """Return all imports of a file. Parsing all files takes seconds, and callers look for several kinds of circles."""
    return tuple(_found(ast.parse(path.read_text(encoding="utf-8")).body, False, False))


def _found(nodes: Iterable[ast.AST], inside_function: bool, for_type_hints: bool) -> Iterator[_Import]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield _Import(node, inside_function, for_type_hints)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _found(node.body, inside_function, True)
            yield from _found(node.orelse, inside_function, for_type_hints)
        elif isinstance(node, Block):
            yield from _found(ast.iter_child_nodes(node), inside_function or isinstance(node, Function), for_type_hints)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _names(statement: ast.Import | ast.ImportFrom, package: str, known: Collection[str]) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (name.name for name in statement.names)
        return
    source = resolve_name("." * statement.level + (statement.module or ""), package)
    for name in statement.names:
        below = f"{source}.{name.name}"
        yield below if below in known else source


def main() -> None:
    """List the circles, those of type hints included. One line each."""
    root = Path(__file__).resolve().parents[1]
    packages = sorted(path.parent.name for path in root.glob("*/__init__.py"))
    for circle in circles(imports_at_run_time(root, packages, inside_functions=True, for_type_hints=True)):
        click.echo(" ".join(sorted(circle)))


if __name__ == "__main__":
    main()
