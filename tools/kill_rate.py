"""Measure how many mutants the simulator kills, and how fast: guided by a corpus against random seeds.

    .venv/bin/python -m tools.kill_rate --corpus guided --seconds 60 --out kills.jsonl
    .venv/bin/python -m tools.kill_rate --random --seconds 60 --subject groups

Each mutant gets so many seconds of processor time. First come the kinds of ``crucible power-losses`` whose scripts call
what the mutant replaces, with a few outcomes. Then ``--random`` plays seeds 1, 2, ... of the scenarios that name one of
its clauses, and of the swarms, in turn. Otherwise the recipes of the corpus that reach decision points of the mutated
file come first, those that reach most per event before the others, and then changes of them. Each result is a line of
the file as soon as it is known; mutants that have a line are not played again.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.machine import commit
from chaos.mutants.mutant import Mutant, MutantError, applied
from chaos.mutants.registry import all_mutants, by_name, second_unplanned_mutants, unplanned_mutants
from chaos.search.children import ChildDiedError, in_children
from chaos.search.guided import Corpus, Recipe, read_corpus, recipes_near, scheduled
from chaos.search.many_seeds import quickly
from chaos.search.power_losses import KILLED, KINDS, NOTHING, LossResult, kind_of, search_violation
from chaos.sim.decision_counts import watch
from chaos.sim.one_seed import play_seed
from chaos.sim.verdict import SimVerdict
from scenarios import loader
from scenarios.model import Scenario
from scenarios.revisions import each_revision

LEFT_OUT = ("ten-thousand-partitions",)
"""Scenarios of which one seed takes longer than a mutant has."""
OUTCOMES_TRIED = (KILLED, NOTHING, "names", "torn")
"""outcomes of power losses that are played at each operation"""
LOSSES_SHARE = 1 / 6
"""share of a mutant's time after which no further kind of power losses begins"""
CHANGES_OF_NEAR = 40
"""number of recipes of the corpus that are changed once all near ones were played"""


def random_plays(mutant: Mutant, scenarios: Sequence[Scenario]) -> Iterator[Recipe]:
    """Yield seeds of the scenarios that concern the mutant's clauses, and of the swarms, in turn."""
    concerned = [
        scenario for scenario in scenarios if scenario.swarm is not None or set(scenario.clauses) & set(mutant.clauses)
    ]
    seed = 0
    while True:
        seed += 1
        yield from (Recipe(loader.typed(scenario), seed) for scenario in concerned)


def guided_plays(mutant: Mutant, corpus: Corpus, scenarios: Sequence[Scenario]) -> Iterator[Recipe]:
    """Yield the recipes that reach the mutated file, then changes of them for ever."""
    path = mutant.target.partition(":")[0].replace(".", "/") + ".py"
    near = recipes_near(corpus, path)
    yield from near
    draw = random.Random(mutant.name)
    while near:
        recipe = draw.choice(near[:CHANGES_OF_NEAR])
        yield replace(recipe, changes=(*recipe.changes[-10:], draw.randrange(2**31)))
    yield from random_plays(mutant, scenarios)


def lost_power(mutant: Mutant) -> Iterator[tuple[str, LossResult]]:
    """Yield the kinds of power losses whose script, or the resume at its end, calls the mutant, each with what it
    found."""
    for name in KINDS:
        with applied(mutant) as in_place:
            points = search_violation(kind_of(name), (), -1).points
            last = search_violation(kind_of(name), (NOTHING,), points - 1)
            assert in_place is not None
            if last.violation is not None:
                yield name, last
            elif in_place.calls:
                yield name, search_violation(kind_of(name), OUTCOMES_TRIED)


def tried(corpus: Corpus | None, scenarios: Sequence[Scenario], seconds: float, name: str) -> dict[str, Any]:
    """Play the mutant until it is killed or its processor time is over. Return a row of the result."""
    mutant = by_name(name)
    known = {loader.typed(each): each for each in scenarios}
    plays = random_plays(mutant, scenarios) if corpus is None else guided_plays(mutant, corpus, scenarios)
    began, played, called, outcomes = time.process_time(), 0, 0, Counter[str]()
    row: dict[str, Any] = {"mutant": name, "file": mutant.target.partition(":")[0], "killed": ""}
    for kind, found in lost_power(mutant):
        played, called = played + 1, called + 1
        outcomes["PASSED" if found.violation is None else "FAILED"] += 1
        if found.violation is not None:
            command = replace(found.violation, mutant=name).command
            row |= {"killed": f"power-losses {kind}", "story": found.violation.explanation, "command": command}
            plays = iter(())
            break
        if time.process_time() - began >= seconds * LOSSES_SHARE:
            break
    for recipe in plays:
        if time.process_time() - began >= seconds:
            break
        if recipe.scenario not in known:
            continue
        with quickly():
            scenario = scheduled(known[recipe.scenario], recipe.seed, recipe.changes)
            verdict = play_seed(scenario, recipe.seed, name).verdict
        played += 1
        called += verdict.mutant_calls > 0
        outcomes[verdict.outcome.name] += 1
        if verdict.red:
            row |= _kill(verdict, recipe)
            break
    spent = round(time.process_time() - began, 1)
    return {**row, "seconds": spent, "plays": played, "called": called, "outcomes": dict(outcomes)}


def _kill(verdict: SimVerdict, recipe: Recipe) -> dict[str, str]:
    killed = verdict.broken[0] if verdict.broken else verdict.outcome.name
    explanation = verdict.violations[0].explanation if verdict.violations else verdict.reasons[0]
    command = replace(verdict, changes=recipe.changes).repeat_command
    return {"killed": killed, "story": explanation, "command": command}


def report(rows: Sequence[dict[str, Any]], seconds: float) -> str:
    """Return the kill rate in all and by file, and the mutants that lived."""
    lines = []
    for file in sorted({row["file"] for row in rows}):
        of_file = [row for row in rows if row["file"] == file]
        lines.append(f"  {file:50} {sum(bool(row['killed']) for row in of_file)} of {len(of_file)}")
    killed = [row for row in rows if row["killed"]]
    lived = [row["mutant"] + (" (never called)" if not row["called"] else "") for row in rows if not row["killed"]]
    times = sorted(row["seconds"] for row in killed)
    median = times[len(times) // 2] if times else 0.0
    lines.append(f"lived: {', '.join(lived) or 'none'}")
    lines.append(
        f"{len(killed)} of {len(rows)} mutants killed within {seconds:g} s of processor time each "
        f"({100 * len(killed) / max(len(rows), 1):.0f} %), half of them within {median:g} s"
    )
    return "\n".join(lines)


def chosen_mutants(names: str, unplanned: bool, second_set: bool) -> tuple[Mutant, ...]:
    """Return the named mutants, or else all of a set. Raise MutantError for an unknown name."""
    if names:
        return tuple(by_name(each) for each in names.split(","))
    if second_set:
        return second_unplanned_mutants()
    return unplanned_mutants() if unplanned else all_mutants()


@click.command()
@click.option("--corpus", "folder", type=click.Path(path_type=Path), help="Folder of a guided search.")
@click.option("--random", "at_random", is_flag=True, help="Play seeds without a corpus.")
@click.option("--unplanned", is_flag=True, help="The mutants that no scenario names, of both sets.")
@click.option("--second-set", is_flag=True, help="The second set of the mutants that no scenario names.")
@click.option("--seconds", default=60.0, show_default=True, help="Processor time for each mutant.")
@click.option("--subject", default="", help="Only mutants whose name or target contains this.")
@click.option("--mutants", "names", default="", help="Only these mutants, with commas between them.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("kills.jsonl"), show_default=True)
def main(
    folder: Path | None,
    at_random: bool,
    unplanned: bool,
    second_set: bool,
    seconds: float,
    subject: str,
    names: str,
    processes: int,
    out: Path,
) -> None:
    """Play mutants, each until it is killed or its time is over, and print the kill rate."""
    if at_random == (folder is not None):
        raise click.UsageError("give either --corpus or --random")
    try:
        mutants = chosen_mutants(names, unplanned, second_set)
    except MutantError as error:
        raise click.UsageError(str(error)) from error
    wanted = [mutant.name for mutant in mutants if subject in mutant.name or subject in mutant.target]
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {each["mutant"] for each in rows}
    scenarios = [one for each in loader.load_all() if each.name not in LEFT_OUT for one in each_revision(each)]
    corpus = None if folder is None else read_corpus(folder)[0]
    watch()
    tree = commit()
    todo = [each for each in wanted if each not in done]
    try:
        for place, row in enumerate(in_children(partial(tried, corpus, scenarios, seconds), todo, processes), 1):
            if (now := commit()) != tree:
                # Children import what they have not imported yet, and two versions side by side crash: no kill.
                raise click.ClickException(f"the tree has changed from {tree} to {now}: measure in a clone of its own")
            rows.append(row)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(f"{place} of {len(todo)}: {row['mutant']}: {row['killed'] or 'lived'}, {row['seconds']} s")
    except ChildDiedError as error:
        raise click.ClickException(str(error)) from error
    click.echo(report([each for each in rows if each["mutant"] in wanted], seconds))


if __name__ == "__main__":
    main()
