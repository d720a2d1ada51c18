"""The whole path with real processes: played live, judged by Spark; controls pass, mutants are caught.

One control and one mutant for each mechanism, all but those of fetch sessions at night. At night two are played
at a time, since they wait more than they compute. All are judged in one Spark session.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chaos.live.runner import play
from chaos.live.tests import foreign_sessions
from reports.judge import judge_many
from reports.verdict import Outcome, Verdict
from scenarios import loader

SESSIONS = ("01-lost-response", "change_mark_cleared_when_sent", 1)
SNAPSHOTS = ("10-snapshot-superseded", "position_kept_with_new_id", 1)
TRANSACTIONS = ("15-killed-before-end", "high_watermark_decides_visibility", 0)
"""The seed's fault: the controller is killed when all batches of its transaction are committed, but not its End."""
REPLICATION = ("leader-killed-under-acks-all", "acknowledged_before_replicated", 1)
FOREIGN = ("foreign", "epoch_not_advanced_when_response_lost", 1)
"""A node of ours, or that mutant of it, as if it were a broker of others."""
METADATA_EPOCH = ("19-stale-broker", "accepts_older_metadata", 1)
AT_NIGHT = 2
"""So many plays at once. By day other tests compute beside them, so they are played one by one."""

Verdicts = Mapping[tuple[str, str], Verdict]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """By scenario and mutant; the control's mutant is ''."""
    return played_and_judged(tmp_path_factory.mktemp("runs"), (SESSIONS,), at_once=1)


@pytest.fixture(scope="module")
def verdicts_at_night(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return played_and_judged(
        tmp_path_factory.mktemp("runs"), (SNAPSHOTS, TRANSACTIONS, REPLICATION, METADATA_EPOCH, FOREIGN)
    )


def played_and_judged(runs: Path, plays: Sequence[tuple[str, str, int]], at_once: int = AT_NIGHT) -> Verdicts:
    wanted = [(name, planted, seed) for name, mutant, seed in plays for planted in ("", mutant)]

    def played(name: str, mutant: str, seed: int) -> Path:
        if name == FOREIGN[0]:
            return foreign_sessions.played(runs, mutant)
        return play(loader.find(name), runs / f"{name}-{mutant or 'control'}", seed=seed, mutant=mutant).path

    with ThreadPoolExecutor(at_once) as pool:
        folders = list(pool.map(lambda each: played(*each), wanted))
    found = judge_many(folders)
    return {(name, mutant): verdict for (name, mutant, _), verdict in zip(wanted, found, strict=True)}


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.clause("F-10", "F-11", "F-14", "F-20")
def test_a_lost_response_costs_nothing_and_its_mutant_loses_records(verdicts: Verdicts) -> None:
    assert_caught(verdicts, SESSIONS, {"fetch-gap", "incremental-answer-exact"}, "response_lost")


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.clause("S-5", "S-10", "S-11")
def test_a_download_begins_anew_with_a_new_snapshot_and_its_mutant_mixes_two(verdicts_at_night: Verdicts) -> None:
    assert_caught(verdicts_at_night, SNAPSHOTS, {"snapshot-transfer-bounded"}, "stalled")


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.clause("T-7", "T-8")
def test_a_transaction_is_seen_whole_and_its_mutant_shows_a_part(verdicts_at_night: Verdicts) -> None:
    # A reader sees the part, or a node that applied it finds the next controller's records contradict it and ends.
    assert_caught(verdicts_at_night, TRANSACTIONS, {"torn-metadata", "quorum-converges"}, "batches_committed")


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.clause("F-19", "F-22")
def test_what_is_acknowledged_outlives_its_leader_and_its_mutant_loses_it(verdicts_at_night: Verdicts) -> None:
    # What is lost is missing, and its offsets, acknowledged once, are given to other records.
    guarantees = {"lost-write", "unseen", "inconsistent-offsets", "nonmonotonic-send", "fetch-gap"}
    assert_caught(verdicts_at_night, REPLICATION, guarantees, "leader_killed")


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.clause("M-3", "M-5", "M-15")
def test_a_stale_broker_misleads_no_client_and_its_mutant_goes_back(verdicts_at_night: Verdicts) -> None:
    # A client that believes the older metadata is sent to the old leader, which calls its position out of range.
    assert_caught(verdicts_at_night, METADATA_EPOCH, {"nonmonotonic-metadata-epoch", "rewinds"}, "cut_from_controller")


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.clause("F-3", "F-10")
def test_frames_show_how_a_foreign_broker_keeps_sessions_and_its_mutant_takes_an_epoch_twice(
    verdicts_at_night: Verdicts,
) -> None:
    assert_caught(verdicts_at_night, FOREIGN, {"session-epoch-order"}, "fetch-answer-lost")
    judged = {each.name: each for each in verdicts_at_night[FOREIGN[0], ""].guarantees}
    for name in foreign_sessions.SHOWN:
        assert judged[name].status == "holds"
        assert judged[name].evidence > 100
    assert judged["one-leader-per-epoch"].status == "not checked"


def assert_caught(verdicts: Verdicts, played: tuple[str, str, int], guarantees: set[str], fault: str) -> None:
    """The control passes; the mutant breaks at least one of these, and nothing else."""
    name, mutant, _ = played
    control, caught = verdicts[name, ""], verdicts[name, mutant]
    assert control.outcome is Outcome.PASSED, control.summary
    assert caught.outcome is Outcome.FAILED, caught.summary
    broken = {each.name for each in caught.guarantees if each.status == "broken"}
    assert broken
    assert broken <= guarantees
    for verdict in (control, caught):
        assert verdict.report is not None
        assert fault in verdict.report.read_text(encoding="utf-8")
