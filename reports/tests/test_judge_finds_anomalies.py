"""Each anomaly is planted in a history of its own; all are judged at once; exactly its guarantee must break."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.judge import compute_verdicts
from reports.manifest import Expectations
from reports.rows import END_OF_RUN_US
from reports.tests.history import TOPIC, History, Row, Shape, int_of, named_by
from reports.tests.ledger import OF_TRANSACTIONS
from reports.tests.planted_groups import PLANTED_GROUPS
from reports.tests.planted_metadata import PLANTED_METADATA, plant_topic_that_existed
from reports.tests.planted_replicas import planted_replicas
from reports.tests.planted_sessions import PLANTED_SESSIONS, legal_wrap_and_fetch_without_a_reply
from reports.tests.played import generate
from reports.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import JudgedRun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def _reads(history: History, process: str = "fetcher-0", partition: int = 1) -> list[Row]:
    return history.rows("runs", kind="read", process=process, partition=partition)


def _only_one_in_its_operation(history: History, process: str, partition: int) -> Row:
    """A read run in the middle whose operation read nothing else of the partition and that is two records or more."""
    reads = _reads(history, process, partition)
    return next(
        row
        for row in reads[len(reads) // 2 :]
        if row["count"] >= 2 and sum(read["index"] == row["index"] for read in reads) == 1  # type: ignore[operator]
    )


def _shifted(row: Row, by: int) -> Row:
    return {**row, "first_offset": row["first_offset"] + by, "first_sequence": row["first_sequence"] + by}  # type: ignore[operator]


def plant_inconsistent_offsets(history: History) -> None:
    row = _only_one_in_its_operation(history, "fetcher-0", 1)
    row.update(writer="producer-9", producer_id=1009)


def plant_duplicate(history: History) -> None:
    """The last record of a partition is there twice; everybody who reads on to the end sees both."""
    end = history.rows("ends", partition=1)[0]
    last = history.rows("runs", kind="read", process="final", partition=1)[-1]
    at, high = int_of(last, "first_offset") + int_of(last, "count") - 1, int_of(end, "high_watermark")
    assert at == high - 1
    again = {
        **last,
        "first_offset": high,
        "count": 1,
        "position": 10_000,
        "first_sequence": int_of(last, "first_sequence") + int_of(last, "count") - 1,
    }
    history.tables["runs"].append(again)


def _resend_after(
    history: History, expiration_ms: int, *steps: str, lasted_us: int = 3_000_000, shown_us: int = 0
) -> None:
    """The last record of a partition is there twice. Its send lasted for three seconds, and clocks were stepped.

    With ``shown_us`` the end of the send does not matter, but that the final read showed both records so long after its
    begin.
    """
    plant_duplicate(history)
    again = history.tables["runs"][-1]
    sends = history.rows("runs", kind="send", process=again["writer"], partition=1)
    send = max(sends, key=lambda row: int_of(row, "first_sequence"))
    assert int_of(send, "first_sequence") + int_of(send, "count") == int_of(again, "first_sequence") + 1
    (operation,) = history.rows("operations", process=send["process"], index=send["index"])
    if shown_us:
        (shown,) = history.rows("operations", process="final", index=again["index"])
        operation["invoke_us"] = int_of(shown, "complete_us") - shown_us
        operation["complete_us"] = int_of(shown, "complete_us") + 10_000_000
    else:
        operation["invoke_us"] = int_of(operation, "complete_us") - lasted_us
    operation["intended_us"] = operation["invoke_us"]
    some = history.tables["faults"][0]
    history.tables["faults"] += [{**some, "name": "step", "kind": "clock_stepped", "detail": step} for step in steps]
    history.config["producer.id.expiration.ms"] = str(expiration_ms)


def legal_duplicate_of_an_expired_id(history: History) -> None:
    """The timestamp is that of the tick of a millisecond in which the send began."""
    _resend_after(history, 3001)


def plant_duplicate_of_an_id_that_expires_later(history: History) -> None:
    _resend_after(history, 3002)


def plant_duplicate_of_a_shorter_send(history: History) -> None:
    _resend_after(history, 3001, lasted_us=2_999_999)


def legal_duplicate_of_an_id_that_expired_by_a_stepped_clock(history: History) -> None:
    _resend_after(history, 4001, "step_ms=-1", "step_ms=999")


def plant_duplicate_although_clocks_were_stepped(history: History) -> None:
    _resend_after(history, 4002, "step_ms=-1", "step_ms=999")


def plant_duplicate_with_an_unknown_step(history: History) -> None:
    _resend_after(history, 3001, "")


def plant_duplicate_with_the_default_expiration(history: History) -> None:
    _resend_after(history, 3001)
    del history.config["producer.id.expiration.ms"]


def plant_duplicate_in_a_transaction(history: History) -> None:
    """An ID with an open transaction does not expire."""
    _resend_after(history, 3001)
    for row in history.rows("operations", f="produce"):
        row["f"] = "transaction"


def legal_duplicate_shown_before_the_send_ended(history: History) -> None:
    _resend_after(history, 3001, shown_us=3_000_000)


def plant_duplicate_shown_long_before_the_send_ended(history: History) -> None:
    _resend_after(history, 3001, shown_us=2_999_999)


def _give_up(history: History, shown_us: int) -> None:
    """The client gives up a millisecond after it sent, and the final read shows the record twice."""
    _resend_after(history, 3001, shown_us=shown_us)
    (operation,) = (row for row in history.rows("operations", f="produce") if int_of(row, "complete_us") > 10_000_000)
    operation.update(type="info", complete_us=int_of(operation, "invoke_us") + 1000)
    (send,) = history.rows("runs", process=operation["process"], index=operation["index"])
    send["first_offset"] = -1


def legal_duplicate_after_the_client_gave_up(history: History) -> None:
    _give_up(history, 3_000_000)


def plant_duplicate_soon_after_the_client_gave_up(history: History) -> None:
    _give_up(history, 2_999_999)


def plant_lost_write(history: History) -> None:
    """The records of one acknowledged send are in no reads, though all went past them."""
    sends = history.rows("runs", kind="send", partition=2)
    lost = next(row for row in sends[len(sends) // 2 :] if int_of(row, "count") >= 2)
    _forget(history, 2, int_of(lost, "first_offset"), int_of(lost, "first_offset") + int_of(lost, "count"))


def plant_lost_part_of_an_unknown_send(history: History) -> None:
    """The outcome of a send is unknown until two of its records are read: then the others must be there, too."""
    sends = history.rows("runs", kind="send", partition=2)
    lost = next(row for row in sends[len(sends) // 2 :] if int_of(row, "count") >= 4)
    (operation,) = history.rows("operations", process=lost["process"], index=lost["index"])
    operation["type"] = "info"
    first, lost["first_offset"] = int_of(lost, "first_offset"), -1
    _forget(history, 2, first + 2, first + int_of(lost, "count"))


def plant_unseen(history: History) -> None:
    """The last send's records were acknowledged, and no read ever reached them."""
    last = max(history.rows("runs", kind="send", partition=2), key=lambda row: int_of(row, "first_offset"))
    _forget(history, 2, int_of(last, "first_offset"), int_of(last, "first_offset") + int_of(last, "count"))


def _forget(history: History, partition: int, low: int, high: int) -> None:
    kept = []
    for row in history.tables["runs"]:
        if row["kind"] != "read" or row["partition"] != partition:
            kept.append(row)
            continue
        first, count = int_of(row, "first_offset"), int_of(row, "count")
        for start, end in ((first, min(first + count, low)), (max(first, high), first + count)):
            if start < end:
                place = int_of(row, "position") * 2 + (start >= high)
                kept.append(
                    {
                        **row,
                        "first_offset": start,
                        "count": end - start,
                        "position": place,
                        "first_sequence": int_of(row, "first_sequence") + start - first,
                    }
                )
    history.tables["runs"] = kept


def plant_lost_after_it_was_read(history: History) -> None:
    """Everybody has read a partition, and at the end it does not exist any more."""
    (end,) = history.rows("ends", partition=1)
    end.update(high_watermark=0, last_stable_offset=0, error="UNKNOWN_TOPIC_OR_PARTITION")
    history.tables["runs"] = [
        row for row in history.tables["runs"] if row["process"] != "final" or row["partition"] != 1
    ]


def plant_log_that_ends_too_early(history: History) -> None:
    """The last acknowledged record of a partition was read, and at the end the log ends below it."""
    (end,) = history.rows("ends", partition=1)
    end["high_watermark"] = int_of(end, "high_watermark") - 1


def _begin_at_its_end(history: History, **described: int) -> None:
    """At the end a partition's log begins where it ends. All had read it before. The run takes some seconds."""
    (end,) = history.rows("ends", partition=1)
    end.update({"log_start_offset": end["high_watermark"], "size_bytes": 0, **described})
    history.tables["runs"] = [
        row for row in history.tables["runs"] if row["process"] != "final" or row["partition"] != 1
    ]


def plant_log_that_begins_at_its_end(history: History) -> None:
    _begin_at_its_end(history, retention_ms=7 * 86_400_000, retention_bytes=-1)


def plant_log_that_keeps_all_and_begins_at_its_end(history: History) -> None:
    """As many write "for ever": the largest number of milliseconds, which overflows in microseconds."""
    _begin_at_its_end(history, retention_ms=2**63 - 1, retention_bytes=-1)


def plant_log_that_retention_cuts_too_short(history: History) -> None:
    _begin_at_its_end(history, retention_ms=-1, retention_bytes=101, segment_bytes=100)


def legal_log_cut_by_age(history: History) -> None:
    _begin_at_its_end(history, retention_ms=1, retention_bytes=-1)


def legal_log_cut_by_size(history: History) -> None:
    _begin_at_its_end(history, retention_ms=-1, retention_bytes=100, size_bytes=40, segment_bytes=60)


def legal_log_of_unknown_segments(history: History) -> None:
    _begin_at_its_end(history, retention_ms=-1, retention_bytes=100)


def _step_clocks(history: History, *details: str) -> None:
    """Faults step clocks, and then a log has nothing left of what it should keep for an hour."""
    some = history.tables["faults"][0]
    steps = [{**some, "name": "step", "kind": "clock_stepped", "detail": detail} for detail in details]
    history.tables["faults"] += steps
    _begin_at_its_end(history, retention_ms=3_600_000, retention_bytes=-1)


def legal_log_cut_by_age_of_stepped_clocks(history: History) -> None:
    _step_clocks(history, "leader step_ms=1800000", "step_ms=-1800000")


def legal_log_cut_by_age_after_an_unknown_step(history: History) -> None:
    _step_clocks(history, "step_ms=100000", "")


def plant_log_cut_although_clocks_stepped_less(history: History) -> None:
    _step_clocks(history, "leader step_ms=1800000", "step_ms=-1700000")


def legal_log_of_unknown_retention(history: History) -> None:
    _begin_at_its_end(history)


def plant_unseen_below_the_log_start(history: History) -> None:
    """The last records were not read, and the log begins behind them although retention keeps them for a week."""
    plant_unseen(history)
    (end,) = history.rows("ends", partition=2)
    end.update(log_start_offset=end["high_watermark"], retention_ms=7 * 86_400_000, retention_bytes=-1)
    for row in history.rows("positions", partition=2):
        row["log_start_offset"] = 0


def legal_unseen_since_it_was_deleted(history: History) -> None:
    plant_unseen_below_the_log_start(history)
    history.rows("ends", partition=2)[0].update(retention_ms=1)


def plant_poll_skip(history: History) -> None:
    row = _only_one_in_its_operation(history, "fetcher-0", 1)
    history.drop("runs", row)


def plant_nonmonotonic_poll(history: History) -> None:
    """A fetcher's last read gives once more what it had long read."""
    reads = _reads(history)
    operation = history.rows("operations", process="fetcher-0", type="ok")[-1]
    history.tables["operations"].append({**operation, "index": 10**6, "invoke_us": 6_400_000, "complete_us": 6_401_000})
    history.tables["runs"].append({**reads[len(reads) // 2], "index": 10**6, "position": 0})


def plant_int_poll_skip(history: History) -> None:
    """A final read omits its second run, which the fetchers read."""
    mine = history.rows("runs", kind="read", process="final", partition=1)
    inner = next(row for row in mine if row["position"] == 1)
    history.drop("runs", inner)


def plant_int_nonmonotonic_poll(history: History) -> None:
    mine = history.rows("runs", kind="read", process="final", partition=1)
    again = [row for row in mine if row["index"] == mine[0]["index"]][-1]
    history.tables["runs"].append({**again, "position": 1_000})


def plant_nonmonotonic_send(history: History) -> None:
    """One producer's acknowledgements of two sends come in the wrong order."""
    mine = history.rows("runs", kind="send", process="producer-0", partition=1)
    one, two = mine[3], mine[4]
    one["index"], two["index"] = two["index"], one["index"]


def plant_unrequested_partition(history: History) -> None:
    response = history.rows("positions", process="fetcher-1")[0]
    history.tables["positions"].append({**response, "partition": 0})


def plant_fetch_gap(history: History) -> None:
    """A fetcher's last response about a partition, and the records read by it, never arrived."""
    last = history.rows("positions", process="fetcher-2", partition=2)[-1]
    history.drop("positions", last)
    for row in history.rows("runs", kind="read", process="fetcher-2", partition=2, index=last["index"]):
        history.drop("runs", row)


def legal_late_response(history: History) -> None:
    """A fetcher fetches from two nodes at once, and the response to the earlier fetch comes last."""
    two = [int_of(row, "index") for row in history.rows("positions", process="fetcher-2", partition=2)[-2:]]
    for table in ("operations", "positions", "runs"):
        for row in history.rows(table, process="fetcher-2"):
            if row["index"] in two:
                row["index"] = sum(two) - int_of(row, "index")


def plant_corrupt_value(history: History) -> None:
    row = dict(_reads(history, "final", 0)[-1])
    after = int_of(row, "first_offset") + int_of(row, "count")
    history.tables["runs"].append(
        {**row, "position": 5_000, "first_offset": after, "count": 1, "writer": "", "valid": False, "producer_id": -1}
    )


def no_plant(history: History) -> None:
    """A valid history."""


def legal_seek(history: History) -> None:
    """A fetcher goes back to an offset by its own will: a new assignment says so."""
    plant_nonmonotonic_poll(history)
    again = history.tables["runs"][-1]
    old = history.rows("assignments", process="fetcher-0", partition=1)[0]
    old["until_us"] = 6_399_999
    history.tables["assignments"].append(
        {**old, "from_us": 6_399_999, "until_us": END_OF_RUN_US, "from_offset": again["first_offset"]}
    )
    response = history.rows("positions", process="fetcher-0", partition=1)[-1]
    history.tables["positions"].append({**response, "index": 10**6, "fetch_offset": again["first_offset"]})


def legal_log_start_move(history: History) -> None:
    """Records below a log start in the response may be missing."""
    row = _only_one_in_its_operation(history, "fetcher-0", 1)
    reads = _reads(history)
    after = next(read for read in reads if int_of(read, "index") > int_of(row, "index"))
    history.drop("runs", row)
    position = history.rows("positions", process="fetcher-0", index=after["index"], partition=1)[0]
    position["log_start_offset"] = after["first_offset"]


PLANTED: dict[str, tuple[Callable[[History], None], set[str]]] = {
    **PLANTED_METADATA,
    **PLANTED_GROUPS,
    **planted_replicas(plant_lost_write, plant_unseen, plant_duplicate, plant_nonmonotonic_send),
    "clean": (no_plant, set()),
    "seek": (legal_seek, set()),
    "log start moved": (legal_log_start_move, set()),
    "epoch wrap": (legal_wrap_and_fetch_without_a_reply, set()),
    "inconsistent-offsets": (plant_inconsistent_offsets, {"inconsistent-offsets"}),
    "duplicate": (plant_duplicate, {"duplicate"}),
    "duplicate of an expired ID": (legal_duplicate_of_an_expired_id, set()),
    "duplicate of an ID that expires later": (plant_duplicate_of_an_id_that_expires_later, {"duplicate"}),
    "duplicate of a shorter send": (plant_duplicate_of_a_shorter_send, {"duplicate"}),
    "duplicate of an ID expired by a step": (legal_duplicate_of_an_id_that_expired_by_a_stepped_clock, set()),
    "duplicate although clocks were stepped": (plant_duplicate_although_clocks_were_stepped, {"duplicate"}),
    "duplicate with an unknown step": (plant_duplicate_with_an_unknown_step, {"duplicate"}),
    "duplicate with the default expiration": (plant_duplicate_with_the_default_expiration, {"duplicate"}),
    "duplicate in a transaction": (plant_duplicate_in_a_transaction, {"duplicate"}),
    "duplicate shown before the end": (legal_duplicate_shown_before_the_send_ended, set()),
    "duplicate shown long before the end": (plant_duplicate_shown_long_before_the_send_ended, {"duplicate"}),
    "duplicate after giving up": (legal_duplicate_after_the_client_gave_up, set()),
    "duplicate soon after giving up": (plant_duplicate_soon_after_the_client_gave_up, {"duplicate"}),
    "lost-write": (plant_lost_write, {"lost-write", "unseen"}),
    "part of an unknown send": (plant_lost_part_of_an_unknown_send, {"lost-write", "unseen"}),
    "unseen": (plant_unseen, {"unseen"}),
    "lost after it was read": (plant_lost_after_it_was_read, {"lost-write"}),
    "log that ends too early": (plant_log_that_ends_too_early, {"lost-write", "fetch-gap"}),
    "log that begins at its end": (plant_log_that_begins_at_its_end, {"lost-write"}),
    "log that keeps all": (plant_log_that_keeps_all_and_begins_at_its_end, {"lost-write"}),
    "log that retention cuts too short": (plant_log_that_retention_cuts_too_short, {"lost-write"}),
    "log cut by age": (legal_log_cut_by_age, set()),
    "log cut by size": (legal_log_cut_by_size, set()),
    "log of unknown retention": (legal_log_of_unknown_retention, set()),
    "log of unknown segments": (legal_log_of_unknown_segments, set()),
    "log cut by age of stepped clocks": (legal_log_cut_by_age_of_stepped_clocks, set()),
    "log cut by age after an unknown step": (legal_log_cut_by_age_after_an_unknown_step, set()),
    "log cut although clocks stepped less": (plant_log_cut_although_clocks_stepped_less, {"lost-write"}),
    "unseen below the log start": (plant_unseen_below_the_log_start, {"lost-write", "unseen"}),
    "unseen since it was deleted": (legal_unseen_since_it_was_deleted, set()),
    "corrupt-value": (plant_corrupt_value, {"corrupt-value"}),
    "poll-skip": (plant_poll_skip, {"poll-skip"}),
    "nonmonotonic-poll": (plant_nonmonotonic_poll, {"nonmonotonic-poll"}),
    "int-poll-skip": (plant_int_poll_skip, {"int-poll-skip"}),
    "int-nonmonotonic-poll": (plant_int_nonmonotonic_poll, {"int-nonmonotonic-poll"}),
    "nonmonotonic-send": (plant_nonmonotonic_send, {"nonmonotonic-send"}),
    "unrequested-partition": (plant_unrequested_partition, {"unrequested-partition"}),
    "fetch-gap": (plant_fetch_gap, {"fetch-gap"}),
    "late response": (legal_late_response, set()),
    **PLANTED_SESSIONS,
}


SHORT = Shape(rate_per_s=8, histograms=False)
"""There are more than a hundred histories, and Spark's time grows with their rows. With five operations a second some
violations have no place."""


TARGETS = ("reference", "kafka")
OTHERS = ("no trace", *TARGETS)
WITHOUT_NAME = {
    "test_external_broker_may_send_to_its_next_controller_again": TARGETS,
    "test_total_loss_is_the_first_sentence": ("lost after it was read",),
    "test_anomaly_names_its_place_and_the_fault_before_it": ("poll-skip", "fetch-gap"),
    "test_guarantee_without_its_evidence_is_not_checked_and_promised_makes_the_run_invalid": ("no trace",),
    "test_large_history_has_same_verdicts": (*PLANTED, *OTHERS),
}
"""Names of the histories of tests without a parameter for it."""


@pytest.fixture(scope="module")
def verdicts(found_by_name: "Mapping[str, JudgedRun]") -> dict[str, Verdict]:
    return {name: each.verdict() for name, each in found_by_name.items()}


def write_histories(root: Path, tests: Sequence[pytest.Function]) -> dict[str, Path]:
    """Write the histories of these tests, by their names."""
    return {name: _write(name, root) for name in named_by(tests, (*PLANTED, *OTHERS), WITHOUT_NAME)}


def _write(name: str, root: Path) -> Path:
    if name == "no trace":
        expectations = Expectations(guarantees=("session_lost",))
        return generate(99, SHORT).write(root / "no_trace", without=("trace", "ends"), expectations=expectations)
    if name in TARGETS:
        existed = generate(98, SHORT)
        plant_topic_that_existed(existed)
        return existed.write(root / name, target=name)
    plant, _ = PLANTED[name]
    history = generate(list(PLANTED).index(name), SHORT)
    plant(history)
    return history.write(root / name.replace(" ", "_"))


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


def test_external_broker_may_send_to_its_next_controller_again(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["kafka"].outcome is Outcome.PASSED
    assert [guarantee.name for guarantee in verdicts["reference"].guarantees if guarantee.status == "broken"] == [
        "lost-metadata"
    ]


@pytest.mark.parametrize("name", list(PLANTED))
def test_exactly_the_planted_guarantee_breaks(verdicts: dict[str, Verdict], name: str) -> None:
    verdict = verdicts[name]
    broken = {
        guarantee.name: [e.detail for e in guarantee.examples]
        for guarantee in verdict.guarantees
        if guarantee.status == "broken"
    }
    assert set(broken) == PLANTED[name][1], broken
    others = [
        guarantee for guarantee in verdict.guarantees if guarantee.name not in (*OF_TRANSACTIONS, "materialized-view")
    ]
    assert {other.status for other in others} <= {"holds", "broken"}
    assert verdict.outcome is (Outcome.FAILED if broken else Outcome.PASSED)


def test_total_loss_is_the_first_sentence(verdicts: dict[str, Verdict]) -> None:
    summary = verdicts["lost after it was read"].summary
    assert re.match(rf"[0-9,]+ .*records? of topic {TOPIC} .*do not exist any more\. lost-write was", summary), summary


def test_anomaly_names_its_place_and_the_fault_before_it(verdicts: dict[str, Verdict]) -> None:
    (skip,) = next(guarantee.examples for guarantee in verdicts["poll-skip"].guarantees if guarantee.status == "broken")
    assert (skip.topic, skip.partition, skip.process) == (TOPIC, 1, "fetcher-0")
    assert skip.offset >= 0
    assert skip.at_us > 0
    (gap,) = next(guarantee.examples for guarantee in verdicts["fetch-gap"].guarantees if guarantee.status == "broken")
    assert gap.fault.endswith(" s after kill #1")


def test_guarantee_without_its_evidence_is_not_checked_and_promised_makes_the_run_invalid(
    verdicts: dict[str, Verdict],
) -> None:
    verdict = verdicts["no trace"]
    status = {guarantee.name: guarantee.status for guarantee in verdict.guarantees}
    names = ("session-lost", "session-epoch-order", "unseen", "fetch-gap")
    assert {status[name] for name in names} == {"not checked"}
    assert verdict.outcome is Outcome.INVALID
    assert any("session-lost" in reason for reason in verdict.reasons)
