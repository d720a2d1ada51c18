"""What a simulated run came to, and the exit code for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from chaos.checks.check import Violation

NODE_ENDED = ("NodeFailed", "StartRefused")
"""Errors by which a node ends itself; any other exception is a mistake of the code, or of the mutant."""


class Verdict(Enum):
    """``code``: exit code of the command line."""

    PASSED = 0
    FAILED = 1
    INVALID = 3
    CRASHED = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """``reasons``: why it is INVALID or CRASHED. ``trace_hash``: of single seeds only, else empty.
    ``mutant_calls``: how often the mutant's replacement ran, -1 without a mutant."""

    scenario: str
    seed: int
    mutant: str
    verdict: Verdict
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
    """What to type for the scenario, if that is not its name."""
    coverage: tuple[tuple[tuple[str, str, str], int], ...] = ()
    """How often a fault struck, by (kind, role, state) of what was struck."""

    @property
    def repeat_command(self) -> str:
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        return f"./crucible sim {self.typed or self.scenario} --seed {self.seed}{mutant}"

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the guarantees that were broken, each once, in the order in which they broke."""
        return tuple(dict.fromkeys(each.guarantee for each in self.violations))

    @property
    def red(self) -> bool:
        """What a mutant must come to: a broken guarantee, or a node that found out itself and ended."""
        ended = self.verdict is Verdict.CRASHED and self.reasons[0].startswith(NODE_ENDED)
        return ended or self.verdict is Verdict.FAILED


RANK = (Verdict.PASSED, Verdict.INVALID, Verdict.FAILED, Verdict.CRASHED)
"""A crash tops a broken guarantee, which tops an invalid run."""


def worse(one: Verdict, other: Verdict) -> Verdict:
    return max(one, other, key=RANK.index)


def worst(outcomes: Sequence[Outcome]) -> Verdict:
    """Of many; PASSED for none."""
    return max((each.verdict for each in outcomes), key=RANK.index, default=Verdict.PASSED)
