"""Notes, trace rows and the hash of a run: an incarnation's notes and trace rows for the checks, and the hash of the
whole run."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from bench.fleet.behaviours.protocol import Request as ClientRequest
from chaos.checks.suite import CheckSuite
from chaos.hooks.metadata_digest import ROW, Published, Watch
from chaos.hooks.trace import FETCH, TraceRecorder, encoded
from chaos.sim.agenda import Agenda
from chaos.sim.codec_check import reply_bytes, request_bytes
from reference_broker.core.events import Effect, Event, Note, PeerReply, Reply, Request, Send
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Now
from reference_broker.wire.tags import Tag
from reports.rows import FaultRow, HistoryRow, TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class Observer:
    """Watches one incarnation of a node. ``keep`` gets every row of the trace.

    If ``keep`` is None, only the rows that a check wants are made. A request or a reply then becomes a row only if it
    is a client's, or if it belongs to a follower's session, and a reply only if it is that of a fetch.
    """

    def __init__(
        self,
        node: "Node",
        incarnation: int,
        agenda: Agenda,
        suite: CheckSuite,
        keep: Callable[[TraceRow], None] | None,
    ) -> None:
        self.incarnation = incarnation
        self.digest = Watch(node, self._published)
        self._node = node
        self._node_id = node.broker.node_id
        self._agenda = agenda
        self._suite = suite
        self._keep = keep
        self._attached = False
        self._recorder = TraceRecorder(self._node_id, incarnation, self._row)

    def __call__(self, now: Now, event: Event | None, effects: Sequence[Effect]) -> None:
        if not self._attached and self._node.listening:
            self._attached = self.digest.attach()
            if self._attached and self._suite.replicas.expected:
                loader = self._node.broker.quorum_node.loader
                self._suite.replicas.image(now.mono_us, self._node_id, None, loader.image)
                loader.subscribe(self._image)
        self._suite.acted(now.mono_us, self._node, event, effects)
        if type(event) is Request and self._is_wanted("request", event.tag):
            self._recorder.request(now, event)
        for effect in effects:
            if type(effect) is Note:
                self._suite.note(self._node_id, effect)
                if self._keep is not None or effect.what in self._suite.rows:
                    self._recorder.effects(now, (effect,))
            elif type(effect) is Reply and self._is_wanted("reply", effect.tag):
                self._recorder.effects(now, (effect,))

    def _is_wanted(self, what: str, tag: Tag) -> bool:
        if self._keep is not None:
            return True
        is_judged = tag.role == "client" or tag.session_id != 0
        return is_judged and (what == "request" or tag.api_key == FETCH) and what in self._suite.rows

    def _row(self, row: TraceRow) -> None:
        if self._keep is not None:
            self._keep(row)
        self._suite.trace(row)

    def _image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._suite.replicas.image(self._agenda.now_us, self._node_id, delta, image)

    def _published(self, published: Published) -> None:
        if self._keep is not None or ROW in self._suite.rows:
            self._recorder.add(self._agenda.now_us, ROW, encoded(published.fields()))


class TraceHash:
    """Implements core.events.Hooks for one node; several nodes may share one hash object."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.lines = 0

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, line: str) -> None:
        self.lines += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")

    def history(self, rows: Iterable[HistoryRow]) -> None:
        for row in rows:
            self.add(repr(row))

    def fault(self, row: FaultRow) -> None:
        self.add(repr(row))

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        if isinstance(event, Request):
            action = ClientRequest(event.api_key, event.api_version, event.client_id, event.body, 0)
            coded = request_bytes(action, event.correlation_id).hex() if event.body is not None else ""
            self.add(f"{now} request {event.connection} {event.tag} {coded}")
        elif isinstance(event, PeerReply):
            # The node that sent the reply has hashed its content.
            self.add(f"{now} peer reply {event.peer} {event.channel} {event.token}")
        else:
            self.add(f"{now} {event}")
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        for effect in effects:
            if isinstance(effect, Reply):
                coded = reply_bytes(effect).hex() if effect.body is not None else ""
                self.add(f"{now} reply {effect.connection} {effect.tag} {coded}")
            elif isinstance(effect, Send):
                action = ClientRequest(effect.api_key, effect.api_version, effect.tag.client_id, effect.body, 0)
                coded = request_bytes(action, effect.token).hex()
                self.add(f"{now} send {effect.peer} {effect.channel} {effect.timeout_ms} {coded}")
            else:
                self.add(f"{now} {effect}")
        return effects
