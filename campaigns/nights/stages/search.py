"""Searches seeds of all scenarios in the simulator. A scenario's turns take seeds from 1 on and new seeds by turns,
because a change may break what earlier nights saw pass. One planted mutant, the canary, must be found by it. First come
those seeds with which a guarantee broke last. Once such a seed passes, the failure counts as mended. These
plays decide neither what is chosen nor what is looked into.

Child processes play, one for each core. Each has a scenario and its next seeds for about a turn
(``campaigns.nights.choosing``), and reports every seed's verdict at once.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from campaigns.nights import follow_up
from campaigns.nights.choosing import Standings, seeds_at_once
from campaigns.nights.night import OURS, Sum, Work, canary_of, next_seed, open_failures, played, sums_of
from campaigns.nights.processes import Ended, Players, Tell
from chaos.checks.guarantee_selection import checked
from chaos.mutants.registry import by_name, mutants_of
from chaos.search.many_seeds import verdicts
from chaos.search.point_tally import Tally
from chaos.sim.decision_counts import watch
from chaos.sim.verdict import SimVerdict
from reports.night import Canary, PlayRow
from reports.verdict import Outcome
from scenarios import loader
from scenarios.ledger import ended_search, remember
from scenarios.model import Scenario
from scenarios.revisions import each_revision

RECEIVE_FOR_S = 0.5
FIRST_SEED = 1
FOLLOWED_SHARE = 0.3
"""Share of the remaining time, at the first red seed, that goes into examining failures instead of searching."""
CANARY_SEEDS = 600
"""Number of seeds after which a canary has survived. The rarest mutant shows in about one of twenty."""
MIN_LIMIT_S, LIMIT_FACTOR = 300.0, 20.0
"""Limits of a child's silence: the larger of this time and this multiple of a seed's duration. Beyond it the child has
hung."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Seeds of one scenario that a child process plays."""

    scenario: str
    mutant: str  # empty except for the canary
    seeds: Sequence[int]
    is_replay: bool = False


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Play until the time is over. A part of it belongs to the failures that were found."""
    search = NightSearch(work)
    search.run(until)
    follow_up.of_all(work, search.scenarios, until, search.known)
    return search.outcome, ""


class NightSearch:
    """One search. ``outcome`` is the worst of its controls."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.scenarios = {each.name: each for file in loader.load_all() for each in each_revision(checked(file))}
        self._standings = Standings({name: each.clauses for name, each in self.scenarios.items()})
        for nights_ago, night in enumerate(reversed(work.earlier), 1):
            self._standings.take(played(night.sums, nights_ago))
        self.known = open_failures(work.folder.parent, work.folder.name)
        replays = {(scenario, seed) for scenario, _, seed in self.known}
        tonight = sums_of(work.plays)
        before = [each for night in work.earlier for each in night.sums] + tonight
        self._next_seeds = _next_seeds(before, work.night.seed)
        self._next_old_seeds = dict.fromkeys(self.scenarios, FIRST_SEED)
        for each in work.plays:
            if each.world == "sim" and not each.mutant and not each.is_replay and each.seed < work.night.seed:
                self._next_old_seeds[each.scenario] = max(self._next_old_seeds[each.scenario], each.seed + 1)
        self._had_old = set[str]()
        """The scenarios whose last turn had old seeds."""
        self._standings.take(played(tonight, 0))
        self._outcomes = Counter(each.outcome for each in work.plays if each.world == "sim" and not each.mutant)
        have_been = {(each.scenario, each.seed) for each in work.plays if each.world == "sim" and not each.mutant}
        self._again = [
            Turn(scenario, "", (seed,), is_replay=True)
            for scenario, seed in sorted(replays - have_been)
            if scenario in self.scenarios
        ]
        self._received: dict[Turn, tuple[int, float]] = {}
        """Number of results of each turn, and when the last of them ended or the first began."""
        self._leaves_s = 0.0
        self._now = ""
        if work.night.canary is None:
            work.change(canary=planted(self.scenarios, work))

    @property
    def outcome(self) -> Outcome:
        ranks = (Outcome.CRASHED, Outcome.FAILED, Outcome.INVALID)
        return next((rank for rank in ranks if self._outcomes[rank.name]), Outcome.PASSED)

    def run(self, until: float) -> None:
        with Players[Turn](self._work.cores) as players:
            while (left_s := self._until(until) - time.monotonic()) > 0:
                while players.are_free and (turn := self._next_turn(players.jobs, left_s)) is not None:
                    self._received[turn] = 0, time.monotonic()
                    players.start(
                        turn,
                        partial(_play, self.scenarios[turn.scenario], self._work.folder, turn),
                        self._limit_s(turn),
                    )
                if not players.jobs:
                    break
                for turn, message in players.receive(min(RECEIVE_FOR_S, left_s)):
                    self._handle_message(turn, message)
                self._work.beat(self._line(until))

    def _until(self, until: float) -> float:
        """The end of the search. Once there is a failure, it leaves time for looking into it."""
        if not self._leaves_s and self.outcome is not Outcome.PASSED and follow_up.open_reds(self._work, self.known):
            self._leaves_s = FOLLOWED_SHARE * max(0.0, until - time.monotonic())
        return until - self._leaves_s

    def _next_turn(self, busy: Sequence[Turn], left_s: float) -> Turn | None:
        canary = self._canary
        if not canary.found and canary.seeds_tried < CANARY_SEEDS and not any(turn.mutant for turn in busy):
            return self._turn(canary.scenario, canary.mutant, left_s)
        if self._again:
            self._now = f"{self._again[0].scenario} (an open failure)"
            return self._again.pop(0)
        chosen = self._standings.choose(Counter(turn.scenario for turn in busy if not turn.mutant), left_s)
        if chosen is None:
            return None
        scenario, why = chosen
        self._now = f"{scenario} ({why})"
        return self._turn(scenario, "", left_s)

    def _turn(self, scenario: str, mutant: str, left_s: float) -> Turn:
        count = seeds_at_once(self._standings.known[scenario].seed_s, left_s)
        if not mutant and scenario not in self._had_old:
            self._had_old.add(scenario)
            first = self._next_old_seeds[scenario]
            self._next_old_seeds[scenario] = first + count
            return Turn(scenario, "", range(first, first + count))
        if not mutant:
            self._had_old.discard(scenario)
        first = self._next_seeds.get((scenario, mutant), self._work.night.seed)
        self._next_seeds[scenario, mutant] = first + count
        return Turn(scenario, mutant, range(first, first + count))

    def _limit_s(self, turn: Turn) -> float:
        return max(MIN_LIMIT_S, LIMIT_FACTOR * (self._standings.known[turn.scenario].seed_s or 0.0))

    def _handle_message(self, turn: Turn, message: object) -> None:
        if isinstance(message, Ended):
            if message.how:
                self._handle_message(
                    turn, _died(self.scenarios[turn.scenario], turn, message.how, *self._received[turn])
                )
            return
        assert isinstance(message, PlayRow)
        self._received[turn] = self._received[turn][0] + 1, time.monotonic()
        message = replace(message, is_replay=turn.is_replay)
        self._work.add(message)
        if turn.mutant:
            self._take_canary(message)
            return
        self._standings.take(played(sums_of([message]), 0))
        self._outcomes[message.outcome] += 1
        if message.outcome != Outcome.PASSED.name:
            self._work.tell(f"{message.outcome}: {message.guarantee or message.detail}; {message.command}")

    def _take_canary(self, play: PlayRow) -> None:
        canary = self._canary
        if canary.found:
            return  # The rest of its turn.
        found = bool(play.guarantee)
        canary = msgspec.structs.replace(
            canary,
            seeds_tried=canary.seeds_tried + 1,
            found=found,
            guarantee=play.guarantee,
            spent_us=canary.spent_us + play.wall_us,
        )
        self._work.change(canary=canary)
        if found:
            target = by_name(play.mutant).target
            remember(
                ended_search(
                    play.mutant, target, play.scenario, "sim", canary.seeds_tried, (play.guarantee,), play.seed
                )
            )
            self._work.tell(
                f"the canary {canary.mutant} was found by {canary.guarantee} after {canary.seeds_tried} seeds"
            )

    @property
    def _canary(self) -> Canary:
        assert self._work.night.canary is not None
        return self._work.night.canary

    def _line(self, until: float) -> str:
        counted = ", ".join(f"{count:,} {outcome}" for outcome, count in self._outcomes.items()) or "nothing yet"
        left_s = max(0.0, until - time.monotonic())
        return f"search: {counted}; now {self._now or self._canary.scenario}; {left_s / 60:.1f} min left"


def planted(scenarios: dict[str, Scenario], work: Work) -> Canary:
    """The canary of this night: a mutant that a scenario must kill in the simulator, and that scenario."""
    killed_in: dict[str, list[str]] = {}
    for name, scenario in scenarios.items():
        for mutant in mutants_of(scenario):
            killed_in.setdefault(mutant, []).append(name)
    earlier = [each.night.canary.mutant for each in work.earlier if each.night.canary is not None]
    mutant, where = canary_of(killed_in, earlier, work.night.seed)
    return Canary(mutant=mutant, scenario=where)


def as_row(verdict: SimVerdict, wall_s: float) -> PlayRow:
    explanation = verdict.violations[0].explanation if verdict.violations else "; ".join(verdict.reasons)
    # A mutant may also be noticed by the node itself, which then ends: that is a find as well.
    broken = verdict.broken[0] if verdict.broken else verdict.outcome.name if verdict.mutant and verdict.red else ""
    return PlayRow(
        scenario=verdict.scenario,
        world="sim",
        target=OURS,
        mutant=verdict.mutant,
        seed=verdict.seed,
        outcome=verdict.outcome.name,
        guarantee=broken if verdict.outcome is not Outcome.INVALID else "",
        detail=explanation,
        wall_us=int(wall_s * 1e6),
        at_us=time.time_ns() // 1000,
        run_dir="",
        command=verdict.repeat_command,
    )


def _play(scenario: Scenario, folder: Path, turn: Turn, tell: Tell) -> None:
    watch()
    tally, began = Tally(), time.perf_counter()
    for verdict in verdicts(scenario, turn.seeds, 1, turn.mutant or None):
        tell(as_row(verdict, time.perf_counter() - began))
        tally.take(verdict)
        began = time.perf_counter()
    if not turn.mutant:
        tally.append_to(folder)


def _died(scenario: Scenario, turn: Turn, how: str, received: int, since_s: float) -> PlayRow:
    """The play in which the child of a turn ended, after ``received`` plays whose results it had sent."""
    seed = turn.seeds[min(received, len(turn.seeds) - 1)]
    crash = SimVerdict(turn.scenario, seed, turn.mutant, Outcome.CRASHED, (), (how,), (), 0, 0, 0, 0)
    return as_row(replace(crash, typed=loader.typed(scenario)), time.monotonic() - since_s)


def _next_seeds(sums: Sequence[Sum], first: int) -> dict[tuple[str, str], int]:
    """The next seed of each scenario with each mutant that was played in the simulator."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for each in sums:
        if each.world == "sim":
            seeds.setdefault((each.scenario, each.mutant), []).append(each.last_seed)
    return {key: next_seed(first, played) for key, played in seeds.items()}
