"""A fault with ``alone`` fires only while all nodes serve. A run whose commits get no response shows nothing, nor does
one in which no bit was turned over."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import cast

import pytest

from chaos.checks.history import History
from chaos.sim.cluster import STARTING_US
from chaos.sim.one_seed import play_seed
from chaos.sim.verdict import _shortcomings
from chaos.sim.world import SimWorld
from reports.rows import OperationRow
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Fault, Match, Scenario


@pytest.mark.thorough
@pytest.mark.parametrize("alone", [True, False])
def test_fault_that_is_alone_waits_until_the_node_that_another_took_away_is_back(alone: bool) -> None:
    scenario = loader.find("intruder")
    away = Fault("away", "node_killed", at_s=0.5, sim_at_s=0.5, node=2, restart_after_s=1.0)
    second = Fault("second", "node_killed", at_s=0.9, sim_at_s=0.9, node=1, restart_after_s=0.5, alone=alone)
    load = replace(scenario.load, seconds=6.0, sim_seconds=6.0, admins=(), fetchers=())
    world = SimWorld(replace(scenario, faults=(away, second), load=load), 1)
    world.play()
    first, other = world.faults
    assert (first.name, other.name) == ("away", "second")
    assert (other.at_us >= first.until_us + STARTING_US) is alone


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "outcome"), [("hot-*/*.log", Outcome.PASSED), ("cold-*/*.log", Outcome.INVALID)])
def test_disk_on_which_no_bit_was_turned_over_is_no_evidence(path: str, outcome: Outcome) -> None:
    scenario = loader.find("damaged-eligible")
    faults = [
        replace(fault, match=Match(path=path)) if fault.name == "damaged_first_back" else fault
        for fault in scenario.faults
    ]
    verdict = play_seed(replace(scenario, faults=tuple(faults), points=()), 1).verdict
    assert verdict.outcome is outcome
    assert verdict.reasons == (("the fault damaged_first_back never fired",) if outcome is Outcome.INVALID else ())
    hits = sum(times for (kind, _, _), times in verdict.coverage if kind == "disk_bit_flipped")
    assert hits == (1 if outcome is Outcome.INVALID else 2)


@dataclass
class PlayedWorld:
    """The part of a world after its run that counts for a shortage of evidence."""

    scenario: Scenario
    history: History


def test_run_without_commit_responses_is_inconclusive() -> None:
    scenario = replace(loader.find("40"), faults=(), sim_max_lost_commits=1)
    lost = OperationRow("member-0", 0, "offset_commit", "info", 0, 0, 5, error="REQUEST_TIMED_OUT")
    other = OperationRow("member-0", 1, "offset_commit", "ok", 0, 0, 5)
    for count, reasons in ((1, []), (2, ["2 commits never got a response, at most 1 may be"])):
        world = PlayedWorld(scenario, History(operations=[lost] * count + [other]))
        assert list(_shortcomings(cast(SimWorld, world), Counter(), 10**6, 10**6)) == reasons
