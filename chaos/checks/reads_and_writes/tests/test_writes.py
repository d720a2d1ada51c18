"""Lost, duplicated and misplaced writes, and what excuses them."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import bench.fleet
from chaos.checks.groups.tests.group_history import judged, member_operation, member_read
from chaos.checks.history import History
from chaos.checks.reads_and_writes.writes import Duplicate, MirrorComplete
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.client_history import (
    ASSIGNMENT,
    BASE,
    END,
    OPERATIONS,
    POSITIONS,
    READS,
    SENDS,
    operation,
    read,
    send,
    violated_guarantees,
)
from reports.rows import CopyRow, EndRow, HistoryRow, ResetRow, SpanRow, TargetSpanRow

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
    assert violated_guarantees([end, *ALL_READ]) == violated
    assert violated_guarantees([end, *ALL_READ], writes_guaranteed=False) == []
    unread_is_excused = end.log_start_offset == 10 and not violated
    assert violated_guarantees([end, *ONE_UNREAD]) == (violated if unread_is_excused else [*violated, "unseen"])


@pytest.mark.thorough
@pytest.mark.parametrize(("retention_ms", "violated"), [(125_001, LOST), (124_999, [])])
def test_clock_step_is_added_to_age_of_records(retention_ms: int, violated: list[str]) -> None:
    rows = [replace(CUT, retention_ms=retention_ms), *ALL_READ]
    assert violated_guarantees(rows, clock_steps_us=100_000_000) == violated
    assert violated_guarantees(rows) == LOST


HARMLESS = {
    "chaos/mutants/wrong_habits.py",
    "scenarios/vocabulary.py",
    "chaos/checks/requests/delays.py",
    "chaos/search/power_loss_logs.py",
    "chaos/search/differ_scripts.py",
    "chaos/search/differ_reads.py",
    "chaos/mutants/unplanned/storage.py",
    "chaos/checks/replication/deleted_records.py",
    "bench/fleet/behaviours/wild_records.py",
}
"""A broker's responses, the names of all keys, a check of requests, scripts of a log without clients, scripts that no
check judges, a mutant, a check of responses, and a client that deletes records of a topic that no other client may use
(``scenarios.consistency``)."""


def test_no_client_of_a_load_deletes_records_of_others() -> None:
    """``may_be_deleted`` relies on it."""
    root = Path(bench.fleet.__file__).parents[2]
    files = [each for folder in ("bench/fleet", "chaos", "scenarios") for each in (root / folder).rglob("*.py")]
    played = [file for file in files if "tests" not in file.parts]
    calls = {str(file.relative_to(root)) for file in played if names_delete_records(file.read_text(encoding="utf-8"))}
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


def test_lost_writes_are_not_judged_where_they_are_not_promised() -> None:
    assert violated_guarantees([*BASE, *SENDS, *POSITIONS, read(0, 5)], writes_guaranteed=False) == []


@pytest.mark.thorough
@pytest.mark.parametrize("promised", [True, False])
def test_damaged_value_is_never_excused(promised: bool) -> None:
    damaged = replace(read(2, 0, 1), valid=False)
    assert violated_guarantees([*BASE, *SENDS, *POSITIONS, *READS, damaged], promised) == ["corrupt-value"]


@pytest.mark.parametrize("producer", [-1, 7, 8])
def test_only_one_producer_id_writes_a_value_once(producer: int) -> None:
    rows = [*BASE, send(0, 0, 0), *POSITIONS, read(0, 0), replace(read(1, 5, shift=-5), producer_id=producer)]
    if producer == -1:
        rows = [replace(row, producer_id=-1) if isinstance(row, SpanRow) else row for row in rows]
    assert violated_guarantees(rows) == (["duplicate"] if producer == 7 else [])


SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def is_duplicate(
    lasted_us: int,
    expiration_us: int,
    shown_us: int = 100 * SECOND_US,
    kind: str = "ok",
    f: str = "produce",
    steps_us: int = 0,
    tick_us: int = 1000,
) -> bool:
    """Return whether it violates the guarantee that a value is at offsets 0 and 20. Its send lasted so long from its
    begin at 0, and the value was read at 20 first at ``shown_us``."""
    history = History(clock_steps_us=steps_us, clock_tick_us=tick_us, producer_expiration_us=expiration_us)
    history.add(
        [
            replace(operation("p", 0, f, kind), complete_us=lasted_us),
            replace(operation("f", 0, "fetch"), complete_us=SECOND_US),
            replace(operation("f", 1, "fetch"), complete_us=shown_us),
            send(0, 0 if kind == "ok" else -1, 0),
            read(0, 0),
            read(1, 20, shift=-20),
        ]
    )
    return bool(judged(Duplicate(check_context()), history))


@pytest.mark.clause("P-6", "P-7")
@pytest.mark.parametrize(
    ("lasted_us", "expiration_us", "is_red"),
    [
        (4 * SECOND_US, 4 * SECOND_US, False),
        (4 * SECOND_US - 1000, 4 * SECOND_US, False),  # the timestamp is of whole milliseconds
        (4 * SECOND_US - 1001, 4 * SECOND_US, True),
        (4 * SECOND_US, 4 * SECOND_US + 1001, True),
        (99 * SECOND_US, DAY_US, True),
    ],
)
def test_id_may_expire_only_during_a_send_that_lasts_as_long(lasted_us: int, expiration_us: int, is_red: bool) -> None:
    assert is_duplicate(lasted_us, expiration_us) is is_red


@pytest.mark.parametrize(
    ("expiration_us", "is_red"), [(6 * SECOND_US, False), (6 * SECOND_US + 1, True), (8 * SECOND_US, True)]
)
def test_steps_of_clocks_and_their_tick_let_an_id_expire_sooner(expiration_us: int, is_red: bool) -> None:
    assert is_duplicate(3 * SECOND_US, expiration_us, steps_us=2 * SECOND_US, tick_us=SECOND_US) is is_red


@pytest.mark.parametrize(("kind", "lasted_us"), [("ok", 50 * SECOND_US), ("info", 1)])
@pytest.mark.parametrize(("shown_us", "is_red"), [(4 * SECOND_US - 1000, False), (4 * SECOND_US - 1001, True)])
def test_id_expires_before_its_second_record_is_shown(kind: str, lasted_us: int, shown_us: int, is_red: bool) -> None:
    """Whether the end of the send is known or not, a batch may be written after its client has given up."""
    assert is_duplicate(lasted_us, 4 * SECOND_US, shown_us, kind) is is_red


def test_id_does_not_expire_in_a_transaction() -> None:
    assert is_duplicate(9 * SECOND_US, 4 * SECOND_US, f="transaction")
    assert not is_duplicate(9 * SECOND_US, 4 * SECOND_US)


def test_value_that_is_written_three_times_is_judged_by_each_two_writes_in_a_row() -> None:
    """The last write may be one after the ID has expired, and the second is not."""
    history = History(producer_expiration_us=4 * SECOND_US)
    history.add([replace(operation("p", 0, "produce"), complete_us=9 * SECOND_US), send(0, 0, 0)])
    for index, (offset, shown_s) in enumerate(((40, 9), (0, 1), (20, 2))):
        history.add([replace(operation("f", index, "fetch"), complete_us=shown_s * SECOND_US)])
        history.add([read(index, offset, shift=-offset)])
    violations = judged(Duplicate(check_context()), history)
    assert {violation.partition(":")[0] for violation in violations} == {
        f"hot-0 offset {offset}" for offset in range(20, 25)
    }


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(("unguaranteed", "is_red"), [("p", False), ("q", True)])
def test_only_producers_with_one_acknowledgement_may_lose_writes(unguaranteed: str, is_red: bool) -> None:
    rows = [*BASE, *SENDS, *POSITIONS, read(0, 5)]
    assert bool(broken_with(unguaranteed, rows)) is is_red
    backwards = [*BASE, send(0, 5, 5), send(1, 0, 0), *POSITIONS, *READS]
    assert bool(broken_with(unguaranteed, backwards)) is is_red


def broken_with(unguaranteed: str, rows: list[HistoryRow]) -> list[str]:
    return violated_guarantees(rows, unguaranteed=(unguaranteed,))


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "is_red"), [("ok", True), ("info", False), ("fail", False)])
def test_only_acknowledged_records_must_be_read(kind: str, is_red: bool) -> None:
    rows = [operation("p", 0, "produce", kind), *OPERATIONS[1:], ASSIGNMENT, END, *SENDS, *POSITIONS, read(1, 5)]
    assert bool(violated_guarantees(rows)) is is_red


@pytest.mark.parametrize(("count", "is_red"), [(0, False), (3, True), (5, False)])
def test_batch_of_unknown_end_is_written_whole_or_not_at_all(count: int, is_red: bool) -> None:
    some = [read(0, 0, count)] if count else []
    rows = [operation("p", 0, "produce", "info"), *BASE[1:], send(0, -1, 0), SENDS[1], *POSITIONS, *some, read(1, 5)]
    assert violated_guarantees(rows) == (["lost-write", "unseen"] if is_red else [])


@pytest.mark.parametrize(("acked_at", "is_red"), [(5, False), (6, True)])
def test_value_acknowledged_at_another_offset_is_a_duplicate(acked_at: int, is_red: bool) -> None:
    rows = [*BASE, SENDS[0], send(1, acked_at, 5), *POSITIONS, *READS]
    assert ("duplicate" in violated_guarantees(rows)) is is_red


@pytest.mark.parametrize(
    ("there", "reset", "found"),
    [
        ([(0, 6), (6, 0)], None, 0),
        ([(0, 4), (4, 0)], None, 2),
        ([(0, 2), (3, 3), (6, 0)], None, 1),
        ([(0, 4)], None, 0),  # It was not read to its end.
        ([(2, 4), (6, 0)], ResetRow("mirror-0", 1, "hot", 0, -1, 2, "no_offset", -1, 5), 0),
        ([(3, 3), (6, 0)], ResetRow("mirror-0", 1, "hot", 0, -1, 2, "no_offset", -1, 5), 1),
        ([(2, 4), (6, 0)], ResetRow("mirror-0", 1, "hot", 0, 1, 2, "no_offset", -1, 5), 1),
        ([(2, 4), (6, 0)], ResetRow("member-0", 1, "hot", 0, -1, 2, "no_offset", -1, 5), 2),
    ],
)
def test_mirror_target_holds_records_of_source(
    there: list[tuple[int, int]], reset: ResetRow | None, found: int
) -> None:
    held = [TargetSpanRow("hot", 0, first, count, "producer-0" if count else "", first) for first, count in there]
    history = History(
        operations=[member_operation("final-reader", 1, "final_read", 100)],
        runs=[member_read("final-reader", 1, 0, 6)],
        copies=[CopyRow("mirror-0-writer", 1, "hot", 0, 0, 6, 0, "producer-0", 0, 50)],
        target_runs=held,
        resets=[] if reset is None else [reset],
    )
    assert len(judged(MirrorComplete(check_context()), history)) == found
