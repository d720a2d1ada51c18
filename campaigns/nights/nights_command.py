"""``crucible nightly``: play a night's stages. They share its budget, and the exit code says whether the night is red.

Each finished play is durable. A night that was stopped or killed goes on with what is left of its budget.
"""

import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from campaigns.nights import follow_up
from campaigns.nights.night import (
    BusyError,
    NightJournal,
    NightOptions,
    NightRefusal,
    Skipped,
    Work,
    control_outcomes,
    is_left,
    kept_nights,
    opened,
    settle,
    share_s,
)
from campaigns.nights.stages import bench, brokers, checks, clients, guided, live, search
from chaos.search.point_tally import FILE, Tally, open_outcomes
from reports.night import PointCounts, Reason, night_folders, outcome_of, why_red
from reports.verdict import Outcome
from scenarios.decision_points import outcome_names

SKIPPED = "SKIPPED"
WORTH_S, WORTH_SHARE = 10.0, 0.01
"""When less than this, or less than this share of the budget, remains, no stage starts."""
Play = Callable[[Work, float], tuple[Outcome, str]]
STAGES: Mapping[str, Play] = {
    "search": search.play,
    "guided": guided.play,
    "live": live.play,
    "brokers": brokers.play,
    "clients": clients.play,
    "bench": bench.play,
    "checks": checks.play,
    "suites": checks.play_suites,
}
"""Each stage's function. It plays until the time that it is given, and returns its outcome and, if no play shows it,
why."""


def run(options: NightOptions, tell: Callable[[str], None]) -> int:
    """Play a night and return its exit code: 0 green, 1 red, 3 INVALID, 4 crashed. Raise NightRefusal."""
    folder, night = opened(options)
    try:
        rows = NightJournal(folder)
    except BusyError as busy:
        raise NightRefusal(str(busy)) from busy
    for night_folder in night_folders(options.nights):
        if night_folder != folder and is_left(night_folder):
            settle(night_folder)
    earlier = [kept_night for kept_night in kept_nights(options.nights) if kept_night.night.night != night.night]
    work = Work(folder, night, rows, earlier, tell)
    shutil.rmtree(work.scratch, ignore_errors=True)
    work.scratch.mkdir()
    work.write()
    tell(f"the night in {folder}, seed {night.seed}: {work.left_s / 60:.1f} min are left of its budget")
    try:
        _play(work, time.monotonic() + work.left_s)
    except BaseException:
        work.write()
        rows.write_tables(folder)
        rows.close(done=False)
        tell("stopped: ./crucible nightly --resume goes on with this night")
        raise
    return _end(work)


def _play(work: Work, until: float) -> None:
    """Play the stages that have not ended. Once all have, the search has what is left of the time."""
    worth_s = min(WORTH_S, WORTH_SHARE * work.night.budget_s)
    names = [stage.name for stage in work.night.stages]
    to_come = [stage.name for stage in work.night.stages if not stage.outcome]
    while to_come and (left_s := until - time.monotonic()) > worth_s:
        _play_stage(work, to_come[0], time.monotonic() + share_s(to_come[0], to_come, left_s))
        del to_come[0]
    if "search" in names and until - time.monotonic() > worth_s:
        _play_stage(work, "search", until)


def _play_stage(work: Work, name: str, until: float) -> None:
    planned_s = until - time.monotonic()
    work.tell(f"== {name}, {planned_s / 60:.1f} min")
    work.begin(name, planned_s)
    try:
        outcome, detail = STAGES[name](work, until)
        work.end(outcome.name, detail)
    except Skipped as why:
        work.end(SKIPPED, str(why))
        work.tell(f"{name} is omitted: {why}")
    except Exception as crash:
        frame = traceback.extract_tb(crash.__traceback__)[-1]
        work.end(Outcome.CRASHED.name, f"{type(crash).__name__}: {crash} ({Path(frame.filename).name}:{frame.lineno})")
        work.tell("".join(traceback.format_exception(crash)))
    work.journal.write_tables(work.folder)


def _end(work: Work) -> int:
    follow_up.note_the_rest(work)
    work.change(finished=True, ended_us=time.time_ns() // 1000, points=_points_of(work.folder))
    work.journal.write_tables(work.folder)
    work.journal.close(done=True)
    shutil.rmtree(work.scratch, ignore_errors=True)
    reasons = reasons_of(work)
    work.tell(f"{len(work.plays):,} plays, {len(work.failures)} failures, in {work.folder}")
    for reason in reasons:
        work.tell(f"  {reason.text}")
    work.tell("the night is green" if not reasons else "the night is red")
    return outcome_of(reasons).value


def _points_of(folder: Path) -> PointCounts | None:
    if not (folder / FILE).exists():
        return None
    tally = Tally()
    tally.add_from(folder)
    names = outcome_names()
    reached = sum(bool(tally.by_scenario.get(name)) for name in names)
    return PointCounts(outcomes=len(names), reached=reached, never=tuple(open_outcomes(tally)))


def reasons_of(work: Work) -> tuple[Reason, ...]:
    """Return the reasons why the night is red, none if it is green."""
    earlier = [each.plays for each in work.earlier if each.night.finished]
    drawn = sum(not play.is_replay for play in work.plays)
    return why_red(work.night, drawn, control_outcomes(work.plays), earlier)
