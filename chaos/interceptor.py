"""Faults at protocol states: the interceptor watches what enters and leaves a node, and strikes where a rule matches.

The same object works in both worlds. It is a hook of the driver, so it changes events and effects itself. Through
``Powers`` it asks the driver for what only a driver can do. It reports each hit *before* its action, so that the
evidence survives a SIGKILL.
"""

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from chaos.claims import Claims
from chaos.frame_faults import FrameFaults
from chaos.peer_replies import PeerReplies
from chaos.powers import Powers
from chaos.rule_book import RuleBook
from chaos.rules import (
    Rule,
    matches_note,
    matches_operation,
    matches_peer_reply,
    matches_write,
)
from chaos.store_faults import StoreFaults
from chaos.watched_disk import Strike, WatchedDisk
from reference_broker.core.events import (
    Close,
    Closed,
    Effect,
    Event,
    Note,
    PeerDown,
    PeerReply,
    PeerUp,
    Reply,
    Request,
    Send,
    StoreCall,
    StoreDone,
    StoreFailed,
    Sync,
    SyncFailed,
)
from reference_broker.ports.disk import Disk, DiskError, UndoFailed
from reference_broker.ports.node_ports import Now
from reference_broker.wire.tags import Tag


class Interceptor:
    """Implements core.events.Hooks.

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
        self._powers = powers
        self._random = random
        self._origin_us = origin_us
        self._role = role
        self._book = book = RuleBook(node, rules, powers, random, claims, role)
        self._frames = FrameFaults(book, powers, random)
        self._store = StoreFaults(book, powers)
        self._looks_at_effects = book.looks_at("reply", "note", "peer_reply", "disk", "store", "store_answer")
        self._on_peer_reply, self._on_note = book.looks_at("peer_reply"), book.looks_at("note")
        self._on_disk, self._on_write = book.looks_at("disk"), book.looks_at("disk_write")
        self._on_reply = book.looks_at("reply")
        self._notes = frozenset(rule.match.note for rule in book.rules("note"))
        self._peer_replies = PeerReplies(powers)

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        self._book.now_us = now.mono_us - self._origin_us
        if type(event) is Request:
            return self._frames.arrived(event)
        if self._on_peer_reply and isinstance(event, PeerReply | PeerDown | PeerUp):
            return self._before_peer(event)
        if self._store.looks and isinstance(event, StoreDone | StoreFailed):
            return self._store.arrived(event)
        if type(event) is Closed:
            self._frames.closed(event.connection)
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        self._book.now_us = now.mono_us - self._origin_us
        if not self._looks_at_effects and not self._frames.phantoms:
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
            elif kind is StoreCall and self._store.looks:
                if self._store.takes(effect):  # type: ignore[arg-type]
                    continue
            elif kind in (Reply, Close):
                if effect.connection in self._frames.phantoms:  # type: ignore[union-attr]
                    self._frames.phantom_answered(effect)  # type: ignore[arg-type]
                    continue
                if kind is Reply and self._on_reply:
                    reply = self._frames.answered(effect)  # type: ignore[arg-type]
                    kept += () if reply is None else (reply,)
                    continue
            kept.append(effect)
        return kept

    def load_from(self, at_us: int) -> None:
        """Notes that the load begins at ``at_us``, microseconds since the run's start. The rules count their times from
        there. Before that time only rules with ``boot`` hit."""
        self._book.load_from(at_us)

    def disarm(self) -> None:
        """Ends all rules. Late and doubled requests that are under way still end as planned."""
        self._book.disarm()

    def watch(self, disk: Disk) -> Disk:
        """Returns the disk to give to the node: the same one, unless a rule looks at what is done with it."""
        if not self._on_write and not self._on_disk:
            return disk
        return WatchedDisk(disk, self._before_write, self._before_operation)

    # Answers of other nodes

    def _before_peer(self, event: PeerReply | PeerDown | PeerUp) -> Sequence[Event]:
        passed, tag = self._peer_replies.arrived(event)
        if tag is None or not isinstance(event, PeerReply):
            return passed
        peer = f"node-{event.peer}"
        matches = partial(matches_peer_reply, tag=tag, peer=event.peer)
        for rule, hit in self._book.hits("peer_reply", peer, matches):
            self._book.report(rule, hit, tag, f"from {peer}")
            return self._strike_peer_reply(rule, event, tag)
        return passed

    def _strike_peer_reply(self, rule: Rule, event: PeerReply, tag: Tag) -> Sequence[Event]:
        if rule.kind == "response_delayed":
            self._peer_replies.hold(event, self._book.delay_us(rule))
            return ()
        if rule.kind == "response_duplicated":
            self._peer_replies.double(event, tag)
        else:
            self._book.strike_node(rule)
        return (event,)

    # What happens inside

    def _noted(self, note: Note) -> None:
        if note.what not in self._notes:
            return
        for rule, hit in self._book.hits("note", "", partial(matches_note, note=note)):
            story = " ".join((self._role(), note.what, *(f"{name}={value}" for name, value in note.fields)))
            self._book.report(rule, hit, detail=story)
            self._book.strike_node(rule)

    # The disk

    def _before_operation(self, names: tuple[str, ...], paths: tuple[str, ...]) -> None:
        matches = partial(matches_operation, names=names, paths=paths)
        for rule, hit in self._book.hits("disk", "", matches):
            self._book.report(rule, hit, detail=f"{names[-1]} {paths[0]}{_told_error(rule)}")
            if rule.kind != "disk_error":
                self._book.strike_node(rule)
                return
            if names[-1] == "sync" and rule.match.operation != "open":  # A file that was not opened was not synced.
                self._powers.sync_fails(paths)
            raise _disk_error(rule, names[-1], paths[0])

    def _sync_fails(self, sync: Sync) -> bool:
        """Returns whether a rule has taken the sync away. Its failure is told after the rule's delay."""
        matches = partial(matches_operation, names=("sync",), paths=sync.paths)
        for rule, hit in self._book.hits("disk", "", matches):
            first = sync.paths[0]
            self._book.report(rule, hit, detail=f"sync {first} and {len(sync.paths) - 1} more{_told_error(rule)}")
            if rule.kind != "disk_error":
                self._book.strike_node(rule)
                return False
            self._powers.sync_fails(sync.paths)
            failed = SyncFailed(sync.token, str(_disk_error(rule, "sync", first)))
            self._powers.deliver_later(failed, self._book.delay_us(rule))
            return True
        return False

    def _before_write(self, path: str, position: int, size: int) -> Strike | None:
        for rule, hit in self._book.hits("disk_write", "", partial(matches_write, path=path, position=position)):
            kept = min(self._random.randint(*rule.cut_bytes), size - 1 if rule.kind == "disk_bit_flipped" else size)
            self._book.report(rule, hit, detail=f"{path} at {position}, {kept} of {size} bytes")
            return Strike(kept, partial(self._strike_write, rule, path), rule.kind == "disk_bit_flipped")
        return None

    def _strike_write(self, rule: Rule, path: str) -> None:
        if rule.kind == "disk_write_failed":
            raise DiskError(f"{path}: no space left on device (injected by {rule.name})")
        if rule.kind == "disk_error":
            raise _disk_error(rule, "write", path)
        if rule.kind != "disk_bit_flipped":
            self._book.strike_node(rule)


def _told_error(rule: Rule) -> str:
    return f": {rule.error}" if rule.kind == "disk_error" else ""


def _disk_error(rule: Rule, operation: str, path: str) -> DiskError | UndoFailed:
    """Returns the error as the real disk words it."""
    number, kind = getattr(errno, rule.error), UndoFailed if rule.undo_fails else DiskError
    return kind(number, f"cannot {operation} {path}: {os.strerror(number)} (injected by {rule.name})")
