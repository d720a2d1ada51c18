"""``crucible test``, ``doctor`` and ``completion``."""

import sys
from collections.abc import Sequence

import click

from crucible_kafka import shell_completion

_ONLY = ("lint", "format", "contracts", "types", "tests", "pure", "live", "spark")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible test --fast"
    "\n  ./crucible test"
    "\n  ./crucible test --only tests -- reference_broker -k session"
)
@click.option(
    "--fast", is_flag=True, help="Run lint, format, contracts and quick tests: no Java, about 90 s on two idle cores."
)
@click.option(
    "--only", multiple=True, type=click.Choice(_ONLY), help="Run only these parts; tests are pure, live and spark."
)
@click.argument("pytest_words", nargs=-1)
def test(fast: bool, only: Sequence[str], pytest_words: Sequence[str]) -> None:
    """Run what CI runs. --fast omits what needs Java or starts processes. Words after -- go to pytest."""
    if fast and only:
        raise click.UsageError("give --fast or --only, not both")
    from crucible_kafka.terminal import need_java
    from tools import checks

    names = checks.wanted(only, fast)
    if {"live", "spark"} & {*names}:
        need_java()
    sys.exit(checks.run(names, pytest_words))


@click.command(epilog="\b\nExample:\n  ./crucible doctor")
def doctor() -> None:
    """Say what is missing on this machine, for which commands, and how to get it.

    The exit code is 2 if a main command cannot work.
    """
    from crucible_kafka.doctor import examine, exit_code
    from crucible_kafka.terminal import print_table

    findings = examine()
    signs = {True: "missing", False: "to be had"}
    rows = [
        (finding.thing, signs[finding.is_needed] if finding.cure else "ok", finding.found, finding.serves)
        for finding in findings
    ]
    print_table(("thing", "state", "found", "serves"), rows)
    for finding in findings:
        if finding.cure:
            click.echo(f"{finding.thing}: {finding.cure}")
    sys.exit(exit_code(findings))


@click.command(
    epilog="\b\nExamples:"
    "\n  source <(./crucible completion bash)"
    "\n  ./crucible completion zsh > ~/.zfunc/_crucible"
    "\n  ./crucible completion fish > ~/.config/fish/completions/crucible.fish",
)
@click.argument("shell", type=click.Choice(shell_completion.SHELLS))
def completion(shell: str) -> None:
    """Print a script with which your shell completes commands, scenarios, mutants, targets and runs."""
    click.echo(shell_completion.script(click.get_current_context().find_root().command, shell), nl=False)
