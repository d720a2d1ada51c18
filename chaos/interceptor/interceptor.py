"""Faults at protocol states: the interceptor observes the events and effects of a node, and acts where a rule matches.

The same object works in both worlds. It is a hook of the driver, so it changes events and effects itself. Actions that
need the driver are delegated to ``FaultActions``. Each hit is reported *before* its action (a damaged request
afterwards), so that the evidence survives a SIGKILL.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from chaos.interceptor.actions import FaultActions
from chaos.interceptor.disk_faults import DiskOperationFaults
from chaos.interceptor.frame_faults import FrameFaults
from chaos.interceptor.peer_reply_faults import PeerReplyFaults
from chaos.interceptor.rules import HitCounter, Rule, RuleBook, matches_decision, matches_note
from chaos.interceptor.store_faults import StoreFaults
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
)
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now


class Interceptor:
    """Implements core.events.Hooks.

    All nodes of the run share ``hit_counter``. ``role`` returns this node's current role
    (``chaos.interceptor.roles.role_of``).
    """

    def __init__(
        self,
        node: int,
        rules: Sequence[Rule],
        actions: FaultActions,
        random: Random,
        origin_us: int,
        hit_counter: HitCounter,
        role: Callable[[], str],
    ) -> None:
        self._origin_us = origin_us
        self._role = role
        self._book = book = RuleBook(node, rules, actions, random, hit_counter, role)
        self._frames = FrameFaults(book, actions, random)
        self._peer_replies = PeerReplyFaults(book, actions)
        self._store = StoreFaults(book, actions)
        self._disk = DiskOperationFaults(book, actions, random)
        self._sees_effects = book.has_rules_at("response", "note", "peer_response", "disk", "store", "store_result")
        self._on_peer_reply, self._on_note = book.has_rules_at("peer_response"), book.has_rules_at("note")
        self._on_reply = book.has_rules_at("response")
        self._notes = frozenset(rule.match.note for rule in book.rules("note"))

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        self._book.now_us = now.mono_us - self._origin_us
        if type(event) is Request:
            return self._frames.arrived(event)
        if self._on_peer_reply and isinstance(event, PeerReply | PeerDown | PeerUp):
            return self._peer_replies.arrived(event)
        if self._store.has_rules and isinstance(event, StoreDone | StoreFailed):
            return self._store.arrived(event)
        if type(event) is Closed:
            self._frames.closed(event.connection)
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        self._book.now_us = now.mono_us - self._origin_us
        if not self._sees_effects and not self._frames.phantoms:
            return effects
        passed: list[Effect] = []
        for effect in effects:
            kind = type(effect)
            if kind is Note:
                if self._on_note:
                    self._noted(effect)  # type: ignore[arg-type]
            elif kind is Send and self._on_peer_reply:
                self._peer_replies.sent(effect)  # type: ignore[arg-type]
            elif kind is Sync and self._disk.sees_syncs:
                if self._disk.sync_fails(effect):  # type: ignore[arg-type]
                    continue
            elif kind is StoreCall and self._store.has_rules:
                if self._store.takes(effect):  # type: ignore[arg-type]
                    continue
            elif kind in (Reply, Close):
                if effect.connection in self._frames.phantoms:  # type: ignore[union-attr]
                    self._frames.phantom_replied(effect)  # type: ignore[arg-type]
                    continue
                if kind is Reply and self._on_reply:
                    reply = self._frames.replied(effect)  # type: ignore[arg-type]
                    passed += () if reply is None else (reply,)
                    continue
            passed.append(effect)
        return passed

    @property
    def sees_decisions(self) -> bool:
        """Whether a rule waits for a decision, so that ``decided`` must be called."""
        return self._book.has_rules_at("decision")

    def decided(self, now: Now, outcome: str) -> None:
        """Inject the fault of a rule that waits for this outcome of a decision point. The node is in the middle of its
        work."""
        self._book.now_us = now.mono_us - self._origin_us
        self._book.inject_all_hits("decision", partial(matches_decision, outcome=outcome), outcome)

    def load_from(self, at_us: int) -> None:
        """Note that the load begins at ``at_us``, microseconds since the run's start. The rules count their times from
        there. Before that time only rules with ``boot`` hit."""
        self._book.load_from(at_us)

    def disarm(self) -> None:
        """End all rules. Late and doubled requests that are under way still end as planned."""
        self._book.disarm()

    def watch(self, disk: Disk) -> Disk:
        """Return the disk for the node: the same one, unless a rule matches operations on it."""
        return self._disk.watch(disk)

    def _noted(self, note: Note) -> None:
        if note.what not in self._notes:
            return
        description = " ".join((note.what, *(f"{name}={value}" for name, value in note.fields)))
        self._book.inject_all_hits("note", partial(matches_note, note=note), description)
