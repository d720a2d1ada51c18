"""What the interceptor looks for: a scenario's faults at states, with this seed's choices made, and their counters."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random

from chaos.claims import Claims
from chaos.roles import is_role, plays
from reference_broker.core.effects import Note
from reference_broker.wire.tags import Tag
from scenarios.model import NOTHING, Fault, Match, NodeChoice, Range, Scenario
from scenarios.vocabulary import CONNECTION_ROLES


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault at a state.

    ``nth`` is drawn already. Times are microseconds since the load began, and an ``until_us`` of -1 means no end.
    ``node`` says where the fault strikes: a number, or a role that the node must have at that moment.
    """

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
    node: NodeChoice = "any"
    boot: bool = False
    """The rule also strikes before the load."""


def rule_of(fault: Fault, random: Random) -> Rule:
    """Returns the rule for a fault with ``on``. Draws what the file gives as a range."""
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
        node=fault.node,
        boot=fault.boot,
    )


def rules_for(scenario: Scenario, node: int, random: Random) -> tuple[Rule, ...]:
    """Returns the rules of one node's interceptor in the file's order: those for its number and those for a role.

    All faults draw, also those of other nodes, so that the nodes agree. ``scenario`` is what ``scenarios.draw.drawn``
    returns for the seed.
    """
    drawn = [(fault, rule_of(fault, random)) for fault in scenario.faults if not fault.timed]
    return tuple(rule for fault, rule in drawn if isinstance(fault.node, str) or fault.node == node)


def matches_frame(match: Match, tag: Tag, node_role: str) -> bool:
    """Returns whether a request or its reply matches, at the node that answers."""
    return (
        (match.api is None or match.api == tag.api_key)
        and (match.session is None or match.session == (tag.session_id != 0))
        and _within(match.session_epoch, tag.session_epoch)
        and (match.error is None or match.error == tag.error)
        and (match.role is None or _is_role(match.role, tag, node_role))
        and _within(match.position, tag.position)
        and (match.client_id is None or fnmatchcase(tag.client_id, match.client_id))
        and (match.from_node is None or tag.client_id == f"node-{match.from_node}")
    )


def matches_peer_reply(match: Match, tag: Tag, peer: int, node_role: str) -> bool:
    """Returns whether an answer matches, at the node that asked. ``tag`` is the request's."""
    return (
        (match.api is None or match.api == tag.api_key)
        and _within(match.position, tag.position)
        and (match.role is None or is_role(node_role, match.role))
        and (match.from_node is None or match.from_node == peer)
    )


def matches_write(match: Match, path: str, position: int, node_role: str) -> bool:
    return (
        (match.path is None or fnmatchcase(path, match.path))
        and _within(match.position, position)
        and (match.role is None or is_role(node_role, match.role))
    )


def matches_note(match: Match, note: Note, node_role: str) -> bool:
    """Returns whether a note matches. A field that the note does not have matches nothing.

    ``remaining`` is ``of`` minus ``number``. For a chunk it is the number of bytes of ``size`` behind the chunk.
    """
    if match.note != note.what or (match.role is not None and not is_role(node_role, match.role)):
        return False
    values: dict[str, int | str | None] = dict(note.fields)
    for whole, parts in (("of", ("number",)), ("size", ("position", "bytes"))):
        numbers = [values.get(name) for name in (whole, *parts)]
        if all(isinstance(number, int) for number in numbers):
            values["remaining"] = int(numbers[0] or 0) - sum(int(number or 0) for number in numbers[1:])
    return all(_is(wanted, values.get(name)) for name, wanted in match.fields)


def _is_role(wanted: str, tag: Tag, node_role: str) -> bool:
    return wanted == tag.role if wanted in CONNECTION_ROLES else is_role(node_role, wanted)


def _is(wanted: Range | str, value: int | str | None) -> bool:
    if isinstance(wanted, str):
        return value is not None and fnmatchcase(str(value), wanted)
    return isinstance(value, int) and wanted.low <= value <= wanted.high


def _within(wanted: Range | None, value: int) -> bool:
    return wanted is None or wanted.low <= value <= wanted.high


@dataclass(slots=True)
class Counter:
    """Counts how often one rule matched and hit on this node, per client ID. All nodes share ``total``, so each hit is
    claimed first."""

    rule: Rule
    claims: Claims
    matches_by_client: dict[str, int] = field(default_factory=dict)
    hits_by_client: dict[str, int] = field(default_factory=dict)

    def at(self, node_id: int, node_role: str) -> bool:
        """Returns whether the rule is for this node."""
        return plays(node_role, self.rule.node, node_id)

    def hit(self, client_id: str, at_us: int) -> int:
        """Counts one match. Returns the number of the hit if the fault shall happen now, and counts the hit too; else
        returns 0."""
        rule = self.rule
        if (at_us < rule.after_us and not rule.boot) or 0 <= rule.until_us <= at_us:
            return 0
        seen = self.matches_by_client[client_id] = self.matches_by_client.get(client_id, 0) + 1
        past = seen - rule.nth
        due = past == 0 or (past > 0 and rule.every > 0 and past % rule.every == 0)
        done = self.hits_by_client.get(client_id, 0)
        if not due or (rule.times and done >= rule.times):
            return 0
        number = self.claims.claim(rule.name, rule.total)
        if number:
            self.hits_by_client[client_id] = done + 1
        return number
