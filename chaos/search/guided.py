"""Guided search. Schedules that reached something new are kept and changed further.

A random search draws each schedule by itself. Here a *recipe* names a schedule: a scenario, a seed, and the numbers of
changes. Each change alters the scenario that the earlier ones made: it moves, repeats, drops or adds a fault, lets one
follow another at the same node, kills a node at a decision point, or draws another setting, topology or load. A
recipe is kept in the *corpus* if its run reached a feature that none before it had:

- an outcome of a decision point, by order of magnitude of how often;
- a pair of outcomes that followed each other on one node;
- a fault in a cell: kind, role and state of its target.

The next round draws its recipes from the corpus, from the least tried and the most fruitful first, and new seeds beside
them. All follows from the first seed and the code, whatever the number of processes: a round has ROUND recipes, and the
corpus changes between rounds only.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

from chaos.search.children import in_children
from chaos.search.many_seeds import quickly
from chaos.seeds import random_for
from chaos.sim.decision_counts import watch
from chaos.sim.one_seed import play_seed
from chaos.sim.swarm import SETTINGS, SLICES, SwarmDrawing, materialised, other_fetchers
from chaos.sim.verdict import SimVerdict
from reports.verdict import Outcome
from scenarios.consistency import needed_by
from scenarios.decision_points import declared_points, outcome_names
from scenarios.declared import simulated
from scenarios.load import Load
from scenarios.loader import Scenario, typed
from scenarios.model import Fault, Match, Range, Swarm
from scenarios.vocabulary import PARTITION_ROLES, SAME_NODE

ROUND: Final = 16
"""number of recipes that are drawn before the corpus changes"""
PART: Final = 2
"""number of recipes that a child process plays"""
FRESH_SHARE: Final = 0.35
"""share of the recipes of a round that are new seeds without changes"""
FEW: Final = 8
"""With fewer recipes in the corpus all of a round are new seeds."""
MAX_CHANGES: Final = 12
MIX_SHARE: Final = 0.2
"""share of the changed recipes that also get the changes of another one of their scenario"""
SAFE_KINDS: Final = ("node_killed", "node_paused", "node_isolated", "link_cut", "link_delayed", "link_reset")
"""kinds of faults that changes add to a scenario without a swarm of its own"""
CORPUS: Final = "corpus.jsonl"
STATE: Final = "search.json"
"""the file with what the next round depends on beside the corpus: its number, and the tries of each recipe"""

FEATURE_LEVELS: Final = {
    "eligible.leader.replicas.version": (0, 1),
    "group.version": (0, 1),
    "transaction.version": (0, 2),
}
"""Features whose level a change may draw, with the lowest and the highest level. The metadata epoch is not among them:
at level 0 of it some guarantees are not judged."""
SLICE_ITEMS: Final = "sim_slice_items"
"""drawn like a setting: work that a small cluster does in one slice is done in many"""

Feature: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Recipe:
    """The identity of a schedule: the scenario as typed on the command line, the seed, and the changes in their
    order."""

    scenario: str
    seed: int
    changes: tuple[int, ...] = ()


def scheduled(scenario: Scenario, seed: int, changes: Sequence[int]) -> Scenario:
    """Return the scenario with the seed's faults, and with these changes. A changed one need not reach its points."""
    swarm = scenario.swarm or Swarm(SAFE_KINDS, every_s=4.0)
    decays = random_for(seed, "swarm").randrange(scenario.cluster.total)  # As the swarm draws it first.
    changed = materialised(scenario, seed)
    for place, number in enumerate(changes):
        changed = _Change(changed, swarm, decays, random_for(number, "change"), f"change_{place + 1}").made()
    needs = dict.fromkeys((*changed.needs, *(need for fault in changed.faults for need in needed_by(fault))))
    return replace(changed, needs=tuple(needs), points=()) if changes else changed


class _Change:
    """One change of a scenario."""

    def __init__(self, scenario: Scenario, swarm: Swarm, decays: int, random: Random, name: str) -> None:
        self._scenario = scenario
        self._swarm = swarm
        self._decays = decays
        self._random = random
        self._name = name
        self._seconds = scenario.load.in_simulator.seconds

    def made(self) -> Scenario:
        kinds: tuple[tuple[Callable[[], Scenario], int], ...] = (
            (self._moved, 3),
            (self._repeated, 2),
            (self._dropped, 1),
            (self._added, 4),
            (self._followed, 4),
            (self._at_decision, 5),
            (self._lasting, 2),
            (self._configured, 2),
            (self._with_other_nodes, 1),
            (self._with_other_load, 2),
            (self._with_other_clients, 2),
            (self._with_feature, 1),
        )
        (change,) = self._random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
        return change()

    def _with(self, *faults: Fault) -> Scenario:
        return replace(self._scenario, faults=(*self._scenario.faults, *faults))

    def _instead(self, old: Fault, new: Fault) -> Scenario:
        faults = tuple(new if fault is old else fault for fault in self._scenario.faults)
        return replace(self._scenario, faults=faults)

    def _some_fault(self, *, timed: bool = False) -> Fault | None:
        """Return one of the faults that a search may change: the scenario's own ones prove that it played."""
        faults = [fault for fault in self._scenario.faults if fault.optional and (fault.timed or not timed)]
        return self._random.choice(faults) if faults else None

    def _at_s(self) -> float:
        """Draw a time: any, or soon after another fault's."""
        other = self._some_fault(timed=True)
        if other is not None and self._random.random() < 0.5:
            return round(min(max(other.sim_at_s + self._random.gauss(0.3, 0.5), 0.0), self._seconds), 3)
        return round(self._random.random() * self._seconds, 3)

    # Faults

    def _moved(self) -> Scenario:
        fault = self._some_fault()
        if fault is None:
            return self._added()
        at_s = self._at_s()
        if fault.timed:
            return self._instead(fault, replace(fault, at_s=at_s, sim_at_s=at_s))
        nth = self._random.randint(1, 2 * fault.nth.high + 1)
        until_s = -1.0 if fault.until_s < 0 else round(at_s + fault.until_s - fault.after_s, 3)
        return self._instead(fault, replace(fault, after_s=at_s, until_s=until_s, nth=Range(nth, nth)))

    def _lasting(self) -> Scenario:
        fault = self._some_fault()
        if fault is None:
            return self._added()
        by = 2.0 ** self._random.uniform(-2, 2)
        lasts_s, away_s = round(fault.sim_duration_s * by, 3), round(max(fault.restart_after_s, 0.05) * by, 3)
        away_s = fault.restart_after_s if fault.restart_after_s < 0 else away_s
        return self._instead(fault, replace(fault, duration_s=lasts_s, sim_duration_s=lasts_s, restart_after_s=away_s))

    def _repeated(self) -> Scenario:
        fault = self._some_fault(timed=True)
        if fault is None:
            return self._added()
        at_s = self._at_s()
        node = "any" if fault.node == SAME_NODE else fault.node  # A repeated fault follows no other.
        return self._with(replace(fault, name=self._name, at_s=at_s, sim_at_s=at_s, after="", node=node))

    def _dropped(self) -> Scenario:
        fault = self._some_fault()
        if fault is None or any(each.after == fault.name for each in self._scenario.faults):
            return self._added()
        kept = tuple(each for each in self._scenario.faults if each is not fault)
        return replace(self._scenario, faults=kept)

    def _added(self) -> Scenario:
        return self._with(self._drawn(self._at_s()))

    def _drawn(self, at_s: float) -> Fault:
        drawing = SwarmDrawing(self._scenario, self._swarm, self._random, self._decays)
        return drawing.one(self._name, self._random.choice(self._swarm.kinds), at_s)

    def _followed(self) -> Scenario:
        """Let a fault follow another one, at once, soon, or at the next decisions: at the same node, at the active
        controller, or at the leader or a follower of the hot topic's first partition."""
        first = self._some_fault()
        if first is None:
            return self._added()
        others = ("leader", "any", *(PARTITION_ROLES if self._scenario.load.hot.replicas > 1 else ()))
        node = self._random.choice((SAME_NODE, SAME_NODE, SAME_NODE, *others))
        if self._random.random() < 0.5:
            nth = int(2 ** (self._random.random() * 6))
            return self._with(replace(self._killed(), on="decision", nth=Range(nth, nth), node=node, after=first.name))
        at_s = round(0.01 * 2 ** (self._random.random() * 8), 3)
        return self._with(replace(self._killed(), node=node, at_s=at_s, sim_at_s=at_s, after=first.name))

    def _at_decision(self) -> Scenario:
        """Add a fault in the middle of a node's work, at a decision of a drawn mechanism."""
        path = self._random.choice(sorted({point.path for point in declared_points()}))
        point = self._random.choice(
            [declared_point for declared_point in declared_points() if declared_point.path == path]
        )
        nth = int(2 ** (self._random.random() * 5))
        fault = replace(
            self._killed(),
            on="decision",
            match=Match(decision=point.outcome(self._random.randrange(2))),
            nth=Range(nth, nth),
            node="any",
            after_s=self._at_s(),
        )
        return self._with(fault)

    def _killed(self) -> Fault:
        """Draw the kind of the fault: mostly a kill, or a power loss if the scenario has those."""
        kinds = [each for each in ("node_killed", "node_powered_off") if each in self._swarm.kinds] or ["node_killed"]
        away_s = round(0.05 * 2 ** (self._random.random() * 7), 2)
        kind = self._random.choice(kinds)
        return Fault(self._name, kind, total=1, restart_after_s=away_s, optional=True)

    # The cluster and its load

    def _configured(self) -> Scenario:
        name = self._random.choice((*sorted(SETTINGS), SLICE_ITEMS))
        cluster = self._scenario.cluster
        if name == SLICE_ITEMS:
            return replace(self._scenario, cluster=replace(cluster, sim_slice_items=self._random.choice(SLICES)))
        config = {**dict(cluster.config), name: self._random.choice(SETTINGS[name])}
        return replace(self._scenario, cluster=replace(cluster, config=tuple(sorted(config.items()))))

    def _with_other_nodes(self) -> Scenario:
        """Add voters or an observer. Faults and replicas name nodes by number, so none is removed."""
        cluster = self._scenario.cluster
        nodes = (
            self._random.choice((cluster.nodes, 5)) if cluster.nodes == 3 and not cluster.observers else cluster.nodes
        )
        observers = self._random.choice((cluster.observers, max(cluster.observers, 1), 2))
        racks = self._random.choice((cluster.racks, ("a", "b")))
        if nodes == 1:
            return self._configured()
        return replace(self._scenario, cluster=replace(cluster, nodes=nodes, observers=observers, racks=racks))

    def _with_other_load(self) -> Scenario:
        load, by = self._scenario.load, self._random.choice((0.5, 2.0, 4.0))
        if load.producers and self._random.random() < 0.5:
            return replace(self._scenario, load=_at_rate(load, by))
        if load.fetchers:
            place = self._random.randrange(len(load.fetchers))
            fetchers = list(load.fetchers)
            fetchers[place] = replace(fetchers[place], count=fetchers[place].count + self._random.randint(1, 3))
            return replace(self._scenario, load=replace(load, fetchers=tuple(fetchers)))
        return replace(self._scenario, load=_at_rate(load, by))

    def _with_other_clients(self) -> Scenario:
        """Add fetchers of another behaviour and version to those that the scenario has."""
        load = self._scenario.load
        if not load.fetchers:
            return self._with_other_load()
        added = other_fetchers(load, self._random, self._name.replace("_", "-"))
        return replace(self._scenario, load=replace(load, fetchers=(*load.fetchers, added)))

    def _with_feature(self) -> Scenario:
        """Let the controller finalize another level of a feature, and mostly the highest one again later."""
        feature = self._random.choice(sorted(FEATURE_LEVELS))
        low, high = FEATURE_LEVELS[feature]
        at_s, lasts_s = self._at_s(), round(0.2 * 2 ** (self._random.random() * 5), 3)
        level = self._random.randint(low, high)
        first = Fault(
            self._name, "feature_finalized", at_s=at_s, sim_at_s=at_s, feature=feature, level=level, optional=True
        )
        again_s = round(at_s + lasts_s, 3)
        again = replace(first, name=f"{self._name}_again", at_s=again_s, sim_at_s=again_s, level=high)
        return self._with(first, again) if self._random.random() < 0.8 else self._with(first)


def _at_rate(load: Load, by: float) -> Load:
    producers = []
    for producer in load.producers:
        rate = round(simulated(producer).rate_per_s * by, 3)
        producers.append(replace(producer, rate_per_s=rate, sim_rate_per_s=rate))
    return replace(load, producers=tuple(producers))


# The corpus


def features_of(verdict: SimVerdict) -> frozenset[Feature]:
    """Return what a run reached."""
    features: set[Feature] = {
        f"{place}:{times.bit_length() // 2}" for place, times in enumerate(_counts(verdict)) if times
    }
    features.update(verdict.reached.pairs)
    features.update("/".join(cell) for cell, _ in verdict.coverage)
    return frozenset(features)


def _counts(verdict: SimVerdict) -> tuple[int, ...]:
    return verdict.reached.counts


@dataclass(slots=True)
class CorpusEntry:
    """A recipe of the corpus, the features that it was the first to reach, and the places of all outcomes that it
    reaches."""

    recipe: Recipe
    new: frozenset[Feature]
    reaches: frozenset[int]
    events: int
    tries: int = 0
    """number of recipes that were made from it"""


@dataclass(slots=True)
class Corpus:
    """All kept recipes."""

    folder: Path | None = None
    """Folder of ``corpus.jsonl``, to which each kept recipe is appended at once; None: kept in memory only."""
    entries: list[CorpusEntry] = field(default_factory=list)
    seen: set[Feature] = field(default_factory=set)
    rounds: int = 0

    def take(self, recipe: Recipe, verdict: SimVerdict) -> bool:
        """Keep the recipe if its run reached something new. Return whether it did."""
        features = features_of(verdict)
        new = features - self.seen
        if not new:
            return False
        self.seen |= new
        reaches = frozenset(place for place, times in enumerate(_counts(verdict)) if times)
        self.entries.append(CorpusEntry(recipe, frozenset(new), reaches, verdict.events))
        self._write(self.entries[-1])
        return True

    @property
    def reached(self) -> frozenset[int]:
        """The places of all outcomes that some recipe reaches."""
        return frozenset(place for entry in self.entries for place in entry.reaches)

    def _write(self, entry: CorpusEntry) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        line = {
            "scenario": entry.recipe.scenario,
            "seed": entry.recipe.seed,
            "changes": entry.recipe.changes,
            "new": sorted(entry.new, key=str),
            "reaches": sorted(entry.reaches),
            "events": entry.events,
            "round": self.rounds,
            "points": points_digest(),
        }
        with (self.folder / CORPUS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def end_round(self) -> None:
        self.rounds += 1
        if self.folder is not None and self.folder.is_dir():
            state = {"rounds": self.rounds, "tries": [entry.tries for entry in self.entries]}
            (self.folder / STATE).write_text(json.dumps(state), encoding="utf-8")


def points_digest() -> str:
    """Return a short hash of the declared points. If it differs, stored places refer to other points."""
    return hashlib.sha256("\n".join(outcome_names()).encode()).hexdigest()[:12]


def read_corpus(folder: Path) -> tuple[Corpus, list[Recipe]]:
    """Return the corpus of a folder, empty if it has none, and the recipes that must be played again because the points
    have changed since."""
    corpus, old = Corpus(folder), list[Recipe]()
    path = folder / CORPUS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        row: dict[str, Any] = json.loads(line)
        recipe = Recipe(row["scenario"], row["seed"], tuple(row["changes"]))
        if row["points"] != points_digest():
            old.append(recipe)
            continue
        entry = CorpusEntry(recipe, frozenset(row["new"]), frozenset(row["reaches"]), row["events"])
        corpus.entries.append(entry)
        corpus.seen |= entry.new
    if (folder / STATE).exists():
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        corpus.rounds = state["rounds"]
        for entry, tries in zip(corpus.entries, state["tries"], strict=False):
            entry.tries = tries
    if old:
        path.unlink()
        for entry in corpus.entries:
            corpus._write(entry)
    return corpus, old


# The search


@dataclass(frozen=True, slots=True)
class PlayedSchedule:
    """A schedule that was played."""

    recipe: Recipe
    verdict: SimVerdict
    is_new: bool
    """Whether the corpus keeps it."""


@dataclass(slots=True)
class GuidedSearch:
    """Searches over scenarios from a seed. ``play_schedules`` goes on for as long as its caller wants."""

    scenarios: Sequence[Scenario]
    seed: int
    corpus: Corpus = field(default_factory=Corpus)
    processes: int = 2
    mutant: str | None = None
    again: Sequence[Recipe] = ()
    """recipes to play first"""
    _by_name: dict[str, Scenario] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {typed(scenario): scenario for scenario in self.scenarios}

    def play_schedules(self, schedules: int) -> Iterator[PlayedSchedule]:
        """Yield each schedule once it was played, at least this many."""
        watch()
        played = 0
        first = list(self.again)
        while played < schedules:
            recipes, first = (first[:ROUND], first[ROUND:]) if first else (self._drawn_round(), [])
            for recipe, verdict in zip(recipes, self._verdicts(recipes), strict=True):
                played += 1
                yield PlayedSchedule(recipe, verdict, self.corpus.take(recipe, verdict))
            self.corpus.end_round()

    def _drawn_round(self) -> list[Recipe]:
        random = random_for(self.seed, f"round-{self.corpus.rounds}")
        return [self._drawn(random) for _ in range(ROUND)]

    def _drawn(self, random: Random) -> Recipe:
        entries = [
            corpus_entry for corpus_entry in self.corpus.entries if corpus_entry.recipe.scenario in self._by_name
        ]
        if len(entries) < FEW or random.random() < FRESH_SHARE:
            return Recipe(random.choice(sorted(self._by_name)), random.randrange(1, 2**31))
        (entry,) = random.choices(entries, [len(each.new) ** 0.5 / (1 + each.tries) for each in entries])
        entry.tries += 1
        recipe = entry.recipe
        changes = list(recipe.changes)
        if random.random() < MIX_SHARE:
            others = [each.recipe for each in entries if each.recipe.scenario == recipe.scenario]
            changes += random.choice(others).changes
        changes += [random.randrange(2**31) for _ in range(1 + (random.random() < 0.4))]
        return replace(recipe, changes=tuple(changes[-MAX_CHANGES:]))

    def _verdicts(self, recipes: Sequence[Recipe]) -> Iterator[SimVerdict]:
        parts = [recipes[start : start + PART] for start in range(0, len(recipes), PART)]
        for part in in_children(self._part, parts, self.processes):
            yield from part

    def _part(self, recipes: Sequence[Recipe]) -> list[SimVerdict]:
        with quickly():
            return [self._verdict(recipe) for recipe in recipes]

    def _verdict(self, recipe: Recipe) -> SimVerdict:
        scenario = scheduled(self._by_name[recipe.scenario], recipe.seed, recipe.changes)
        return replace(play_seed(scenario, recipe.seed, self.mutant).verdict, changes=recipe.changes)


def recipes_near(corpus: Corpus, path: str) -> list[Recipe]:
    """Return the recipes of the corpus that reach points of a file, those that reach most of them per event first."""
    points = {
        2 * number + side for number, point in enumerate(declared_points()) if point.path == path for side in (0, 1)
    }
    near = [entry for entry in corpus.entries if entry.reaches & points]
    return [each.recipe for each in sorted(near, key=lambda entry: -len(entry.reaches & points) / (1 + entry.events))]


PROGRESS_EVERY_S: Final = 10.0


def search_guided(
    scenarios: Sequence[Scenario],
    schedules: int,
    seed: int,
    processes: int,
    mutant: str | None,
    folder: Path | None,
    show: Callable[[str], None],
    near: str = "",
) -> tuple[list[SimVerdict], str]:
    """Search, and return the red verdicts and a summary. ``show`` gets a line of progress every few seconds.

    ``folder`` keeps the corpus: a search in the same folder goes on from there. With ``near``, the path of a file of
    the broker, its recipes that reach points of that file are played first. A search with a mutant ends at its kill,
    and keeps nothing.
    """
    corpus, again = (Corpus(), []) if folder is None else read_corpus(folder)
    if near:
        again = [*again, *recipes_near(corpus, near)]
    if mutant:
        corpus.folder = None
    search = GuidedSearch(scenarios, seed, corpus, processes, mutant, again)
    started = shown = time.monotonic()
    red, played, events, new = list[SimVerdict](), 0, 0, list[tuple[float, int]]()
    reached = set(corpus.reached)
    for schedule in search.play_schedules(schedules):
        now, verdict = time.monotonic(), schedule.verdict
        played, events = played + 1, events + verdict.events
        places = {place for place, times in enumerate(verdict.reached.counts) if times} - reached
        reached |= places
        new = [(at, count) for at, count in [*new, (now, len(places))] if now - at < 60]
        if verdict.outcome in (Outcome.FAILED, Outcome.CRASHED):
            red.append(verdict)
            show(f"red: {verdict.outcome.name} {', '.join(verdict.broken)}: {verdict.repeat_command}")
            if mutant:
                break
        if now - shown >= PROGRESS_EVERY_S:
            shown = now
            show(
                f"{played} schedules, {played / (now - started):.1f}/s; "
                f"{len(reached)} of {len(outcome_names())} outcomes reached, "
                f"{sum(count for _, count in new)} new in the last minute; corpus {len(corpus.entries)}; "
                + (f"{len(red)} red" if red else "no red")
            )
    seconds = time.monotonic() - started
    summary = (
        f"guided: {played} schedules of {len(scenarios)} scenarios, {played / seconds:.1f} schedules/s, "
        f"{events / seconds:.0f} events/s; {len(reached)} of {len(outcome_names())} outcomes and {len(corpus.seen)} "
        f"features reached; corpus {len(corpus.entries)}; {len(red)} red"
    )
    return red, summary
