"""Records missing from a compacted topic: one violation of each kind, and near misses.

Partition 0 of the topic ``table`` has two keys. A plain writer sends to offsets 0 to 9, and transactions follow.

=======  ====  =====================================================================
offset   key   what
=======  ====  =====================================================================
0        a     value 0, superseded by 2
1        b     value 1, superseded by 3
2        a     value 2, superseded by 10
3        b     tombstone 3
4, 5     a, b  values 0 and 1 of a transaction that was aborted (its marker is at 6)
7, 8     a, b  values 2 and 3 of a transaction that was committed (marker at 9)
10       a     value 4, the newest
11       b     tombstone 5, the newest
=======  ====  =====================================================================
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from reports.judge import compute_verdicts
from reports.rows import (
    END_OF_RUN_US,
    AssignmentRow,
    EndRow,
    KeyedWriteRow,
    MembershipRow,
    OperationRow,
    PositionRow,
    SpanRow,
    TransactionRow,
    ViewRow,
)
from reports.tests.history import History
from reports.tests.ledger import END_US, EXPECTATIONS, SHAPE
from reports.verdict import Verdict

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.timeout(1800)]
"""The simulator's checks have the same tests in seconds (chaos/checks/reads_and_writes/tests/test_compacted_topics.py).
Here each history is judged as a run of its own, which takes Spark minutes in all."""

TOPIC, PLAIN, TXN = "table", "producer-0", "transactional-0"
FOLLOWER, COMMITTED, UNCOMMITTED = "follower", "final-c", "final"
RETENTION_US = 5_000_000
END = 12
OF_COMPACTION = (
    *("lost-write", "unseen", "poll-skip", "int-poll-skip", "group-skip"),
    *("torn-transaction", "lost-transaction"),
)
NEWER_US = 20_000_000
"""When the newest records were sent."""


@dataclass(frozen=True)
class Sent:
    writer: str
    sequence: int
    offset: int
    key: str
    is_tombstone: bool = False


OLD = (Sent(PLAIN, 0, 0, "a"), Sent(PLAIN, 1, 1, "b"), Sent(PLAIN, 2, 2, "a"), Sent(PLAIN, 3, 3, "b", True))
ABORTED = (Sent(TXN, 0, 4, "a"), Sent(TXN, 1, 5, "b"))
IN_TRANSACTION = (Sent(TXN, 2, 7, "a"), Sent(TXN, 3, 8, "b"))
NEWEST = (Sent(PLAIN, 4, 10, "a"), Sent(PLAIN, 5, 11, "b", True))
EFFECTIVE = (*OLD, *IN_TRANSACTION, *NEWEST)


@dataclass
class Table:
    """Writes the rows. Each read brings records one by one, so that a test can take away any of them."""

    history: History = field(default_factory=lambda: History(SHAPE, 1))
    now_us: int = 1_000_000
    index: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, row: object) -> None:
        self.history.tables[table].append(asdict(row))  # type: ignore[call-overload]

    def operation(self, process: str, f: str, kind: str = "ok") -> int:
        index = self.index[process] = self.index.get(process, -1) + 1
        started_us, self.now_us = self.now_us, self.now_us + 10_000
        self.add("operations", OperationRow(process, index, f, kind, started_us, started_us, self.now_us, 0))
        self.now_us += 1_000
        return index

    def run(self, process: str, index: int, position: int, kind: str, sent: Sent, isolation: int = 0) -> None:
        acks = -1 if kind == "send" else 0
        where = (TOPIC, 0, sent.offset, 1, 7)
        row = SpanRow(process, index, position, kind, *where, sent.writer, sent.sequence, True, acks, isolation)
        self.add("runs", row)

    def send(self, f: str, kind: str, *sent: Sent) -> int:
        index = self.operation(sent[0].writer, f, kind)
        for position, each in enumerate(sent):
            self.run(each.writer, index, position, "send", each)
            self.add(
                "keyed_writes",
                KeyedWriteRow(each.writer, index, TOPIC, 0, each.sequence, each.key, each.is_tombstone, RETENTION_US),
            )
        return index

    def transaction(self, requested_end: str, kind: str, outcome: str, *sent: Sent) -> None:
        started_us = self.now_us
        index = self.send("transaction", kind, *sent)
        end_us = self.now_us
        fields = (requested_end, outcome, None, 2_000_000, started_us, end_us - 5_000, end_us)
        self.add("transactions", TransactionRow(TXN, index, "id", 7, index, *fields))

    def read(self, process: str, f: str, isolation: int, begin: int, end: int, *sent: Sent) -> None:
        index = self.operation(process, f)
        for position, each in enumerate(sent):
            self.run(process, index, position, "read", each, isolation)
        self.add("positions", PositionRow(process, index, TOPIC, 0, begin, end, END, 0, None, END, 3))

    def view(self, process: str, isolation: int, position: int, *held: Sent) -> None:
        head = (process, TOPIC, 0, isolation, 1_000, self.now_us, position)
        self.add("views", ViewRow(*head, "", -1, "", -1))
        for each in held:
            self.add("views", ViewRow(*head, each.key, each.offset, each.writer, each.sequence))

    def play(self) -> History:
        self.add("assignments", AssignmentRow(FOLLOWER, TOPIC, 0, 1_000, END_OF_RUN_US, 0))
        for each in OLD:
            self.send("produce", "ok", each)
        self.transaction("abort", "fail", "ok", *ABORTED)
        self.transaction("commit", "ok", "ok", *IN_TRANSACTION)
        self.read(FOLLOWER, "fetch", 0, 0, 10, *OLD, *ABORTED, *IN_TRANSACTION)
        self.now_us = NEWER_US
        for each in NEWEST:
            self.send("produce", "ok", each)
        self.read(FOLLOWER, "fetch", 0, 10, END, *NEWEST)
        self.view(FOLLOWER, 0, END, NEWEST[0])
        self.now_us = END_US
        self.read(UNCOMMITTED, "final_read", 0, 0, END, *NEWEST)
        self.read(COMMITTED, "final_read", 1, 0, END, *NEWEST)
        self.view(COMMITTED, 1, END, NEWEST[0])
        self.add("ends", EndRow(TOPIC, 0, 0, END, self.now_us, END))
        return self.history


def _without_reads(history: History, *gone: Sent, process: str = "") -> None:
    for each in gone:
        of = {"process": process} if process else {}
        for row in history.rows("runs", kind="read", writer=each.writer, first_sequence=each.sequence, **of):
            history.drop("runs", row)


def legal_superseded_and_never_read(history: History) -> None:
    """Readers got there only when a newer record of each key had been committed."""
    (early,) = history.rows("positions", process=FOLLOWER, fetch_offset=0)
    history.drop("positions", early)
    _without_reads(history, *OLD, *IN_TRANSACTION)


def plant_passed_and_not_read(history: History) -> None:
    """A reader got past records that nothing had superseded by then. Later records of their keys excuse nothing."""
    _without_reads(history, *OLD, *IN_TRANSACTION)


def legal_left_with_fetched_records(history: History) -> None:
    """A member of a group fetched the records before they were superseded, and left before it polled them."""
    _got_early(history, is_member=True, goes_on=False)


def plant_member_went_on_without_fetched_records(history: History) -> None:
    """A member of a group went on behind records that it had fetched, and polled none of them."""
    _got_early(history, is_member=True, goes_on=True)


def plant_fetched_outside_a_group_and_not_read(history: History) -> None:
    """A reader outside a group reads at once what it fetches."""
    _got_early(history, is_member=False, goes_on=False)


def _got_early(history: History, *, is_member: bool, goes_on: bool) -> None:
    """A client got responses with the superseded records while they were the newest of their keys."""
    legal_superseded_and_never_read(history)
    table = Table(history, now_us=5_000_000)
    table.read("early", "fetch", 0, 0, 10)
    if goes_on:
        table.read("early", "fetch", 0, 10, 10)
    if is_member:
        fields = ("group", "early", 1, "assigned", TOPIC, 0)
        table.add("memberships", MembershipRow("early", *fields, 4_000_000, 4_000_000))


def plant_torn_before_it_was_superseded(history: History) -> None:
    """A reader of committed records saw one value of a transaction, and passed the other. Both were the newest of their
    keys then."""
    table = Table(history, now_us=5_000_000)
    table.read("early-c", "fetch", 1, 7, 10, IN_TRANSACTION[0])


def legal_old_tombstone_never_read(history: History) -> None:
    """Readers got there only when it had become old."""
    (early,) = history.rows("positions", process=FOLLOWER, fetch_offset=10)
    history.drop("positions", early)
    _without_reads(history, NEWEST[1])


def plant_young_tombstone_passed(history: History) -> None:
    """A reader got past a tombstone before it became old."""
    _without_reads(history, NEWEST[1])


def plant_newest_lost(history: History) -> None:
    """A reader did not read the newest value of a key, and went on."""
    _without_reads(history, NEWEST[0])


def plant_young_tombstone_lost(history: History) -> None:
    """No read of a tombstone that must stay beyond the end of the run."""
    _without_reads(history, NEWEST[1])
    for row in history.rows("keyed_writes", process=PLAIN, sequence=5):
        row["delete_retention_us"] = 10 * END_US


def plant_superseded_by_an_aborted_one_alone(history: History) -> None:
    """The only newer record of the key is in an aborted transaction."""
    _only_aborted_is_newer(history)
    _without_reads(history, OLD[2])


def _only_aborted_is_newer(history: History) -> None:
    """Key a has no records after the aborted transaction."""
    for table, name in (("runs", "first_sequence"), ("keyed_writes", "sequence")):
        for writer, sequence in ((TXN, 2), (PLAIN, 4)):
            of = {"writer": writer} if table == "runs" else {"process": writer}
            for row in history.rows(table, **{**of, name: sequence}):
                history.drop(table, row)
    for row in history.rows("views", key="a"):
        row.update(offset=OLD[2].offset, writer=PLAIN, sequence=OLD[2].sequence)


def legal_nothing_committed_is_newer(history: History) -> None:
    _only_aborted_is_newer(history)


def legal_skip_of_what_was_superseded_by_then(history: History) -> None:
    """A reader jumped over the value of key b, when its tombstone had been sent."""
    _without_reads(history, OLD[1], process=FOLLOWER)
    _another_read_all(history)


def plant_skip_before_it_was_superseded(history: History) -> None:
    """A reader jumped over the committed value of key b just before anything newer of that key was sent."""
    _jumps(history, NEWER_US + 10_500)


def legal_skip_after_it_was_superseded(history: History) -> None:
    _jumps(history, NEWER_US + 11_500)


def plant_skip_before_the_newer_one_was_committed(history: History) -> None:
    """A newer record of key a was sent, and its transaction had not been ended yet."""
    _without_reads(history, OLD[2], process=FOLLOWER)
    _another_read_all(history)
    (row,) = history.rows("transactions", requested_end="commit")
    (read,) = history.rows("operations", process=FOLLOWER, index=0)
    row.update(at_us=int(str(read["complete_us"])) + 1_000, until_us=int(str(read["complete_us"])) + 2_000)


def _another_read_all(history: History) -> None:
    """So everybody knows at which offsets there was a record."""
    table = Table(history, now_us=5_000_000)
    index = table.operation("other", "fetch")
    for position, each in enumerate((*OLD, *IN_TRANSACTION)):
        table.run("other", index, position, "read", each)


def _jumps(history: History, at_us: int) -> None:
    """Another reader read offset 7, and then offset 10 at this time."""
    table = Table(history, now_us=5_000_000)
    table.add("assignments", AssignmentRow("jumper", TOPIC, 0, 1_000, END_OF_RUN_US, 7))
    table.run("jumper", table.operation("jumper", "fetch"), 0, "read", IN_TRANSACTION[0])
    table.now_us = at_us - 10_000
    table.run("jumper", table.operation("jumper", "fetch"), 0, "read", NEWEST[0])


def plant_left_out_by_a_group(history: History) -> None:
    """The partition's next owner omitted offset 7 when it was the newest value of key a."""
    _in_a_group(history, NEWER_US - 1_000_000)


def legal_left_out_by_a_group_when_superseded(history: History) -> None:
    _in_a_group(history, NEWER_US + 1_000_000)


def _in_a_group(history: History, at_us: int) -> None:
    """One member reads offset 2, and another goes on with offset 8 at this time."""
    table = Table(history, now_us=5_000_000)
    for generation, (member, sent) in enumerate((("member-0", OLD[2]), ("member-1", IN_TRANSACTION[1]))):
        fields = ("group", member, generation, "assigned", TOPIC, 0)
        table.add("memberships", MembershipRow(member, *fields, table.now_us, table.now_us))
        table.run(member, table.operation(member, "fetch"), 0, "read", sent)
        table.now_us = at_us


def legal_skip_of_aborted_records(history: History) -> None:
    _without_reads(history, *ABORTED, process=FOLLOWER)
    _another_read_all(history)
    table = Table(history, now_us=6_000_000)
    index = table.operation("third", "fetch")
    for position, each in enumerate(ABORTED):
        table.run("third", index, position, "read", each)


def plant_torn(history: History) -> None:
    """One value of a committed transaction was read, the other was not, and nothing superseded it."""
    _seen_by_committed(history, IN_TRANSACTION[0])
    _drop_write(history, NEWEST[1])


def legal_torn_by_the_cleaner(history: History) -> None:
    _seen_by_committed(history, IN_TRANSACTION[0])


def plant_lost_transaction(history: History) -> None:
    _drop_write(history, NEWEST[0])
    _drop_write(history, NEWEST[1])


def _seen_by_committed(history: History, sent: Sent) -> None:
    index = history.rows("operations", process=COMMITTED)[0]["index"]
    row = SpanRow(COMMITTED, int(str(index)), 9, "read", TOPIC, 0, sent.offset, 1, 7, sent.writer, sent.sequence, True)
    row.isolation = 1
    history.tables["runs"] = [run for run in history.tables["runs"] if run["process"] != COMMITTED]
    history.tables["runs"].append(asdict(row))
    for position, each in enumerate(NEWEST):
        Table(history).run(COMMITTED, int(str(index)), 10 + position, "read", each, 1)


def _drop_write(history: History, sent: Sent) -> None:
    """The record was never sent, and so never read."""
    for row in history.rows("runs", writer=sent.writer, first_sequence=sent.sequence):
        history.drop("runs", row)
    for row in history.rows("keyed_writes", process=sent.writer, sequence=sent.sequence):
        history.drop("keyed_writes", row)
    history.tables["views"] = [view for view in history.tables["views"] if view["key"] == ""]
    history.tables["views"].clear()


def _held(history: History, process: str, key: str, sent: Sent | None) -> None:
    for row in history.rows("views", process=process, key=key):
        history.drop("views", row)
    if sent is not None:
        (head,) = history.rows("views", process=process, key="")
        held = {"key": key, "offset": sent.offset, "writer": sent.writer, "sequence": sent.sequence}
        history.tables["views"].append({**head, **held})


def plant_view_lacks_a_key(history: History) -> None:
    _held(history, COMMITTED, "a", None)


def plant_view_holds_an_older_value(history: History) -> None:
    _held(history, COMMITTED, "a", IN_TRANSACTION[0])


def plant_view_holds_an_aborted_value(history: History) -> None:
    _drop_write_of_a(history)
    _held(history, COMMITTED, "a", ABORTED[0])


def _drop_write_of_a(history: History) -> None:
    _only_aborted_is_newer(history)


def legal_view_of_uncommitted_holds_an_aborted_value(history: History) -> None:
    _only_aborted_is_newer(history)
    _held(history, FOLLOWER, "a", ABORTED[0])


def plant_view_holds_a_deleted_key(history: History) -> None:
    _held(history, FOLLOWER, "b", IN_TRANSACTION[1])


def legal_view_that_came_after_the_tombstone_was_gone(history: History) -> None:
    """The view got behind the tombstone when delete.retention.ms was over."""
    _held(history, COMMITTED, "b", IN_TRANSACTION[1])


def plant_view_missed_a_tombstone_though_sent_the_marker(history: History) -> None:
    """The view came after the tombstone was gone, and got the marker. It had to forget what it held."""
    legal_view_that_came_after_the_tombstone_was_gone(history)
    for row in history.rows("positions", process=COMMITTED):
        row["tombstone_horizon"] = END


def legal_another_reader_was_sent_the_marker(history: History) -> None:
    legal_view_that_came_after_the_tombstone_was_gone(history)
    for row in history.rows("positions", process=UNCOMMITTED):
        row["tombstone_horizon"] = END


def legal_view_without_what_is_superseded_further_on(history: History) -> None:
    """The view ended in the middle, and a newer record of the key was beyond."""
    for row in history.rows("views", process=COMMITTED):
        history.drop("views", row)
    Table(history, now_us=END_US).view(COMMITTED, 1, 10, IN_TRANSACTION[1])


def plant_view_in_the_middle(history: History) -> None:
    """The view ended in the middle before the newer record was sent."""
    for row in history.rows("views", process=COMMITTED):
        history.drop("views", row)
    Table(history, now_us=NEWER_US - 1_000).view(COMMITTED, 1, 10, IN_TRANSACTION[1])


def legal_tombstone_of_unknown_end(history: History) -> None:
    """Return whether a tombstone of the key was written is unknown."""
    history.tables["runs"] = [run for run in history.tables["runs"] if run["process"] != "unknown"]
    table = Table(history, now_us=NEWER_US + 2_000_000)
    table.send("produce", "info", Sent("unknown", 0, -1, "a", True))
    _held(history, COMMITTED, "a", None)


VIEW = "materialized-view"
PLANTED: dict[str, tuple[Callable[[History], None], set[str]]] = {
    "nothing": (lambda _: None, set()),
    "superseded": (legal_superseded_and_never_read, set()),
    "passed and not read": (plant_passed_and_not_read, {"lost-write", "unseen"}),
    "left with fetched records": (legal_left_with_fetched_records, set()),
    "went on without polling": (plant_member_went_on_without_fetched_records, {"lost-write", "unseen"}),
    "fetched outside a group": (plant_fetched_outside_a_group_and_not_read, {"lost-write", "unseen"}),
    "torn too early": (plant_torn_before_it_was_superseded, {"torn-transaction"}),
    "left out by a group": (plant_left_out_by_a_group, {"group-skip"}),
    "left out by a group later": (legal_left_out_by_a_group_when_superseded, set()),
    "old tombstone": (legal_old_tombstone_never_read, set()),
    "young tombstone passed": (plant_young_tombstone_passed, {"unseen"}),
    "newest lost": (plant_newest_lost, {"lost-write", "unseen"}),
    "young tombstone lost": (plant_young_tombstone_lost, {"unseen"}),
    "superseded by an aborted one": (plant_superseded_by_an_aborted_one_alone, {"lost-write", "unseen"}),
    "nothing committed is newer": (legal_nothing_committed_is_newer, set()),
    "skip of what was superseded": (legal_skip_of_what_was_superseded_by_then, set()),
    "skip too early": (plant_skip_before_it_was_superseded, {"poll-skip"}),
    "skip late enough": (legal_skip_after_it_was_superseded, set()),
    "skip before the commit": (plant_skip_before_the_newer_one_was_committed, {"int-poll-skip"}),
    "skip of aborted ones": (legal_skip_of_aborted_records, set()),
    "torn": (plant_torn, {"torn-transaction"}),
    "torn by the cleaner": (legal_torn_by_the_cleaner, set()),
    "lost transaction": (plant_lost_transaction, {"lost-transaction"}),
    "view lacks": (plant_view_lacks_a_key, {VIEW}),
    "view is old": (plant_view_holds_an_older_value, {VIEW}),
    "view holds what was aborted": (plant_view_holds_an_aborted_value, {VIEW}),
    "uncommitted view": (legal_view_of_uncommitted_holds_an_aborted_value, set()),
    "view holds what was deleted": (plant_view_holds_a_deleted_key, {VIEW}),
    "view missed a tombstone": (legal_view_that_came_after_the_tombstone_was_gone, set()),
    "view with the marker": (plant_view_missed_a_tombstone_though_sent_the_marker, {VIEW}),
    "marker sent to another": (legal_another_reader_was_sent_the_marker, set()),
    "view in the middle, later": (legal_view_without_what_is_superseded_further_on, set()),
    "view in the middle": (plant_view_in_the_middle, {VIEW}),
    "tombstone of unknown end": (legal_tombstone_of_unknown_end, set()),
}


@pytest.fixture(scope="module")
def verdicts(spark: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    root = tmp_path_factory.mktemp("runs")
    folders = []
    for number, (plant, _) in enumerate(PLANTED.values()):
        history = Table().play()
        plant(history)
        folders.append(history.write(root / f"{number}", expectations=EXPECTATIONS))
    found = compute_verdicts([Path(folder) for folder in folders], spark)  # type: ignore[arg-type]
    return dict(zip(PLANTED, found, strict=True))


@pytest.mark.parametrize("name", list(PLANTED))
def test_exactly_the_planted_guarantee_breaks(verdicts: dict[str, Verdict], name: str) -> None:
    broken = {
        guarantee.name: [e.detail for e in guarantee.examples]
        for guarantee in verdicts[name].guarantees
        if guarantee.status == "broken"
    }
    assert set(broken) & {*OF_COMPACTION, VIEW} == PLANTED[name][1], broken


def test_each_guarantee_has_evidence(verdicts: dict[str, Verdict]) -> None:
    held = {guarantee.name for guarantee in verdicts["nothing"].guarantees if guarantee.status == "holds"}
    assert {*OF_COMPACTION, VIEW} - {"group-skip"} <= held  # Its histories are those with a group.
