"""Searches with guidance (``chaos.search.guided``) over the swarms.

The corpus is kept in the night's folder. It begins as that of the newest earlier night, so what nights have reached is
reached again, and a schedule that turned red stays with them.
"""

import shutil
import time
from pathlib import Path

from campaigns.nights.night import Work
from chaos.checks.guarantee_selection import checked
from chaos.search.guided import CORPUS, GuidedSearch, PlayedSchedule, read_corpus, scheduled
from chaos.search.point_tally import Tally
from chaos.search.write_scenario import write_scenario
from reports.night import CorpusGrowth, night_folders
from reports.verdict import Outcome
from scenarios import loader
from scenarios.decision_points import outcome_names
from scenarios.loader import typed
from scenarios.model import Scenario
from scenarios.revisions import each_revision

FOLDER = "corpus"
"""Folder of the corpus, in the night's folder."""
MOST = 1_000_000
"""Largest number of schedules of one night."""
MAX_RED_SEEDS = 3
"""Number of red schedules after which the search ends, because further ones would most likely show the same."""


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Search until the time is over. Return the worst outcome, and the commands that repeat what was red."""
    corpus, again = read_corpus(_begun(work))
    scenarios = {typed(each): each for file in loader.load_all() if file.swarm for each in each_revision(checked(file))}
    search = GuidedSearch(list(scenarios.values()), work.night.seed, corpus, work.cores, again=again)
    before, kept, tally = corpus.reached, len(corpus.entries), Tally()
    reds, played = list[PlayedSchedule](), 0
    for schedule in search.play_schedules(MOST):
        played += 1
        tally.take(schedule.verdict)
        if schedule.verdict.outcome in (Outcome.FAILED, Outcome.CRASHED):
            reds.append(schedule)
            _keep(work, scenarios[schedule.recipe.scenario], schedule)
        left_s = until - time.monotonic()
        if left_s <= 0 or len(reds) >= MAX_RED_SEEDS:
            break
        work.beat(f"guided: {played:,} schedules, corpus {len(corpus.entries)}; {left_s / 60:.1f} min left")
    tally.append_to(work.folder)
    earlier = work.night.corpus  # of this night, if it was resumed
    growth = CorpusGrowth(
        schedules=played + (earlier.schedules if earlier else 0),
        entries_before=earlier.entries_before if earlier else kept,
        entries=len(corpus.entries),
        outcomes_before=earlier.outcomes_before if earlier else len(before),
        outcomes=len(corpus.reached),
    )
    work.change(corpus=growth)
    work.tell(
        f"guided: {played:,} schedules; {len(corpus.reached)} of {len(outcome_names())} outcomes reached, "
        f"{len(corpus.reached - before)} of them new; corpus {len(corpus.entries)}, {len(corpus.entries) - kept} new"
    )
    if not reds:
        return Outcome.PASSED, ""
    crashed = any(each.verdict.outcome is Outcome.CRASHED for each in reds)
    commands = "; ".join(each.verdict.repeat_command for each in reds)
    return Outcome.CRASHED if crashed else Outcome.FAILED, f"red with guidance: {commands}"


def _begun(work: Work) -> Path:
    """Return the folder of tonight's corpus. Begin it with that of the newest earlier night that has one."""
    folder = work.folder / FOLDER
    if folder.exists():
        return folder
    earlier = [
        night_folder for night_folder in night_folders(work.folder.parent) if night_folder.name < work.folder.name
    ]
    for night in reversed(earlier):
        if (night / FOLDER / CORPUS).exists():
            shutil.copytree(night / FOLDER, folder)
            break
    return folder


def _keep(work: Work, scenario: Scenario, red: PlayedSchedule) -> None:
    """Write a red schedule as a scenario, and print its violation."""
    verdict, recipe = red.verdict, red.recipe
    explanations = [f"{violation.guarantee}: {violation.explanation}" for violation in verdict.violations[:3]] or list(
        verdict.reasons
    )
    name = f"{scenario.name.replace('@', '-')}-guided-{recipe.seed}.toml"
    comment = "\n".join([*explanations, verdict.repeat_command])
    path = work.folder / "red" / name
    write_scenario(scheduled(scenario, recipe.seed, recipe.changes), path, comment)
    work.tell(f"{verdict.outcome.name}: {explanations[0]}; {verdict.repeat_command}; written to {path}")
