"""Mutants that were written together with the rule of a check: each has a scenario and a seed in which a guarantee of
its rule is violated.

``chaos/mutants/seen_rules.jsonl`` has them, one line for each mutant, in the format of ``scenarios/ledger.py``. A
commit plays a part of them, and the night all.
"""

import pytest

from chaos.mutants.registry import rule_mutants
from chaos.sim.one_seed import play_seed
from reports.guarantees import GUARANTEES
from reports.verdict import Outcome
from scenarios import ledger, loader
from scenarios.revisions import each_revision

pytestmark = pytest.mark.simulated

KILLS = {each.mutant: each for each in ledger.searches_in(ledger.RULES)}
ALL = {played.name: played for scenario in loader.load_all() for played in each_revision(scenario)}


def test_each_rule_has_killed_its_mutant() -> None:
    assert set(KILLS) == {each.name for each in rule_mutants()}
    for name, kill in KILLS.items():
        assert kill.guarantees, name
        assert set(kill.guarantees) <= set(GUARANTEES), name
        assert kill.scenario in ALL, name


@pytest.mark.rotated(20)
@pytest.mark.parametrize("name", sorted(KILLS))
def test_a_mutant_violates_a_guarantee_of_its_rule(name: str) -> None:
    kill = KILLS[name]
    verdict = play_seed(ALL[kill.scenario], kill.seed, name).verdict
    assert verdict.outcome is Outcome.FAILED, verdict.reasons
    assert set(verdict.broken) & set(kill.guarantees), verdict.broken
