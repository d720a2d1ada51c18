"""Choose the scenario that the search plays next: by what earlier plays have found and covered.

Scenarios that had few seeds in all kept nights come first, and among them those whose clauses were covered least. Then
each choice is that of a discounted UCB1 bandit. A scenario's pulls are the time for which it was played, in turns; its
reward is the share of turns that found a red seed. What happened some nights ago counts less, so a scenario that
failed lately is played more often, and one whose failure was mended is not for long. What is rarely covered gets a
bonus. How well a scenario is covered is the geometric mean of its own turns and of those of its least covered
clause: one that alone exercises a clause gets more time than one whose clauses many others exercise, too.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

TURN_S = 20.0
"""Duration of one choice. Starting a process for it costs little beside that."""
FEW_SEEDS = 8
HALF_LIFE_NIGHTS = 3.0
MAX_RED_SEEDS = 3
"""A scenario that was red this many times is not played again tonight."""


@dataclass(frozen=True, slots=True)
class Played:
    """Plays of one scenario in one night."""

    scenario: str
    nights_ago: int  # 0: tonight
    seeds: int
    reds: int
    played_s: float


@dataclass(slots=True)
class Standing:
    """The record of a scenario in earlier nights."""

    seeds: int = 0
    played_s: float = 0.0
    turns: float = 0.0
    """Discounted."""
    reds: float = 0.0
    """Discounted."""
    reds_tonight: int = 0

    @property
    def found(self) -> float:
        """The share of turns that found a red seed."""
        return min(1.0, self.reds / (self.turns + 1))

    @property
    def seed_s(self) -> float | None:
        """Return the time that a seed takes, as far as it is known."""
        return self.played_s / self.seeds if self.seeds else None

    def take(self, played: Played) -> None:
        weight = 0.5 ** (played.nights_ago / HALF_LIFE_NIGHTS)
        self.seeds += played.seeds
        self.played_s += played.played_s
        self.turns += weight * played.played_s / TURN_S
        self.reds += weight * played.reds
        self.reds_tonight += played.reds if played.nights_ago == 0 else 0


@dataclass(slots=True)
class Standings:
    """All scenarios with their clauses, and what is known of each."""

    clauses: Mapping[str, Sequence[str]]
    known: dict[str, Standing] = field(init=False)

    def __post_init__(self) -> None:
        self.known = {clause: Standing() for clause in self.clauses}

    def take(self, plays: Iterable[Played]) -> None:
        """Take what was played. Scenarios that are gone count no more."""
        for play in plays:
            if play.scenario in self.known:
                self.known[play.scenario].take(play)

    def choose(self, busy: Mapping[str, int], left_s: float) -> tuple[str, str] | None:
        """Return the scenario to play next and in a few words why; None if none is left for so short a time.

        ``busy`` counts the turns that are being played: a scenario counts as played for those already.
        """
        open_ones = [each for each, one in self.known.items() if self._is_open(one, left_s)]
        if not open_ones:
            return None
        covered = self._covered(busy)
        few = [one for one in open_ones if self._seeds(one, busy) < FEW_SEEDS]
        if few:
            return min(few, key=lambda one: (self._seeds(one, busy), covered[one], one)), "few seeds"
        whole = math.log(1 + sum(one.turns for one in self.known.values()) + sum(busy.values()))
        bonus = {one: math.sqrt(2 * whole / (1 + covered[one])) for one in open_ones}
        best = max(open_ones, key=lambda one: (self.known[one].found + bonus[one], one))
        return best, "covered least" if bonus[best] == max(bonus.values()) else "found much"

    def _is_open(self, one: Standing, left_s: float) -> bool:
        return one.reds_tonight < MAX_RED_SEEDS and (one.seed_s or 0.0) < left_s

    def _seeds(self, scenario: str, busy: Mapping[str, int]) -> int:
        return self.known[scenario].seeds + FEW_SEEDS * busy.get(scenario, 0)

    def _covered(self, busy: Mapping[str, int]) -> dict[str, float]:
        """Return how well each scenario is covered, in turns. One that names no clause has its own turns only."""
        turns = {each: one.turns + busy.get(each, 0) for each, one in self.known.items()}
        by_clause: defaultdict[str, float] = defaultdict(float)
        for scenario, clauses in self.clauses.items():
            for clause in clauses:
                by_clause[clause] += turns[scenario]
        return {
            scenario: math.sqrt(turns[scenario] * min((by_clause[each] for each in clauses), default=turns[scenario]))
            for scenario, clauses in self.clauses.items()
        }


def seeds_at_once(seed_s: float | None, left_s: float, most: int = 32) -> int:
    """Return the number of seeds of one turn: one as long as the time of a seed is unknown."""
    if seed_s is None:
        return 1
    return max(1, min(most, int(min(TURN_S, left_s) / max(seed_s, 1e-3))))
