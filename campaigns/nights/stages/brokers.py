"""Plays the probe on the bundled brokers, as ``crucible evidence`` does, and scenarios in front of those.

What was not played for longest comes first. A broker that is missing here is reported and skipped. What another broker
fails does not make a night red.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.peers.node import PeerError
from bench.probe.cases import chosen as cases_of
from bench.targets.model import Chosen, TargetError
from campaigns.evidence.evidence_command import one_node, targets
from campaigns.evidence.plays import Cell, probed
from campaigns.nights import live_plays
from campaigns.nights.night import OURS, Work, in_turn, interleaved
from campaigns.nights.processes import Ended, Players, Tell
from chaos.checks.guarantee_selection import checked
from chaos.live.errors import SetupError
from chaos.live.runner import check_playable
from reports.night import CellRow
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Scenario
from scenarios.revisions import in_revision

PROBE = "probe"
SCENARIOS_FOR_A_PROBE = 3
MIN_PROBE_S = 180.0
"""Three plays of all cases take about this long, and more where the broker must be fetched or built."""


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Play until the time is over."""
    found = {each.text: each for each in targets(())}
    scenarios = {scenario.name: scenario for scenario in _scenarios()}
    tried, missing = work.tried_before("brokers"), dict[str, str]()
    probes = in_turn([f"{PROBE} {each}" for each in found], tried, work.turn)
    others = [each for each in found if each != OURS]
    plays = in_turn(
        [f"{name} {other}" for name, one in scenarios.items() for other in others if _can(one, other)], tried, 0
    )
    for item in (*probes[:1], *interleaved(plays, probes[1:], SCENARIOS_FOR_A_PROBE)):
        name, _, target = item.partition(" ")
        needed_s = MIN_PROBE_S if name == PROBE else live_plays.needed_s(work, scenarios[name])
        if target in missing or time.monotonic() + needed_s > until:
            continue
        work.try_(item)
        if name != PROBE:
            live_plays.next_of(work, scenarios[name], until, target=target)
        elif why := _probe(work, found[target], until):
            missing[target] = why
            work.tell(f"{target} is omitted: {why}")
    return Outcome.PASSED, "; ".join(f"{each} was omitted: {why}" for each, why in missing.items())


def _scenarios() -> Sequence[Scenario]:
    """Each scenario in the revision that any broker speaks, if it has that."""
    return [in_revision(checked(each), "final") for each in loader.load_all() if "final" in each.revisions]


def _can(scenario: Scenario, target: str) -> bool:
    try:
        check_playable(scenario, target)
    except SetupError:
        return False
    return True


def _probe(work: Work, chosen: Chosen, until: float) -> str:
    """Play all cases three times, and keep the cells. Return why the broker cannot be had, or nothing."""
    why = ""
    with Players[None](1) as players:
        players.start(None, partial(_probed, chosen), until - time.monotonic())
        while players.jobs and (left_s := until - time.monotonic()) > 0:
            for _, message in players.receive(min(0.5, left_s)):
                match message:
                    case Ended():
                        why = why or message.how
                    case str():
                        work.tell(message)
                    case (False, refusal):
                        why = refusal
                    case (True, cells):
                        work.add(*_rows(chosen, cells))
            work.beat(f"probe: {chosen.text}")
        if players.jobs:
            work.tell(f"the probe of {chosen.text} did not end in time")
    return why


def _probed(chosen: Chosen, tell: Tell) -> None:
    say: Callable[[str], None] = tell
    try:
        tell((True, probed(one_node(chosen), cases_of((), ()), say)[0]))
    except (PeerError, TargetError) as wrong:
        tell((False, str(wrong)))


def _rows(chosen: Chosen, cells: dict[str, Cell]) -> list[CellRow]:
    cases = cases_of((), tuple(cells))
    return [CellRow(chosen.text, each.id, each.section, each.level.value, cells[each.id].verdict) for each in cases]
