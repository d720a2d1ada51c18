"""Tallies of decision points: how often each outcome was reached, by scenario, and the list that ``crucible points``
prints.

A night's children append a line to ``decision-points.jsonl`` in its folder for each turn that they played.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.search.many_seeds import verdicts
from chaos.sim.decision_counts import watch
from chaos.sim.verdict import SimVerdict
from scenarios.decision_points import declared_points, outcome_names, reasons_unreached
from scenarios.model import Scenario

FILE = "decision-points.jsonl"
SHOWN = 3
"""number of scenarios that a line of the list names"""


@dataclass(slots=True)
class Tally:
    """Counts of the decision points that plays reached."""

    by_scenario: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Number of times by outcome, then by scenario."""
    seeds: Counter[str] = field(default_factory=Counter)
    """Number of runs by scenario."""

    def take(self, verdict: SimVerdict) -> None:
        """Add what one run reached."""
        self.seeds[verdict.scenario] += 1
        for outcome, times in verdict.reached.by_outcome().items():
            if times:
                self.by_scenario[outcome][verdict.scenario] += times

    def outcomes_of(self, points: Collection[str]) -> int:
        """Return how many outcomes of these points were reached."""
        return sum(outcome.partition("=")[0] in points for outcome in self.by_scenario)

    def append_to(self, folder: Path) -> None:
        """Add a line to the folder's file. Several processes may do so at once."""
        line = json.dumps({"seeds": self.seeds, "reached": self.by_scenario}) + "\n"
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(line)

    def add_from(self, folder: Path) -> None:
        """Add all lines of the folder's file. A line that a killed process left torn is omitted."""
        for line in (folder / FILE).read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            self.seeds.update(row["seeds"])
            for outcome, counts in row["reached"].items():
                self.by_scenario[outcome].update(counts)


def open_outcomes(tally: Tally) -> list[str]:
    """Return the outcomes that were never reached, and for which there is no reason."""
    return [name for name in outcome_names() if not tally.by_scenario.get(name) and name not in reasons_unreached()]


def newest_tally(nights: Path) -> tuple[Tally, str]:
    """Return the tally of the newest night that has one, and the night's name; an empty tally and no name if none
    has."""
    tally = Tally()
    for folder in sorted(nights.iterdir(), reverse=True) if nights.is_dir() else ():
        if (folder / FILE).exists():
            tally.add_from(folder)
            return tally, folder.name
    return tally, ""


def played_tally(scenarios: Sequence[Scenario], seeds: Sequence[int], processes: int) -> Iterator[tuple[str, Tally]]:
    """Play the seeds of each scenario. After each scenario yield its name, and the tally of all so far."""
    watch()
    tally = Tally()
    for scenario in scenarios:
        for verdict in verdicts(scenario, seeds, processes, None):
            tally.take(verdict)
        yield scenario.name, tally


def listing(tally: Tally, *, only_never: bool, clause: str = "") -> Iterator[str]:
    """Yield a line for each outcome: its clauses, point and outcome, how often and where it was reached, its place in
    the code. One that was never reached has the reason if ``reference_broker/unreached.toml`` has one. With
    ``only_never`` those with a reason come last. At the end comes a summary."""
    shown = [declared_point for declared_point in declared_points() if not clause or clause in declared_point.clauses]
    reasons, excused, never = reasons_unreached(), list[str](), 0
    for point in shown:
        for side in (0, 1):
            reached = tally.by_scenario.get(point.outcome(side), Counter())
            never += not reached
            if only_never and reached:
                continue
            why = reasons.get(point.outcome(side), "")
            where = f"{reached.total():,} times: {_named(reached)}" if reached else f"never{': ' if why else ''}{why}"
            if reached and why:
                where += ", although listed as unreached"
            line = f"{', '.join(point.clauses):10} {point.outcome(side)} | {where} | {point.where}"
            if why and not reached:
                excused.append(line)
                if only_never:
                    continue
            yield line
    if only_never:
        yield from excused
    scenarios = sum(1 for times in tally.seeds.values() if times)
    yield (
        f"{2 * len(shown)} outcomes of {len(shown)} points, {never} never reached, {len(excused)} of these with a "
        f"reason, in {tally.seeds.total():,} seeds of {scenarios} scenarios"
    )


def _named(reached: Counter[str]) -> str:
    most = [name for name, _ in reached.most_common(SHOWN)]
    more = len(reached) - len(most)
    return ", ".join(most) + (f" and {more} more" if more else "")
