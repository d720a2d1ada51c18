"""The maximum sustainable rate of a target: a search that doubles and then bisects.

A rate is sustainable if 98 % of it is acknowledged, the backlog of the readers stays below a second's records, and the
99th percentile of the response latency (from the time at which a batch was due) stays below a limit. A step in which
the generator was the limit is not sustained either. If the search ends at one, the brokers may sustain more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.load.results import REACHED_SHARE, LoadResult, backlog_of

FIRST_RATE: Final = 10_000.0
PRECISION: Final = 0.05
"""The search ends once the first rate that is not sustained is less than 5 % above the highest that is."""
MAX_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Step:
    result: LoadResult
    complaint: str  # why it is not sustained; empty if it is

    @property
    def rate(self) -> float:
        return self.result.wanted_records_per_s


@dataclass(frozen=True, slots=True)
class Sustained:
    """The result of a search for the maximum sustainable rate."""

    rate: float  # the highest sustained rate, in records a second; 0: none
    beyond: float | None  # the lowest rate that was not sustained; None: the search ended before it found one
    steps: tuple[Step, ...]
    generator_was_the_limit: bool


def complaint_of(result: LoadResult, p99_limit_ms: float) -> str:
    """Return why a rate is not sustained, or nothing."""
    if result.generator_was_the_limit:
        return "the generator was the limit"
    acknowledged = result.settled_rate
    if acknowledged < REACHED_SHARE * result.wanted_records_per_s:
        return f"only {acknowledged:,.0f} records/s were acknowledged"
    backlog = backlog_of(result)[-1] if result.workload.subscriptions_per_topic else 0
    if backlog > result.wanted_records_per_s:
        return f"{backlog:,} records waited for readers at the end"
    p99_ms = result.quantile_ms("response", 0.99)
    if p99_ms > p99_limit_ms:
        return f"the 99th percentile was {p99_ms:,.0f} ms"
    return ""


def sustained_rate(
    play: Callable[[float], LoadResult], p99_limit_ms: float, first_rate: float = FIRST_RATE
) -> Sustained:
    """Search with ``play``, which runs the workload at a rate. The first rate is halved until one is sustained."""
    steps: list[Step] = []
    good, bad, rate, limited = 0.0, None, first_rate, False
    while len(steps) < MAX_STEPS:
        result = play(rate)
        step = Step(result, complaint_of(result, p99_limit_ms))
        steps.append(step)
        if step.complaint:
            bad, limited = rate, result.generator_was_the_limit
        else:
            good = rate
        if bad is None:
            rate *= 2
        elif good == 0.0:
            rate /= 2
            if rate < 1:
                break
        elif bad < good * (1 + PRECISION):
            break
        else:
            rate = (good + bad) / 2
    return Sustained(good, bad, tuple(steps), limited)
