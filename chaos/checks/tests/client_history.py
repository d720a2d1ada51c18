"""A history of producer p, which writes 0..9 to hot-0 in two requests, and fetcher f, which reads them in two."""

from collections.abc import Sequence
from dataclasses import replace

from chaos.checks.history import History
from chaos.checks.suite import all_checks
from chaos.checks.tests.check_context import check_context
from reports.rows import END_OF_RUN_US, AssignmentRow, EndRow, HistoryRow, OperationRow, PositionRow, SpanRow

TOPIC = "hot"


def operation(process: str, index: int, f: str, kind: str = "ok", at_us: int = 0) -> OperationRow:
    return OperationRow(process, index, f, kind, at_us, at_us, at_us + 5)


def send(index: int, first_offset: int, first_sequence: int, count: int = 5) -> SpanRow:
    return SpanRow("p", index, 0, "send", TOPIC, 0, first_offset, count, 7, "p", first_sequence, True)


def read(
    index: int, first_offset: int, count: int = 5, position: int = 0, shift: int = 0, writer: str = "p"
) -> SpanRow:
    return SpanRow("f", index, position, "read", TOPIC, 0, first_offset, count, 7, writer, first_offset + shift, True)


def position(index: int, fetch: int, following: int, topic: str = TOPIC) -> PositionRow:
    return PositionRow("f", index, topic, 0, fetch, following, 10, 0, None)


OPERATIONS: list[HistoryRow] = [
    operation("p", 0, "produce"),
    operation("p", 1, "produce", at_us=10),
    operation("f", 0, "fetch", at_us=20),
    operation("f", 1, "fetch", at_us=30),
]
ASSIGNMENT = AssignmentRow("f", TOPIC, 0, 20, END_OF_RUN_US, 0)
END = EndRow(TOPIC, 0, 0, 10, 50)
GONE = replace(END, high_watermark=0, error="UNKNOWN_TOPIC_OR_PARTITION")
SHORT = replace(END, high_watermark=9)
SENDS: list[HistoryRow] = [send(0, 0, 0), send(1, 5, 5)]
POSITIONS: list[HistoryRow] = [position(0, 0, 5), position(1, 5, 10)]
READS: list[HistoryRow] = [read(0, 0), read(1, 5)]
FINAL_READ: list[HistoryRow] = [operation("g", 0, "final_read", at_us=40), replace(read(0, 0, 10), process="g")]
BASE: list[HistoryRow] = [*OPERATIONS, ASSIGNMENT, END]


def violated_guarantees(
    rows: Sequence[HistoryRow],
    writes_guaranteed: bool = True,
    unguaranteed: tuple[str, ...] = (),
    clock_steps_us: int = 0,
) -> list[str]:
    history = History(writes_guaranteed=writes_guaranteed, unguaranteed=unguaranteed, clock_steps_us=clock_steps_us)
    history.add(rows)
    checks = all_checks(check_context())
    for check in checks:
        check.end(history)
    return sorted({check.guarantee for check in checks if check.violations})
