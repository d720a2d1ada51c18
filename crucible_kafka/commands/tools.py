"""``crucible test``, ``nightly`` and ``doctor``. Each imports what it needs only when it runs."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

_STAGES = ("search", "live", "brokers", "bench", "checks", "suites")
_ONLY = ("lint", "format", "contracts", "types", "tests", "pure", "live", "spark")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible test --fast"
    "\n  ./crucible test"
    "\n  ./crucible test --only tests -- reference_broker -k session"
)
@click.option("--fast", is_flag=True, help="Run lint, format, contracts and quick tests: a minute and a half, no Java.")
@click.option(
    "--only", multiple=True, type=click.Choice(_ONLY), help="Run only these parts; tests are pure, live and spark."
)
@click.argument("pytest_words", nargs=-1)
def test(fast: bool, only: Sequence[str], pytest_words: Sequence[str]) -> None:
    """Runs what CI runs. --fast leaves out what needs Java or starts processes. Words after -- go to pytest."""
    if fast and only:
        raise click.UsageError("give --fast or --only, not both")
    from crucible_kafka.terminal import need_java
    from tools import checks

    names = checks.wanted(only, fast)
    if {"live", "spark"} & {*names}:
        need_java()
    sys.exit(checks.run(names, pytest_words))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible nightly --hours 8"
    "\n  ./crucible nightly --hours 0.1 --only search"
    "\n  ./crucible nightly --resume"
    "\n  30 22 * * *  cd CLONE && ./crucible nightly --hours 8    (a line of crontab)"
)
@click.option(
    "--hours", type=click.FloatRange(0, 24, min_open=True), default=8.0, show_default=True, help="The budget."
)
@click.option("--nights", type=click.Path(path_type=Path), help="Folder of all nights (default: nights).")
@click.option("--seed", type=click.IntRange(0), help="The night's first seed (default: that of the day, in UTC).")
@click.option("--only", multiple=True, type=click.Choice(_STAGES), help="Play only these stages.")
@click.option("--resume", is_flag=True, help="Go on with the newest night, which was stopped.")
def nightly(hours: float, nights: Path | None, seed: int | None, only: Sequence[str], resume: bool) -> None:
    """Plays a night: as much as fits into a budget of hours, with new seeds, kept as one folder in nights/.

    The stages are search (seeds of all scenarios in the simulator), live (some of them with real processes), brokers
    (the probe and scenarios on other brokers), bench (rows of the benchmark beside Apache Kafka), checks (tests that
    take too long for a push) and suites (other people's tests of their clients). Each has its share of the time. What
    was not played for longest comes first.

    A mutant is planted in each night, and the search must find it. Each seed that turns red is made smaller, kept in
    the night's folder as a candidate for scenarios/regressions, played three times with real processes, and traced back
    to the first commit since the last night that fails.

    A night that was stopped or killed goes on with what is left of its budget, by --resume or by the same command
    within a day. Exit code 1: the night is red, 3: it shows nothing, 4: it crashed.
    """
    from campaigns.nights.command import run
    from campaigns.nights.night import NIGHTS, NightRefusal, Wish
    from crucible_kafka.live_run import command_line
    from crucible_kafka.terminal import one_sentence, progress

    wish = Wish(hours, nights or NIGHTS, seed, tuple(only), resume, command_line())
    with one_sentence(NightRefusal):
        sys.exit(run(wish, progress))


@click.command(epilog="\b\nExample:\n  ./crucible doctor")
def doctor() -> None:
    """Says what is missing on this machine, for which commands, and how to get it.

    The exit code is 2 if a main command cannot work.
    """
    from crucible_kafka.doctor import examine, exit_code
    from crucible_kafka.terminal import print_table

    findings = examine()
    signs = {True: "missing", False: "to be had"}
    rows = [(each.thing, signs[each.is_needed] if each.cure else "ok", each.found, each.serves) for each in findings]
    print_table(("thing", "state", "found", "serves"), rows)
    for each in findings:
        if each.cure:
            click.echo(f"{each.thing}: {each.cure}")
    sys.exit(exit_code(findings))
