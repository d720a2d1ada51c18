"""One violation each of the guarantees of transactions, and legal near misses."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.judge import compute_verdicts
from reports.tests.history import History, int_of, named_by
from reports.tests.ledger import (
    COMMITTED,
    END_US,
    EXPECTATIONS,
    LEDGER,
    OF_TRANSACTIONS,
    TARGET,
    TIMEOUT_US,
    UNCOMMITTED,
    WORKER,
    WRITER,
    Ledger,
    Sent,
    rows_of,
)
from reports.tests.replicas import Replicas
from reports.verdict import Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import JudgedRun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def _shows(history: History, partition: int, writer: str, first: int, topic: str = LEDGER) -> None:
    """Readers with read_committed read what only others should."""
    (row,) = rows_of(history, writer, first, "final")
    for process in (COMMITTED, "final-c"):
        mine = history.rows("runs", kind="read", process=process, topic=topic, partition=partition)
        (index,) = {each["index"] for each in mine}
        history.tables["runs"].append({**row, "process": process, "index": index, "isolation": 1})


def _hide(history: History, *firsts: int, writer: str = WRITER) -> None:
    for first in firsts:
        for row in rows_of(history, writer, first):
            history.drop("runs", row)


def plant_aborted_read(history: History) -> None:
    _shows(history, 0, WRITER, 4)


def plant_read_of_unended_transaction(history: History) -> None:
    _shows(history, 0, WRITER, 14)


def legal_unread_unknown_transaction(history: History) -> None:
    """The transaction was aborted in the end."""
    _hide(history, 10, 12)


def plant_forgotten_transactional_id(history: History) -> None:
    """For its second transaction the writer is another producer, though its ID was in use a moment ago."""
    history.rows("transactions", process=WRITER)[1].update(producer_id=8, producer_epoch=0)


def legal_transactional_id_that_was_idle(history: History) -> None:
    """The ID was idle for so long after its first transaction that its coordinator may have forgotten it."""
    first = history.rows("transactions", process=WRITER)[0]
    first.update(producer_id=8, from_us=int_of(first, "from_us") - 60_000_000)


def plant_precommitted_read(history: History) -> None:
    (row,) = history.rows("transactions", process=WRITER, index=2)
    _read_at(history, int_of(row, "at_us") - 1)


def legal_read_before_response_of_commit(history: History) -> None:
    (row,) = history.rows("transactions", process=WRITER, index=2)
    _read_at(history, int_of(row, "at_us"))


def _read_at(history: History, at_us: int) -> None:
    """Another reader has the first value of the third transaction at that time."""
    (row,) = rows_of(history, WRITER, 6, COMMITTED)
    (operation,) = history.rows("operations", process=COMMITTED, index=row["index"])
    early = {"process": "reader-e", "index": 0}
    history.tables["operations"].append({**operation, **early, "invoke_us": at_us - 9, "complete_us": at_us})
    history.tables["runs"].append({**row, **early, "count": 1})
    (given,) = history.rows("assignments", process=COMMITTED, topic=LEDGER, partition=0)
    history.tables["assignments"].append(
        {**given, "process": "reader-e", "from_us": 0, "until_us": at_us, "from_offset": 6}
    )


def plant_internally_torn(history: History) -> None:
    _hide(history, 8)


def plant_unknown_and_internally_torn(history: History) -> None:
    _hide(history, 12)


def legal_torn_without_read_to_the_end(history: History) -> None:
    """The missing records are at the end of a partition that no reader with read_committed reached."""
    _hide(history, 12)
    (end,) = history.rows("ends", topic=LEDGER, partition=1)
    end["last_stable_offset"] = 6
    history.tables["transactions"][0]["timeout_us"] = 2 * END_US
    history.tables["transactions"][0]["outcome"] = "unknown"
    for row in history.rows("operations", process=WRITER, index=0):
        row["type"] = "info"


def plant_lost_transaction(history: History) -> None:
    _hide(history, 6, 8)


def plant_older_offset_after_a_commit(history: History) -> None:
    history.rows("commits", kind="fetched")[-1]["offset"] = 5


def plant_offset_of_an_aborted_transaction(history: History) -> None:
    history.rows("commits", kind="fetched")[0]["offset"] = 8


def legal_offset_of_a_transaction_of_unknown_end(history: History) -> None:
    """The one that was aborted is unknown instead, and committed. Its inputs are then not repeated."""
    (row,) = history.rows("transactions", process=WORKER, index=1)
    row.update(requested_end="commit", outcome="unknown")
    (operation,) = history.rows("operations", process=WORKER, index=1)
    operation["type"] = "info"
    history.rows("commits", kind="fetched")[0]["offset"] = 8
    _shows(history, 0, WORKER, 5, TARGET)
    (again,) = history.rows("transforms", index=3)
    again.update(source_offset=8, count=2, first_sequence=11)


def plant_hanging(history: History) -> None:
    (end,) = history.rows("ends", topic=LEDGER, partition=1)
    end["last_stable_offset"] = 8


def legal_transaction_still_open(history: History) -> None:
    """The transaction's producer died shortly before the end."""
    (end,) = history.rows("ends", topic=LEDGER, partition=0)
    end["last_stable_offset"] = 12
    (row,) = history.rows("transactions", requested_end="nothing")
    row["at_us"] = int_of(end, "end_us") - TIMEOUT_US


def _stable_offset(history: History, **changes: int) -> None:
    """The last response of ``ledger-0`` to the read_uncommitted reader has a smaller last stable offset."""
    (row,) = history.rows("positions", process=UNCOMMITTED, topic=LEDGER, partition=0)
    row.update(last_stable_offset=3, **changes)


def plant_lso_regression(history: History) -> None:
    _stable_offset(history)


def legal_smaller_lso_of_the_next_leader(history: History) -> None:
    _stable_offset(history, leader_epoch=4)


def _led_by(history: History, others: int) -> None:
    """The trace names the leader of ``ledger-0``: the responding node, or a node with this much higher ID."""
    (position,) = history.rows("positions", process=UNCOMMITTED, topic=LEDGER, partition=0)
    (operation,) = history.rows("operations", process=UNCOMMITTED, index=position["index"])
    Replicas(history.tables).note(
        int_of(operation, "node") + others, "leads", 1, partition=f"{LEDGER}-0", leader_epoch=position["leader_epoch"]
    )


def legal_smaller_lso_of_a_follower(history: History) -> None:
    _stable_offset(history)
    _led_by(history, 1)


def plant_lso_regression_of_a_known_leader(history: History) -> None:
    _stable_offset(history)
    _led_by(history, 0)


def legal_smaller_lso_in_an_overlapping_request(history: History) -> None:
    _stable_offset(history)
    (row,) = history.rows("positions", process=UNCOMMITTED, topic=LEDGER, partition=0)
    (before,) = history.rows("positions", process=COMMITTED, topic=LEDGER, partition=0)
    ends = [history.rows("operations", process=each["process"], index=each["index"])[0] for each in (before, row)]
    ends[1]["invoke_us"] = int_of(ends[0], "complete_us") - 1


def _once_more(history: History, source_offset: int, is_there: bool) -> None:
    """Another worker makes the last input again, in a transaction that is committed or not."""
    ledger = Ledger(history, now_us=30_000_000)
    sent = Sent(TARGET, 0, 16, 0, 1)
    requested_end = "commit" if is_there else "abort"
    index = ledger.transaction("worker-1", requested_end, "ok", sent, is_there=is_there, offset=10)
    ledger.made("worker-1", index, source_offset, 1, 0)
    for process, isolation in (("final", 0), ("final-c", 1)):
        if is_there or not isolation:
            (read,) = {row["index"] for row in history.rows("runs", process=process, topic=TARGET)}
            ledger.run(process, read, 9, "read", sent, "worker-1", isolation)  # type: ignore[arg-type]


def plant_input_twice(history: History) -> None:
    _once_more(history, 9, True)


def legal_input_twice_where_one_was_aborted(history: History) -> None:
    _once_more(history, 9, False)


def plant_input_never(history: History) -> None:
    (row,) = history.rows("transforms", index=3)
    row["count"] = 4


def legal_input_not_consumed_yet(history: History) -> None:
    plant_input_never(history)
    history.rows("commits", kind="transaction")[-1]["offset"] = 9
    history.rows("commits", kind="fetched")[-1]["offset"] = 9


def plant_missed_hanging(history: History) -> None:
    row = history.rows("described_transactions", partition=0)[0]
    row |= {"producer_id": -1, "start_offset": -1, "found": "nothing"}


def legal_look_before_the_write(history: History) -> None:
    plant_missed_hanging(history)
    (stray,) = history.rows("transactions", error="not_added")
    row = history.rows("described_transactions", partition=0)[0]
    row |= {"queried_us": int_of(stray, "at_us") - 2, "received_us": int_of(stray, "at_us") + 5}


def _abort_open_one(history: History, late_us: int) -> None:
    """The janitor aborts the writer's third transaction, which is open."""
    (of_writer,) = history.rows("transactions", process=WRITER, index=2)
    row = history.rows("described_transactions", partition=0)[0]
    queried_us, received_us = int_of(of_writer, "from_us") + 1, int_of(of_writer, "at_us") + late_us
    times = {"queried_us": queried_us, "received_us": received_us, "abort": "unknown", "abort_us": received_us}
    earlier = {**row, **times, "producer_epoch": 2, "start_offset": 6, "abort_end_us": received_us + 1}
    history.tables["described_transactions"].append(earlier)


def plant_open_one_aborted(history: History) -> None:
    _abort_open_one(history, -1)


def legal_abort_once_its_end_was_requested(history: History) -> None:
    _abort_open_one(history, 0)


def plant_aborted_and_left(history: History) -> None:
    _, aborted, last = history.rows("described_transactions", partition=0)
    fields = ("producer_id", "producer_epoch", "start_offset", "found")
    history.tables["described_transactions"].append({**last, **{field: aborted[field] for field in fields}})


def legal_left_after_lost_response(history: History) -> None:
    plant_aborted_and_left(history)
    history.rows("described_transactions", abort="ok")[0]["abort"] = "unknown"


PLANTED: dict[str, tuple[Callable[[History], None], set[str]]] = {
    "nothing": (lambda _: None, set()),
    "forgotten ID": (plant_forgotten_transactional_id, {"lost-transaction"}),
    "idle ID": (legal_transactional_id_that_was_idle, set()),
    "aborted read": (plant_aborted_read, {"aborted-read"}),
    "read of an open one": (plant_read_of_unended_transaction, {"aborted-read"}),
    "unknown and aborted": (legal_unread_unknown_transaction, set()),
    "precommitted read": (plant_precommitted_read, {"precommitted-read", "dependency-cycle"}),
    "read before the response": (legal_read_before_response_of_commit, set()),
    "torn": (plant_internally_torn, {"torn-transaction"}),
    "unknown and torn": (plant_unknown_and_internally_torn, {"torn-transaction"}),
    "torn but unread": (legal_torn_without_read_to_the_end, set()),
    "lost": (plant_lost_transaction, {"lost-transaction"}),
    "older offset": (plant_older_offset_after_a_commit, {"torn-transaction"}),
    "aborted offset": (plant_offset_of_an_aborted_transaction, {"torn-transaction"}),
    "unknown offset": (legal_offset_of_a_transaction_of_unknown_end, set()),
    "hanging": (plant_hanging, {"hanging-transaction"}),
    "still open": (legal_transaction_still_open, set()),
    "missed": (plant_missed_hanging, {"hanging-found"}),
    "looked before": (legal_look_before_the_write, set()),
    "open one aborted": (plant_open_one_aborted, {"hanging-found"}),
    "aborted at its end": (legal_abort_once_its_end_was_requested, set()),
    "aborted and left": (plant_aborted_and_left, {"hanging-found"}),
    "abort without response": (legal_left_after_lost_response, set()),
    "lso back": (plant_lso_regression, {"lso-regression"}),
    "lso of a follower": (legal_smaller_lso_of_a_follower, set()),
    "lso of a known leader": (plant_lso_regression_of_a_known_leader, {"lso-regression"}),
    "lso of the next leader": (legal_smaller_lso_of_the_next_leader, set()),
    "lso in an overlap": (legal_smaller_lso_in_an_overlapping_request, set()),
    "twice": (plant_input_twice, {"exactly-once"}),
    "twice, one aborted": (legal_input_twice_where_one_was_aborted, set()),
    "never": (plant_input_never, {"exactly-once"}),
    "not consumed yet": (legal_input_not_consumed_yet, set()),
}


WITHOUT_NAME = {"test_each_guarantee_has_evidence": ("nothing",), "test_large_history_has_same_verdicts": (*PLANTED,)}
"""Names of the histories of tests without a parameter for it."""


@pytest.fixture(scope="module")
def verdicts(found_by_name: "Mapping[str, JudgedRun]") -> dict[str, Verdict]:
    return {name: each.verdict() for name, each in found_by_name.items()}


def write_histories(root: Path, tests: Sequence[pytest.Function]) -> dict[str, Path]:
    """Write the histories of these tests, by their names."""
    folders = {}
    for name in named_by(tests, PLANTED, WITHOUT_NAME):
        plant, _ = PLANTED[name]
        history = Ledger().play()
        plant(history)
        folders[name] = history.write(root / name.replace(" ", "_"), expectations=EXPECTATIONS)
    return folders


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_large_history_has_same_verdicts(
    spark: "SparkSession",
    verdicts: dict[str, Verdict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr("reports.spark.SMALL_HISTORY_BYTES", 0)
    large = compute_verdicts([*write_histories(tmp_path, [request.node]).values()], spark)
    for (name, small), each in zip(verdicts.items(), large, strict=True):
        assert each.guarantees == small.guarantees, name


@pytest.mark.parametrize("name", list(PLANTED))
def test_exactly_the_planted_guarantee_breaks(verdicts: dict[str, Verdict], name: str) -> None:
    verdict = verdicts[name]
    broken = {
        guarantee.name: [e.detail for e in guarantee.examples]
        for guarantee in verdict.guarantees
        if guarantee.status == "broken"
    }
    assert set(broken) == PLANTED[name][1], broken


def test_each_guarantee_has_evidence(verdicts: dict[str, Verdict]) -> None:
    held = {guarantee.name for guarantee in verdicts["nothing"].guarantees if guarantee.status == "holds"}
    assert {*OF_TRANSACTIONS} <= held
    assert {*OF_TRANSACTIONS} == {name for _, names in PLANTED.values() for name in names}
