"""Circles among imports at run time, with or without those inside functions.

Imports under ``if TYPE_CHECKING`` never happen. Imports inside functions happen later: such a circle does no harm, but
it shows two modules that are one mechanism.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def first_circle(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Returns the modules of one circle, each before one that it imports, and the first again at the end. The list is
    empty if there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def imports_at_run_time(root: Path, packages: Sequence[str], *, inside_functions: bool = False) -> dict[str, set[str]]:
    """Return by module what it imports of these packages. ``root`` is the folder that holds the packages."""
    files = {_module(path.relative_to(root)): path for name in packages for path in (root / name).rglob("*.py")}
    return {name: _imported(name, path, files, inside_functions) for name, path in files.items()}


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if path.stem == "__init__" else parts)


def _imported(module: str, path: Path, known: Collection[str], inside_functions: bool) -> set[str]:
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    body = ast.parse(path.read_text(encoding="utf-8")).body
    statements = _at_run_time(body, inside_functions)
    return {name for each in statements for name in _names(each, package, known) if name in known}


def _at_run_time(nodes: Iterable[ast.AST], inside_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _at_run_time(node.orelse, inside_functions)
        elif inside_functions or not isinstance(node, Function):
            yield from _at_run_time(ast.iter_child_nodes(node), inside_functions)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _names(statement: ast.Import | ast.ImportFrom, package: str, known: Collection[str]) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (each.name for each in statement.names)
        return
    source = resolve_name("." * statement.level + (statement.module or ""), package)
    for each in statement.names:
        below = f"{source}.{each.name}"
        yield below if below in known else source
