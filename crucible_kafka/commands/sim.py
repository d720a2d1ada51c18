"""``crucible sim``: scenarios in the simulator; ``differ``: two ways to play one script of clients there;
``power-losses``: parts of the broker over a simulated disk."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crucible_kafka.commands.ci_options import GITHUB, JUNIT
from crucible_kafka.commands.scenario_options import (
    ALL,
    MUTANT,
    REVISION,
    SCENARIOS,
    WITH_MUTANTS,
    check_mutant_options,
    find_scenarios,
    in_revisions,
)

if TYPE_CHECKING:
    from chaos.search.sim_command import SimOptions


def _numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    """Read what ``--changes`` names. Raise UsageError."""
    try:
        return tuple(int(number) for number in text.split(",") if number)
    except ValueError:
        raise click.UsageError(f"--changes is {text!r}; it must be numbers with commas between them") from None


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible sim 1 --seeds 1000"
    "\n  ./crucible sim 6 --seed 42"
    "\n  ./crucible sim 6 --seed 42 --at 1500 --show 0"
    "\n  ./crucible sim --all --seeds 200 --with-mutants"
    "\n  ./crucible sim swarm swarm-groups --guided --seeds 2000 --out guided"
    "\n  ./crucible sim --all --seconds 60"
)
@SCENARIOS
@ALL
@REVISION
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="How many seeds (default 100, with --mutant up to the first red one, or the one given with --seed).",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The first seed. Without --seeds only this one is played, and its trace hash printed.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Play one seed of each scenario after the other, then their next seeds, until one is red or this much "
    "processor time is over.",
)
@MUTANT
@WITH_MUTANTS
@click.option("--out", type=click.Path(path_type=Path), help="Folder for a single seed's run, which Spark can judge.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="How many seeds at once.")
@click.option("--profile", is_flag=True, help="Print where the time went, by part and by kind of event. Needs --seeds.")
@click.option(
    "--guided",
    is_flag=True,
    help="Change the schedules that reached something new instead of drawing each by itself. --seeds says how many are "
    "played, and --out is the folder that keeps them: the same folder goes on from there.",
)
@click.option("--near", metavar="FILE", default="", help="With --guided: first what reaches decisions of this file.")
@click.option(
    "--changes",
    metavar="N,...",
    default="",
    callback=_numbers,
    help="Play the seed with these changes of a guided search.",
)
@click.option("--at", "event", type=click.IntRange(1), help="With --show: play up to this event of all nodes.")
@click.option("--show", "node", type=click.IntRange(0), metavar="NODE", help="Print the state of this node at --at.")
@click.option(
    "--shrink/--no-shrink", "shrinks", help="Look for the smallest scenario with which a red seed fails (default: no)."
)
@JUNIT
@GITHUB
def sim(scenarios: Sequence[str], everything: bool, revision: str | None, **options: Any) -> None:
    """Play scenarios in the simulator: one process, virtual time. A seed always gives the same trace."""
    from chaos.search.sim_command import SimOptions, simulate

    # Options of the command are named after the fields of SimOptions, which describe them.
    sim_options = SimOptions(**options)
    _check_combination(sim_options)
    chosen = [revised for named in find_scenarios(scenarios, everything) for revised in in_revisions(named, revision)]
    if sim_options.event is not None and len(chosen) != 1:
        raise click.UsageError("--at is an event of a single scenario: name one, and its --revision")
    sys.exit(simulate(chosen, sim_options))


def _check_combination(options: "SimOptions") -> None:
    """Raise UsageError for options that do not go together."""
    check_mutant_options(options.mutant, options.with_mutants)
    is_search = options.guided or options.with_mutants
    of_many_seeds = options.with_mutants or not options.is_single
    beside_seconds = (
        options.seeds,
        options.guided,
        options.with_mutants,
        options.profile,
        options.changes,
        options.out,
    )
    complaints = (
        (
            options.changes and (is_search or not options.is_single),
            "--changes are of a single seed: give --seed, without --seeds, --guided or --with-mutants",
        ),
        (
            options.guided and (options.with_mutants or options.profile),
            "--guided is a search of its own: give no --with-mutants and no --profile",
        ),
        (
            options.near and not options.guided,
            "--near chooses from the folder of a guided search: give --guided and --out",
        ),
        (
            options.out is not None and not options.guided and of_many_seeds,
            "--out writes a single seed's run: give --seed, without --seeds or --with-mutants",
        ),
        (
            options.profile and (options.with_mutants or options.seeds in (None, 1)),
            "--profile measures a search: give --seeds, at least 2, and no --with-mutants",
        ),
        (
            options.seconds is not None and (any(beside_seconds) or options.event),
            "--seconds is a search of its own: beside it give only --seed, --mutant and --revision",
        ),
        (
            (options.event is None) != (options.node is None),
            "--at and --show belong together: the event, and the node whose state is printed after it",
        ),
        (
            options.event is not None and (is_search or not options.is_single or options.out is not None),
            "--at is an event of a single seed: give --seed, without --seeds, --guided or --out",
        ),
        (
            options.event is not None and options.junit is not None,
            "--at shows a node and has no results: leave --junit out",
        ),
    )
    for is_wrong, sentence in complaints:
        if is_wrong:
            raise click.UsageError(sentence)


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible power-losses"
    "\n  ./crucible power-losses log --deep"
    "\n  ./crucible power-losses log --point 40 --outcome torn"
    "\n  ./crucible power-losses --with-mutants"
)
@click.argument("kinds", nargs=-1, metavar="KIND...")
@click.option("--point", type=click.IntRange(0), help="Lose the power before this operation only.")
@click.option("--outcome", help="Try this outcome only: nothing, all, torn, drawn-1, ... (see the report).")
@click.option("--deep", is_flag=True, help="Lose the power before each operation of each resume, too. Takes minutes.")
@click.option("--mutant", help="Plant this defect. The kind must turn red (exit code 1).")
@WITH_MUTANTS
def power_losses(
    kinds: Sequence[str], point: int | None, outcome: str | None, deep: bool, mutant: str | None, with_mutants: bool
) -> None:
    """Lose the power before every disk operation of a short script, with each outcome that a disk allows, and compare
    what is resumed with a replay of its logs.

    A kind is the part of the broker that the script is about; without a name all are played. Each line has the number
    of operations, losses and resumes. A violation comes with its operation, what was lost, what differs, and the
    command that repeats it.
    """
    check_mutant_options(mutant, with_mutants)
    from chaos.search.power_losses import OUTCOMES, PowerLossOptions, power_losses_command

    if outcome is not None and outcome not in OUTCOMES:
        raise click.UsageError(f"there is no outcome {outcome!r}; there are: {', '.join(OUTCOMES)}")
    sys.exit(power_losses_command(PowerLossOptions(kinds, point, outcome, deep, mutant, with_mutants)))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible differ"
    "\n  ./crucible differ sessions tier --seeds 100"
    "\n  ./crucible differ slices --seed 42"
    "\n  ./crucible differ restarts --mutant offsets_not_loaded"
)
@click.argument("kinds", nargs=-1, metavar="KIND...")
@click.option("--seed", type=click.IntRange(0), help="The first seed. Without --seeds only this one is played.")
@click.option("--seeds", type=click.IntRange(1), help="How many seeds (default 20, or the one given with --seed).")
@click.option("--mutant", help="Plant this defect. The kind must turn red (exit code 1).")
@WITH_MUTANTS
def differ(kinds: Sequence[str], seed: int | None, seeds: int | None, mutant: str | None, with_mutants: bool) -> None:
    """Play one script of clients' operations in two ways that must look the same to clients: in slices of one item and
    in whole slices (slices), with fetch sessions and full fetches (sessions), on three nodes and one (nodes), with
    restarts and without (restarts), with snapshots and with a replay of the logs (metadata, producers), and with and
    without remote storage (tier).

    No fault is drawn, and each operation waits for the one before it. The first response that differs is printed with
    its operation, both responses, and the command that repeats it.
    """
    check_mutant_options(mutant, with_mutants)
    from chaos.search.differ import SEEDS, DifferOptions, differ_command

    count = seeds or (SEEDS if seed is None else 1)
    sys.exit(differ_command(DifferOptions(kinds, 1 if seed is None else seed, count, mutant, with_mutants)))
