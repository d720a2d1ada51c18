"""Play one scenario as ``crucible run`` does, with its verdict."""

import json
import os
import shutil
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from campaigns.nights import processes
from campaigns.nights.night import OURS, Sum, Work, next_seed, sums_of
from chaos.live.errors import SetupError
from chaos.live.kept_runs import VERDICT
from reports.manifest import MANIFEST_NAME
from reports.night import PlayRow
from reports.verdict import Outcome
from scenarios.loader import typed
from scenarios.model import Scenario
from scenarios.revisions import revision_of

BESIDE_THE_LOAD_S = 30.0
"""Least time that a play takes beside its load: for its start, its end and its verdict."""
LIMIT_S = 900.0
"""The time that one play and its verdict may take. A scenario's own limits are shorter."""
USAGE_ERROR = 2


def check_machine() -> None:
    """Raise SetupError if this machine cannot judge live plays."""
    if shutil.which("java") is None:
        raise SetupError("Spark needs a Java runtime, 17 or newer: install one.")


def needed_s(work: Work, scenario: Scenario) -> float:
    """About how long a play of the scenario takes with its verdict, by what others took here lately."""
    took = [each.wall_us / each.seeds / 1e6 for each in _before(work) if each.world == "live"]
    return max(scenario.load.seconds + BESIDE_THE_LOAD_S, median(took or [0.0]))


def next_of(work: Work, scenario: Scenario, until: float, mutant: str = "", target: str = OURS) -> PlayRow | None:
    """Play the scenario with its next seed, and keep what came of it."""
    key = ("live", scenario.name, mutant, target)
    seeds = [each.last_seed for each in _before(work) if (each.world, each.scenario, each.mutant, each.target) == key]
    seed = next_seed(work.night.seed, seeds)
    parts = [scenario.name, *filter(None, (mutant, target if target != OURS else "")), str(seed)]
    row = play(work, scenario, seed, Path("live", "-".join(parts).replace("/", "-")), until, mutant, target)
    if row is not None:
        work.add(row)
    return row


def _before(work: Work) -> list[Sum]:
    return [each for night in work.earlier for each in night.sums] + sums_of(work.plays)


def play(
    work: Work, scenario: Scenario, seed: int, run_dir: Path, until: float, mutant: str = "", target: str = OURS
) -> PlayRow | None:
    """Play a scenario once, with its verdict. Return None at the time limit, or if the play could not be set up, which
    is reported. ``run_dir`` is relative to the night's folder. Of a play that ended as it must only the report is
    kept there."""
    words = ["run", typed(scenario), "--seed", str(seed), "--revision", revision_of(scenario)]
    words += ["--mutant", mutant] if mutant else []
    words += ["--target", target] if target != OURS else []
    folder = work.folder / run_dir
    shutil.rmtree(folder, ignore_errors=True)  # A night that was killed may have left a part of it.
    began, now = time.perf_counter(), time.monotonic()
    done = processes.run(
        processes.crucible(*words, "--out", str(folder)),
        min(until, now + LIMIT_S),
        work.folder / "logs" / f"{run_dir.name}.log",
        partial(work.beat, f"live: {' '.join(words)}"),
        work.environment,
    )
    if done.code == USAGE_ERROR or (done.code == processes.OVER and until < now + LIMIT_S):
        shutil.rmtree(folder, ignore_errors=True)
        work.tell(f"{' '.join(words)}: {'the time was over' if done.code == processes.OVER else done.last_line}")
        return None
    verdict = _verdict(folder)
    broken = [each["name"] for each in verdict.get("guarantees", ()) if each["status"] == "broken"]
    outcome = Outcome[verdict.get("outcome", Outcome.CRASHED.name)]
    row = PlayRow(
        scenario=scenario.name,
        world="live",
        target=target,
        mutant=mutant,
        seed=seed,
        outcome=outcome.name,
        guarantee=broken[0] if broken else "",
        detail="" if outcome is Outcome.PASSED else str(verdict.get("summary", done.last_line)),
        wall_us=int((time.perf_counter() - began) * 1e6),
        at_us=time.time_ns() // 1000,
        run_dir=str(run_dir) if (folder / VERDICT).is_file() else "",
        command=" ".join(["./crucible", *words]),
    )
    if outcome is (Outcome.FAILED if mutant else Outcome.PASSED):
        _keep_report_only(folder)
    work.tell(f"{outcome.name}: {row.command}")
    return row


def _verdict(folder: Path) -> dict[str, Any]:
    """Return the verdict that the judge wrote, None if there is none."""
    path = folder / VERDICT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _keep_report_only(folder: Path) -> None:
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.name not in (VERDICT.parts[0], MANIFEST_NAME):
            shutil.rmtree(each) if each.is_dir() else os.unlink(each)
