"""Plays the probe on a target three times and keeps what was the same each time."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.target_cluster import launched
from bench.probe.broker import NotKafka, meet
from bench.probe.case import Case
from bench.probe.play import play
from bench.probe.registry import all_cases
from bench.probe.verdict import Outcome, Verdict
from bench.targets.model import Chosen

PLAYS = 3
"""A cell is red only if it was red so often."""
NOT_JUDGED = "not judged"
RED = (Verdict.FAIL, Verdict.INCONSISTENT, Verdict.DIFFERS)


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a case on a target. ``verdict`` is that of the probe's, or NOT_JUDGED. ``reason``: of a red one."""

    verdict: str
    reason: str = ""


def probed(chosen: Chosen, cases: Sequence[Case] = ()) -> dict[str, Cell]:
    """Plays the cases (all if none are given), each on a broker that was started afresh for the play. Returns the cell
    of each by its ID. Raises PeerError."""
    left = list(cases or all_cases())
    plays: list[Mapping[str, Outcome]] = []
    for _ in range(PLAYS):
        plays.append(_played(chosen, left))
        left = [each for each in left if each.id in plays[-1]]
    return {each.id: cell([play.get(each.id) for play in plays]) for each in cases or all_cases()}


def cell(outcomes: Sequence[Outcome | None]) -> Cell:
    """What several plays of one case say together. None stands for a play without an outcome."""
    seen = [each for each in outcomes if each is not None]
    verdicts = {each.verdict for each in seen}
    if len(seen) < len(outcomes) or Verdict.OUR_ERROR in verdicts:
        return Cell(NOT_JUDGED)
    if verdicts <= set(RED):
        return Cell(seen[-1].verdict.value, seen[-1].reason)
    return Cell(seen[0].verdict.value) if len(verdicts) == 1 else Cell(NOT_JUDGED)


def _played(chosen: Chosen, cases: Sequence[Case]) -> dict[str, Outcome]:
    """One play. A broker that does not live through it is played with half of the cases, and so on. What a single case
    ends is left out: nobody shall learn here how to end a broker."""
    if not cases:
        return {}
    with tempfile.TemporaryDirectory() as folder, launched(chosen, Path(folder)) as cluster:
        outcomes = _outcomes(("127.0.0.1", cluster.ports[0]), cases)
        if cluster.pids:
            return {each.case.id: each for each in outcomes}
    if len(cases) == 1:
        return {}
    half = len(cases) // 2
    return _played(chosen, cases[:half]) | _played(chosen, cases[half:])


def _outcomes(address: tuple[str, int], cases: Sequence[Case]) -> Iterable[Outcome]:
    try:
        return play(meet(address), cases)
    except NotKafka:
        return ()
