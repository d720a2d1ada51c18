"""Preset ``fetch_session_epoch = N``: each fetch session expects epoch N as its first, not 1.

With N near 2^31-1 a session wraps after a few fetches instead of two thousand million. Clients need not know of this:
they send the epochs 1, 2, 3, ..., and the preset turns them into N, N + 1, ... in the ring 1..2^31-1. In the first
revision the epochs are sequence numbers of 64 bits, which pass 2^31-1 and do not wrap.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reference_broker.core.effects import Effect, Note
from reference_broker.core.events import Event, Request
from reference_broker.ports.now import Now
from reference_broker.wire.apis import FIRST_DRAFT_VERSION
from reference_broker.wire.fetch import FetchRequest
from reports.rows import FaultRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node
    from reference_broker.sessions.fetch_session import FetchSession

NAME = "fetch_session_epoch"
KIND = "preset_fetch_session_epoch"
LARGEST_EPOCH = 2**31 - 1


class FetchSessionEpoch:
    """Implements core.hooks.Hooks. It must be the last hook. Then the hooks before it get requests with the client's
    epoch, and replies with the node's. ``built`` must be called before the node's first event."""

    def __init__(self, first_epoch: int) -> None:
        self.first_epoch = first_epoch
        self._node: Node | None = None

    def built(self, node: "Node") -> None:
        self._node = node

    def evidence(self, node_id: int, at_us: int) -> FaultRow:
        """Returns the row which says that this state was set."""
        detail = f"first epoch of each session {self.first_epoch}"
        return FaultRow(NAME, KIND, at_us, at_us, f"node-{node_id}", 1, session_epoch=self.first_epoch, detail=detail)

    def before(self, now: Now, event: Event) -> Sequence[Event]:  # noqa: ARG002
        if type(event) is not Request or not isinstance(event.body, FetchRequest):
            return (event,)
        body = event.body
        if body.session_id == 0 or body.session_epoch < 1:
            return (event,)
        epoch = self.at_node(body.session_epoch, event.api_version)
        tag = event.tag._replace(session_epoch=epoch)
        return (event._replace(body=replace(body, session_epoch=epoch), tag=tag),)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        node = self._node
        assert node is not None, "the preset was not told of its node"
        for effect in effects:
            if type(effect) is Note and effect.what == "session_created":
                session_id = dict(effect.fields)["session_id"]
                assert isinstance(session_id, int)
                self._raise(node.broker.fetch_sessions.sessions[session_id])
        return effects

    def _raise(self, session: "FetchSession") -> None:
        session.epoch = self.first_epoch
        if session.revision.name == "first":
            more = self.first_epoch - 1
            session.number += more
            session.answered_number += more
            for cached in session.partitions.values():
                cached.change_number += more
                cached.named_number += more

    def at_node(self, epoch: int, version: int = 0) -> int:
        """Returns the node's number for what the client calls ``epoch``. The first revision's numbers have 64 bits."""
        if version == FIRST_DRAFT_VERSION:
            return epoch - 1 + self.first_epoch
        return (epoch - 1 + self.first_epoch - 1) % LARGEST_EPOCH + 1
