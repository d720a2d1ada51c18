"""The whole path with real processes: played live, judged by Spark; controls pass, mutants are killed.

Each of the five mechanisms has a control and a mutant, in a scenario of a few seconds and few nodes. A commit plays
one of them. Some runs are played at a time, since they wait more than they compute, and all are judged together
with the histories of other test files. Replication and an external broker are played at night, and so are the whole
scenarios of the mechanisms.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.mark.structures import ParameterSet

from chaos.live.runner import play_scenario
from chaos.live.tests import external_sessions
from reports.judge import report_runs
from reports.verdict import Outcome, Verdict
from scenarios import loader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import JudgedRun

SHORT = loader.FOLDER / "short"
SESSIONS = (f"{SHORT}/lost-response.toml", "change_mark_cleared_when_sent", 1)
SNAPSHOTS = (f"{SHORT}/snapshot-superseded.toml", "position_kept_with_new_id", 1)
TRANSACTIONS = (f"{SHORT}/killed-before-end.toml", "high_watermark_decides_visibility", 1)
METADATA_EPOCH = (f"{SHORT}/stale-broker.toml", "accepts_older_metadata", 1)
PRODUCERS = (f"{SHORT}/without-producer-snapshots.toml", "unsnapshotted_segments_stay", 1)
MECHANISMS = (SESSIONS, SNAPSHOTS, TRANSACTIONS, METADATA_EPOCH, PRODUCERS)

WHOLE_SESSIONS = ("01-lost-response", "change_mark_cleared_when_sent", 1)
WHOLE_SNAPSHOTS = ("10-snapshot-superseded", "position_kept_with_new_id", 1)
WHOLE_TRANSACTIONS = ("15-killed-before-end", "high_watermark_decides_visibility", 0)
"""The seed's fault: the controller is killed when all batches of its transaction are committed, but not its End."""
WHOLE_METADATA_EPOCH = ("19-stale-broker", "accepts_older_metadata", 1)
WHOLE_PRODUCERS = ("upgrade-path", "unsnapshotted_segments_stay", 1)
REPLICATION = ("leader-killed-under-acks-all", "acknowledged_before_replicated", 1)
EXTERNAL = ("external", "epoch_not_advanced_when_response_lost", 1)
"""A node of ours, or that mutant of it, as if it were a broker of others."""
WHOLE = (WHOLE_SESSIONS, WHOLE_SNAPSHOTS, WHOLE_TRANSACTIONS, WHOLE_METADATA_EPOCH, WHOLE_PRODUCERS)
AT_ONCE = 4
"""Number of plays at a time."""

Verdicts = Mapping[tuple[str, str], Verdict]


def play_histories(runs: Path, tests: Sequence[pytest.Function]) -> dict[str, Path]:
    """Play what the selected tests of a commit examine."""
    selected = [test.callspec.params.get("played") for test in tests if hasattr(test, "callspec")]
    plays = [mechanism for mechanism in MECHANISMS if mechanism in selected]
    return {folder.name: folder for folder in played(runs, plays).values()}


@pytest.fixture(scope="module")
def verdicts(found_by_name: "Mapping[str, JudgedRun]") -> Verdicts:
    """The verdicts of the selected tests' plays, by scenario and mutant; the control's mutant is ''."""
    return {
        (name, planted): found_by_name[_folder_name(name, planted)].report()
        for name, mutant, _ in MECHANISMS
        for planted in ("", mutant)
        if _folder_name(name, planted) in found_by_name
    }


@pytest.fixture(scope="module")
def verdicts_at_night(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Verdicts:
    folders = played(tmp_path_factory.mktemp("runs"), (*WHOLE, REPLICATION, EXTERNAL))
    return dict(zip(folders, report_runs([*folders.values()], spark=spark), strict=True))


def played(runs: Path, plays: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str], Path]:
    """Play each scenario without its mutant and with it, and return the folders by scenario and mutant."""
    wanted = [(name, planted, seed) for name, mutant, seed in plays for planted in ("", mutant)]

    def play(name: str, mutant: str, seed: int) -> Path:
        if name == EXTERNAL[0]:
            return external_sessions.played(runs, mutant)
        folder = runs / _folder_name(name, mutant)
        return play_scenario(loader.find(name), folder, seed=seed, mutant=mutant).path

    with ThreadPoolExecutor(AT_ONCE) as pool:
        folders = pool.map(lambda each: play(*each), wanted)
        return {(name, mutant): folder for (name, mutant, _), folder in zip(wanted, folders, strict=True)}


def _folder_name(name: str, mutant: str) -> str:
    return f"{Path(name).stem}-{mutant or 'control'}"


KILLED_BY = {
    "change_mark_cleared_when_sent": {"fetch-gap", "incremental-response-exact"},
    "position_kept_with_new_id": {"snapshot-transfer-bounded"},
    # A reader sees the part, or a node that applied it finds the next controller's records contradict it and ends.
    "high_watermark_decides_visibility": {"torn-metadata", "quorum-converges"},
    # A client that believes the older metadata is sent to the old leader, which calls its position out of range.
    "accepts_older_metadata": {"nonmonotonic-metadata-epoch", "rewinds"},
    "unsnapshotted_segments_stay": {"closed-segments-stored"},
    # What is lost is missing, and its offsets, acknowledged once, are given to other records.
    "acknowledged_before_replicated": {
        *("lost-write", "unseen", "inconsistent-offsets", "nonmonotonic-send", "fetch-gap"),
    },
    "epoch_not_advanced_when_response_lost": {"session-epoch-order"},
}
"""The guarantees that a mutant may break. It must break at least one."""
ENDS_ITSELF = {"high_watermark_decides_visibility"}
"""Mutants by which a node may end itself before the run does, because later records contradict what it has applied."""


def _pair(played: tuple[str, str, int], fault: str, *clauses: str) -> ParameterSet:
    return pytest.param(played, fault, id=Path(played[0]).stem, marks=pytest.mark.clause(*clauses))


@pytest.mark.spark
@pytest.mark.timeout(1500)
@pytest.mark.rotated(5)
@pytest.mark.parametrize(
    ("played", "fault"),
    [
        _pair(SESSIONS, "response_lost", "F-10", "F-11", "F-14", "F-20"),
        _pair(SNAPSHOTS, "stalled", "S-5", "S-10", "S-11"),
        _pair(TRANSACTIONS, "batches_committed", "T-7", "T-8"),
        _pair(METADATA_EPOCH, "cut_from_controller", "M-3", "M-5", "M-15"),
        _pair(PRODUCERS, "without_snapshots", "P-8", "P-14"),
    ],
)
def test_mechanism_holds_and_its_mutant_is_killed(verdicts: Verdicts, played: tuple[str, str, int], fault: str) -> None:
    assert_killed(verdicts, played, fault)
    if played == PRODUCERS:
        judged = {guarantee.name: guarantee for guarantee in verdicts[PRODUCERS[0], ""].guarantees}[
            "closed-segments-stored"
        ]
        assert judged.status == "holds"
        assert judged.evidence > 5


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("played", "fault"),
    [
        (WHOLE_SESSIONS, "response_lost"),
        (WHOLE_SNAPSHOTS, "stalled"),
        (WHOLE_TRANSACTIONS, "batches_committed"),
        (WHOLE_METADATA_EPOCH, "cut_from_controller"),
        (WHOLE_PRODUCERS, "without_snapshots"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_whole_scenarios_pass_and_their_mutants_are_killed(
    verdicts_at_night: Verdicts, played: tuple[str, str, int], fault: str
) -> None:
    assert_killed(verdicts_at_night, played, fault)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.clause("F-19", "F-22")
def test_acknowledged_records_survive_their_leader_but_not_with_mutant(verdicts_at_night: Verdicts) -> None:
    assert_killed(verdicts_at_night, REPLICATION, "leader_killed")


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.clause("F-3", "F-10")
def test_frames_show_sessions_of_external_broker_and_mutant_that_accepts_epoch_twice(
    verdicts_at_night: Verdicts,
) -> None:
    assert_killed(verdicts_at_night, EXTERNAL, "fetch-response-lost")
    judged = {guarantee.name: guarantee for guarantee in verdicts_at_night[EXTERNAL[0], ""].guarantees}
    for name in external_sessions.SHOWN:
        assert judged[name].status == "holds"
        assert judged[name].evidence > 100
    assert judged["one-leader-per-epoch"].status == "not checked"


def assert_killed(verdicts: Verdicts, played: tuple[str, str, int], fault: str) -> None:
    """The control passes; the mutant breaks at least one of its guarantees, and nothing else."""
    name, mutant, _ = played
    control, killed = verdicts[name, ""], verdicts[name, mutant]
    assert control.outcome is Outcome.PASSED, control.summary
    expected = {Outcome.FAILED, *([Outcome.CRASHED] if mutant in ENDS_ITSELF else [])}
    assert killed.outcome in expected, killed.summary
    broken = {guarantee.name for guarantee in killed.guarantees if guarantee.status == "broken"}
    assert broken
    assert broken <= KILLED_BY[mutant]
    for verdict in (control, killed):
        assert verdict.report is not None
        assert fault in verdict.report.read_text(encoding="utf-8")
