"""The result of a simulated run, and the exit code for it."""

from dataclasses import dataclass

from chaos.checks.check import Violation
from reports.verdict import Outcome

NODE_ENDED = ("NodeFailed", "StartRefused")
"""Errors by which a node ends itself; any other exception is a mistake of the code, or of the mutant."""


@dataclass(frozen=True, slots=True)
class SimVerdict:
    """The result of one run.

    ``reasons`` say why it is INVALID or CRASHED. ``trace_hash`` is empty unless a single seed was played.
    ``mutant_calls`` counts how often the mutant's replacement ran; it is -1 without a mutant.
    """

    scenario: str
    seed: int
    mutant: str
    outcome: Outcome
    violations: tuple[Violation, ...]
    reasons: tuple[str, ...]
    faults: tuple[tuple[str, int], ...]
    fetches: int
    acked: int
    events: int
    virtual_us: int
    trace_hash: str = ""
    mutant_calls: int = -1
    typed: str = ""
    """How the scenario is named on the command line, if not by its name."""
    coverage: tuple[tuple[tuple[str, str, str], int], ...] = ()
    """How often a fault hit, by (kind, role, state) of its target."""

    @property
    def repeat_command(self) -> str:
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        return f"./crucible sim {self.typed or self.scenario} --seed {self.seed}{mutant}"

    @property
    def broken(self) -> tuple[str, ...]:
        """Return the names of the broken guarantees, each once, in the order in which they broke."""
        return tuple(dict.fromkeys(each.guarantee for each in self.violations))

    @property
    def red(self) -> bool:
        """Return whether the run came to what a mutant must come to: a broken guarantee, or a node that noticed the
        damage itself and ended."""
        ended = self.outcome is Outcome.CRASHED and self.reasons[0].startswith(NODE_ENDED)
        return ended or self.outcome is Outcome.FAILED
