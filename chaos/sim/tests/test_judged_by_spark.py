"""A simulated run that is written out gets from the Spark jobs, guarantee by guarantee, what the simulator said of it.

One control and one mutant of each mechanism are played here. ``python -m tools.compare_verdicts`` plays all,
with many seeds.
"""

from pathlib import Path

import pytest

from chaos.mutants import all_mutants, by_name
from reports.verdict import Outcome
from tools.compare_verdicts import COMPARED, EXCUSED, Played, Run, differences, played

SEEDS = range(1, 30)
MECHANISMS = (
    ("02-duplicated-request", "no_epoch_comparison"),
    ("02-duplicated-request@first", "retransmission_refuses_the_waiting"),
    ("09-snapshot-response-lost", "blind_append"),
    ("14-controller-killed-in-transaction", "markers_omitted"),
    ("18-second-controller-dies", "no_epoch_check_on_append"),
    ("leader-killed-under-acks-all", "acknowledged_before_replicated"),
    ("leader-loses-power", "unclean_restart_stays_in_sync"),
    ("19-stale-broker", "accepts_older_metadata"),
    ("coordinator-killed", "offsets_not_loaded"),
    ("rebalance-storm", "newest_record_cleaned"),
    ("damaged-frames", "batch_crc_unchecked"),
    ("43-last-one-standing", "elr_not_kept"),
    ("disk-errors", "failed_append_acknowledged"),
    ("intruder", "voter_unchecked"),
    ("leader-killed-under-acks-all", "retries_appended_again"),
    ("44-coordinator-of-transactions-killed", "opposite_outcome_after_takeover"),
    ("26-tombstones-missed", "consumer_reads_on"),
)
"""(scenario, mutant): one for each file of mutants, but those of INSIDE."""
INSIDE = {"chaos.mutants.drafts", "chaos.mutants.tiering"}
"""Only the bytes of frames and what nodes announce show the first. Only the objects in the tier show the second. A
history has neither, so no job judges them."""


def test_each_mechanism_has_its_mutant() -> None:
    assert {_file(mutant) for _, mutant in MECHANISMS} == {_file(mutant.name) for mutant in all_mutants()} - INSIDE


def _file(mutant: str) -> str:
    return by_name(mutant).replacement.__module__


def test_excused_mutants_and_guarantees_exist() -> None:
    for mutant, guarantee in EXCUSED:
        assert by_name(mutant)
        assert guarantee in COMPARED


def as_wanted(scenario: str, mutant: str, folder: Path) -> Played:
    """Play seeds until one passes, or until the simulator sees the mutant with one."""
    wanted = Outcome.FAILED if mutant else Outcome.PASSED
    plays = (played(Run(scenario, mutant, seed), folder / f"{scenario}-{mutant}-{seed}") for seed in SEEDS)
    return next(play for play in plays if play.outcome is wanted)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_spark_agrees_with_the_simulator(tmp_path: Path) -> None:
    from reports.judge import compute_verdicts

    controls = {scenario: "" for scenario, _ in MECHANISMS}
    runs = [as_wanted(scenario, mutant, tmp_path) for scenario, mutant in (*controls.items(), *MECHANISMS)]
    verdicts = compute_verdicts([run.folder for run in runs])
    assert not [line for one, verdict in zip(runs, verdicts, strict=True) for line in differences(one, verdict)]
    said = {opinion.status for run in runs for opinion in run.opinions.values()}
    assert said == {"holds", "broken", "nothing to judge"}
