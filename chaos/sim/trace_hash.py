"""The hash of everything that happened in a run: events, effects and history, in order, byte for byte."""

import hashlib
from collections.abc import Iterable, Sequence

from bench.fleet.behaviours.protocol import Request as ClientRequest
from chaos.sim.codec_check import reply_bytes, request_bytes
from reference_broker.core.effects import Effect, Reply, Send
from reference_broker.core.events import Event, PeerReply, Request
from reference_broker.ports.now import Now
from reports.rows import FaultRow, HistoryRow


class TraceHash:
    """Implements core.hooks.Hooks for one node; several nodes may share one hash object."""

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
