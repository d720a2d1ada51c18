"""How often a scenario is red, with Wilson's interval: for what is neither always green nor always red."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.index.matrix import Line
from reports.statistics.proportions import wilson


@dataclass(frozen=True, slots=True)
class Rate:
    """Rates go from 0 to 1. Plays that showed nothing (INVALID) do not count."""

    line: Line
    rate: float
    low: float
    high: float


def rates(lines: Sequence[Line]) -> list[Rate]:
    """Of what was red sometimes, and of all that is played live, which is a few times a night. The greatest comes
    first."""
    uncertain = [line for line in lines if line.plays and (0 < line.reds < line.plays or line.world == "live")]
    found = [Rate(line, line.reds / line.plays, *wilson(line.reds, line.plays)) for line in uncertain]
    return sorted(found, key=lambda one: (-one.rate, -one.high, one.line.scenario, one.line.target))


def percent(share: float) -> str:
    """0 %, 0.4 %, 12 %."""
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 or 0.99 < share < 1 else f"{100 * share:.0f} %"
