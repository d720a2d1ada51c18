import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from chaos.checks.check import Check
from chaos.checks.fetch_model import FETCH
from chaos.checks.history import without_node
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Note, Reply, Send
from reference_broker.core.events import Closed, Event, Request
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.core.node import Node

CREATED = "session_created"
LIVES = (CREATED, "session_closed", "session_evicted")


class _Sent(NamedTuple):
    session_id: int
    epoch: int
    maker: str


class SessionLines(Check):
    """session-lines-exact: what a node tells of its fetch sessions names them, and who made them.

    F-23: the lines of a fetch's request and of its answer carry the session ID and the epoch (or number) of the
    request. The trace and the request log take both from the tag of the message, so the tag is compared with the
    message.

    G-2: a session remembers who made it, which is a follower's number or a consumer's client ID. So the line of a new
    session says it, and so do the lines of its end.

    Knows the requests under way by node and connection, then by correlation ID, and who made which session of a node.
    """

    guarantee = "session-lines-exact"
    needs_one_node = True
    acts_on = (FETCH, (Send, FETCH), Closed, *LIVES)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._asked: dict[tuple[int, int], dict[int, _Sent]] = {}
        self._makers: dict[tuple[int, int], str] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._asked, self._makers = without_node(self._asked, node_id), without_node(self._makers, node_id)
        elif type(event) is Closed:
            self._asked.pop((node_id, event.connection), None)
        elif type(event) is Request and isinstance(event.body, FetchRequest):
            asked = self._read(at_us, event.body, event.tag, event.client_id)
            self._asked.setdefault((node_id, event.connection), {})[event.correlation_id] = asked
        made: dict[int, str] = {}
        for effect in effects:
            if type(effect) is Send and isinstance(effect.body, FetchRequest):
                self._read(at_us, effect.body, effect.tag, effect.client_id)
            elif type(effect) is Note and effect.what in LIVES:
                fields = dict(effect.fields)
                session_id, said = int(fields["session_id"]), str(fields.get("made_by", ""))
                if effect.what == CREATED:
                    made[session_id] = said
                else:
                    maker = self._makers.pop((node_id, session_id), None)
                    self._names(at_us, effect.what, session_id, said, maker)
            elif type(effect) is Reply and effect.api_key == FETCH:
                found = self._asked.get((node_id, effect.connection), {}).pop(effect.correlation_id, None)
                if found is None:
                    continue
                self._compare(at_us, "answer", found, effect.tag)
                session_id = getattr(effect.body, "session_id", 0)
                if session_id in made:
                    self._makers[node_id, session_id] = found.maker
                    self._names(at_us, CREATED, session_id, made.pop(session_id), found.maker)

    def _read(self, at_us: int, body: FetchRequest, tag: Tag, client_id: str) -> _Sent:
        maker = str(body.replica_id) if body.replica_id >= 0 else client_id
        asked = _Sent(body.session_id, body.session_epoch, maker)
        self._compare(at_us, "request", asked, tag)
        return asked

    def _compare(self, at_us: int, what: str, asked: _Sent, tag: Tag) -> None:
        if (tag.session_id, tag.session_epoch) != asked[:2]:
            told = f"session {tag.session_id}, epoch {tag.session_epoch}"
            self.violated(
                at_us,
                f"the line of {asked.maker}'s {what} tells {told}; its request has {asked.session_id}, {asked.epoch}",
            )

    def _names(self, at_us: int, what: str, session_id: int, said: str, maker: str | None) -> None:
        """``maker`` is None if nobody saw who made it. It must stand there as a word of its own."""
        if maker is not None and not re.search(rf"(?<!\w){re.escape(maker)}(?!\w)", said):
            self.violated(at_us, f"{what} of session {session_id} says {said!r} made it; {maker} did")
