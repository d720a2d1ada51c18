"""Mutants that were written together with the rule of a check: each has a scenario and a seed in which a guarantee of
its rule is violated.

``chaos/mutants/seen_rules.jsonl`` has them, one line for each mutant, in the format of ``scenarios/ledger.py``. A
commit plays a part of them, and the night all.
"""

from collections.abc import Mapping

import pytest

from chaos.mutants.registry import rule_mutants
from chaos.search.differ import KILLED_BY
from chaos.sim.one_seed import play_seed
from reports.guarantees import GUARANTEES
from reports.verdict import Outcome
from scenarios import ledger, loader
from scenarios.revisions import each_revision

pytestmark = pytest.mark.simulated

KILLS = {search.mutant: search for search in ledger.searches_in(ledger.RULES)}
ALL = {played.name: played for scenario in loader.load_all() for played in each_revision(scenario)}
BY_DIFFER = {mutant for mutants in KILLED_BY.values() for mutant in mutants}
"""``test_differ.py`` kills these."""
BY_REGRESSION = {mutant for file in loader.REGRESSIONS.glob("*.toml") for mutant in loader.load(file).mutants}
"""``test_scenarios_in_sim.py`` kills these."""
CRASHES: Mapping[str, str] = {
    "index_entry_one_offset_late": "36-upload-killed",
    "largest_timestamp_of_first_batch": "36-upload-killed",
    "overtaken_fetch_stays_parked": "02-duplicated-request@first",
}
"""Mutants that the broker's own invariants stop before a check sees them, each with a scenario."""
NOT_SEEN = (
    "bytes_since_entry_kept_at_truncation",
    "initial_delay_prolonged_for_ever",
    "late_syncs_wait_for_ever",
    "marker_time_not_in_snapshot",
    "tombstones_of_offsets_not_replayed",
)
"""Mutants that none of two to eight plays has killed; in some of these they were never called. Only tests with planted
violations show that their rules see anything."""
MORE_SEEDS = range(1, 4)
SLOW = {
    "cached_last_epoch_kept",
    "follower_names_one_partition_of_a_response",
    "led_logs_not_synced_before_the_mark",
}
"""A play takes minutes on a busy machine."""
PLAYED = [pytest.param(each, marks=pytest.mark.nightly if each in SLOW else ()) for each in sorted(KILLS)]


@pytest.mark.rotated(1)
def test_each_rule_has_killed_its_mutant() -> None:
    names = {rule_mutant.name for rule_mutant in rule_mutants()}
    elsewhere = (BY_DIFFER | BY_REGRESSION) & names
    assert set(KILLS) | elsewhere | set(CRASHES) | set(NOT_SEEN) == names
    assert not (set(KILLS) | elsewhere | set(CRASHES)) & set(NOT_SEEN)
    for name, kill in KILLS.items():
        assert kill.guarantees, name
        assert set(kill.guarantees) <= set(GUARANTEES), name
        assert kill.scenario in ALL, name


@pytest.mark.timeout(1800)
@pytest.mark.rotated(20)
@pytest.mark.parametrize("name", PLAYED)
def test_mutant_violates_a_guarantee_of_its_rule(name: str) -> None:
    kill = KILLS[name]
    for seed in dict.fromkeys((kill.seed, *MORE_SEEDS)):
        verdict = play_seed(ALL[kill.scenario], seed, name).verdict
        if verdict.outcome is Outcome.FAILED:
            assert set(verdict.broken) & set(kill.guarantees), verdict.broken
            return
    pytest.fail(f"{kill.scenario} did not notice {name}")


@pytest.mark.rotated(3)
@pytest.mark.parametrize("name", sorted(CRASHES))
def test_mutant_violates_an_invariant_of_the_broker(name: str) -> None:
    assert play_seed(ALL[CRASHES[name]], 1, name).verdict.outcome is Outcome.CRASHED
