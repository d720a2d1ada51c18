"""Faults at protocol states: the interceptor watches what enters and leaves a node, and strikes where a rule matches.

The same object works in both worlds. It is a hook of the driver, so it changes events and effects itself. Through
``Powers`` it asks the driver for what only a driver can do. It reports each hit *before* its action, so that the
evidence survives a SIGKILL.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from chaos.claims import Claims
from chaos.peer_replies import PeerReplies
from chaos.powers import Powers
from chaos.rules import (
    Counter,
    Rule,
    matches_frame,
    matches_note,
    matches_operation,
    matches_peer_reply,
    matches_write,
)
from chaos.watched_disk import Strike, WatchedDisk
from chaos.wire_damage import RequestStream, damaged, frame_of, has_part
from reference_broker.core.effects import Close, Effect, Note, Reply, Send, Sync
from reference_broker.core.events import Closed, Event, Opened, PeerDown, PeerReply, PeerUp, Request, SyncFailed
from reference_broker.ports.disk import Disk, DiskError, UndoFailed
from reference_broker.ports.now import Now
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.messages import encode_response
from reference_broker.wire.tags import Tag
from reports.rows import FaultRow
from reports.strikes import ANSWERED
from scenarios.model import Match
from scenarios.vocabulary import DAMAGES, PLACES

FIRST_PHANTOM = -2
"""The number of the first phantom connection. The next ones have smaller numbers. Drivers number their connections
upward from 0 or 1, and -1 means no connection."""
NO_FRAME = Tag(-1, -1, "")
"""The tag in the evidence of a strike at a disk write or a note, which belong to no request."""


class Interceptor:
    """Implements core.hooks.Hooks.

    All nodes of the run share ``claims``. ``role`` says what this node is now (``chaos.roles.role_of``).
    """

    def __init__(
        self,
        node: int,
        rules: Sequence[Rule],
        powers: Powers,
        random: Random,
        origin_us: int,
        claims: Claims,
        role: Callable[[], str],
    ) -> None:
        self._node = node
        self._powers = powers
        self._random = random
        self._origin_us = origin_us
        self._role = role
        self._now_us = 0
        self._load_from_us = 0
        self._armed = True
        self._held: dict[int, Request] = {}
        self._late: dict[int, Rule] = {}
        self._left: dict[int, None] = {}
        self._phantoms: dict[int, tuple[Rule, Tag]] = {}
        self._garbled: dict[int, RequestStream] = {}
        self._next_phantom = FIRST_PHANTOM
        by_place: dict[str, list[Counter]] = {place: [] for place in PLACES}
        for rule in rules:
            by_place[rule.on].append(Counter(rule, claims))
        self._on_request = by_place["request"]
        self._on_reply = by_place["reply"]
        self._on_peer_reply = by_place["peer_reply"]
        self._on_disk = by_place["disk"]
        self._on_write = by_place["disk_write"]
        self._on_note = by_place["note"]
        self._looks_at_effects = any(by_place[place] for place in ("reply", "note", "peer_reply", "disk"))
        self._notes = frozenset(counter.rule.match.note for counter in self._on_note)
        self._peer_replies = PeerReplies(powers)

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        self._now_us = now.mono_us - self._origin_us
        if type(event) is Request:
            return self._before_request(event)
        if self._on_peer_reply and isinstance(event, PeerReply | PeerDown | PeerUp):
            return self._before_peer(event)
        if type(event) is Closed:
            self._garbled.pop(event.connection, None)
            if event.connection in self._held:
                self._left[event.connection] = None
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        self._now_us = now.mono_us - self._origin_us
        if not self._looks_at_effects and not self._phantoms:
            return effects
        kept: list[Effect] = []
        for effect in effects:
            kind = type(effect)
            if kind is Note:
                if self._on_note:
                    self._noted(effect)  # type: ignore[arg-type]
            elif kind is Send and self._on_peer_reply:
                self._peer_replies.asked(effect)  # type: ignore[arg-type]
            elif kind is Sync and self._on_disk:
                if self._sync_fails(effect):  # type: ignore[arg-type]
                    continue
            elif kind in (Reply, Close):
                if effect.connection in self._phantoms:  # type: ignore[union-attr]
                    self._phantom_answered(effect)  # type: ignore[arg-type]
                    continue
                if kind is Reply and self._on_reply and not self._keeps_reply(effect):  # type: ignore[arg-type]
                    continue
            kept.append(effect)
        return kept

    def load_from(self, at_us: int) -> None:
        """Notes that the load begins at ``at_us``, microseconds since the run's start. The rules count their times from
        there. Before that time only rules with ``boot`` hit."""
        self._load_from_us = at_us

    def disarm(self) -> None:
        """Ends all rules. Late and doubled requests that are under way still end as planned."""
        self._armed = False

    def watch(self, disk: Disk) -> Disk:
        """Returns the disk to give to the node: the same one, unless a rule looks at what is done with it."""
        if not self._on_write and not self._on_disk:
            return disk
        return WatchedDisk(disk, self._before_write, self._before_operation)

    # Requests

    def _before_request(self, event: Request) -> Sequence[Event]:
        if event.connection in self._phantoms:
            return (Opened(event.connection, "phantom"), event)
        if self._held.get(event.connection) is event:
            return self._arrived_late(event)
        if event.connection in self._garbled:
            return self._read_on(event, frame_of(event))[0]
        if not self._on_request:
            return (event,)
        tag = event.tag
        for rule, hit in self._hits(self._on_request, tag.client_id, partial(matches_frame, tag=tag), event.body):
            return self._strike_request(rule, hit, event)
        return (event,)

    def _strike_request(self, rule: Rule, hit: int, event: Request) -> Sequence[Event]:
        if rule.kind == "request_damaged":
            return self._damage_request(rule, hit, event)
        self._report(rule, hit, event.tag)
        if rule.kind == "request_dropped":
            self._powers.discard_connection(event.connection)
            return ()
        if rule.kind == "request_delayed":
            self._held[event.connection] = event
            self._late[event.connection] = rule
            self._powers.deliver_later(event, self._delay_us(rule))
            return ()
        if rule.kind == "request_duplicated":
            again = event._replace(connection=self._phantom(rule, event.tag))
            delay_us = self._delay_us(rule)
            if delay_us:
                self._powers.deliver_later(again, delay_us)
                return (event,)
            return (event, Opened(again.connection, "phantom"), again)
        self._strike_node(rule)
        return (event,)

    def _arrived_late(self, event: Request) -> Sequence[Event]:
        """Delivers a held request. If its client has left meanwhile, nobody hears the answer."""
        del self._held[event.connection]
        rule = self._late.pop(event.connection)
        if event.connection not in self._left:
            return (event,)
        del self._left[event.connection]
        phantom = self._phantom(rule, event.tag)
        return (Opened(phantom, "phantom"), event._replace(connection=phantom))

    def _damage_request(self, rule: Rule, hit: int, event: Request) -> Sequence[Event]:
        struck = damaged(frame_of(event), event.body, rule.part, self._random)
        self._garbled[event.connection] = RequestStream()
        events, outcome = self._read_on(event, struck.frame)
        self._report(rule, hit, event.tag, f"{struck.told}; {outcome}")
        return events

    def _read_on(self, event: Request, frame: bytes) -> tuple[list[Request], str]:
        """Returns what the node reads now on a connection whose bytes were damaged, and a word for that."""
        found: list[Request] = []
        try:
            found.extend(self._garbled[event.connection].arrived(event.connection, frame))
        except ProtocolError as broken:
            self._powers.discard_connection(event.connection)
            return found, f"closed: {broken}"
        if not found:  # The node waits for the rest of the frame, and reads what comes next.
            done = Reply(event.connection, event.correlation_id, event.api_key, event.api_version, None, event.tag)
            self._powers.reply_later(done, 0)
        return found, "read as a request" if found else "not whole"

    # Replies

    def _keeps_reply(self, reply: Reply) -> bool:
        tag = reply.tag
        for rule, hit in self._hits(self._on_reply, tag.client_id, partial(matches_frame, tag=tag), reply.body):
            if rule.kind == "response_damaged":
                self._damage_reply(rule, hit, reply)
                return False
            self._report(rule, hit, tag)
            if rule.kind == "response_dropped":
                self._powers.discard_connection(reply.connection)
                return False
            if rule.kind == "response_delayed":
                self._powers.reply_later(reply, self._delay_us(rule))
                return False
            self._strike_node(rule)
            return True
        return True

    def _damage_reply(self, rule: Rule, hit: int, reply: Reply) -> None:
        parts = encode_response(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
        struck = damaged(b"".join(bytes(part) for part in parts), reply.body, rule.part, self._random)
        self._report(rule, hit, reply.tag, struck.told)
        self._powers.reply_bytes(reply, struck.frame)

    def _phantom_answered(self, effect: Reply | Close) -> None:
        rule, tag = self._phantoms.pop(effect.connection)
        answer = f"answered with error {effect.tag.error}" if isinstance(effect, Reply) else f"closed: {effect.reason}"
        self._report(rule, 1, tag, answer, kind=rule.kind + ANSWERED)
        self._powers.deliver_later(Closed(effect.connection), 0)

    # Answers of other nodes

    def _before_peer(self, event: PeerReply | PeerDown | PeerUp) -> Sequence[Event]:
        passed, tag = self._peer_replies.arrived(event)
        if tag is None or not isinstance(event, PeerReply):
            return passed
        peer = f"node-{event.peer}"
        matches = partial(matches_peer_reply, tag=tag, peer=event.peer)
        for rule, hit in self._hits(self._on_peer_reply, peer, matches):
            self._report(rule, hit, tag, f"from {peer}")
            return self._strike_peer_reply(rule, event, tag)
        return passed

    def _strike_peer_reply(self, rule: Rule, event: PeerReply, tag: Tag) -> Sequence[Event]:
        if rule.kind == "response_delayed":
            self._peer_replies.hold(event, self._delay_us(rule))
            return ()
        if rule.kind == "response_duplicated":
            self._peer_replies.double(event, tag)
        else:
            self._strike_node(rule)
        return (event,)

    # What happens inside

    def _noted(self, note: Note) -> None:
        if note.what not in self._notes:
            return
        for rule, hit in self._hits(self._on_note, "", partial(matches_note, note=note)):
            story = " ".join((self._role(), note.what, *(f"{name}={value}" for name, value in note.fields)))
            self._report(rule, hit, detail=story)
            self._strike_node(rule)

    # The disk

    def _before_operation(self, names: tuple[str, ...], paths: tuple[str, ...]) -> None:
        matches = partial(matches_operation, names=names, paths=paths)
        for rule, hit in self._hits(self._on_disk, "", matches):
            self._report(rule, hit, detail=f"{names[-1]} {paths[0]}{_told_error(rule)}")
            if rule.kind != "disk_error":
                self._strike_node(rule)
                return
            if names[-1] == "sync" and rule.match.operation != "open":  # A file that was not opened was not synced.
                self._powers.sync_fails(paths)
            raise _disk_error(rule, names[-1], paths[0])

    def _sync_fails(self, sync: Sync) -> bool:
        """Returns whether a rule has taken the sync away. Its failure is told after the rule's delay."""
        matches = partial(matches_operation, names=("sync",), paths=sync.paths)
        for rule, hit in self._hits(self._on_disk, "", matches):
            first = sync.paths[0]
            self._report(rule, hit, detail=f"sync {first} and {len(sync.paths) - 1} more{_told_error(rule)}")
            if rule.kind != "disk_error":
                self._strike_node(rule)
                return False
            self._powers.sync_fails(sync.paths)
            failed = SyncFailed(sync.token, str(_disk_error(rule, "sync", first)))
            self._powers.deliver_later(failed, self._delay_us(rule))
            return True
        return False

    def _before_write(self, path: str, position: int, size: int) -> Strike | None:
        for rule, hit in self._hits(self._on_write, "", partial(matches_write, path=path, position=position)):
            kept = min(self._random.randint(*rule.cut_bytes), size - 1 if rule.kind == "disk_bit_flipped" else size)
            self._report(rule, hit, detail=f"{path} at {position}, {kept} of {size} bytes")
            return Strike(kept, partial(self._strike_write, rule, path), rule.kind == "disk_bit_flipped")
        return None

    def _strike_write(self, rule: Rule, path: str) -> None:
        if rule.kind == "disk_write_failed":
            raise DiskError(f"{path}: no space left on device (injected by {rule.name})")
        if rule.kind == "disk_error":
            raise _disk_error(rule, "write", path)
        if rule.kind != "disk_bit_flipped":
            self._strike_node(rule)

    # Common

    def _hits(
        self, counters: Sequence[Counter], client_id: str, matches: Callable[[Match, str], bool], body: object = None
    ) -> Iterator[tuple[Rule, int]]:
        """Yields each rule that strikes now, with the number of this hit. A match is counted only when the caller comes
        to its rule. ``body`` is that of a frame: a rule that damages a part matches only frames that have it."""
        if not self._armed:
            return
        at_us = self._now_us - self._load_from_us
        due = [counter for counter in counters if counter.is_due(at_us)]
        if not due:
            return
        role = self._role()
        for counter in due:
            rule = counter.rule
            if counter.at(self._node, role) and matches(rule.match, role) and _offers(rule, body):
                hit = counter.hit(client_id, at_us)
                if hit:
                    yield rule, hit

    def _strike_node(self, rule: Rule) -> None:
        if rule.kind == "node_killed":
            self._powers.kill()
        elif rule.kind == "node_powered_off":
            self._powers.power_off()
        elif rule.kind == "node_paused":
            self._powers.pause(int(rule.duration_s * 1_000_000))
        elif rule.kind == "clock_stepped":
            self._powers.step_clock(rule.step_ms)
        else:
            raise AssertionError(
                f"rule {rule.name}: {rule.kind} cannot be done on {rule.on}; the loader should have refused it"
            )

    def _phantom(self, rule: Rule, tag: Tag) -> int:
        connection = self._next_phantom
        self._next_phantom -= 1
        self._phantoms[connection] = (rule, tag)
        return connection

    def _delay_us(self, rule: Rule) -> int:
        return self._random.randint(*rule.delay_ms) * 1000

    def _report(self, rule: Rule, hit: int, tag: Tag = NO_FRAME, detail: str = "", kind: str = "") -> None:
        self._powers.report(
            FaultRow(
                rule.name,
                kind or rule.kind,
                self._now_us,
                self._now_us,
                f"node-{self._node}",
                hit,
                tag.client_id,
                tag.api_key,
                tag.session_id,
                tag.session_epoch,
                detail,
            )
        )


def _told_error(rule: Rule) -> str:
    return f": {rule.error}" if rule.kind == "disk_error" else ""


def _disk_error(rule: Rule, operation: str, path: str) -> DiskError | UndoFailed:
    """Returns the error as the real disk words it."""
    number, kind = getattr(errno, rule.error), UndoFailed if rule.undo_fails else DiskError
    return kind(number, f"cannot {operation} {path}: {os.strerror(number)} (injected by {rule.name})")


def _offers(rule: Rule, body: object) -> bool:
    """Returns whether a frame with this body has the part that the rule damages. An answer without a body is not
    sent."""
    return rule.kind not in DAMAGES or (body is not None and has_part(rule.part, body))
