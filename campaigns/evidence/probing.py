"""Plays the probe on a target three times and keeps what was the same each time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.node import PeerError
from bench.probe.broker import Address, NotKafka, ProbedBroker, meet
from bench.probe.case import PREPARING, CaseOutcome, CaseVerdict, ProbeCase
from bench.probe.command import started
from bench.probe.play import play
from bench.targets.model import Chosen

PLAYS = 3
"""A cell is red only if it was red so often."""
NOT_JUDGED = "not judged"
RED = (CaseVerdict.FAIL, CaseVerdict.INCONSISTENT, CaseVerdict.DIFFERS)


@dataclass(frozen=True, slots=True)
class Cell:
    """The verdict on a case on one target."""

    verdict: str  # one of the probe's, or NOT_JUDGED
    reason: str = ""  # of a red one


def probed(chosen: Chosen, wanted: Sequence[ProbeCase], say: Callable[[str], None]) -> tuple[dict[str, Cell], int]:
    """Play the cases, on a broker that is started afresh for each play. Return the cell of each case by its ID, and
    how many cases were left out. Raise PeerError."""
    cases = list(wanted)
    plays: list[dict[str, CaseOutcome]] = []
    for number in range(PLAYS):
        plays.append({})
        for hostile in (False, True):
            plays[-1] |= _played(chosen, [each for each in cases if each.hostile == hostile])
        cases = [each for each in cases if each.id in plays[-1]]
        say(f"{chosen.text}: play {number + 1} of {PLAYS} is done, {len(cases)} cases were played to their end")
    cells = {each.id: cell([outcomes.get(each.id) for outcomes in plays]) for each in wanted}
    return cells, len(cells) - len(cases)


def cell(outcomes: Sequence[CaseOutcome | None]) -> Cell:
    """The verdict of several plays of one case. None is a play without an outcome."""
    seen = [each for each in outcomes if each is not None]
    verdicts = {each.verdict for each in seen}
    unprepared = any(each.reason.startswith(PREPARING) for each in seen)
    if len(seen) < len(outcomes) or unprepared or CaseVerdict.OUR_ERROR in verdicts:
        return Cell(NOT_JUDGED)
    if verdicts <= set(RED):
        return Cell(seen[-1].verdict.value, seen[-1].reason)
    return Cell(seen[0].verdict.value) if len(verdicts) == 1 else Cell(NOT_JUDGED)


def _played(chosen: Chosen, cases: Sequence[ProbeCase]) -> dict[str, CaseOutcome]:
    """One play. Cases with which the broker ended are left out: nobody shall learn here how to end a broker."""
    if not cases:
        return {}
    with started(chosen) as target:
        outcomes = play(_met(target.address), cases, target=target)
    return {each.case.id: each for each in outcomes if not each.ended}


def _met(address: Address) -> ProbedBroker:
    try:
        return meet(address)
    except NotKafka as wrong:
        raise PeerError(str(wrong)) from wrong
