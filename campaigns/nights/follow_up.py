"""Follow up failures of a night: the smallest scenario that still fails, live runs, and the first bad commit.

One seed is followed up for each violated guarantee of a scenario, the first one. A failure for which no time remains is
kept as it was found.

``git bisect`` chooses the commits since the last night, in a work tree of its own, which is removed. A seed gives the
same run with the same code only. The smallest scenario has explicit faults, so it mostly violates the same guarantee
with slightly different code, too; where it does not, the commit is unknown.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from campaigns.nights import live_plays, processes
from campaigns.nights.night import OpenFailure, Work, is_control, open_failures
from campaigns.nights.processes import Players, Tell
from campaigns.nights.replay import BAD, CANNOT_TELL, GOOD
from chaos.live.errors import SetupError
from chaos.live.runner import check_playable
from chaos.search.shrink import keep_as_regression, shrink
from chaos.search.write_scenario import fault_line
from chaos.sim.one_seed import play_seed
from chaos.sim.swarm import materialised
from reports.night import FailureRow, PlayRow
from reports.verdict import Outcome
from scenarios import loader
from scenarios.derived import drawn
from scenarios.model import Scenario

REPLAY = Path(__file__).with_name("replay.py")
_FOUND = re.compile(r"^([0-9a-f]{40}) is the first bad commit", re.MULTILINE)


def commit_of(work: Work, failure: FailureRow, until: float) -> tuple[str, str]:
    """Return the commit, or nothing and why it is not known."""
    last = next((each.night.commit for each in reversed(work.earlier) if each.night.finished), "")
    now = work.night.commit
    if not last or not now:
        return "", "no finished night before this one names a commit"
    if last == now:
        return "", "the last night played the same commit"
    try:
        with _work_tree(work, now) as tree:
            return _bisected(work, failure, tree, last, until)
    except subprocess.CalledProcessError as wrong:
        return "", f"git could not look at older commits: {wrong.stderr.strip() or wrong}"


def _bisected(work: Work, failure: FailureRow, tree: Path, last: str, until: float) -> tuple[str, str]:
    replay = [sys.executable, "-P", str(REPLAY), str((work.folder / failure.regression).resolve())]
    replay += [str(failure.seed), failure.guarantee]
    environment = {**work.environment, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}

    def ran(*command: str) -> processes.Done:
        log = work.folder / "logs" / f"bisect-{Path(failure.regression).stem}.log"
        return processes.run(command, until, log, work.beat, environment, tree)

    for commit, wanted, otherwise in (
        (work.night.commit, BAD, "the commit itself does not fail, without what was changed since"),
        (last, GOOD, "the last night's commit fails, too"),
    ):
        _git(tree, "checkout", "--quiet", "--detach", commit)
        code = ran(*replay).code
        if code != wanted:
            reasons = {CANNOT_TELL: "older code cannot play it", processes.OVER: "there was no time to look at commits"}
            return "", reasons.get(code, otherwise)
    _git(tree, "bisect", "start", work.night.commit, last)
    found = _FOUND.findall(ran("git", "bisect", "run", *replay).said)
    if found:
        return found[-1], ""
    return "", "there was no time to look at all commits" if time.monotonic() >= until else "no commit can be named"


@contextmanager
def _work_tree(work: Work, commit: str) -> Iterator[Path]:
    tree = work.scratch / "commits"
    _git(processes.ROOT, "worktree", "prune")  # A night that was killed has left its own.
    _git(processes.ROOT, "worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)
    try:
        yield tree
    finally:
        _git(processes.ROOT, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment).stdout


REGRESSIONS = "regressions"
LIVE_PLAYS = 3
SHRUNK_SHARE = 0.5
"""The part of a failure's time in which it may be made smaller."""
SHRINKS_ALONE_S = 3600.0


def open_reds(work: Work, known: Collection[OpenFailure] = ()) -> list[PlayRow]:
    """The first red control of each scenario and guarantee that nobody has looked into yet, tonight or (``known``)
    before."""
    reds = [play for play in reversed(work.plays) if is_control(play) and _is_red(play)]
    found = {
        _key(play): play
        for play in reds
        if play.world != "sim" or (play.scenario, play.guarantee or play.outcome, play.seed) not in known
    }
    for failure in work.failures:
        found.pop((failure.scenario, failure.world, failure.guarantee), None)
    return [each for each in reversed(found.values()) if not each.run_dir.startswith(REGRESSIONS)]


def of_all(work: Work, scenarios: Mapping[str, Scenario], until: float, known: Collection[OpenFailure] = ()) -> None:
    """Look into all that is open. Each gets half of what is left, and the last one all of it: several often have one
    cause, which the first then names."""
    reds = open_reds(work, known)
    for number, play in enumerate(reds):
        now = time.monotonic()
        if now < until:
            work.tell(f"looking into seed {play.seed} of {play.scenario}, {number + 1} of {len(reds)}")
            work.add(_followed(work, play, scenarios, now + (until - now) / min(2, len(reds) - number)))


def note_the_rest(work: Work) -> None:
    """Keep what there was no time for."""
    known = open_failures(work.folder.parent, work.folder.name)
    work.add(*(_as_found(red, "there was no time to look into it") for red in open_reds(work, known)))


def _is_red(play: PlayRow) -> bool:
    return play.outcome != Outcome.PASSED.name


def _key(play: PlayRow) -> tuple[str, str, str]:
    return play.scenario, play.world, play.guarantee or play.outcome


def _as_found(play: PlayRow, *details: str) -> FailureRow:
    return FailureRow(
        scenario=play.scenario,
        world=play.world,
        target=play.target,
        guarantee=play.guarantee or play.outcome,
        seed=play.seed,
        faults="",
        regression="",
        command=play.command,
        live_plays=0,
        live_reds=0,
        first_bad_commit="",
        detail="; ".join(filter(None, (play.detail, *details))),
    )


def _followed(work: Work, play: PlayRow, scenarios: Mapping[str, Scenario], until: float) -> FailureRow:
    failure, details = _as_found(play), [play.detail]
    scenario = scenarios[play.scenario]
    if play.world == "sim":
        failure = _shrunk(work, failure, scenario, until)
        details += [] if failure.regression else ["it could not be made smaller in time"]
    else:
        failure = replace(failure, faults=fault_lines(drawn(scenario, play.seed)))
    if play.outcome != Outcome.INVALID.name:  # A play that shows nothing has nothing to show anywhere else.
        failure, detail = _played_live(work, failure, scenario, until)
        details.append(detail)
        if failure.regression:
            commit, detail = commit_of(work, failure, until)
            failure, details = replace(failure, first_bad_commit=commit), [*details, detail]
    return replace(failure, detail="; ".join(filter(None, details)))


def _shrunk(work: Work, failure: FailureRow, scenario: Scenario, until: float) -> FailureRow:
    """The failure with the smallest scenario that was found in time, as a file in the night's folder."""
    now = time.monotonic()
    shrinks_until = now + (until - now) * SHRUNK_SHARE
    with Players[None](1) as players:
        players.start(None, partial(_shrink, scenario, failure, work.folder / REGRESSIONS), SHRINKS_ALONE_S)
        while players.jobs and (left_s := shrinks_until - time.monotonic()) > 0:
            for _, message in players.receive(min(0.5, left_s)):
                if isinstance(message, FailureRow):
                    failure = message
            work.beat(f"making seed {failure.seed} of {failure.scenario} smaller")
    return failure


def _shrink(scenario: Scenario, failure: FailureRow, folder: Path, tell: Tell) -> None:
    """Replay the seed and report the failure again with each smaller scenario, which it keeps as a file."""
    failing = play_seed(scenario, failure.seed).verdict
    if failing.outcome is Outcome.PASSED:
        return  # A child that died was to blame, and not the seed.

    def keep(small: Scenario) -> None:
        path, command = keep_as_regression(small, failing, folder)
        relative = str(path.relative_to(folder.parent))
        tell(replace(failure, faults=fault_lines(small), regression=relative, command=command))

    keep(drawn(materialised(scenario, failure.seed), failure.seed))
    if failing.outcome is not Outcome.INVALID:
        shrink(scenario, failing, is_smaller=keep)


def fault_lines(scenario: Scenario) -> str:
    """The faults of a scenario, a line each, as a file would have them."""
    return "\n".join(map(fault_line, scenario.faults))


def _played_live(work: Work, failure: FailureRow, scenario: Scenario, until: float) -> tuple[FailureRow, str]:
    """Play the failure three times with real processes, if those can play it. Return it, and what kept it from
    that."""
    if failure.regression:
        with suppress(loader.ScenarioError):
            scenario = loader.load(work.folder / failure.regression)
    try:
        check_playable(scenario)
        live_plays.check_machine()
    except SetupError as wrong:
        return failure, f"not played live: {wrong}"
    plays = []
    for number in range(LIVE_PLAYS):
        if time.monotonic() >= until:
            break
        folder = Path(REGRESSIONS) / f"{scenario.name}-{failure.seed}-live-{number + 1}"
        play = live_plays.play(work, scenario, failure.seed, folder, until)
        plays += [play] if play is not None else []
    work.add(*plays)
    reds = sum(each.outcome in (Outcome.FAILED.name, Outcome.CRASHED.name) for each in plays)
    return replace(failure, live_plays=len(plays), live_reds=reds), ""
