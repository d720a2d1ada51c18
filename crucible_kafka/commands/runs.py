"""The commands that need several rooms at once: they play scenarios, and judge them.

Each imports what it needs only when it runs, as all commands do.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from crucible_kafka import shell_completion

_OPEN = click.option("--open", "opened", is_flag=True, help="Open the page in the browser at the end.")


@click.command(epilog="\b\nExamples:\n  ./crucible demo --open\n  ./crucible demo --out runs/mine --seed 7")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (default: runs/demo-...).")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the run.")
@_OPEN
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
@_OPEN
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
    from crucible_kafka.live_run import as_they_must, find_scenarios, live_plays, open_worst, play_live, worst
    from scenarios.epochs import with_leader_epochs

    _one_of(mutant, with_mutants)
    planted = None if with_mutants else mutant or ""
    found = find_scenarios(scenarios, everything)
    found = [with_leader_epochs(each) for each in found] if leader_epochs else found
    plays = live_plays(found, revision, planted, target, everything)
    verdicts = play_live(plays, target, out, seed, watch)
    if opened:
        open_worst(verdicts)
    sys.exit(as_they_must(plays, verdicts) if with_mutants else worst(verdicts))


def _one_of(mutant: str | None, with_mutants: bool) -> None:
    if mutant and with_mutants:
        raise click.UsageError("give --mutant or --with-mutants, not both")


@click.command(
    epilog="\b\nExamples:"
    "\n  source <(./crucible completion bash)"
    "\n  ./crucible completion zsh > ~/.zfunc/_crucible"
    "\n  ./crucible completion fish > ~/.config/fish/completions/crucible.fish",
)
@click.argument("shell", type=click.Choice(shell_completion.SHELLS))
def completion(shell: str) -> None:
    """Prints a script with which your shell completes commands, scenarios, mutants, targets and runs."""
    click.echo(shell_completion.script(click.get_current_context().find_root().command, shell), nl=False)


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
    least three runs on each side, better five or more, tell how far runs of the same thing differ.

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
    help="The first seed. Without --seeds only this one is played, and its trace hash told.",
)
@_MUTANT
@_WITH_MUTANTS
@click.option("--out", type=click.Path(path_type=Path), help="Folder for a single seed's run, which Spark can judge.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="How many seeds at once.")
@click.option("--profile", is_flag=True, help="Tell where the time went, by part and by kind of event. Needs --seeds.")
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


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible report runs/demo-20260101-120000"
    "\n  ./crucible report RUN_DIR --baseline OTHER_RUN_DIR"
    "\n  ./crucible report s3://BUCKET/RUN"
)
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...", shell_complete=shell_completion.run_folders)
@click.option("--out", type=click.Path(path_type=Path), help="Where the report goes (default: RUN_DIR/report).")
@click.option("--baseline", help="A run to compare with.")
@_OPEN
def report(run_dirs: Sequence[str], out: Path | None, baseline: str | None, opened: bool) -> None:
    """Lets Spark judge and draw runs, also old ones again.

    A run may lie in S3 (s3://BUCKET/RUN), and its report is written there, or into runs if S3 refuses it. The AWS_*
    variables supply the credentials, and AWS_ENDPOINT_URL names another server.
    """
    from crucible_kafka.live_run import ROOT, judge, open_worst, worst
    from crucible_kafka.terminal import need_java, one_sentence
    from reports import s3
    from reports.errors import SetupError

    need_java()
    places, rejected = [*run_dirs, *([baseline] if baseline else [])], dict[str, s3.RejectedReport]()

    def kept(one: s3.RejectedReport) -> None:
        rejected[one.place] = one

    with one_sentence(SetupError), s3.local_folders(places, kept_in=ROOT / "runs", on_rejected=kept) as folders:
        away = [folder for place, folder in zip(places, folders, strict=True) if s3.is_remote(place) and out is None]
        verdicts = judge(folders[: len(run_dirs)], out, folders[-1] if baseline else None, away=away)
        if opened:
            open_worst(verdicts)
    for each in run_dirs if out is None else ():
        if each in rejected:
            click.echo(f"crucible: {rejected[each].sentence}", err=True)
        elif s3.is_remote(each):
            click.echo(f"  report in S3: {each.rstrip('/')}/report/index.html")
    sys.exit(worst(verdicts))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible export --elle runs/48-consume-transform-produce-20260101-120000"
    "\n  ./crucible export --elle RUN_DIR --whole-transactions --out history.edn"
)
@click.argument(
    "run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR", shell_complete=shell_completion.run_folders
)
@click.option("--elle", "for_elle", is_flag=True, required=True, help="As a list-append history in EDN.")
@click.option("--whole-transactions", "whole", is_flag=True, help="Each transaction as one operation.")
@click.option("--out", type=click.Path(path_type=Path), help="The file (default: RUN_DIR/elle.edn).")
def export(run_dir: Path, for_elle: bool, whole: bool, out: Path | None) -> None:  # noqa: ARG001
    """Writes a run's history for another checker: for Elle, which looks for cycles of dependencies.

    Each partition is a list to which records are appended, each record of a transaction by an operation of its own.
    Whole transactions form legal cycles, because Kafka isolates readers and not writers. Let Elle look for G1a, G0 and
    G1c, and their variants with processes and time. Kafka promises nothing beyond.
    """
    from crucible_kafka.terminal import one_sentence, shown
    from reports.elle import exported
    from reports.errors import SetupError

    target = out or run_dir / "elle.edn"
    with one_sentence(SetupError, OSError):
        history = exported(run_dir, whole)
        with target.open("w", encoding="utf-8") as file:
            count = history.write(file)
    click.echo(f"{count:,} operations on {len(history.keys)} lists: {shown(target)}")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible index"
    "\n  ./crucible index --nights kept/nights --out site"
    "\n  ./crucible index --out nights.html"
)
@click.option("--nights", type=click.Path(path_type=Path), help="Folder of the nights (default: nights).")
@click.option(
    "--out", type=click.Path(path_type=Path), help="An .html file, or a folder (default: that of the nights)."
)
def index(nights: Path | None, out: Path | None) -> None:
    """Shows the nights on one page: the last one, failures, rates, figures beside the peer, and the probe.

    The page is one file and needs no server. It links to the runs that the nights kept. Its figures show the notes in
    annotations.toml, which lies beside the nights.
    """
    from crucible_kafka.terminal import need_java, one_sentence, shown

    need_java()
    from crucible_kafka.live_run import ROOT
    from reports.errors import SetupError
    from reports.index.write import write_index
    from reports.night import NightError

    with one_sentence(NightError, SetupError):
        page, last = write_index(nights or ROOT / "nights", out)
    click.echo(f"last night ({last.night.night}): {'red' if last.is_red else 'green'}. {last.line}")
    click.echo(f"index: {shown(page)}")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible judge runs/demo-20260101-120000"
    "\n  ./crucible judge --watch runs/fleet-plain-load-20260101-120000"
    "\n  ./crucible judge --watch --fail-fast RUN_DIR"
)
@click.argument(
    "run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR", shell_complete=shell_completion.run_folders
)
@click.option("--watch", is_flag=True, help="Judge what is whole while the run goes on, and all of it at the end.")
@click.option("--every", "every_s", type=click.FloatRange(1), default=60, show_default=True, help="Seconds.")
@click.option("--fail-fast", is_flag=True, help="End as soon as a guarantee is broken, with exit code 1.")
@click.option("--beside-run", type=int, hidden=True, help="End with this process, which plays the run.")
def judge(run_dir: Path, watch: bool, every_s: float, fail_fast: bool, beside_run: int | None) -> None:
    """Lets Spark judge a run and tells the verdict, without a page.

    With --watch the run may still go on. A line says how far it was judged, and a red one what is broken. Guarantees
    that something may still excuse wait for the end.
    """
    from crucible_kafka.live_run import tell, worst
    from crucible_kafka.terminal import need_java, one_sentence, progress

    if fail_fast and not watch:
        raise click.UsageError("--fail-fast ends a --watch: give both")
    if beside_run is not None:
        from reports.warm_judge.process import end_with_parent

        end_with_parent(beside_run)
    need_java()
    from chaos.live.run_folder import RunFolder, SpoolFollower
    from reports.errors import SetupError
    from reports.judge import verdicts_of
    from reports.manifest import ManifestError
    from reports.watch import Watch

    with one_sentence(SetupError, ManifestError):
        if not watch:
            verdicts, broken = verdicts_of([run_dir]), {}
        else:
            watched = Watch(run_dir, SpoolFollower(RunFolder(run_dir).spools).take, progress, every_s)
            verdicts, broken = watched.until_red_or_ended(fail_fast), watched.broken
    tell(verdicts)
    sys.exit(1 if broken else worst(verdicts))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible evidence"
    "\n  ./crucible evidence kfake tansu"
    "\n  ./crucible evidence tansu --case fetch/session/wrong-epoch"
    "\n  ./crucible evidence kafka --scenario 1 --scenario 27 --only-scenarios"
    "\n  ./crucible evidence --pages"
)
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option("--case", "cases", multiple=True, metavar="ID", help="Play this case only, and keep the other cells.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Play this scenario, too.")
@click.option("--only-scenarios", is_flag=True, help="Do not play the probe.")
@click.option("--pages", is_flag=True, help="Play nothing, and write the pages from what is kept.")
def evidence(
    targets: Sequence[str], cases: Sequence[str], scenarios: Sequence[str], only_scenarios: bool, pages: bool
) -> None:
    """Plays the probe three times on the bundled targets, and writes docs/evidence.

    TARGET is a target file or its name (bench/targets). Without one these are all that are bundled, but for tansu,
    whose build takes a quarter of an hour or more.
    """
    from bench.peers.node import PeerError
    from bench.probe.cases import UnknownCase
    from bench.targets.model import TargetError
    from campaigns.evidence import command
    from crucible_kafka.terminal import one_sentence, progress

    with one_sentence(UnknownCase, TargetError, PeerError):
        if pages:
            command.write(progress)
        else:
            command.run(targets, cases, scenarios, only_scenarios, _refusal, progress)


def _refusal(scenario: str, target: str) -> str:
    """Why a scenario cannot be played in front of the target, or nothing."""
    from chaos.live.errors import SetupError
    from chaos.live.runner import check_playable
    from crucible_kafka.live_run import find_scenarios, live_plays

    try:
        for spoken, mutant in live_plays(find_scenarios([scenario], False), None, "", target, False):
            check_playable(spoken, target, mutant)
    except SetupError as wrong:
        return str(wrong)
    return ""
