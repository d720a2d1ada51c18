"""``crucible sim``: scenarios in the simulator."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

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


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible sim 1 --seeds 1000"
    "\n  ./crucible sim 6 --seed 42"
    "\n  ./crucible sim --all --seeds 200 --with-mutants"
)
@SCENARIOS
@ALL
@REVISION
@click.option("--seeds", type=click.IntRange(1), help="How many seeds (default 100, or the one given with --seed).")
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The first seed. Without --seeds only this one is played, and its trace hash printed.",
)
@MUTANT
@WITH_MUTANTS
@click.option("--out", type=click.Path(path_type=Path), help="Folder for a single seed's run, which Spark can judge.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="How many seeds at once.")
@click.option("--profile", is_flag=True, help="Print where the time went, by part and by kind of event. Needs --seeds.")
@click.option("--no-shrink", is_flag=True, help="Do not look for the smallest scenario with which a red seed fails.")
def sim(
    scenarios: Sequence[str],
    everything: bool,
    revision: str | None,
    seeds: int | None,
    seed: int | None,
    mutant: str | None,
    with_mutants: bool,
    out: Path | None,
    processes: int,
    profile: bool,
    no_shrink: bool,
) -> None:
    """Play scenarios in the simulator: one process, virtual time. A seed always gives the same trace."""
    check_mutant_options(mutant, with_mutants)
    if out is not None and (with_mutants or seed is None or seeds not in (None, 1)):
        raise click.UsageError("--out writes a single seed's run: give --seed, without --seeds or --with-mutants")
    if profile and (with_mutants or seeds in (None, 1)):
        raise click.UsageError("--profile measures a search: give --seeds, at least 2, and no --with-mutants")
    from chaos.search.sim_command import simulate

    found = [each for named in find_scenarios(scenarios, everything) for each in in_revisions(named, revision)]
    sys.exit(simulate(found, seeds, seed, mutant, processes, out, with_mutants, profile, not no_shrink))
