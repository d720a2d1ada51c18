"""Plays scenarios in front of targets, each in a process of its own, and tells what came of them."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.targets.model import Chosen
from tools.evidence.kept import Play
from tools.evidence.probing import PLAYS

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
PASSED, FAILED, REFUSED, UNSTEADY = "passed", "**failed**", "refused", "not judged"
_TOLD = re.compile(r"^[A-Z_]+: (.*)$", re.MULTILINE)
Run = Callable[[Sequence[str]], tuple[int, str]]
"""Runs the words of ``crucible`` and returns the exit code and all that was told."""


def played(chosen: Chosen, scenarios: Sequence[str], run: Run | None = None) -> dict[str, Play]:
    """Plays each scenario once, and again if it failed, up to three times. It failed only if it did each time."""
    return {name: _played(chosen, name, run or _run) for name in scenarios}


def _played(chosen: Chosen, scenario: str, run: Run) -> Play:
    words = ["run", scenario, "--target", chosen.text]
    command = f"./crucible {' '.join(words)}"
    outcomes = []
    for outcome in _outcomes(words, run):
        outcomes.append(outcome)
        if outcome[0] != FAILED:
            break
    verdict, reason = outcomes[-1]
    if len(outcomes) > 1 and verdict != FAILED:
        return Play(UNSTEADY, f"it failed {len(outcomes) - 1} times before: {outcomes[0][1]}", command)
    return Play(verdict, reason if verdict != PASSED else "", command)


def _outcomes(words: Sequence[str], run: Run) -> Iterator[tuple[str, str]]:
    for _ in range(PLAYS):
        with tempfile.TemporaryDirectory() as folder:
            code, told = run([*words, "--out", f"{folder}/run"])
            story = told.replace(folder, "")
        summaries = _TOLD.findall(story)
        last = (story.strip().splitlines() or ["nothing"])[-1].removeprefix("crucible: ")
        if code == 0:
            yield PASSED, ""
        elif code == 1:
            yield FAILED, summaries[-1] if summaries else last
        else:
            yield (REFUSED if code == 2 else UNSTEADY), last


def _run(words: Sequence[str]) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "crucible.py"), *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 3, f"it did not end within {LIMIT_S:g} s"
    return done.returncode, f"{done.stderr}\n{done.stdout}"
