"""Lists the live plays of a command: scenarios in their revisions, with and without mutants, and their required ends.

Commands import this module when they run. Like them it imports the rooms lazily.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from crucible_kafka.commands.scenario_options import in_revisions

if TYPE_CHECKING:
    from reports.verdict import Verdict
    from scenarios.model import Scenario


class LivePlay(NamedTuple):
    """A scenario that is played once."""

    scenario: "Scenario"
    mutant: str = ""
    """Empty: none is planted."""

    @property
    def must_exit_with(self) -> int:
        """The exit code of a run that ends as it must: 1 with a mutant, which violates a guarantee, and else 0."""
        return 1 if self.mutant else 0


def live_plays(
    scenarios: "Sequence[Scenario]", revision: str | None, planted: str | None, target: str, everything: bool
) -> list[LivePlay]:
    """Return each scenario in its revisions, with the mutant ``planted`` (empty: none). With None each is played
    without a mutant, and then with each of its own whose mechanism the revision has.

    Of ``everything`` what cannot be played is omitted, such as power losses. Otherwise raise SetupError for it.
    """
    from chaos.live.errors import SetupError
    from chaos.live.runner import check_mutant, check_playable
    from chaos.mutants.registry import by_name, mutants_of

    plays = []
    for scenario in scenarios:
        own_mutants = mutants_of(scenario) if planted is None else ()
        for revised in in_revisions(scenario, revision or _external_revision(scenario, target)):
            try:
                check_playable(revised, target)
            except SetupError:
                if everything:
                    continue
                raise
            fitting = [name for name in own_mutants if set(revised.revisions) & set(by_name(name).revisions)]
            for mutant in (planted or "", *fitting):
                if mutant:
                    check_mutant(revised, target, mutant)
                plays.append(LivePlay(revised, mutant))
    return plays


def _external_revision(scenario: "Scenario", target: str) -> str | None:
    """Return the revision that any broker supports, if the target is external and the scenario has it."""
    return "final" if target != "reference" and "final" in scenario.revisions and "@" not in scenario.name else None


def exit_code_with_mutants(plays: Sequence[LivePlay], verdicts: "Sequence[Verdict]") -> int:
    """Return 0 if all controls passed and all mutants broke a guarantee, else 1. Record which guarantees each broke."""
    from chaos.mutants import by_name
    from scenarios.ledger import ended_search, remember

    wrong = []
    for play, verdict in zip(plays, verdicts, strict=True):
        if play.mutant:
            broken = tuple(guarantee.name for guarantee in verdict.guarantees if guarantee.status == "broken")
            target = by_name(play.mutant).target
            remember(ended_search(play.mutant, target, play.scenario.name, "live", 1, broken, verdict.seed))
        if verdict.exit_code != play.must_exit_with:
            planted = f" with {play.mutant}" if play.mutant else ""
            wrong.append(f"{play.scenario.name}{planted}: {verdict.outcome.name}")
    click.echo(f"not as it must be: {'; '.join(wrong)}" if wrong else "every control passed, every mutant was killed")
    return 1 if wrong else 0
