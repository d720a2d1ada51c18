"""Hooks of the driver that change nothing: their base, and the recorder of the trace table, in both worlds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from reference_broker.core.events import Effect, Event, Note, Reply, Request
from reference_broker.ports.node_ports import Now
from reports.rows import TraceRow


class PassiveHook:
    """Implements core.events.Hooks. A subclass observes each event before the node handles it, or its effects
    afterwards."""

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        self.arrives(now, event)
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:
        self.acted(now, event, effects)
        return effects

    def arrives(self, now: Now, event: Event) -> None:
        pass

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:
        pass


FETCH = 1
NO_FRAME = (-1, "", -1, -1, 0, -1, 0, 0)
"""The columns of a frame and of a response, in a row that has neither."""
Sink: TypeAlias = Callable[[TraceRow], None]
_JSON: Final = msgspec.json.Encoder(order="sorted")


def encoded(fields: Mapping[str, int | str]) -> str:
    """Encode the fields of a note as its row's detail."""
    return _JSON.encode(fields).decode()


class TraceRecorder(PassiveHook):
    """Passes each row to ``sink``. The recorder must come before the interceptor in the list of hooks. It then records
    the effects of the node, before faults change them."""

    def __init__(self, node: int, incarnation: int, sink: Sink, origin_us: int = 0) -> None:
        self._node = node
        self._incarnation = incarnation
        self._sink = sink
        self._origin_us = origin_us
        self._seq = 0

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:
        if type(event) is Request:
            self.request(now, event)
        self.effects(now, effects)

    def request(self, now: Now, event: Request) -> None:
        """Add the row of a request, without its effects."""
        self._add(now.mono_us - self._origin_us, "request", *_frame(event))

    def add(self, at_us: int, what: str, detail: str) -> None:
        """Add a row that no event or effect of the node led to. ``at_us`` counts from the run's start."""
        self._add(at_us, what, *NO_FRAME, detail)

    def effects(self, now: Now, effects: Sequence[Effect]) -> None:
        """Add the rows of effects. Call it alone for effects that no event led to, such as those of a node's start."""
        at_us = now.mono_us - self._origin_us
        for effect in effects:
            if type(effect) is Reply:
                session_id = getattr(effect.body, "session_id", 0) if effect.tag.api_key == FETCH else 0
                self._add(at_us, "reply", *_frame(effect), session_id, effect.tag.error)
            elif type(effect) is Note:
                self.add(at_us, effect.what, encoded(dict(effect.fields)))

    def _add(self, at_us: int, what: str, *columns: Any) -> None:
        row = TraceRow(self._node, self._incarnation, self._seq, at_us, what, *columns)
        self._seq += 1
        self._sink(row)


def _frame(it: Request | Reply) -> tuple[int, str, int, int, int, int]:
    """Return the columns that requests and replies share, in the order of the table."""
    tag = it.tag
    return it.connection, tag.client_id, tag.api_key, tag.api_version, tag.session_id, tag.session_epoch
