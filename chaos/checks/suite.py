"""Finds and calls all checks of a run: finds their classes, and passes each check only the events that it requests.

Every simulated run gets all checks, whatever guarantees its scenario lists. A check is called only for the rows, events
and inspections that it names, so the cost of an event is proportional to what it changed.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import NoneType
from typing import TYPE_CHECKING, TypeAlias

from chaos import checks
from chaos.checks.check import Check, CheckContext, FetchCheck, Inspection, Kind
from chaos.checks.history import History
from chaos.checks.sessions.fetch_model import EVICTED, FETCH
from chaos.hooks.metadata_digest import Digest
from reference_broker.core.events import Closed, Effect, Event, Note, PeerDown, PeerReply, PeerUp, Reply, Request, Send
from reports.guarantees import GUARANTEES
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

PEER_EVENTS = frozenset({PeerUp, PeerReply, PeerDown})
FETCHES: frozenset[Kind] = frozenset({NoneType, FETCH, Closed, EVICTED})
"""Kinds of events that the fetch model follows."""
Acted: TypeAlias = "Callable[[int, Node, Event | None, Sequence[Effect]], None]"
"""``Check.acted`` of one check."""
MAX_EFFECTS = 16
"""An event with more effects is like no other one, so its route is not kept."""


@cache
def check_kinds() -> tuple[type[Check], ...]:
    """Return every class in this folder and those below that names a guarantee, in the order of the guarantees."""
    modules = [import_module(package.name) for package in walk_packages(checks.__path__, f"{checks.__name__}.")]
    kinds = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Check) and each.guarantee and each.__module__ == module.__name__
    ]
    order = list(GUARANTEES)
    return tuple(sorted(kinds, key=lambda kind: order.index(kind.guarantee)))


def all_checks(context: CheckContext) -> tuple[Check, ...]:
    """Return new checks for one run."""
    return tuple(kind(context) for kind in check_kinds())


class CheckSuite:
    """The checks of one run, and the views of the cluster that they share."""

    def __init__(self, checks: Sequence[Check], context: CheckContext) -> None:
        self.quorum = context.quorum
        self.replicas = context.replicas
        self.rows: dict[str, list[Check]] = {}
        """checks by the kind of trace row that they request; rows that no check requests are missing here"""
        for check in checks:
            for name in check.rows:
                self.rows.setdefault(name, []).append(check)
        self._checks = checks
        self._fetches = context.fetches
        self._inspecting = [each.inspect for each in checks if each.inspection is not Inspection.NEVER]
        self._inspecting_events = [each.inspect for each in checks if each.inspection is Inspection.AFTER_EVENTS]
        self._event_checks = [(each.acted, frozenset(each.acts_on)) for each in checks if each.acts_on]
        self._routes: dict[tuple[Kind, ...], tuple[list[Acted], bool]] = {}
        """by the kinds of an event and its effects: ``acted`` of the checks that act on it, and whether the fetch model
        does. Most events are like earlier ones, and need no comparison with what each check acts on."""
        fetch_checks = [each for each in checks if isinstance(each, FetchCheck)]
        self._judging_fetches = [fetch_check.fetched for fetch_check in fetch_checks]
        self._judging_follower_fetches = [
            fetch_check.fetched for fetch_check in fetch_checks if fetch_check.judges_followers
        ]

    def trace(self, row: TraceRow) -> None:
        for check in self.rows.get(row.what, ()):
            check.trace(row)

    def note(self, node_id: int, note: Note) -> None:
        """Let the views follow a note, before its row is traced.

        A note about a partition's replica may have the same name as one about the quorum, but its first field is
        ``partition``.
        """
        if note.fields and note.fields[0][0] == "partition":
            self.replicas.note(node_id, note)
        else:
            self.quorum.note(node_id, note)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """Pass on a node's effects for an event, before the checks see its state."""
        kinds = _kinds(event, effects)
        route = self._routes.get(kinds)
        if route is None:
            touched = _touched(kinds)
            chosen: list[Acted] = [acted for acted, acts_on in self._event_checks if not acts_on.isdisjoint(touched)]
            route = chosen, not FETCHES.isdisjoint(touched)
            if len(effects) <= MAX_EFFECTS:
                self._routes[kinds] = route
        acting, is_followed_by_model = route
        for acted in acting:
            acted(at_us, node, event, effects)
        if is_followed_by_model:
            for fetch in self._fetches.acted(node, event, effects):
                for judge in self._judging_follower_fetches if fetch.request.by_follower else self._judging_fetches:
                    judge(at_us, fetch)

    def recomputed(self, at_us: int, node_id: int, digest: Digest) -> None:
        """Let checks compare a node's digest with that of its whole image."""
        self.quorum.recomputed(at_us, node_id, digest.value, digest.thorough())

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        """Let the checks and the views compare the node's state after an event; with ``thorough`` all of it."""
        kind = event.__class__
        between_nodes = kind in PEER_EVENTS or (kind is Request and event.tag.role == "peer")  # type: ignore[union-attr]
        if thorough or not between_nodes:  # Messages between nodes change no client's state.
            for inspect in self._inspecting if thorough else self._inspecting_events:
                inspect(at_us, incarnation, node, event, thorough)
        self.quorum.observe(at_us, incarnation, node, thorough)
        self.replicas.observe(at_us, incarnation, node, thorough)

    def end(self, history: History) -> None:
        """Let the checks judge the quiet cluster and the whole history."""
        # E-7: no replica had kept the committed records there.
        mixed = history.written_by_reissued_epochs(self.replicas.transactions_excused)
        history = history.without((*self.replicas.excused, *mixed), self.replicas.offsets_excused)
        for check in self._checks:
            check.end(history)


def _kinds(event: Event | None, effects: Sequence[Effect]) -> tuple[Kind, ...]:
    """Return the kind of the event and of each effect, in order. Keys of APIs follow the classes that have one."""
    kind: type = event.__class__
    kinds: list[Kind] = [kind]
    if kind is Request:
        kinds.append(event.api_key)  # type: ignore[union-attr]
    for effect in effects:
        kind = effect.__class__
        if kind is Note:
            kinds.append(effect.what)  # type: ignore[union-attr]
            continue
        kinds.append(kind)
        if kind is Reply or kind is Send:
            kinds.append(effect.api_key)  # type: ignore[union-attr]
    return tuple(kinds)


def _touched(kinds: Sequence[Kind]) -> set[Kind]:
    """Return what the event touched. The key of the API of a request to another node counts only together with
    ``Send``."""
    touched = set[Kind]()
    before: Kind = ""
    for kind in kinds:
        touched.add((Send, kind) if before is Send and isinstance(kind, int) else kind)
        before = kind
    return touched
