"""The deterministic part draws randomness only from what it is given, and never walks over a set."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WITH_INPUT_AND_OUTPUT = ("serve", "blocking")
"""The rooms that may look at clocks, sockets and generators."""
SOURCES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path.relative_to(ROOT).parts[0] not in WITH_INPUT_AND_OUTPUT and "tests" not in path.relative_to(ROOT).parts
]


def _randomness(tree: ast.AST) -> list[int]:
    """Lines that bring in generators of their own."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(name.name in ("random", "uuid") for name in node.names):
            lines += [node.lineno for name in node.names if name.name == "random"]
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            lines.append(node.lineno)
        if isinstance(node, ast.Attribute) and node.attr in ("uuid1", "uuid4"):
            lines.append(node.lineno)
    return lines


def _set_walks(tree: ast.AST) -> list[int]:
    """Lines that iterate over a set display, a set comprehension or ``set(...)``; ``sorted(...)`` of one is fine."""
    walked = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    return [each.lineno for each in walked if _is_set(each)]


def _is_set(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return called or isinstance(node, ast.Set | ast.SetComp)


def _unstable_calls(tree: ast.AST) -> list[int]:
    """Lines that call ``hash`` or ``id``, whose values differ between interpreters."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hash", "id")
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_source_uses_nothing_nondeterministic(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert _randomness(tree) == []
    assert _set_walks(tree) == []
    assert _unstable_calls(tree) == []


@pytest.mark.parametrize(
    ("source", "found_by"),
    [
        ("import random", _randomness),
        ("from random import Random", _randomness),
        ("from random import choice", _randomness),
        ("import uuid\nuuid.uuid4()", _randomness),
        ("for x in {1, 2}: pass", _set_walks),
        ("[x for x in set(y)]", _set_walks),
        ("hash(x)", _unstable_calls),
    ],
)
def test_check_finds_forbidden_source(source: str, found_by: object) -> None:
    assert callable(found_by)
    assert found_by(ast.parse(source))
