"""``crucible demo``, ``run`` and ``fleet``: scenarios with real processes."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from crucible_kafka import shell_completion
from crucible_kafka.commands.ci_options import GITHUB, JUNIT
from crucible_kafka.commands.reports import OPEN
from crucible_kafka.commands.scenario_options import (
    ALL,
    MUTANT,
    REVISION,
    SCENARIOS,
    WITH_MUTANTS,
    check_mutant_options,
    find_scenarios,
)
from crucible_kafka.terminal import need_java, one_sentence, progress
from crucible_kafka.verdicts import open_worst, report_and_print, report_to_ci, worst

_WATCH = click.option("--watch", is_flag=True, help="Judge it while it goes on, too, as `judge --watch` does.")


@click.command(epilog="\b\nExamples:\n  ./crucible demo --open\n  ./crucible demo --out runs/mine --seed 7")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (default: runs/demo-...).")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the run.")
@OPEN
def demo(out: Path | None, seed: int, opened: bool) -> None:
    """Show the main job in small: a cluster, a fleet through Toxiproxy, faults, Spark, a report."""
    from crucible_kafka.live_plays import live_plays
    from crucible_kafka.live_run import play_scenarios

    verdicts = play_scenarios(
        live_plays(find_scenarios(["demo"], False), None, "", "reference", False), "reference", out, seed
    )
    if opened:
        open_worst(verdicts)
    sys.exit(worst(verdicts))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible run 1 2"
    "\n  ./crucible run 27 --mutant counted_session_ids"
    "\n  ./crucible run plain-load --target HOST:PORT"
    "\n  ./crucible run kill-under-load --target kafka"
)
@SCENARIOS
@ALL
@REVISION
@click.option(
    "--target",
    default="reference",
    show_default=True,
    metavar="TARGET",
    help="What is played against.",
    shell_complete=shell_completion.targets,
)
@MUTANT
@WITH_MUTANTS
@click.option("--leader-epochs", is_flag=True, help="Groups and the mirror send leader epochs (KIP-320).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (or for all runs).")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
@_WATCH
@OPEN
@JUNIT
@GITHUB
def run(
    scenarios: Sequence[str],
    everything: bool,
    revision: str | None,
    target: str,
    mutant: str | None,
    with_mutants: bool,
    leader_epochs: bool,
    out: Path | None,
    seed: int,
    watch: bool,
    opened: bool,
    junit: Path | None,
    annotates: bool,
) -> None:
    """Play scenarios with real processes (Locust, Toxiproxy, signals). Then Spark judges.

    SCENARIO is a file, its stem, or the scenario's number. A TARGET is the reference broker, one that is started here
    (kafka, kafka@4.3.1, kafka/1, reference.toml, your FILE.toml: see bench/targets), or HOST:PORT.
    """
    from chaos.live.errors import SetupError
    from crucible_kafka.live_plays import exit_code_with_mutants, live_plays
    from crucible_kafka.live_run import play_scenarios
    from scenarios.derived import with_leader_epochs

    check_mutant_options(mutant, with_mutants)
    planted = None if with_mutants else mutant or ""
    chosen = find_scenarios(scenarios, everything)
    if leader_epochs:
        chosen = [with_leader_epochs(scenario) for scenario in chosen]
    with one_sentence(SetupError):
        plays = live_plays(chosen, revision, planted, target, everything)
    verdicts = play_scenarios(plays, target, out, seed, watch)
    if opened:
        open_worst(verdicts)
    report_to_ci(verdicts, with_mutants, junit, annotates)
    sys.exit(exit_code_with_mutants(plays, verdicts) if with_mutants else worst(verdicts))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible fleet plain-load --web"
    "\n  ./crucible fleet plain-load --clients 1000 --workers 3 --shape step"
    "\n  ./crucible fleet plain-load --seconds 7200 --watch"
)
@click.argument("scenario", default="plain-load")
@click.option(
    "--target", default="reference", show_default=True, metavar="TARGET", help="What is played against, as for run."
)
@click.option("--web", is_flag=True, help="Locust's web page starts and stops the load, until Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), default=8089, show_default=True, help="The page's port.")
@click.option("--clients", type=click.IntRange(1), help="How many fetchers (default: the scenario's).")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Locust's processes.")
@click.option("--seconds", type=click.IntRange(1), help="How long (default: the scenario's).")
@click.option(
    "--shape", type=click.Choice(["step", "spike", "soak"]), help="How clients join the load (default: all at once)."
)
@click.option(
    "--revision",
    type=click.Choice(["final", "first", "none"]),
    default="final",
    show_default=True,
    help="The fetch sessions of the fetchers, or none.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (default: in runs/).")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
@_WATCH
def fleet(
    scenario: str,
    target: str,
    web: bool,
    port: int,
    clients: int | None,
    workers: int,
    seconds: int | None,
    shape: str | None,
    revision: str,
    out: Path | None,
    seed: int,
    watch: bool,
) -> None:
    """Run a scenario's load alone, without its faults, straight to the brokers. It is judged at its end.

    The run is INVALID if the fleet, and not the broker, was what limited it.
    """
    from crucible_kafka.live_run import watched
    from crucible_kafka.run_folder import command_line, run_folder

    need_java()
    from chaos.live.errors import NodeDied, SetupError
    from chaos.live.load_alone import LoadAlonePlan, drive
    from scenarios.revisions import in_revision

    (unrevised,) = find_scenarios([scenario], False)
    revised = in_revision(unrevised, revision)
    plan = LoadAlonePlan(
        run_folder(out, f"fleet-{revised.name}", False),
        target,
        seed,
        seconds or 0,
        clients or 0,
        workers,
        shape or "",
        port if web else 0,
    )
    with one_sentence(SetupError, NodeDied), watched(plan.out, watch):
        folder = drive(revised, plan, command_line(), progress)
    sys.exit(worst(report_and_print([folder.path])))
