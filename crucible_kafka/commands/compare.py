"""``crucible compare``: the variants of a scenario, or two sets of runs."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from crucible_kafka import shell_completion
from crucible_kafka.commands.scenario_options import find_scenarios
from crucible_kafka.run_folder import command_line, run_folder
from crucible_kafka.terminal import need_java, one_sentence, progress, shown
from crucible_kafka.verdicts import print_verdicts, worst


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
    """Compare two sets of runs, or play a scenario in its variants and lay the runs side by side.

    With --with: says of each percentile of latency and of each rate whether the second set is better, worse, or no
    difference is shown, with the confidence of runs drawn again and again. A RUN_DIR is a run, or a folder of runs. At
    least three runs on each side, better five or more, show how far runs of the same thing differ.

    With a SCENARIO: plays it in both revisions of fetch sessions and with full fetches, one after the other, with real
    processes and the same load, faults and seed. A scenario with a mirror is played with metadata epochs and without
    them instead.
    """
    runs = [folder for folder in named if (Path(folder) / "manifest.json").is_file()]
    if others:
        _compare_runs([Path(folder) for folder in named], others, out)
    elif runs or len(named) > 1:
        raise click.UsageError("say which runs to compare with: ./crucible compare RUN_DIR... --with RUN_DIR...")
    else:
        sys.exit(_play_compared(named[0], out, seed))


def _compare_runs(first: Sequence[Path], second: Sequence[Path], out: Path | None) -> None:
    """Compare two sets of runs that were played before."""
    need_java()
    from reports.errors import SetupError
    from reports.manifest import ManifestError
    from reports.run_sets import check_comparable, compare_sets, find_runs

    with one_sentence(SetupError, ManifestError):
        sets = find_runs(first), find_runs(second)
        check_comparable(*sets)
        compared, page = compare_sets(*sets, run_folder(out, "compared", False))
    for figure in compared.figures:
        if figure.word != "no difference shown":
            click.echo(f"{figure.word}: {figure.operation} {figure.figure} ({figure.phase}) x {figure.ratio.ratio:.3f}")
    click.echo(compared.summary)
    click.echo(f"comparison: {shown(page)}")


def _play_compared(scenario: str, out: Path | None, seed: int) -> int:
    """Play the scenario in its variants and compare them. Return the exit code of the worst verdict."""
    need_java()
    from chaos.live.comparison import compare as play_all
    from chaos.live.errors import SetupError
    from reports.comparison import compare_runs as lay_beside
    from reports.errors import SetupError as NoSpark

    (played_scenario,) = find_scenarios([scenario], False)
    with one_sentence(SetupError):
        folder = run_folder(out, f"compare-{played_scenario.name}", False)
        played = play_all(played_scenario, folder, seed=seed, command=command_line(), progress=progress)
    with one_sentence(NoSpark):
        compared = lay_beside([run for _, run in played], folder, progress=progress)
    print_verdicts(compared.verdicts)
    click.echo(f"comparison: {shown(compared.page)}")
    return worst(compared.verdicts)
