"""What a night plans before it plays anything: its seed, how its hours are shared out, whose turn it is, and which
mutant is the canary. Everything here is a pure function."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TypeVar

from chaos.seeds import random_for

SHARES: Mapping[str, int] = {"search": 42, "live": 25, "brokers": 10, "bench": 12, "checks": 5, "suites": 6}
"""Each stage's share of a night, in the order in which they are played. What one leaves over goes to the next ones."""
SEEDS_A_NIGHT = 100_003
"""Seeds that one night may use for a scenario. It is a prime, so that nights begin in different places of what goes
through the seeds in order: the alternatives and the swept ranges of a scenario (``scenarios.draw``)."""

Item = TypeVar("Item", bound=str)


def seed_of(day: date) -> int:
    """The first seed of the night that begins on this day (UTC). No seed of another day's night is the same."""
    return (day - date(1970, 1, 1)).days * SEEDS_A_NIGHT


def next_seed(first: int, played: Sequence[int]) -> int:
    """The next seed of a night that begins at ``first``. ``played`` are the last seeds that the same scenario has had
    in each night: a second night of one day goes on behind the first."""
    tonight = [each for each in played if first <= each < first + SEEDS_A_NIGHT]
    return max(tonight, default=first - 1) + 1


def share_s(stage: str, to_come: Sequence[str], left_s: float) -> float:
    """How long the stage may take. ``to_come`` are the stages that are still to be played, with this one."""
    return left_s * SHARES[stage] / sum(SHARES[each] for each in to_come)


def in_turn(items: Sequence[Item], earlier: Sequence[Sequence[str]], turn: int) -> list[Item]:
    """Orders ``items`` so that those come first that were tried longest ago, or never. ``earlier`` says what each night
    has tried, the oldest first. Among equals another one is first each ``turn``."""
    last = {each: number for number, tried in enumerate(earlier) for each in tried}
    start = turn % max(1, len(items))
    return sorted((*items[start:], *items[:start]), key=lambda each: last.get(each, -1))


def canary_of(caught: Mapping[str, Sequence[str]], earlier: Sequence[str], seed: int) -> tuple[str, str]:
    """Draws the mutant that a night plants, and the scenario that must catch it.

    ``caught`` has the scenarios that catch each mutant in the simulator. ``earlier`` are the mutants of earlier nights:
    none of them is drawn again before all others had their night.
    """
    planted = {mutant: number for number, mutant in enumerate(earlier)}
    longest_ago = min(planted.get(each, -1) for each in caught)
    fresh = sorted(each for each in caught if planted.get(each, -1) == longest_ago)
    draw = random_for(seed, "canary")
    mutant = draw.choice(fresh)
    return mutant, draw.choice(sorted(caught[mutant]))


def interleaved(some: Sequence[Item], others: Sequence[Item], of_some: int) -> list[Item]:
    """After so many of ``some`` comes one of ``others``, until both are used up."""
    waiting, mixed = list(others), list[Item]()
    for number, each in enumerate(some, 1):
        mixed.append(each)
        if waiting and number % of_some == 0:
            mixed.append(waiting.pop(0))
    return mixed + waiting
