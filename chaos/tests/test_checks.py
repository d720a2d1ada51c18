"""Each check stays silent on a right history and speaks on one that breaks its guarantee."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import bench.fleet
from chaos.checks.check import Check
from chaos.checks.fetch_session_cache import MetricsExact, session_metrics
from chaos.checks.fetch_sessions import SessionLost, SessionOrder
from chaos.checks.history import History
from chaos.checks.partition_logs import LogConsistent
from chaos.checks.suite import all_checks
from chaos.sim.disk import SimDisk
from chaos.tests.check_context import check_context
from chaos.tests.stub_node import StubBroker, StubLog, StubNode, node_partitions
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.node import Node
from reference_broker.replication.partitions import Partition
from reports.rows import END_OF_RUN_US, AssignmentRow, EndRow, HistoryRow, OperationRow, PositionRow, SpanRow, TraceRow

NONE, UNKNOWN, WRONG = 0, 70, 71
TOPIC = "hot"


# The mechanisms: traces.


class Trace:
    """Writes trace rows as a node's recorder does."""

    def __init__(self, *checks: Check) -> None:
        self.checks = checks
        self.seq = 0
        self.incarnation = 0

    def row(self, what: str, **fields: object) -> None:
        row = TraceRow(0, self.incarnation, self.seq, self.seq, what, **fields)  # type: ignore[arg-type]
        self.seq += 1
        for check in self.checks:
            check.trace(row)

    def note(self, what: str, **fields: object) -> None:
        self.row(what, detail=json.dumps(fields, sort_keys=True))

    def request(self, session: int, epoch: int, connection: int = 1) -> None:
        self.row("request", connection=connection, api_key=1, session_id=session, session_epoch=epoch)

    def reply(self, session: int, epoch: int, error: int, connection: int = 1, session_id: int | None = None) -> None:
        response = (session if error == NONE else 0) if session_id is None else session_id
        self.row(
            "reply",
            connection=connection,
            api_key=1,
            session_id=session,
            session_epoch=epoch,
            error=error,
            response_session_id=response,
        )

    def fetch(self, session: int, epoch: int, error: int = NONE, session_id: int | None = None) -> None:
        self.request(session, epoch)
        self.reply(session, epoch, error, session_id=session_id)


def session_checks(first_epoch: int = 1) -> tuple[SessionOrder, SessionLost, Trace]:
    order, lost = SessionOrder(check_context(first_session_epoch=first_epoch)), SessionLost(check_context())
    trace = Trace(order, lost)
    trace.note("session_created", session_id=9)
    return order, lost, trace


@pytest.mark.clause("F-3", "F-7", "F-9", "F-10")
def test_correct_session_violates_nothing() -> None:
    order, lost, trace = session_checks()
    trace.fetch(9, 1)
    trace.fetch(9, 2)
    trace.fetch(9, 2, WRONG)
    trace.fetch(9, 7, WRONG)
    trace.fetch(9, 3)
    trace.fetch(8, 1, UNKNOWN)
    trace.fetch(9, -5, UNKNOWN)
    trace.request(9, 0)
    trace.note("session_closed", session_id=9, reason="replaced")
    trace.note("session_created", session_id=10)
    trace.reply(9, 0, NONE, session_id=10)
    trace.fetch(9, 4, UNKNOWN)
    trace.incarnation = 1
    trace.fetch(10, 1, UNKNOWN)
    assert order.violations == lost.violations == []


def test_waiting_request_may_be_overtaken_in_its_session() -> None:
    order, lost, trace = session_checks()
    trace.request(9, 1, connection=1)
    trace.request(9, 2, connection=2)
    trace.reply(9, 1, WRONG, connection=1)
    trace.reply(9, 2, NONE, connection=2)
    trace.request(9, 3, connection=1)
    trace.note("session_evicted", session_id=9)
    trace.reply(9, 3, UNKNOWN, connection=1)
    assert order.violations == lost.violations == []


@pytest.mark.parametrize(
    ("fetches", "why"),
    [
        ([(1, NONE), (1, NONE)], "an epoch accepted twice"),
        ([(1, NONE), (2, WRONG)], "the right epoch refused"),
        ([(2, NONE)], "a later epoch accepted"),
        ([(1, NONE), (3, UNKNOWN)], "a wrong epoch refused as an unknown ID"),
        ([(0x7FFFFFFF, NONE)], "the last epoch accepted first"),
    ],
)
def test_response_with_an_error_that_does_not_fit_the_epoch_violates_session_epoch_order(
    fetches: Sequence[tuple[int, int]], why: str
) -> None:
    order, _, trace = session_checks()
    for epoch, error in fetches:
        trace.fetch(9, epoch, error)
    assert len(order.violations) == 1, why


def test_session_order_wraps_to_one() -> None:
    order, _, trace = session_checks(first_epoch=2**31 - 1)
    trace.fetch(9, 2**31 - 1)
    trace.fetch(9, 1)
    assert order.violations == []
    trace.fetch(9, 3, NONE)
    assert order.violations


def test_unknown_session_that_nothing_ended_violates_session_lost() -> None:
    _, lost, trace = session_checks()
    trace.fetch(9, 1, UNKNOWN)
    assert "nothing had closed" in lost.violations[0].story


def test_session_closed_for_a_wrong_epoch_violates_session_lost() -> None:
    _, lost, trace = session_checks()
    trace.request(9, 5)
    trace.note("session_closed", session_id=9, reason="")
    trace.reply(9, 5, WRONG)
    assert "that closed the session" in lost.violations[0].story


@pytest.mark.parametrize("session_id", [0, 8])
def test_response_with_another_session_id_violates_session_lost(session_id: int) -> None:
    _, lost, trace = session_checks()
    trace.fetch(9, 1, NONE, session_id=session_id)
    assert len(lost.violations) == 1


def node() -> Node:
    from random import Random

    return Node(0, BrokerConfig.parse({}), SimDisk(Random(1)), 1)


@pytest.mark.clause("F-21")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_session_metrics_that_are_off_by_one_are_a_violation(which: int) -> None:
    subject, check = node(), MetricsExact(check_context())
    check.inspect(0, 0, subject, None, thorough=False)
    assert check.violations == []
    assert [each.value for each in session_metrics(subject)] == [0, 0, 0]
    metrics, kind = subject.broker.metrics, "FetchSessionCache"
    off = (
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchSessions"),
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchPartitionsCached"),
        metrics.counter("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec"),
    )[which]
    off.value += 1
    check.inspect(0, 0, subject, None, thorough=False)
    assert len(check.violations) == 1


def test_high_watermark_that_goes_back_violates_log_consistent() -> None:
    log = StubLog(high_watermark=5, log_end_offset=5)
    partitions = node_partitions(Partition(TOPIC, bytes(16), 0, 0, log.as_log()))
    subject = StubNode(StubBroker(partitions=partitions)).as_node()
    check = LogConsistent(check_context())
    check.inspect(0, 0, subject, None, thorough=True)
    log.high_watermark = 4
    check.inspect(0, 1, subject, None, thorough=True)
    assert check.violations == [], "another incarnation may begin lower"
    log.high_watermark = 3
    check.inspect(0, 1, subject, None, thorough=True)
    log.high_watermark = 6
    check.inspect(0, 1, subject, None, thorough=True)
    assert [each.story.split(": ")[1][:20] for each in check.violations] == [
        "high watermark went ",
        "high watermark 6 is ",
    ]


# What clients saw: histories. A producer p writes 0..9 to hot-0 (two requests), a fetcher f reads them in two fetches.


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


def broken(
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "guarantees"),
    [
        ([*BASE, *SENDS, *POSITIONS, *READS], []),
        (
            [*BASE, *SENDS, *POSITIONS, read(0, 0), read(1, 5, shift=20)],
            ["inconsistent-offsets", "unseen", "lost-write"],
        ),
        ([*BASE, *SENDS, *POSITIONS, *READS, read(2, 0, 1, writer="")], ["corrupt-value"]),
        ([*BASE, send(0, 0, 0), *POSITIONS, read(0, 0), read(1, 5, shift=-5)], ["duplicate"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 5)], ["lost-write", "unseen"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0)], ["unseen"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0, 4), read(1, 5)], ["lost-write", "unseen"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0, 4), read(1, 5), *FINAL_READ], ["poll-skip"]),
        ([*OPERATIONS, ASSIGNMENT, GONE, *SENDS, *POSITIONS, *READS], ["lost-write"]),
        ([*OPERATIONS, ASSIGNMENT, SHORT, *SENDS, *POSITIONS, *READS], ["fetch-gap", "lost-write"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0), read(1, 4, 6)], ["nonmonotonic-poll"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0, 3), read(0, 4, 6, 1), *FINAL_READ], ["int-poll-skip"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0), read(0, 4, 6, 1)], ["int-nonmonotonic-poll"]),
        ([*BASE, send(0, 5, 5), send(1, 0, 0), *POSITIONS, *READS], ["nonmonotonic-send"]),
        ([*BASE, *SENDS, *POSITIONS, *READS, position(1, 0, 0, "other")], ["unrequested-partition"]),
        ([*BASE, *SENDS, position(0, 0, 5), *READS], ["fetch-gap"]),
    ],
)
def test_each_anomaly_of_a_history_violates_its_guarantee(rows: Sequence[HistoryRow], guarantees: list[str]) -> None:
    assert broken(rows) == sorted(guarantees)


WEEK_MS = 7 * 86_400_000
CUT = replace(END, log_start_offset=10, end_us=20_000_000, retention_ms=WEEK_MS, retention_bytes=-1)
"""The log begins where it ends. The records were sent 20 s ago."""
LOST = ["lost-write"]
ALL_READ: list[HistoryRow] = [*OPERATIONS, ASSIGNMENT, *SENDS, *POSITIONS, *READS]
ONE_UNREAD: list[HistoryRow] = [*OPERATIONS, ASSIGNMENT, *SENDS, *POSITIONS, read(0, 0), read(1, 5, 4)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "violated"),
    [
        (CUT, LOST),
        (replace(CUT, log_start_offset=1), LOST),
        (replace(CUT, retention_ms=-1), LOST),
        (replace(CUT, retention_ms=25_001), LOST),
        (replace(CUT, retention_ms=24_999), []),
        (replace(CUT, retention_ms=-1, retention_bytes=500, size_bytes=399, segment_bytes=100), LOST),
        (replace(CUT, retention_ms=-1, retention_bytes=500, size_bytes=400, segment_bytes=100), []),
        (replace(CUT, retention_ms=-1, retention_bytes=500, size_bytes=0), []),
        (replace(CUT, retention_ms=0), []),
        (replace(CUT, retention_ms=None, retention_bytes=None), []),
        (replace(CUT, log_start_offset=0), []),
    ],
)
def test_only_retention_explains_a_log_that_begins_above_what_was_acknowledged(
    end: EndRow, violated: list[str]
) -> None:
    assert broken([end, *ALL_READ]) == violated
    assert broken([end, *ALL_READ], writes_guaranteed=False) == []
    unread_is_excused = end.log_start_offset == 10 and not violated
    assert broken([end, *ONE_UNREAD]) == (violated if unread_is_excused else [*violated, "unseen"])


@pytest.mark.thorough
@pytest.mark.parametrize(("retention_ms", "violated"), [(125_001, LOST), (124_999, [])])
def test_clock_step_is_added_to_age_of_records(retention_ms: int, violated: list[str]) -> None:
    rows = [replace(CUT, retention_ms=retention_ms), *ALL_READ]
    assert broken(rows, clock_steps_us=100_000_000) == violated
    assert broken(rows) == LOST


HARMLESS = {
    "chaos/mutants/wrong_habits.py",
    "scenarios/vocabulary.py",
    "chaos/checks/delays.py",
    "chaos/search/power_loss_logs.py",
    "chaos/search/differ_scripts.py",
    "chaos/search/differ_reads.py",
    "chaos/mutants/unplanned/storage.py",
}
"""A broker's responses, the names of all keys, a check of requests, scripts of a log without clients, scripts that no
check judges, and a mutant."""


def test_no_client_of_a_load_deletes_records() -> None:
    """``may_be_deleted`` relies on it."""
    root = Path(bench.fleet.__file__).parents[2]
    files = [each for folder in ("bench/fleet", "chaos", "scenarios") for each in (root / folder).rglob("*.py")]
    played = [each for each in files if "tests" not in each.parts]
    calls = {str(each.relative_to(root)) for each in played if names_delete_records(each.read_text(encoding="utf-8"))}
    assert calls == HARMLESS


@pytest.mark.parametrize(
    "code",
    [
        "key = ApiKey.DELETE_RECORDS",
        "from kio.schema.delete_records.v2.request import DeleteRecordsRequest as R",
        "from kio.schema import delete_records",
        "import kio.schema.delete_records.v2.request",
        "message = 'DeleteRecords'",
        "'No docstring.'\nname = {'delete_records': 1}",
    ],
)
def test_client_that_deletes_records_is_found_by_any_name_of_the_api(code: str) -> None:
    assert names_delete_records(code)


def names_delete_records(code: str) -> bool:
    """Return whether code names the request anywhere but in comments and documentation."""
    named = re.compile("delete_?records", re.IGNORECASE)
    return bool(named.search(code) and named.search(ast.dump(Undocumented().visit(ast.parse(code)))))


class Undocumented(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def test_seek_begins_a_new_walk() -> None:
    again = [AssignmentRow("f", TOPIC, 0, 20, 29, 0), AssignmentRow("f", TOPIC, 0, 29, END_OF_RUN_US, 0)]
    rows = [*OPERATIONS, END, *again, *SENDS, position(0, 0, 10), position(1, 0, 10), read(0, 0, 10), read(1, 0, 10)]
    assert broken(rows) == []
    assert broken([*OPERATIONS, END, ASSIGNMENT, *rows[7:]]) == ["nonmonotonic-poll"]


def test_lost_writes_are_not_judged_where_they_are_not_promised() -> None:
    assert broken([*BASE, *SENDS, *POSITIONS, read(0, 5)], writes_guaranteed=False) == []


def test_failed_fetch_moves_no_cursor() -> None:
    rows = [*BASE[1:], *SENDS, *POSITIONS, *READS]
    assert broken([operation("p", 0, "produce"), *rows]) == []
    failed: list[HistoryRow] = [
        operation("f", 2, "fetch", "fail", 40),
        SpanRow("f", 2, 0, "read", TOPIC, 0, 0, 5, 7, "p", 0, True),
    ]
    assert broken([operation("p", 0, "produce"), *rows, *failed]) == []
