"""Gives each check of a run only what it asks for, so that an event costs what it touched."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from chaos.checks.check import Check, History
from chaos.checks.fetch_model import FetchCheck, FetchModel
from chaos.checks.no_acked_lost import NoAckedLost
from chaos.checks.quorum_check import QuorumCheck
from chaos.checks.quorum_converges import QuorumConverges
from chaos.checks.quorum_view import QuorumView
from chaos.checks.replica_view import ReplicaView
from chaos.checks.snapshot_equals_replay import SnapshotEqualsReplay
from chaos.metadata_digest import Digest
from reference_broker.core.effects import Effect, Note
from reference_broker.core.events import Event, PeerDown, PeerReply, PeerUp, Request
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

NodeLook = Callable[[int, int, "Node", Event | None, bool], None]


PEER_EVENTS = frozenset({PeerUp, PeerReply, PeerDown})


class Watching:
    """``rows`` names the trace rows that some check wants."""

    def __init__(self, checks: Sequence[Check], view: QuorumView, replicas: ReplicaView | None = None) -> None:
        self.view = view
        self.replicas = replicas if replicas is not None else ReplicaView(view.trouble, expected=False)
        self._checks = checks
        self._by_row: dict[str, list[Check]] = {}
        for check in checks:
            for row in check.rows:
                self._by_row.setdefault(row, []).append(check)
        self._by_note: dict[str, list[QuorumCheck]] = {}
        for each in checks:
            if isinstance(each, QuorumCheck):
                for what in each.notes:
                    self._by_note.setdefault(what, []).append(each)
        self._looks: list[NodeLook] = [each.node for each in checks if type(each).node is not Check.node]
        self.rows = frozenset(self._by_row)
        self._converging = [each for each in checks if isinstance(each, QuorumConverges)]
        self._acked = next((each for each in checks if isinstance(each, NoAckedLost)), None)
        self._actors = [each for each in checks if type(each).acted is not Check.acted]
        self._fetches = FetchModel()
        self._of_fetches = [each for each in checks if isinstance(each, FetchCheck)]
        self._images = [each for each in checks if isinstance(each, SnapshotEqualsReplay)]

    def trace(self, row: TraceRow) -> None:
        for check in self._by_row.get(row.what, ()):
            check.trace(row)

    def note(self, at_us: int, node_id: int, note: Note) -> None:
        """Hands out a note, before the checks see the state of the node that wrote it. The quorum's checks do not get a
        note about a partition's replica, though it may have the same name."""
        if note.fields and note.fields[0][0] == "partition":
            return
        self.view.note(node_id, note)
        for check in self._by_note.get(note.what, ()):
            check.note(at_us, self.view.nodes[node_id], note)

    def published(self, at_us: int, node_id: int, fields: Mapping[str, int | str]) -> None:
        """Hands on that a node published an image. ``fields`` are those of the trace's row."""
        for each in self._images:
            each.published(at_us, node_id, int(fields["offset"]), str(fields["digest"]), int(fields["partitions"]))

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """Hands on what a node did, before the checks see its state."""
        for check in self._actors:
            check.acted(at_us, node, event, effects)
        for answer in self._fetches.acted(node, event, effects):
            for each in self._of_fetches:
                each.answered(at_us, answer)

    def recomputed(self, at_us: int, node_id: int, digest: Digest) -> None:
        """Lets checks compare a node's digest with that of its whole image."""
        for each in self._images:
            each.recomputed(at_us, node_id, digest.value, digest.thorough())

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        kind = event.__class__
        between_nodes = kind in PEER_EVENTS or (kind is Request and event.tag.role == "peer")  # type: ignore[union-attr]
        if thorough or not between_nodes:  # Peers' traffic touches no client's state.
            for look in self._looks:
                look(at_us, incarnation, node, event, thorough)
        self.view.look(at_us, incarnation, node, thorough)
        self.replicas.look(at_us, incarnation, node, thorough)
        if self.replicas.partitions and self._acked is not None:
            self._acked.judge(at_us, node)

    def ended(self, at_us: int, node_id: int, story: str) -> None:
        """Hands on that a node ended itself, though no fault had struck its disk."""
        for each in self._converging:
            each.ended(at_us, node_id, story)

    def end(self, at_us: int, history: History) -> None:
        self.view.end(at_us)
        self.replicas.end(at_us)
        history = history.without(self.replicas.excused)
        for check in self._checks:
            check.end(history)
