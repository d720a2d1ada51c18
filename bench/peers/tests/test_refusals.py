"""The table of everything that the broker refuses (``bench/peers/refusals.toml``), beside its source."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

import reference_broker
from bench.peers.kafka import KAFKA_VERSION
from bench.peers.tests.test_batches_like_kafka import DIFFERENT
from bench.probe import kafka_responses
from bench.probe.case import ProbeCase
from bench.probe.cases import all_cases
from reference_broker.wire.errors import ErrorCode

SOURCE = Path(reference_broker.__file__).parent
ROOMS = ("apis", "controller", "coordination", "groups", "sessions", "transactions", "wire")
MODULES = (
    *(
        "records/batch.py",
        "records/validation.py",
        "log/appending.py",
        "log/producer_state.py",
        "log/transaction_verification.py",
    ),
    "serve/request_decoder.py",
)
CLOSING = ("ProtocolError", "TruncatedError", "TooMuchError")
"""Errors of a request that cannot be decoded. The connection is closed."""
TABLE = tomllib.loads((Path(__file__).parents[1] / "refusals.toml").read_text())
ROWS = [(module, row) for module, part in TABLE.items() for row in part["rows"]]
EVIDENCE = ("case", "batch", "state", "unlike")
CASES = {case.id: case for case in all_cases()}


def sites(tree: ast.AST, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield ``function error`` where a function or a constant of a module names an error code to return or raise it,
    and ``function closes`` where a request ends its connection.

    Comparisons, patterns, keys of mappings and constant collections only distinguish errors.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Compare | ast.pattern) or (not path and isinstance(node, ast.Set | ast.Tuple)):
            continue
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "ErrorCode" and node.attr != "none":
            yield f"{'.'.join(path) or '<module>'} {node.attr}"
        elif isinstance(node, ast.Call) and _closes(node.func):
            yield f"{'.'.join(path)} closes"
        elif isinstance(node, ast.Dict):
            yield from sites(ast.Tuple([*node.values]) if path else ast.List([*node.values]), path)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from sites(node, (*path, node.name))
        else:
            yield from sites(node, path)


def _closes(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr == "close" and getattr(function.value, "id", "") == "call"
    return getattr(function, "id", "") in CLOSING


def test_constants_and_functions_that_refuse_are_found() -> None:
    source = """
FATAL = (ErrorCode.unknown_server_error, ErrorCode.corrupt_message)
TOO_OLD = ApiError(ErrorCode.invalid_request, "no")
SHOWN = {ErrorCode.network_exception: ErrorCode.not_coordinator}
class Log:
    def check(self, error):
        if error is ErrorCode.none or error == ErrorCode.request_timed_out:
            return response_of(error, (ErrorCode.invalid_record, 3))
        def inner():
            raise Failed(ErrorCode.kafka_storage_error)
        if error > 7:
            raise ProtocolError("too much")
        call.close("enough")
        match error:
            case ErrorCode.policy_violation:
                return {1: ErrorCode.invalid_config}
"""
    assert [*sites(ast.parse(source))] == [
        "<module> invalid_request",
        "<module> not_coordinator",
        "Log.check invalid_record",
        "Log.check.inner kafka_storage_error",
        "Log.check closes",
        "Log.check closes",
        "Log.check invalid_config",
    ]


def refusing() -> dict[str, list[str]]:
    """Return the places of each module. What the codec names error codes for is to read and write them."""
    found: dict[str, list[str]] = {}
    paths = [path for room in ROOMS for path in (SOURCE / room).rglob("*.py") if "tests" not in path.parts]
    for path in sorted([*paths, *map(SOURCE.joinpath, MODULES)]):
        module, those = path.relative_to(SOURCE).as_posix(), [*dict.fromkeys(sites(ast.parse(path.read_text())))]
        found[module] = [each for each in those if not module.startswith("wire/") or each.endswith(" closes")]
    return {module: those for module, those in found.items() if those}


def test_each_refusal_has_a_row() -> None:
    rows = [f"{module} {row['at']}" for module, row in ROWS]
    found = [f"{module} {each}" for module, those in refusing().items() for each in those]
    missing, stale = sorted({*found} - {*rows}), sorted({*rows} - {*found})
    assert not missing, "add a row to bench/peers/refusals.toml, and say what Apache Kafka does"
    assert not stale, "these rows match nothing any more"
    assert len(rows) == len({*rows})


@pytest.mark.parametrize(("module", "row"), ROWS, ids=[f"{module} {row['at']}" for module, row in ROWS])
def test_each_row_has_behaviour_of_kafka(module: str, row: dict[str, Any]) -> None:
    assert row.keys() <= {"at", "when", "kafka", *EVIDENCE}
    assert row["when"]
    assert row["kafka"]
    assert TABLE[module]["api"]
    assert any(row.get(each) for each in EVIDENCE), "what shows that Kafka refuses it, or lets us be stricter?"
    assert row["kafka"] != "-" or row.get("unlike"), "Kafka has no such error, so a reason is needed"
    assert not (row.get("state") and row.get("case")), "a request meets it, so it takes no state"


RECORDED = kafka_responses.recorded(KAFKA_VERSION)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (row, name)
        for _, row in ROWS
        for name in ([row["case"]] if isinstance(row.get("case"), str) else row.get("case", ()))
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_apache_kafka_has_responded_to_the_case_of_a_row(row: dict[str, Any], name: str) -> None:
    error = row["at"].rpartition(" ")[2]
    verdict, decided = RECORDED[name]
    if error == "closes":
        assert "'closed'" in decided or "closed without a response: True" in decided
    else:
        assert ErrorCode[error] in demanded(CASES[name]), f"{name} looks for another error"
    assert verdict == "pass" or row.get("unlike"), "Kafka responds otherwise: give the reason"


def demanded(case: ProbeCase) -> set[ErrorCode]:
    """Return the error codes that a case names in its words or looks for, itself or by a function of its module."""
    named = {each for each in ErrorCode if each.name.upper() in case.words}
    seen: set[str] = set()

    def look(code: CodeType, known: dict[str, Any]) -> None:
        named.update(ErrorCode[name] for name in code.co_names if name in ErrorCode.__members__)
        for name in set(code.co_names) - seen:
            seen.add(name)
            value = known.get(name)
            if isinstance(value, FunctionType) and value.__module__.startswith("bench.probe.cases"):
                look(value.__code__, value.__globals__)
            elif isinstance(value, tuple):
                named.update(each for each in value if isinstance(each, ErrorCode))

    assert isinstance(case.play, FunctionType)
    look(case.play.__code__, case.play.__globals__)
    return named


def test_batches_that_only_we_refuse_are_in_rows() -> None:
    named = {name for _, row in ROWS for name in row.get("batch", ())}
    assert named == {name.partition("/")[2] for name in DIFFERENT}
