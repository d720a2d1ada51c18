"""Plays a part of the scenarios with real processes: controls, and after some of them one with a planted mutant.

What was not played for longest comes first, so that in some nights all are played.
"""

import time
from collections.abc import Mapping, Sequence

from campaigns.nights import follow_up, live_plays
from campaigns.nights.night import Skipped, Work, in_turn, interleaved, is_control
from chaos.checks.guarantee_selection import checked
from chaos.live.errors import SetupError
from chaos.live.runner import check_playable
from chaos.mutants.registry import NOT_SEEN, SIMULATED_ONLY, mutants_of
from reports.verdict import Outcome, worst_outcome
from scenarios import loader
from scenarios.model import Scenario
from scenarios.revisions import each_revision

CONTROLS_FOR_A_MUTANT = 2


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Play until the time is over, and look into each control that turned red."""
    try:
        live_plays.check_machine()
    except SetupError as why:
        raise Skipped(str(why)) from why
    scenarios = {each.name: each for file in loader.load_all() for each in each_revision(checked(file))}
    for item in plan(scenarios, work.tried_before("live"), work.turn):
        name, _, mutant = item.partition(" ")
        if time.monotonic() + live_plays.needed_s(work, scenarios[name]) > until:
            continue  # Another one may be shorter.
        work.try_(item)
        row = live_plays.next_of(work, scenarios[name], until, mutant)
        if row is not None and is_control(row) and row.outcome != Outcome.PASSED.name:
            now = time.monotonic()
            follow_up.of_all(work, scenarios, now + (until - now) / 2)
    controls = [each for each in work.plays if each.world == "live" and is_control(each)]
    return worst_outcome(Outcome[control.outcome] for control in controls), ""


def plan(scenarios: Mapping[str, Scenario], tried: Sequence[Sequence[str]], turn: int) -> list[str]:
    """Return the plays of live worlds in the order of this night: ``SCENARIO`` or ``SCENARIO MUTANT``."""
    playable = [name for name, each in scenarios.items() if _is_playable(each)]
    planted = [
        f"{name} {mutant}"
        for name in playable
        for mutant in mutants_of(scenarios[name])
        if mutant not in SIMULATED_ONLY and mutant not in NOT_SEEN and _is_playable(scenarios[name], mutant)
    ]
    return interleaved(in_turn(playable, tried, turn), in_turn(planted, tried, turn), CONTROLS_FOR_A_MUTANT)


def _is_playable(scenario: Scenario, mutant: str = "") -> bool:
    try:
        check_playable(scenario, mutant=mutant)
    except SetupError:
        return False
    return True
