"""Rules: what the interceptor looks for, and how it counts that.

A rule is one of the scenario's faults at states. What the scenario leaves to chance has been drawn from the seed.
"""

from collections.abc import Collection
from dataclasses import replace
from fnmatch import fnmatchcase
from random import Random
from typing import TypeAlias

from chaos.claims import Claims
from chaos.roles import is_role, plays
from reference_broker.core.events import Note
from reference_broker.wire.tags import Tag
from scenarios.model import Fault, Match, Range, Scenario
from scenarios.vocabulary import CONNECTION_ROLES

NEVER_US = 2**63
Rule: TypeAlias = Fault
"""A fault at a state whose ``nth`` is drawn already. ``node`` says where it strikes: a number, or a role that the node
must have at that moment."""


def rules_for(scenario: Scenario, node: int, random: Random) -> tuple[Rule, ...]:
    """Returns the rules of one node's interceptor in the file's order: those for its number and those for a role.

    All nodes draw the same numbers, because all draw for every fault.
    """
    drawn = rules_of(scenario, random)
    return tuple(rule for rule in drawn if isinstance(rule.node, str) or rule.node == node)


def rules_of(scenario: Scenario, random: Random) -> tuple[Rule, ...]:
    """Returns the rules for all places, in the file's order. ``scenario`` is what ``scenarios.draw.drawn`` returns for
    the seed."""
    return tuple(settled(fault, random) for fault in scenario.faults if not fault.timed)


def settled(fault: Fault, random: Random) -> Rule:
    """Draws what the rule leaves to chance. What a link says of the sender is said by ``match`` then."""
    nth = random.randint(*fault.nth)
    match = fault.match
    if fault.link is not None:
        source = fault.link.source
        match = replace(match, role="peer", from_node=source if isinstance(source, int) else None)
    return replace(fault, nth=Range(nth, nth), match=match)


def at_a_link(rule: Rule) -> bool:
    """Returns whether the rule strikes on a link between nodes. With real processes a proxy there plays it."""
    return rule.link is not None


AT_THE_ASKER = "peer_reply"


def between_nodes(rule: Rule) -> bool:
    """Returns whether a proxy in front of a broker that is not ours sees what the rule strikes only between nodes."""
    return at_a_link(rule) or rule.on == AT_THE_ASKER


def matches_frame(match: Match, node_role: str, tag: Tag) -> bool:
    """Returns whether a request or its reply matches, at the node that answers."""
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
    """Returns whether an answer matches, at the node that asked. ``tag`` is the request's."""
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
    """Returns whether an operation of the disk matches. It may have several names (``vocabulary.DISK_OPERATIONS``) and
    be of several paths."""
    return (
        (match.operation is None or match.operation in names)
        and (match.path is None or any(fnmatchcase(path, match.path) for path in paths))
        and _has_role(match.role, node_role)
    )


def matches_note(match: Match, node_role: str, note: Note) -> bool:
    """Returns whether a note matches. A field that the note does not have matches nothing.

    ``remaining`` is ``of`` minus ``number``. For a chunk it is the number of bytes of ``size`` behind the chunk.
    """
    if match.note != note.what or not _has_role(match.role, node_role):
        return False
    values: dict[str, int | str | None] = dict(note.fields)
    for whole, parts in (("of", ("number",)), ("size", ("position", "bytes"))):
        numbers = [values.get(name) for name in (whole, *parts)]
        if all(isinstance(number, int) for number in numbers):
            values["remaining"] = int(numbers[0] or 0) - sum(int(number or 0) for number in numbers[1:])
    return all(_is(wanted, values.get(name)) for name, wanted in match.fields)


def _has_role(wanted: str | None, node_role: str) -> bool:
    return wanted is None or is_role(node_role, wanted)


def _is(wanted: Range | str, value: int | str | None) -> bool:
    if isinstance(wanted, str):
        return value is not None and fnmatchcase(str(value), wanted)
    return isinstance(value, int) and wanted.low <= value <= wanted.high


def _within(wanted: Range | None, value: int) -> bool:
    return wanted is None or wanted.low <= value <= wanted.high


class Counter:
    """Counts how often one rule matched and hit on this node, for each client ID. The rule's ``total`` holds for all
    nodes together, so each hit is claimed first (``claims.py``)."""

    def __init__(self, rule: Rule, claims: Claims) -> None:
        self.rule = rule
        self._claims = claims
        self._after_us = -NEVER_US if rule.boot else int(rule.after_s * 1_000_000)
        self._until_us = NEVER_US if rule.until_s < 0 else int(rule.until_s * 1_000_000)
        self._matches_by_client: dict[str, int] = {}
        self._hits_by_client: dict[str, int] = {}

    def is_due(self, at_us: int) -> bool:
        """Returns whether the rule holds ``at_us`` microseconds after the load began."""
        return self._after_us <= at_us < self._until_us

    def at(self, node_id: int, node_role: str) -> bool:
        """Returns whether the rule is for this node."""
        return plays(node_role, self.rule.node, node_id)

    def hit(self, client_id: str, at_us: int) -> int:
        """Counts one match, ``at_us`` microseconds after the load began. If the fault is to happen now, it counts and
        claims a hit, and returns the number of that hit. Otherwise it returns 0."""
        rule = self.rule
        if not self.is_due(at_us):
            return 0
        seen = self._matches_by_client[client_id] = self._matches_by_client.get(client_id, 0) + 1
        past = seen - rule.nth.low
        due = past == 0 or (past > 0 and rule.every > 0 and past % rule.every == 0)
        done = self._hits_by_client.get(client_id, 0)
        if not due or (rule.times and done >= rule.times):
            return 0
        number = self._claims.claim(rule.name, rule.total)
        if number:
            self._hits_by_client[client_id] = done + 1
        return number
