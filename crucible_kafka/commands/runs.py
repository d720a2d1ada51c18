"""``crucible demo``, ``run``, ``sim``, ``compare`` and ``fleet``: the commands that play scenarios."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from crucible_kafka import shell_completion
from crucible_kafka.commands.reports import OPEN


@click.command(epilog="\b\nExamples:\n  ./crucible demo --open\n  ./crucible demo --out runs/mine --seed 7")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (default: runs/demo-...).")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the run.")
@OPEN
def demo(out: Path | None, seed: int, opened: bool) -> None:
    """Shows the main job in small: a cluster, a fleet through Toxiproxy, faults, Spark, a report."""
    from crucible_kafka.live_run import find_scenarios, open_worst, play_live, worst

    verdicts = play_live([(each, "") for each in find_scenarios(["demo"], False)], "reference", out, seed)
    if opened:
        open_worst(verdicts)
    sys.exit(worst(verdicts))


_WATCH = click.option("--watch", is_flag=True, help="Judge it while it goes on, too, as `judge --watch` does.")
_SCENARIOS = click.argument("scenarios", nargs=-1, metavar="SCENARIO...", shell_complete=shell_completion.scenarios)
_ALL = click.option("--all", "everything", is_flag=True, help="Every scenario.")
_REVISION = click.option(
    "--revision",
    type=click.Choice(["final", "first"]),
    help="Revision of fetch sessions (default: each of a scenario's).",
)
_MUTANT = click.option(
    "--mutant",
    help="Plant this defect. The scenario must turn red (exit code 1).",
    shell_complete=shell_completion.mutants,
)
_WITH_MUTANTS = click.option(
    "--with-mutants",
    is_flag=True,
    help="Play each scenario without a mutant and with each of its own; exit code 0 if all ends as it must.",
)


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible run 1 2"
    "\n  ./crucible run 27 --mutant counted_session_ids"
    "\n  ./crucible run plain-load --target HOST:PORT"
    "\n  ./crucible run kill-under-load --target kafka"
)
@_SCENARIOS
@_ALL
@_REVISION
@click.option(
    "--target",
    default="reference",
    show_default=True,
    metavar="TARGET",
    help="What is played against.",
    shell_complete=shell_completion.targets,
)
@_MUTANT
@_WITH_MUTANTS
@click.option("--leader-epochs", is_flag=True, help="Groups and the mirror send leader epochs (KIP-320).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (or for all runs).")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
@_WATCH
@OPEN
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
) -> None:
    """Plays scenarios with real processes (Locust, Toxiproxy, signals). Then Spark judges.

    SCENARIO is a file, its stem, or the scenario's number. A TARGET is the reference broker, one that is started here
    (kafka, kafka@4.3.1, kafka/1, reference.toml, your FILE.toml: see bench/targets), or HOST:PORT.
    """
    from crucible_kafka.live_run import exit_code_with_mutants, find_scenarios, live_plays, open_worst, play_live, worst
    from scenarios.epochs import with_leader_epochs

    _one_of(mutant, with_mutants)
    planted = None if with_mutants else mutant or ""
    found = find_scenarios(scenarios, everything)
    found = [with_leader_epochs(each) for each in found] if leader_epochs else found
    plays = live_plays(found, revision, planted, target, everything)
    verdicts = play_live(plays, target, out, seed, watch)
    if opened:
        open_worst(verdicts)
    sys.exit(exit_code_with_mutants(plays, verdicts) if with_mutants else worst(verdicts))


def _one_of(mutant: str | None, with_mutants: bool) -> None:
    if mutant and with_mutants:
        raise click.UsageError("give --mutant or --with-mutants, not both")


class _TwoSets(click.Command):
    """All words after ``--with``, up to the next option, are its values, so that shells may expand patterns there."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        among = False
        for word in args:
            if word.startswith("-"):
                among = word.partition("=")[0] == "--with"
                spread += [] if word == "--with" else [word]
            else:
                spread += ["--with", word] if among else [word]
        return super().parse_args(ctx, spread)


@click.command(
    cls=_TwoSets,
    epilog="\b\nExamples:"
    "\n  ./crucible compare fetch-revisions"
    "\n  ./crucible compare mirror --seed 7 --out runs/compared"
    "\n  ./crucible compare runs/before-* --with runs/after-*"
    "\n  ./crucible compare RUN_DIR --with OTHER_RUN_DIR --out compared",
)
@click.argument(
    "named", nargs=-1, required=True, metavar="SCENARIO | RUN_DIR...", shell_complete=shell_completion.scenarios
)
@click.option(
    "--with",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN_DIR...",
    shell_complete=shell_completion.run_folders,
    help="The second set of runs.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the runs and the page (default: in runs/).")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Decides every random choice of a played scenario."
)
def compare(named: Sequence[str], others: Sequence[Path], out: Path | None, seed: int) -> None:
    """Compares two sets of runs, or plays a scenario in its variants and lays the runs side by side.

    With --with: says of each percentile of latency and of each rate whether the second set is better, worse, or no
    difference is shown, with the confidence of runs drawn again and again. A RUN_DIR is a run, or a folder of runs. At
    least three runs on each side, better five or more, show how far runs of the same thing differ.

    With a SCENARIO: plays it in both revisions of fetch sessions and with full fetches, one after the other, with real
    processes and the same load, faults and seed. A scenario with a mirror is played with metadata epochs and without
    them instead.
    """
    from crucible_kafka.live_run import compare_runs, play_compared

    runs = [each for each in named if (Path(each) / "manifest.json").is_file()]
    if others:
        compare_runs([Path(each) for each in named], others, out)
    elif runs or len(named) > 1:
        raise click.UsageError("say which runs to compare with: ./crucible compare RUN_DIR... --with RUN_DIR...")
    else:
        sys.exit(play_compared(named[0], out, seed))


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
    """Runs a scenario's load alone, without its faults, straight to the brokers. It is judged at its end.

    The run is INVALID if the fleet, and not the broker, was what limited it.
    """
    from crucible_kafka.live_run import command_line, find_scenarios, judge, run_folder, watched, worst
    from crucible_kafka.terminal import need_java, one_sentence, progress

    need_java()
    from chaos.live.errors import NodeDied, SetupError
    from chaos.live.load_alone import LoadPlan, drive
    from scenarios.revisions import in_revision

    (found,) = find_scenarios([scenario], False)
    spoken = in_revision(found, revision)
    plan = LoadPlan(
        run_folder(out, f"fleet-{spoken.name}", False),
        target,
        seed,
        seconds or 0,
        clients or 0,
        workers,
        shape or "",
        port if web else 0,
    )
    with one_sentence(SetupError, NodeDied), watched(plan.out, watch):
        folder = drive(spoken, plan, command_line(), progress)
    sys.exit(worst(judge([folder.path])))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible sim 1 --seeds 1000"
    "\n  ./crucible sim 6 --seed 42"
    "\n  ./crucible sim --all --seeds 200 --with-mutants"
)
@_SCENARIOS
@_ALL
@_REVISION
@click.option("--seeds", type=click.IntRange(1), help="How many seeds (default 100, or the one given with --seed).")
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The first seed. Without --seeds only this one is played, and its trace hash printed.",
)
@_MUTANT
@_WITH_MUTANTS
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
    """Plays scenarios in the simulator: one process, virtual time. A seed always gives the same trace."""
    _one_of(mutant, with_mutants)
    if out is not None and (with_mutants or seed is None or seeds not in (None, 1)):
        raise click.UsageError("--out writes a single seed's run: give --seed, without --seeds or --with-mutants")
    if profile and (with_mutants or seeds in (None, 1)):
        raise click.UsageError("--profile measures a search: give --seeds, at least 2, and no --with-mutants")
    from chaos.search.sim_command import simulate
    from crucible_kafka.live_run import find_scenarios
    from scenarios.revisions import marked, revision_of

    names = [marked(each.path, revision_of(each)) for each in find_scenarios(scenarios, everything)]
    sys.exit(simulate(names, seeds, seed, mutant, processes, out, with_mutants, revision or "", profile, not no_shrink))
