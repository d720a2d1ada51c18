"""Finds circles among imports that happen while modules are being imported.

Imports under ``if TYPE_CHECKING`` never happen and those inside functions happen later, so neither closes a circle.
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


def imports_at_run_time(root: Path, packages: Sequence[str]) -> dict[str, set[str]]:
    """Returns by module what it imports of these packages. ``root`` is the folder that holds the packages."""
    files = {_module(path.relative_to(root)): path for name in packages for path in (root / name).rglob("*.py")}
    return {name: _imported(name, path, files) for name, path in files.items()}


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if path.stem == "__init__" else parts)


def _imported(module: str, path: Path, known: Collection[str]) -> set[str]:
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {name for statement in _at_import(body) for name in _names(statement, package, known) if name in known}


def _at_import(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _at_import(node.orelse)
        elif not isinstance(node, Function):
            yield from _at_import(ast.iter_child_nodes(node))


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
