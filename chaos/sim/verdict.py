"""The result of a simulated run, and the exit code for it."""

from dataclasses import dataclass

from chaos.checks.check import Violation
from chaos.sim.decision_counts import NOTHING_COUNTED, Reached
from reports.verdict import Outcome

NODE_ENDED = ("NodeFailed", "StartRefused")
"""Errors with which a node ends itself; any other exception is a mistake of the code, or of the mutant."""
BROKER = "reference_broker"
"""The folder of the broker's code. An exception that a mutant's own code raises says nothing of the broker."""


@dataclass(frozen=True, slots=True)
class SimVerdict:
    """The result of one run."""

    scenario: str
    seed: int
    mutant: str
    """its name, empty for none"""
    outcome: Outcome
    violations: tuple[Violation, ...]
    """in the order of their times"""
    reasons: tuple[str, ...]
    """why the run is INVALID or CRASHED"""
    faults: tuple[tuple[str, int], ...]
    """name of each fault that fired, and how often"""
    fetches: int
    """number of fetches with a response"""
    acked: int
    """number of acknowledged records"""
    events: int
    """number of events that the nodes handled"""
    virtual_us: int
    trace_hash: str = ""
    """empty unless a single seed was played"""
    mutant_calls: int = -1
    """number of calls of the mutant's replacement, -1 without a mutant"""
    typed: str = ""
    """name of the scenario on the command line, if not its own name"""
    coverage: tuple[tuple[tuple[str, str, str], int], ...] = ()
    """how often a fault fired, by (kind, role, state) of its target"""
    reached: Reached = NOTHING_COUNTED
    """the outcomes of decision points, empty unless they were counted"""
    crashed_node: int = -1
    """the node that was at work when the run crashed, -1 for none"""
    changes: tuple[int, ...] = ()
    """those that a guided search made to the scenario (``chaos.search.guided``)"""

    @property
    def repeat_command(self) -> str:
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        changes = f" --changes {','.join(map(str, self.changes))}" if self.changes else ""
        return f"./crucible sim {self.typed or self.scenario} --seed {self.seed}{changes}{mutant}"

    @property
    def show_command(self) -> str:
        """The command that prints the crashed node as it was after the last event that was handled; empty if no node
        was at work, or none had handled an event."""
        if self.crashed_node < 0 or not self.events:
            return ""
        return f"{self.repeat_command} --at {self.events} --show {self.crashed_node}"

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the violated guarantees, each once, in the order of their violations."""
        return tuple(dict.fromkeys(each.guarantee for each in self.violations))

    @property
    def red(self) -> bool:
        """Whether the run kills a mutant: a guarantee was violated, a node noticed the damage itself and ended, or an
        exception that nothing handles was raised in the broker's code."""
        if self.outcome is not Outcome.CRASHED:
            return self.outcome is Outcome.FAILED
        return self.reasons[0].startswith(NODE_ENDED) or f"({BROKER}/" in self.reasons[0]
