"""Rules of the interceptor: what they match, how often they fired, and what all faults at states share.

A rule is one of the scenario's faults at states, with its random choices drawn from the seed.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Protocol, TypeAlias

from chaos.interceptor.actions import FaultActions
from chaos.interceptor.roles import is_role, plays
from reference_broker.core.events import Note
from reference_broker.wire.tags import Tag
from reports.rows import FaultRow
from scenarios.fault_kinds import STATES
from scenarios.model import Fault, Match, Range, Scenario
from scenarios.vocabulary import CONNECTION_ROLES, SAME_NODE


class HitCounter(Protocol):
    """Counts how often each rule has hit, over all nodes of a run and all their incarnations.

    All interceptors of a run share it. A rule's ``total`` limits the number of its hits in a run, so an interceptor
    counts each hit before it acts.
    """

    def count(self, rule: str, total: int) -> int:
        """Return the number of this hit of the rule, from 1 on, or 0 if ``total`` hits are taken already. A ``total``
        of 0 means no bound."""
        ...

    def last_target(self, fault: str) -> int | None:
        """Return the node at which the fault of this name fired last, or None."""
        ...


class SharedHitCounter:
    """Implements HitCounter inside one process (the simulator)."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self.last_targets: dict[str, int] = {}
        """The node at which each fault fired last, also faults at a time. The fault scheduler sets it."""

    def last_target(self, fault: str) -> int | None:
        return self.last_targets.get(fault)

    def count(self, rule: str, total: int) -> int:
        taken = self._taken.get(rule, 0)
        if total and taken >= total:
            return 0
        self._taken[rule] = taken + 1
        return taken + 1

    def forget(self, rule: str) -> None:
        """Count the hits of the next rule with this name from the start."""
        self._taken.pop(rule, None)


class FileHitCounter:
    """Implements HitCounter between processes, each of which may be killed at any moment.

    Hit n belongs to the process that creates file n of the rule. A run has one ``folder``, which is made if missing.
    Without a bound each process numbers its own hits.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._taken: dict[str, int] = {}

    def count(self, rule: str, total: int) -> int:
        number = self._taken.get(rule, 0) + 1
        while total and number <= total and not self._create(f"{rule}-{number}"):
            number += 1
        self._taken[rule] = min(number, total) if total else number
        return 0 if total and number > total else number

    def last_target(self, fault: str) -> int | None:  # noqa: ARG002
        """Return None: real nodes do not see what hit others, so live runs have no faults with ``after``."""
        return None

    def _create(self, name: str) -> bool:
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


NEVER_US = 2**63
Rule: TypeAlias = Fault
"""A fault at a state whose ``nth`` is drawn already. ``node`` says where it hits: a number, or a role that the node
must have at that moment."""


def rules_for(scenario: Scenario, node: int, random: Random) -> tuple[Rule, ...]:
    """Return the rules of one node's interceptor in the file's order: those for its number and those for a role.

    All nodes draw the same numbers, because all draw for every fault.
    """
    drawn = rules_of(scenario, random)
    return tuple(rule for rule in drawn if isinstance(rule.node, str) or rule.node == node)


def rules_of(scenario: Scenario, random: Random) -> tuple[Rule, ...]:
    """Return the rules for all places, in the file's order. ``scenario`` is what ``scenarios.derived.drawn`` returns
    for the seed."""
    return tuple(settled(fault, random) for fault in scenario.faults if not fault.timed)


def settled(fault: Fault, random: Random) -> Rule:
    """Draw the random choices of the rule, and put the sender of its link into ``match``."""
    nth = random.randint(*fault.nth)
    match = fault.match
    if fault.link is not None:
        source = fault.link.source
        match = replace(match, role="peer", from_node=source if isinstance(source, int) else None)
    return replace(fault, nth=Range(nth, nth), match=match)


def at_a_link(rule: Rule) -> bool:
    """Return whether the rule hits on a link between nodes. With real processes a proxy there plays it."""
    return rule.link is not None


AT_THE_REQUESTER = "peer_response"


def between_nodes(rule: Rule) -> bool:
    """Return whether a proxy in front of an external broker would see the target of the rule only between nodes."""
    return at_a_link(rule) or rule.on == AT_THE_REQUESTER


def matches_frame(match: Match, node_role: str, tag: Tag) -> bool:
    """Return whether a request or its reply matches, at the node that responds."""
    return (
        (match.api is None or match.api == tag.api_key)
        and (match.session is None or match.session == (tag.session_id != 0))
        and _within(match.session_epoch, tag.session_epoch)
        and (match.error is None or match.error == tag.error)
        and (match.role == tag.role if match.role in CONNECTION_ROLES else _has_role(match.role, node_role))
        and _within(match.position, tag.position)
        and (match.client_id is None or fnmatchcase(tag.client_id, match.client_id))
        and (match.from_node is None or tag.client_id == f"node-{match.from_node}")
    )


def matches_peer_reply(match: Match, node_role: str, tag: Tag, peer: int) -> bool:
    """Return whether a reply matches, at the node that sent the request. ``tag`` is the request's."""
    return (
        (match.api is None or match.api == tag.api_key)
        and _within(match.position, tag.position)
        and _has_role(match.role, node_role)
        and (match.from_node is None or match.from_node == peer)
    )


def matches_write(match: Match, node_role: str, path: str, position: int) -> bool:
    return (
        (match.path is None or fnmatchcase(path, match.path))
        and _within(match.position, position)
        and _has_role(match.role, node_role)
    )


def matches_operation(match: Match, node_role: str, names: Collection[str], paths: Collection[str]) -> bool:
    """Return whether an operation of the disk matches. It may have several names (``vocabulary.DISK_OPERATIONS``) and
    be of several paths."""
    return (
        (match.operation is None or match.operation in names)
        and (match.path is None or any(fnmatchcase(path, match.path) for path in paths))
        and _has_role(match.role, node_role)
    )


def matches_note(match: Match, node_role: str, note: Note) -> bool:
    """Return whether a note matches. A field that the note does not have matches nothing.

    ``remaining`` is ``of`` minus ``number``. For a chunk it is the number of bytes of ``size`` behind the chunk.
    """
    if match.note != note.what or not _has_role(match.role, node_role):
        return False
    values: dict[str, int | str | None] = dict(note.fields)
    for whole, parts in (("of", ("number",)), ("size", ("position", "bytes"))):
        numbers = [values.get(name) for name in (whole, *parts)]
        if all(isinstance(number, int) for number in numbers):
            values["remaining"] = int(numbers[0] or 0) - sum(int(number or 0) for number in numbers[1:])
    return all(_is(required, values.get(name)) for name, required in match.fields)


def matches_decision(match: Match, node_role: str, outcome: str) -> bool:
    """Return whether an outcome of a decision point (``NAME=OUTCOME``) matches."""
    return match.decision in (None, outcome) and _has_role(match.role, node_role)


def _has_role(required: str | None, node_role: str) -> bool:
    return required is None or is_role(node_role, required)


def _is(required: Range | str, value: int | str | None) -> bool:
    if isinstance(required, str):
        return value is not None and fnmatchcase(str(value), required)
    return isinstance(value, int) and required.low <= value <= required.high


def _within(allowed: Range | None, value: int) -> bool:
    return allowed is None or allowed.low <= value <= allowed.high


class Counter:
    """Counts how often one rule matched and hit on this node, for each client ID. The rule's ``total`` holds for all
    nodes together, so each hit is claimed first."""

    def __init__(self, rule: Rule, hit_counter: HitCounter) -> None:
        self.rule = rule
        self._hit_counter = hit_counter
        self._after_us = -NEVER_US if rule.boot else int(rule.after_s * 1_000_000)
        self._until_us = NEVER_US if rule.until_s < 0 else int(rule.until_s * 1_000_000)
        self._matches_by_client: dict[str, int] = {}
        self._hits_by_client: dict[str, int] = {}

    def is_due(self, at_us: int) -> bool:
        """Return whether the rule holds ``at_us`` microseconds after the load began."""
        return self._after_us <= at_us < self._until_us

    def at(self, node_id: int, node_role: str) -> bool:
        """Return whether the rule is for this node, now that the fault that it follows, if any, has hit."""
        rule = self.rule
        if rule.after:
            target = self._hit_counter.last_target(rule.after)
            if target is None or (rule.node == SAME_NODE and target != node_id):
                return False
        return rule.node == SAME_NODE or plays(node_role, rule.node, node_id)

    def count_match(self, client_id: str, at_us: int) -> int:
        """Count one match, ``at_us`` microseconds after the load began. If the fault happens now, count a hit, too, and
        return its number, from 1. Otherwise return 0."""
        rule = self.rule
        if not self.is_due(at_us):
            return 0
        seen = self._matches_by_client[client_id] = self._matches_by_client.get(client_id, 0) + 1
        past = seen - rule.nth.low
        due = past == 0 or (past > 0 and rule.every > 0 and past % rule.every == 0)
        done = self._hits_by_client.get(client_id, 0)
        if not due or (rule.times and done >= rule.times):
            return 0
        number = self._hit_counter.count(rule.name, rule.total)
        if number:
            self._hits_by_client[client_id] = done + 1
        return number


NO_FRAME = Tag(-1, -1, "")
"""The tag in the evidence of a hit at a disk write or a note, which belong to no request."""


def _anything(_: Rule) -> bool:
    return True


class RuleBook:
    """The rules of one node: which of them hit now, and what all hits have in common.

    All nodes of the run share ``hit_counter``. ``role`` returns what this node is now
    (``chaos.interceptor.roles.role_of``). The owner sets ``now_us``, the time since the run's start.
    """

    def __init__(
        self,
        node: int,
        rules: Sequence[Rule],
        actions: FaultActions,
        random: Random,
        hit_counter: HitCounter,
        role: Callable[[], str],
    ) -> None:
        self.now_us = 0
        self._node = node
        self._actions = actions
        self._random = random
        self._hit_counter = hit_counter
        self._role = role
        self._load_from_us = 0
        self._armed = True
        self._by_place: dict[str, list[Counter]] = {place: [] for place in STATES}
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        self._by_place[rule.on].append(Counter(rule, self._hit_counter))

    def remove(self, name: str) -> None:
        """Remove the rule. What it began still ends as planned."""
        for counters in self._by_place.values():
            counters[:] = [counter for counter in counters if counter.rule.name != name]

    def load_from(self, at_us: int) -> None:
        """Note that the load begins at ``at_us``, microseconds since the run's start."""
        self._load_from_us = at_us

    def disarm(self) -> None:
        self._armed = False

    def has_rules_at(self, *places: str) -> bool:
        """Return whether there is a rule for one of these places."""
        return any(self._by_place[place] for place in places)

    def rules(self, place: str) -> Iterator[Rule]:
        return (counter.rule for counter in self._by_place[place])

    def first_hit(
        self,
        place: str,
        client_id: str,
        matches: Callable[[Match, str], bool],
        offers: Callable[[Rule], bool] = _anything,
    ) -> tuple[Rule, int] | None:
        """Count a match of each matching rule in order, up to the first rule that hits now. Return that rule with the
        number of this hit. ``offers`` returns whether the matched thing has the part that the rule changes."""
        for counter in self._matching(place, matches, offers):
            hit = counter.count_match(client_id, self._at_us)
            if hit:
                return counter.rule, hit
        return None

    def inject_all_hits(self, place: str, matches: Callable[[Match, str], bool], description: str) -> None:
        """Count a match of each matching rule. Report and inject each rule that hits now. ``description`` is that of
        the event."""
        for counter in self._matching(place, matches):
            hit = counter.count_match("", self._at_us)
            if hit:
                self.report(counter.rule, hit, detail=f"{self._role()} {description}")
                self.inject_at_node(counter.rule)

    def may_hit(self, place: str, matches: Callable[[Match, str], bool]) -> bool:
        """Return whether ``first_hit`` would count a match. It counts none."""
        return any(True for _ in self._matching(place, matches))

    def _matching(
        self, place: str, matches: Callable[[Match, str], bool], offers: Callable[[Rule], bool] = _anything
    ) -> Iterator[Counter]:
        """Yield the counters of the due rules that match, without counting. A rule is tested only when the caller
        reaches it: it may follow (``after``) a rule that hit just before."""
        due = self._due(place)
        role = self._role() if due else ""
        for counter in due:
            if counter.at(self._node, role) and matches(counter.rule.match, role) and offers(counter.rule):
                yield counter

    def is_any_due(self, place: str) -> bool:
        """Return whether any rule may hit there now. It costs less than ``first_hit``, and mostly none is due."""
        if self._armed:
            at_us = self.now_us - self._load_from_us
            for counter in self._by_place[place]:
                if counter.is_due(at_us):
                    return True
        return False

    @property
    def _at_us(self) -> int:
        return self.now_us - self._load_from_us

    def _due(self, place: str) -> Sequence[Counter]:
        counters = self._by_place[place]
        if not counters or not self._armed:
            return ()
        at_us = self._at_us
        return [counter for counter in counters if counter.is_due(at_us)]

    def inject_at_node(self, rule: Rule) -> None:
        if rule.kind == "node_killed":
            self._actions.kill()
        elif rule.kind == "node_powered_off":
            self._actions.power_off()
        elif rule.kind == "host_lost":
            self._actions.lose_host()
        elif rule.kind == "node_paused":
            self._actions.pause(int(rule.duration_s * 1_000_000))
        elif rule.kind == "clock_stepped":
            self._actions.step_clock(rule.step_ms)
        else:
            raise AssertionError(
                f"rule {rule.name}: {rule.kind} cannot be done on {rule.on}; the loader should have refused it"
            )

    def delay_us(self, rule: Rule) -> int:
        """Draw the delay of one hit."""
        return self._random.randint(*rule.delay_ms) * 1000

    def role(self) -> str:
        return self._role()

    def report(self, rule: Rule, hit: int, tag: Tag = NO_FRAME, detail: str = "", kind: str = "") -> None:
        """Report evidence of a hit. Call it before the action itself."""
        if rule.kind == "clock_stepped":
            detail = f"{detail} step_ms={rule.step_ms}".lstrip()
        self._actions.report(
            FaultRow(
                rule.name,
                kind or rule.kind,
                self.now_us,
                self.now_us,
                f"node-{self._node}",
                hit,
                tag.client_id,
                tag.api_key,
                tag.session_id,
                tag.session_epoch,
                detail,
            )
        )
