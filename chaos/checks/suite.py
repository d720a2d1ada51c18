"""Finds all checks of a simulated run in the files of this folder.

Every run gets all of them, whatever its scenario lists. To add a check, add a file.

Gives each check of a run only what it asks for, so that an event costs what it touched.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import NoneType
from typing import TYPE_CHECKING

from chaos import checks
from chaos.checks.check import Check, CheckContext, Kind, overriding
from chaos.checks.fetch_model import EVICTED, FETCH, FetchModel
from chaos.checks.history import History
from chaos.metadata_digest import Digest
from reference_broker.core.events import Closed, Effect, Event, Note, PeerDown, PeerReply, PeerUp, Reply, Request, Send
from reports.guarantees import GUARANTEES
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


@cache
def check_kinds() -> tuple[type[Check], ...]:
    """Returns every class in this folder that names a guarantee, in the order of the guarantees."""
    modules = [import_module(f"{checks.__name__}.{each.name}") for each in iter_modules(checks.__path__)]
    found = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Check) and each.guarantee and each.__module__ == module.__name__
    ]
    order = list(GUARANTEES)
    return tuple(sorted(found, key=lambda each: order.index(each.guarantee)))


def all_checks(context: CheckContext) -> tuple[Check, ...]:
    """Returns fresh checks for one run."""
    return tuple(kind(context) for kind in check_kinds())


PEER_EVENTS = frozenset({PeerUp, PeerReply, PeerDown})
FETCHES: frozenset[Kind] = frozenset({NoneType, FETCH, Closed, EVICTED})
"""What the model of fetches looks at."""


class CheckSuite:
    """``rows`` says for each kind of trace row which checks want it. Rows that no check wants are missing there."""

    def __init__(self, checks: Sequence[Check], context: CheckContext) -> None:
        self.view = context.quorum
        self.replicas = context.replicas
        self.rows = _by_name(checks, lambda check: check.rows)
        self._checks = checks
        self._by_note = _by_name(checks, lambda check: check.notes)
        self._by_replica_note = _by_name(checks, lambda check: check.replica_notes)
        self._fetches = FetchModel()
        self._looking = overriding(checks, "node")
        self._of_wholes = overriding(checks, "whole")
        self._acting = [(each, frozenset(each.acts_on)) for each in overriding(checks, "acted")]
        self._acted_on = FETCHES.union(*(kinds for _, kinds in self._acting))
        self._of_answers = overriding(checks, "answered")
        self._of_followers = [each for each in self._of_answers if each.judges_followers]
        self._viewing = overriding(checks, "viewed")
        self._of_images = overriding(checks, "published")

    def trace(self, row: TraceRow) -> None:
        for check in self.rows.get(row.what, ()):
            check.trace(row)

    def note(self, at_us: int, node_id: int, note: Note) -> None:
        """Hands out a note, before the checks see the state of the node that wrote it. A note about a partition's
        replica may have the same name as one about the quorum, so checks request it apart."""
        if note.fields and note.fields[0][0] == "partition":
            for check in self._by_replica_note.get(note.what, ()):
                check.replica_noted(at_us, node_id, note)
            return
        self.view.note(node_id, note)
        for check in self._by_note.get(note.what, ()):
            check.note(at_us, self.view.nodes[node_id], note)

    def published(self, at_us: int, node_id: int, fields: Mapping[str, int | str]) -> None:
        """Hands on that a node published an image. ``fields`` are those of the trace's row."""
        for check in self._of_images:
            check.published(at_us, node_id, fields)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """Hands on what a node did, before the checks see its state."""
        touched = _touched(event, effects)
        if self._acted_on.isdisjoint(touched):
            return
        for check, kinds in self._acting:
            if not kinds.isdisjoint(touched):
                check.acted(at_us, node, event, effects)
        if not FETCHES.isdisjoint(touched):
            for answer in self._fetches.acted(node, event, effects):
                for check in self._of_followers if answer.asked.by_follower else self._of_answers:
                    check.answered(at_us, answer)

    def recomputed(self, at_us: int, node_id: int, digest: Digest) -> None:
        """Lets checks compare a node's digest with that of its whole image."""
        followed, whole = digest.value, digest.thorough()
        for check in self._of_images:
            check.recomputed(at_us, node_id, followed, whole)

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        kind = event.__class__
        between_nodes = kind in PEER_EVENTS or (kind is Request and event.tag.role == "peer")  # type: ignore[union-attr]
        if thorough or not between_nodes:  # Messages between nodes change no client's state.
            for check in self._looking:
                check.node(at_us, incarnation, node, event, thorough)
        if thorough:
            for check in self._of_wholes:
                check.whole(at_us, incarnation, node)
        self.view.look(at_us, incarnation, node, thorough)
        self.replicas.look(at_us, incarnation, node, thorough)
        for check in self._viewing:
            check.viewed(at_us, node)

    def ended(self, at_us: int, node_id: int, story: str) -> None:
        """Hands on that a node has ended itself although no fault had struck its disk."""
        for check in self._checks:
            check.ended(at_us, node_id, story)

    def end(self, at_us: int, history: History) -> None:
        for check in self._checks:
            check.quiet(at_us)
        # E-7: nobody had kept what was committed there.
        history = history.without(self.replicas.excused, self.replicas.offsets_excused)
        for check in self._checks:
            check.end(history)


def _touched(event: Event | None, effects: Sequence[Effect]) -> set[Kind]:
    touched: set[Kind] = {event.api_key if type(event) is Request else type(event)}
    for effect in effects:
        kind = type(effect)
        if kind is Note:
            touched.add(effect.what)  # type: ignore[union-attr]
        elif kind is Reply:
            touched.add(effect.api_key)  # type: ignore[union-attr]
        else:
            touched.add((Send, effect.api_key) if kind is Send else kind)  # type: ignore[union-attr]
    return touched


def _by_name(checks: Sequence[Check], names_of: Callable[[Check], Sequence[str]]) -> dict[str, list[Check]]:
    found: dict[str, list[Check]] = {}
    for check in checks:
        for name in names_of(check):
            found.setdefault(name, []).append(check)
    return found
