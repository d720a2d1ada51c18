"""Rows of the history of a consumer group."""

import json
from dataclasses import replace
from typing import Any

from chaos.checks.check import Check
from chaos.checks.history import History
from reports.rows import CommitRow, MembershipRow, OperationRow, SpanRow, TraceRow

A, B = "member-0", "member-1"


def member_operation(process: str, index: int, f: str, at_us: int) -> OperationRow:
    return OperationRow(process, index, f, "ok", at_us, at_us, at_us + 5)


def commit(process: str, index: int, offset: int, epoch: int, at_us: int, **more: Any) -> CommitRow:
    row = CommitRow(process, index, "commit", "g", 1, process, "hot", 0, offset, -1, epoch, True, None, at_us + 5)
    return replace(row, **more)


def assigned(process: str, generation: int, at_us: int, event: str = "assigned") -> MembershipRow:
    return MembershipRow(process, "g", process, generation, event, "hot", 0, at_us, at_us)


def member_read(process: str, index: int, first: int, count: int) -> SpanRow:
    return SpanRow(process, index, 0, "read", "hot", 0, first, count, 1, "producer-0", first, True)


def judged(check: Check, history: History) -> list[str]:
    known = [(row.process, row.index) for row in history.operations]
    history.operations += [
        member_operation(row.process, row.index, "offset_commit", row.at_us - 5)
        for row in history.commits
        if (row.process, row.index) not in known
    ]
    check.end(history)
    return [violation.explanation for violation in check.violations]


def note(what: str, at_us: int, node: int = 0, **fields: int | str) -> TraceRow:
    return TraceRow(node, 0, 0, at_us, what, detail=json.dumps(fields))
