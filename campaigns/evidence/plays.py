"""Plays of evidence, in processes of their own: the probe on a target three times, and scenarios before targets."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.node import PeerError
from bench.probe.broker import Address, NotKafka, ProbedBroker, meet
from bench.probe.case import PREPARING, CaseOutcome, CaseVerdict, ProbeCase
from bench.probe.play import play
from bench.probe.probe_command import started
from bench.targets.model import Chosen

PLAYS = 3
"""Number of plays that must be red for a cell to be red."""
NOT_JUDGED = "not judged"
RED = (CaseVerdict.FAIL, CaseVerdict.INCONSISTENT, CaseVerdict.DIFFERS)
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
"""The time that one scenario may take."""
PASSED, FAILED, REFUSED = "passed", "**failed**", "refused"
FROM_THE_INSIDE = "reference"
"""So ``crucible run`` calls our own broker with everything inside it."""
_VERDICT = re.compile(r"^(PASSED|FAILED|INVALID|CRASHED): (.*)$", re.MULTILINE)
Run = Callable[[Sequence[str], float], tuple[int, str]]
"""Run the words of ``crucible`` within this many seconds, and return the exit code and all output."""
Outcome = tuple[str, str]
"""A verdict and its reason."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The verdict on a case on one target."""

    verdict: str
    """One of the probe's, or NOT_JUDGED."""
    reason: str = ""
    """Of a red one."""


@dataclass(frozen=True, slots=True)
class Play:
    """The result of a scenario: its verdict, why, and the command that plays it again."""

    verdict: str
    reason: str
    command: str


def probed(chosen: Chosen, wanted: Sequence[ProbeCase], say: Callable[[str], None]) -> tuple[dict[str, Cell], int]:
    """Play the cases, on a broker that is started afresh for each play. Return the cell of each case by its ID, and
    how many cases were omitted. Raise PeerError."""
    cases = list(wanted)
    plays: list[dict[str, CaseOutcome]] = []
    for number in range(PLAYS):
        plays.append({})
        for hostile in (False, True):
            plays[-1] |= _played(chosen, [probe_case for probe_case in cases if probe_case.hostile == hostile])
        cases = [probe_case for probe_case in cases if probe_case.id in plays[-1]]
        say(f"{chosen.text}: play {number + 1} of {PLAYS} is done, {len(cases)} cases were played to their end")
    cells = {probe_case.id: cell([outcomes.get(probe_case.id) for outcomes in plays]) for probe_case in wanted}
    return cells, len(cells) - len(cases)


def cell(outcomes: Sequence[CaseOutcome | None]) -> Cell:
    """The verdict of several plays of one case. None is a play without an outcome."""
    seen = [outcome for outcome in outcomes if outcome is not None]
    verdicts = {outcome.verdict for outcome in seen}
    unprepared = any(outcome.reason.startswith(PREPARING) for outcome in seen)
    if len(seen) < len(outcomes) or unprepared or CaseVerdict.OUR_ERROR in verdicts:
        return Cell(NOT_JUDGED)
    if verdicts <= set(RED):
        return Cell(seen[-1].verdict.value, seen[-1].reason)
    return Cell(seen[0].verdict.value) if len(verdicts) == 1 else Cell(NOT_JUDGED)


def _played(chosen: Chosen, cases: Sequence[ProbeCase]) -> dict[str, CaseOutcome]:
    """One play. Cases with which the broker ended are omitted: nobody shall learn here how to end a broker."""
    if not cases:
        return {}
    with started(chosen) as target:
        outcomes = play(_met(target.address), cases, target=target)
    return {outcome.case.id: outcome for outcome in outcomes if not outcome.ended}


def _met(address: Address) -> ProbedBroker:
    try:
        return meet(address)
    except NotKafka as wrong:
        raise PeerError(str(wrong)) from wrong


def played(
    chosen: Chosen, scenarios: Sequence[str], refusal: Callable[[str, str], str], run: Run | None = None
) -> dict[str, Play]:
    """Play each scenario until it passes, up to three times. It failed only if it did each time. A run that shows
    nothing, as on a busy machine, is none. Our own broker is played from the outside, as all others are.

    ``refusal(scenario, target)`` says in one sentence why a scenario cannot be played, or nothing.
    """
    target = f"{chosen.text}.toml" if chosen.text == FROM_THE_INSIDE else chosen.text
    seen: dict[str, list[Outcome]] = {}
    for name in scenarios:
        why = refusal(name, target)
        seen[name] = [(REFUSED, why)] if why else []
    left = [name for name in scenarios if not seen[name]]
    for _ in range(PLAYS):
        for name, outcome in _together(target, left, run or run_crucible).items():
            seen[name].append(outcome)
        left = [name for name in left if seen[name][-1][0] != PASSED]
    return {name: as_play(target, name, outcomes) for name, outcomes in seen.items()}


def as_play(target: str, scenario: str, outcomes: Sequence[Outcome]) -> Play:
    """Return the common result of several plays of one scenario."""
    command = f"./crucible run {scenario} --target {target}"
    verdict, reason = outcomes[-1]
    failures = [why for each, why in outcomes if each == FAILED]
    if failures and len(failures) < len(outcomes):
        return Play(NOT_JUDGED, f"it failed {len(failures)} times of {len(outcomes)}: {failures[0]}", command)
    return Play(verdict, reason, command)


def _together(target: str, scenarios: Sequence[str], run: Run) -> Mapping[str, Outcome]:
    """Play all in one process, so that they are judged in one session of Spark."""
    if not scenarios:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        code, output = run(["run", *scenarios, "--target", target, "--out", f"{folder}/run"], LIMIT_S * len(scenarios))
        output = output.replace(folder, "")
    verdicts = _VERDICT.findall(output)
    if len(verdicts) == len(scenarios):
        return {name: _outcome(*each) for name, each in zip(scenarios, verdicts, strict=True)}
    last = (output.strip().splitlines() or ["it said nothing"])[-1].removeprefix("crucible: ")
    if len(scenarios) == 1:
        return {scenarios[0]: (NOT_JUDGED, f"{last} (exit code {code})")}
    return {name: outcome for scenario in scenarios for name, outcome in _together(target, [scenario], run).items()}


def _outcome(word: str, summary: str) -> Outcome:
    verdicts = {"PASSED": PASSED, "FAILED": FAILED}
    return verdicts.get(word, NOT_JUDGED), summary if word in verdicts else f"{word}: {summary}"


def run_crucible(words: Sequence[str], limit_s: float) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "crucible_kafka"), *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 3, f"it did not end within {limit_s:g} s"
    return done.returncode, f"{done.stderr}\n{done.stdout}"
