"""Faults at protocol states: the interceptor sees what enters and leaves a node, and acts where a rule matches.

The same object works in both worlds. It is a hook of the driver, so it changes events and effects itself. What only a
driver can do it leaves to ``FaultActions``. It reports each hit *before* its action, so that the evidence survives a
SIGKILL. Requests and replies are in ``frame_faults``; replies of other nodes and the object store are below.
"""

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from chaos.fault_actions import FaultActions
from chaos.frame_faults import FrameFaults
from chaos.rules import HitCounter, Rule, RuleBook, matches_note, matches_operation, matches_peer_reply, matches_write
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
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.ports.store import (
    Delete,
    FailureKind,
    Get,
    ListObjects,
    Put,
    PutFile,
    StoredObject,
    StoreFailure,
    StoreOperation,
)
from reference_broker.wire.tags import Tag


class Interceptor:
    """Implements core.events.Hooks.

    All nodes of the run share ``claims``. ``role`` says what this node is now (``chaos.roles.role_of``).
    """

    def __init__(
        self,
        node: int,
        rules: Sequence[Rule],
        actions: FaultActions,
        random: Random,
        origin_us: int,
        claims: HitCounter,
        role: Callable[[], str],
    ) -> None:
        self._actions = actions
        self._random = random
        self._origin_us = origin_us
        self._role = role
        self._book = book = RuleBook(node, rules, actions, random, claims, role)
        self._frames = FrameFaults(book, actions, random)
        self._store = StoreFaults(book, actions)
        self._looks_at_effects = book.has_rules_at("reply", "note", "peer_reply", "disk", "store", "store_answer")
        self._on_peer_reply, self._on_note = book.has_rules_at("peer_reply"), book.has_rules_at("note")
        self._on_disk, self._on_write = book.has_rules_at("disk"), book.has_rules_at("disk_write")
        self._on_reply = book.has_rules_at("reply")
        self._notes = frozenset(rule.match.note for rule in book.rules("note"))
        self._peer_replies = PeerReplies(actions)

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
            self._book.hit_node(rule)
        return (event,)

    # What happens inside

    def _noted(self, note: Note) -> None:
        if note.what not in self._notes:
            return
        for rule, hit in self._book.hits("note", "", partial(matches_note, note=note)):
            story = " ".join((self._role(), note.what, *(f"{name}={value}" for name, value in note.fields)))
            self._book.report(rule, hit, detail=story)
            self._book.hit_node(rule)

    # The disk

    def _before_operation(self, names: tuple[str, ...], paths: tuple[str, ...]) -> None:
        matches = partial(matches_operation, names=names, paths=paths)
        for rule, hit in self._book.hits("disk", "", matches):
            self._book.report(rule, hit, detail=f"{names[-1]} {paths[0]}{_told_error(rule)}")
            if rule.kind != "disk_error":
                self._book.hit_node(rule)
                return
            if names[-1] == "sync" and rule.match.operation != "open":  # A file that was not opened was not synced.
                self._actions.sync_fails(paths)
            raise _disk_error(rule, names[-1], paths[0])

    def _sync_fails(self, sync: Sync) -> bool:
        """Returns whether a rule has taken the sync away. Its failure is told after the rule's delay."""
        matches = partial(matches_operation, names=("sync",), paths=sync.paths)
        for rule, hit in self._book.hits("disk", "", matches):
            first = sync.paths[0]
            self._book.report(rule, hit, detail=f"sync {first} and {len(sync.paths) - 1} more{_told_error(rule)}")
            if rule.kind != "disk_error":
                self._book.hit_node(rule)
                return False
            self._actions.sync_fails(sync.paths)
            failed = SyncFailed(sync.token, str(_disk_error(rule, "sync", first)))
            self._actions.deliver_later(failed, self._book.delay_us(rule))
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
            self._book.hit_node(rule)


def _told_error(rule: Rule) -> str:
    return f": {rule.error}" if rule.kind == "disk_error" else ""


def _disk_error(rule: Rule, operation: str, path: str) -> DiskError | UndoFailed:
    """Returns the error as the real disk words it."""
    number, kind = getattr(errno, rule.error), UndoFailed if rule.undo_fails else DiskError
    return kind(number, f"cannot {operation} {path}: {os.strerror(number)} (injected by {rule.name})")


_Channel = tuple[int, Channel]


class PeerReplies:
    """The answers to one node. They keep their order within a channel: if one is held back, those behind it wait."""

    def __init__(self, actions: FaultActions) -> None:
        self._actions = actions
        self._tags: dict[_Channel, dict[int, Tag]] = {}
        self._held: dict[_Channel, list[Event]] = {}
        self._doubled: dict[_Channel, tuple[Tag, PeerReply]] = {}
        self._second: list[PeerReply] = []

    def asked(self, send: Send) -> None:
        """Notes a request that goes out. If an answer of its kind is to be doubled (``double``), the second copy comes
        now as the answer to this request."""
        channel = (send.peer, send.channel)
        self._tags.setdefault(channel, {})[send.token] = send.tag
        doubled = self._doubled.get(channel)
        if doubled is not None and doubled[0].api_key == send.api_key:
            del self._doubled[channel]
            again = doubled[1]._replace(token=send.token)
            self._second.append(again)
            self._actions.deliver_later(again, 0)

    def arrived(self, event: PeerReply | PeerDown | PeerUp) -> tuple[Sequence[Event], Tag | None]:
        """Returns the events that the node gets now. It also returns the request's tag if rules may strike the answer;
        an answer that was held back or doubled is not struck again."""
        channel = (event.peer, event.channel)
        waiting = self._held.get(channel)
        if waiting is not None:
            if waiting[0] is not event:
                waiting.append(event)
                return (), None
            del self._held[channel]
            return tuple(waiting), None
        if isinstance(event, PeerDown):
            self._tags.pop(channel, None)
            self._doubled.pop(channel, None)
        if not isinstance(event, PeerReply):
            return (event,), None
        tag = self._tags.get(channel, {}).pop(event.token, None)
        if any(each is event for each in self._second):
            self._second = [each for each in self._second if each is not event]
            return (event,), None
        return (event,), tag

    def hold(self, event: PeerReply, delay_us: int) -> None:
        """Holds back the answer, and all that follow on its channel, for the delay."""
        self._held[event.peer, event.channel] = [event]
        self._actions.deliver_later(event, delay_us)

    def double(self, event: PeerReply, tag: Tag) -> None:
        """Makes the answer come a second time, as the answer to the next request of the same API on its channel."""
        self._doubled[event.peer, event.channel] = (tag, event)


_NAMES: Final[dict[type, str]] = {Put: "put", PutFile: "put", Get: "get", ListObjects: "list", Delete: "delete"}
"""The names of ``vocabulary.STORE_OPERATIONS``."""


class StoreFaults:
    """What the interceptor asks about each call that leaves the node, and about each answer that reaches it."""

    def __init__(self, book: RuleBook, actions: FaultActions) -> None:
        self._book = book
        self._actions = actions
        self._asked: dict[int, StoreOperation] = {}
        self._struck: list[Event] = []
        """Answers that come once more, or that a rule has made. No rule strikes them again."""
        self._put_at_us: dict[str, int] = {}
        self.looks = book.has_rules_at("store", "store_answer")

    def takes(self, call: StoreCall) -> bool:
        """Returns whether a rule takes the call away, so that the store does not hear of it."""
        operation = call.operation
        self._asked[call.token] = operation
        for rule, hit in self._book.hits("store", "", _matches(operation)):
            self._book.report(rule, hit, detail=_story(operation))
            if rule.kind != "store_refused":
                self._book.hit_node(rule)
                return False
            del self._asked[call.token]
            failure = StoreFailure(FailureKind(rule.failure), f"injected by {rule.name}")
            self._tell_later(StoreFailed(call.token, failure), rule)
            return True
        return False

    def arrived(self, event: StoreDone | StoreFailed) -> Sequence[Event]:
        """Returns what the node hears now."""
        if any(event is each for each in self._struck):
            self._struck = [each for each in self._struck if each is not event]
            return (event,)
        operation = self._asked.pop(event.token)
        if isinstance(event, StoreDone) and isinstance(operation, Put | PutFile):
            self._put_at_us[operation.key] = self._book.now_us
        for rule, hit in self._book.hits("store_answer", "", _matches(operation), partial(self._offers, event)):
            return self._strike(rule, hit, event, operation)
        return (event,)

    def _offers(self, event: StoreDone | StoreFailed, rule: Rule) -> bool:
        if rule.kind == "store_answer_lost":
            return isinstance(event, StoreDone)
        return rule.kind != "store_listed_late" or len(self._seen(event, rule)) < len(_listed(event))

    def _strike(
        self, rule: Rule, hit: int, event: StoreDone | StoreFailed, operation: StoreOperation
    ) -> Sequence[Event]:
        self._book.report(rule, hit, detail=_story(operation))
        if rule.kind == "store_slowed":
            self._tell_later(event, rule)
            return ()
        if rule.kind == "store_answer_lost":
            lost = StoreFailure(FailureKind.UNAVAILABLE, f"no answer (injected by {rule.name})")
            self._tell_later(StoreFailed(event.token, lost), rule)
            return ()
        if rule.kind == "store_listed_late":
            return (StoreDone(event.token, self._seen(event, rule)),)
        self._book.hit_node(rule)
        return (event,)

    def _seen(self, event: StoreDone | StoreFailed, rule: Rule) -> tuple[StoredObject, ...]:
        """Returns the listed objects without those that this node put less than the rule's delay ago."""
        since_us = self._book.now_us - rule.delay_ms.low * 1000
        late = {key for key, at_us in self._put_at_us.items() if at_us > since_us}
        return tuple(each for each in _listed(event) if each.key not in late)

    def _tell_later(self, event: StoreDone | StoreFailed, rule: Rule) -> None:
        self._struck.append(event)
        self._actions.deliver_later(event, self._book.delay_us(rule))


def _matches(operation: StoreOperation) -> partial[bool]:
    keys = operation.keys if isinstance(operation, Delete) else (operation[0],)
    return partial(matches_operation, names=(_NAMES[type(operation)],), paths=keys)


def _listed(event: StoreDone | StoreFailed) -> tuple[StoredObject, ...]:
    return event.answer if isinstance(event, StoreDone) and isinstance(event.answer, tuple) else ()


def _story(operation: StoreOperation) -> str:
    first = operation.keys[0] if isinstance(operation, Delete) and operation.keys else operation[0]
    return f"{_NAMES[type(operation)]} {first}"
