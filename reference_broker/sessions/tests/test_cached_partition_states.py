"""Facts about cached partitions (see ``sessions/fetch_session.py``) change only in few methods."""

import ast
import inspect
from collections.abc import Iterator, Mapping

from reference_broker.sessions.fetch_session import CachedPartition, FetchSession

CHANGES: Mapping[str, Mapping[bool, tuple[str, ...]]] = {
    "live": {
        True: ("CachedPartition.__post_init__", "FetchSession.add_or_update"),
        False: ("CachedPartition.leave", "FetchSession.forget", "FetchSession.empty"),
    },
    "marked": {
        True: ("FetchSession.add_or_update", "FetchSession.mark", "FetchSession.read_as", "FetchSession.put_back"),
        False: ("FetchSession.take_marks", "FetchSession.forget", "FetchSession.empty"),
    },
    "watched": {
        True: ("CachedPartition.watch",),
        False: ("CachedPartition.leave", "CachedPartition._unbind"),
    },
    "queued": {True: ("FetchSession.queue",), False: ("FetchSession.take_with_data",)},
}
"""The methods that make each fact about a cached partition true or false."""
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


def test_facts_change_only_in_these_methods() -> None:
    assert changes_in_code() == {
        (fact, becomes, method)
        for fact, changes in CHANGES.items()
        for becomes, methods in changes.items()
        for method in methods
    }
