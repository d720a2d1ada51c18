"""The trace recorder: turns what a node was given and what it did into rows of the trace table, in both worlds."""

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from reference_broker.core.effects import Effect, Note, Reply
from reference_broker.core.events import Event, Request
from reference_broker.ports.now import Now
from reports.rows import TraceRow

FETCH = 1


Sink: TypeAlias = Callable[[TraceRow], None]


class TraceRecorder:
    """Implements core.hooks.Hooks and changes nothing. It must stand before the interceptor in the list of hooks, so
    that it sees what the node did rather than what the fault left of it."""

    def __init__(self, node: int, incarnation: int, sink: Sink, origin_us: int = 0) -> None:
        self._node = node
        self._incarnation = incarnation
        self._sink = sink
        self._origin_us = origin_us
        self._seq = 0

    def before(self, now: Now, event: Event) -> Sequence[Event]:  # noqa: ARG002
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:
        if type(event) is Request:
            self.request(now, event)
        self.effects(now, effects)
        return effects

    def request(self, now: Now, event: Request) -> None:
        """Adds the row of a request, without its effects."""
        tag, at_us = event.tag, now.mono_us - self._origin_us
        self._add(
            TraceRow(
                self._node,
                self._incarnation,
                self._seq,
                at_us,
                "request",
                event.connection,
                tag.client_id,
                tag.api_key,
                tag.api_version,
                tag.session_id,
                tag.session_epoch,
            )
        )

    def add(self, at_us: int, what: str, detail: str) -> None:
        """Adds a row that no event or effect of the node led to. ``at_us`` counts from the run's start."""
        self._add(TraceRow(self._node, self._incarnation, self._seq, at_us, what, detail=detail))

    def effects(self, now: Now, effects: Sequence[Effect]) -> None:
        """Adds the rows of effects. Call it alone for effects that no event led to, such as those of a node's start."""
        at_us = now.mono_us - self._origin_us
        for effect in effects:
            if type(effect) is Reply:
                self._add(self._reply(effect, at_us))
            elif type(effect) is Note:
                detail = json.dumps(dict(effect.fields), sort_keys=True, separators=(",", ":"))
                self._add(TraceRow(self._node, self._incarnation, self._seq, at_us, effect.what, detail=detail))

    def _reply(self, reply: Reply, at_us: int) -> TraceRow:
        tag = reply.tag
        answered = getattr(reply.body, "session_id", 0) if tag.api_key == FETCH else 0
        return TraceRow(
            self._node,
            self._incarnation,
            self._seq,
            at_us,
            "reply",
            reply.connection,
            tag.client_id,
            tag.api_key,
            tag.api_version,
            tag.session_id,
            tag.session_epoch,
            answered,
            tag.error,
        )

    def _add(self, row: TraceRow) -> None:
        self._seq += 1
        self._sink(row)
