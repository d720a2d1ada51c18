"""``crucible clauses`` and ``crucible points``. They import what they need only when they run."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from crucible_kafka.commands.scenario_options import SCENARIOS, find_scenarios, in_revisions

NIGHTS_FOLDER = click.option(
    "--nights", type=click.Path(path_type=Path), help="Folder of the nights (default: nights)."
)


@click.command(epilog="\b\nExamples:\n  ./crucible clauses\n  ./crucible clauses --tests")
@click.option("--tests", "show_tests", is_flag=True, help="Show the name of every test, too.")
@NIGHTS_FOLDER
def clauses(show_tests: bool, nights: Path | None) -> None:
    """List the clauses, one line each: status, the code that names it, how many tests prove it, its decision points,
    the scenarios that exercise it, the mutants that lack it. A clause is proven if one of its mutants was killed in the
    last 30 days and 300 commits of the room that it breaks; ``crucible mutants`` has the plays. It is exercised by
    scenarios that must reach one of its points; only where it has none, the scenarios that name it count. The newest
    night says how many outcomes of its points were reached. Then lists the behaviours that Kafka's own tests assert:
    status, and how many of our tests show it.

    Exits with 1 if a clause has no test or no mutant, and is not listed as open, or has no point and no reason."""
    from campaigns.nights.night import NIGHTS
    from chaos.search.point_tally import newest_tally
    from scenarios.clauses import all_clauses
    from scenarios.conformance import all_behaviours

    every_clause = all_clauses()
    tally, night = newest_tally(nights or NIGHTS)
    for clause in every_clause:
        proof = f"{_tests(len(clause.tests))} ({len(clause.own_tests)} of the broker)" if clause.tests else "no test"
        used = f" | no point: {clause.pointless}" if clause.pointless else ""
        if clause.points:
            used = f" | {len(clause.points)} points"
            used += (
                f", {tally.outcomes_of(clause.points)} of {2 * len(clause.points)} outcomes reached" if night else ""
            )
        used += f" | exercised by {', '.join(clause.exercised_by) or 'no scenario'}"
        lacking = f" | open: {clause.open}" if clause.open else f" | mutants {', '.join(clause.mutants) or 'none'}"
        code = ", ".join(clause.code) or "no code"
        click.echo(f"{clause.id:5} {clause.status:10} {clause.text} | {code} | {proof}{used}{lacking}")
        _list_tests(clause.tests, show_tests)
    for behaviour in all_behaviours():
        proof = "" if behaviour.unlike else f" | {_tests(len(behaviour.tests))}"
        click.echo(f"{behaviour.id} {behaviour.status}: {behaviour.text}{proof}")
        _list_tests(behaviour.tests, show_tests)
    faults = [clause.fault for clause in every_clause if clause.fault]
    for fault in faults:
        click.echo(f"crucible: {fault}", err=True)
    sys.exit(1 if faults else 0)


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible points --never"
    "\n  ./crucible points --play 20 swarm-groups 39"
    "\n  ./crucible points --clause F-14"
)
@SCENARIOS
@click.option(
    "--play", "seeds", type=click.IntRange(1), help="Number of seeds of the scenarios (default: all) to play now."
)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="How many seeds at once.")
@click.option("--never", is_flag=True, help="Only outcomes that nothing reached; those with a reason come last.")
@click.option("--clause", default="", help="Only the points of this clause.")
@NIGHTS_FOLDER
def points(
    scenarios: Sequence[str], seeds: int | None, processes: int, never: bool, clause: str, nights: Path | None
) -> None:
    """List the decision points of the broker, one line for each outcome: its clauses, how often it was reached, by
    which scenarios, and where it is declared. The counts are those of the newest night or, with --play, of seeds played
    now."""
    if scenarios and seeds is None:
        raise click.UsageError("scenarios are played: give --play and how many seeds of each")
    from campaigns.nights.night import NIGHTS
    from chaos.search.point_tally import Tally, listing, newest_tally, played_tally

    tally = Tally()
    if seeds is None:
        tally, night = newest_tally(nights or NIGHTS)
        click.echo(
            f"counts of the night {night}" if night else "no night has counts; --play N plays N seeds of all now"
        )
    else:
        scenarios_found = [
            scenario for named in find_scenarios(scenarios, not scenarios) for scenario in in_revisions(named, None)
        ]
        for place, (name, so_far) in enumerate(played_tally(scenarios_found, range(1, seeds + 1), processes), 1):
            tally = so_far
            reached = len(tally.by_scenario)
            click.echo(
                f"{place} of {len(scenarios_found)} scenarios, {reached} outcomes reached; played {name}", err=True
            )
    for line in listing(tally, only_never=never, clause=clause):
        click.echo(line)


def _tests(count: int) -> str:
    return f"{count} test{'s' * (count != 1)}"


def _list_tests(tests: tuple[str, ...], shown: bool) -> None:
    for test in tests if shown else ():
        click.echo(f"        {test}")
