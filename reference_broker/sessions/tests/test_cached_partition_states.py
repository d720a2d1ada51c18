"""Facts about cached partitions change only in the methods that the table of ``sessions/fetch_session.py`` says."""

import ast
import inspect
from collections.abc import Iterator

from reference_broker.sessions.fetch_session import CHANGES, CachedPartition, FetchSession

FACTS_OF_FIELDS = {"partitions": "live", "cached_in": "live", "marked": "marked", "queued": "queued"}
FACTS_OF_CALLS = {
    "self.partition.watch": ("watched", True),
    "self.session.arrivals.expect": ("watched", True),
    "self.partition.unwatch": ("watched", False),
    "self.session.arrivals.forget": ("watched", False),
    "self.partitions.pop": ("live", False),
    "self.marked.pop": ("marked", False),
}


def assignments(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the pairs of target and value of an assignment."""
    for target in statement.targets:
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            yield from zip(target.elts, statement.value.elts, strict=True)
        else:
            yield target, statement.value


def is_nothing(value: ast.expr) -> bool:
    return ast.unparse(value) in ("{}", "None", "False")


def changes_in(method: ast.FunctionDef) -> Iterator[tuple[str, bool]]:
    """Yield the facts that a method changes, and whether they become true."""
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in FACTS_OF_CALLS:
            yield FACTS_OF_CALLS[ast.unparse(node.func)]
        if isinstance(node, ast.Assign):
            for target, value in assignments(node):
                field = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(field, ast.Attribute) and field.attr in FACTS_OF_FIELDS:
                    yield FACTS_OF_FIELDS[field.attr], isinstance(target, ast.Subscript) or not is_nothing(value)


def changes_in_code() -> set[tuple[str, bool, str]]:
    changes = set()
    for owner in (CachedPartition, FetchSession):
        (definition,) = ast.parse(inspect.getsource(owner)).body
        assert isinstance(definition, ast.ClassDef)
        for method in definition.body:
            if isinstance(method, ast.FunctionDef):
                changes |= {(*change, f"{owner.__name__}.{method.name}") for change in changes_in(method)}
    return changes


def test_table_of_changes_has_the_methods_that_make_them() -> None:
    assert changes_in_code() == {
        (fact, becomes, method)
        for fact, changes in CHANGES.items()
        for becomes, methods in changes.items()
        for method in methods
    }
