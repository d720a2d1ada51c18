"""Plays scenarios in front of targets, in processes of their own, and reports their outcomes."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.targets.model import Chosen
from campaigns.evidence.kept import Play
from campaigns.evidence.probing import PLAYS

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
"""For each scenario."""
PASSED, FAILED, REFUSED, NOT_JUDGED = "passed", "**failed**", "refused", "not judged"
FROM_THE_INSIDE = "reference"
"""So ``crucible run`` calls our own broker with everything inside it."""
_VERDICT = re.compile(r"^(PASSED|FAILED|INVALID|CRASHED): (.*)$", re.MULTILINE)
Run = Callable[[Sequence[str], float], tuple[int, str]]
"""Run the words of ``crucible`` within this many seconds, and return the exit code and all output."""
Outcome = tuple[str, str]
"""A verdict and its reason."""


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
        for name, outcome in _together(target, left, run or _run).items():
            seen[name].append(outcome)
        left = [name for name in left if seen[name][-1][0] != PASSED]
    return {name: as_play(target, name, outcomes) for name, outcomes in seen.items()}


def as_play(target: str, scenario: str, outcomes: Sequence[Outcome]) -> Play:
    """What several plays of one scenario say together."""
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
    return {name: outcome for each in scenarios for name, outcome in _together(target, [each], run).items()}


def _outcome(word: str, summary: str) -> Outcome:
    verdicts = {"PASSED": PASSED, "FAILED": FAILED}
    return verdicts.get(word, NOT_JUDGED), summary if word in verdicts else f"{word}: {summary}"


def _run(words: Sequence[str], limit_s: float) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "crucible_kafka"), *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 3, f"it did not end within {limit_s:g} s"
    return done.returncode, f"{done.stderr}\n{done.stdout}"
