"""What the interceptor looks for: a scenario's faults at states, with this seed's choices made, and their counting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random

from reference_broker.wire.tags import Tag
from scenarios.model import NOTHING, Fault, Match, Range, Scenario


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault at a state. ``nth`` is drawn already; times are microseconds of the load, ``until_us`` -1: open."""

    name: str
    kind: str
    on: str
    match: Match
    nth: int = 1
    every: int = 0
    times: int = 1
    total: int = 0
    after_us: int = 0
    until_us: int = -1
    delay_ms: Range = NOTHING
    duration_us: int = 0
    restart_after_us: int = -1
    step_ms: int = 0
    cut_bytes: Range = NOTHING


def rule_of(fault: Fault, random: Random) -> Rule:
    """The rule for a fault with ``on``; draws what the file gives as a range."""
    return Rule(
        name=fault.name,
        kind=fault.kind,
        on=fault.on,
        match=fault.match,
        nth=random.randint(*fault.nth),
        every=fault.every,
        times=fault.times,
        total=fault.total,
        after_us=int(fault.after_s * 1_000_000),
        until_us=-1 if fault.until_s < 0 else int(fault.until_s * 1_000_000),
        delay_ms=fault.delay_ms,
        duration_us=int(fault.duration_s * 1_000_000),
        restart_after_us=-1 if fault.restart_after_s < 0 else int(fault.restart_after_s * 1_000_000),
        step_ms=fault.step_ms,
        cut_bytes=fault.cut_bytes,
    )


def rules_for(scenario: Scenario, node: int, random: Random) -> tuple[Rule, ...]:
    """The rules of one node's interceptor, in the file's order. All faults draw, so that nodes agree."""
    drawn = [(fault, rule_of(fault, random)) for fault in scenario.faults if not fault.timed]
    return tuple(rule for fault, rule in drawn if fault.node == node)


def matches_frame(match: Match, tag: Tag) -> bool:
    return (
        (match.api is None or match.api == tag.api_key)
        and (match.session is None or match.session == (tag.session_id != 0))
        and _within(match.session_epoch, tag.session_epoch)
        and (match.error is None or match.error == tag.error)
        and (match.role is None or match.role == tag.role)
        and _within(match.position, tag.position)
        and (match.client_id is None or fnmatchcase(tag.client_id, match.client_id))
    )


def matches_write(match: Match, path: str, position: int) -> bool:
    return (match.path is None or fnmatchcase(path, match.path)) and _within(match.position, position)


def _within(wanted: Range | None, value: int) -> bool:
    return wanted is None or wanted.low <= value <= wanted.high


@dataclass(slots=True)
class Counter:
    """How often one rule matched and hit, per client ID. ``hits`` may start above 0: hits of earlier incarnations."""

    rule: Rule
    hits: int = 0
    matches_by_client: dict[str, int] = field(default_factory=dict)
    hits_by_client: dict[str, int] = field(default_factory=dict)

    def hit(self, client_id: str, at_us: int) -> bool:
        """Counts one match; True when the fault shall happen now (and counts that too)."""
        rule = self.rule
        if at_us < rule.after_us or 0 <= rule.until_us <= at_us:
            return False
        seen = self.matches_by_client[client_id] = self.matches_by_client.get(client_id, 0) + 1
        past = seen - rule.nth
        due = past == 0 or (past > 0 and rule.every > 0 and past % rule.every == 0)
        done = self.hits_by_client.get(client_id, 0)
        if not due or (rule.times and done >= rule.times) or (rule.total and self.hits >= rule.total):
            return False
        self.hits_by_client[client_id] = done + 1
        self.hits += 1
        return True


def counters(rules: tuple[Rule, ...], earlier: Mapping[str, int]) -> list[Counter]:
    """Fresh counters; ``earlier``: hits by rule name before a restart of the process, which ``total`` counts too."""
    return [Counter(rule, earlier.get(rule.name, 0)) for rule in rules]
