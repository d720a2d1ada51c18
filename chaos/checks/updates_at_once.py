from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.fetch_model import FETCH
from chaos.checks.nonmonotonic_metadata_epoch import EPOCH_COMMITTED
from chaos.checks.surroundings import Surroundings
from chaos.checks.switch_respected import UPDATE_METADATA
from reference_broker.core.effects import Effect, Note, Send
from reference_broker.core.events import Event, PeerDown, PeerReply

if TYPE_CHECKING:
    from reference_broker.core.node import Node

METADATA_COMMITTED = "metadata_committed"
MOST_US = 300_000
"""bounds how long an update may wait for nothing; it is made in slices of a few milliseconds"""
STILL_US = 250_000
"""A process that has done nothing for so long may have been stopped."""
LONGEST_PAUSE_US = 800_000


@dataclass(slots=True)
class _Controller:
    """What one process has sent in one term. ``held_us`` says until when something kept it from sending at all.
    ``sent`` has the update that each broker has not answered, and ``sent_us`` when it was sent. ``due_us`` says since
    when each broker lacks an update that it could be sent."""

    node: "Node"
    seen_us: int
    term: int = -1
    held_us: int = 0
    content_us: int = 0
    sent: dict[int, Send] = field(default_factory=dict)
    sent_us: dict[int, int] = field(default_factory=dict)
    due_us: dict[int, int] = field(default_factory=dict)


class UpdatesSentAtOnce(Check):
    """updates-sent-at-once: UpdateMetadata goes to all live brokers at the same time (M-3).

    No broker waits until another one has answered. So the controller sends a broker an update soon after its newest
    content was committed, or soon after the broker has answered the update before, or after the pause that follows a
    failure.

    Physical: nothing is sent while a metadata transaction is being written (M-2). A process that is stopped sends
    nothing; it does nothing else then either.
    """

    guarantee = "updates-sent-at-once"
    needs_one_node = True
    acts_on = ((Send, UPDATE_METADATA), PeerReply, PeerDown, FETCH, EPOCH_COMMITTED, METADATA_COMMITTED)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._controllers: dict[int, _Controller] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        known = self._controllers.get(node.broker.node_id)
        if known is None or known.node is not node:
            known = self._controllers[node.broker.node_id] = _Controller(node, at_us)
        if at_us - known.seen_us > STILL_US or node.broker.replica.controller.is_writing_transaction:
            known.held_us = at_us
        known.seen_us = at_us
        if isinstance(event, PeerReply | PeerDown) and event.peer in known.sent:
            _answered(at_us, known, event)
        for effect in effects:
            if type(effect) is Note and effect.what == EPOCH_COMMITTED:
                _has_content(at_us, known, dict(effect.fields))
            elif type(effect) is Note and effect.what == METADATA_COMMITTED and dict(effect.fields)["kind"] != "batch":
                known.held_us = at_us
            elif type(effect) is Send and effect.api_key == UPDATE_METADATA:
                self._sent(at_us, known, effect)

    def _sent(self, at_us: int, known: _Controller, send: Send) -> None:
        self.looked_at += 1
        waited_us = at_us - max(known.held_us, known.due_us.pop(send.peer, at_us))
        known.sent[send.peer], known.sent_us[send.peer] = send, at_us
        if waited_us > MOST_US:
            node_id = known.node.broker.node_id
            self.violated(at_us, f"node {node_id} sent broker {send.peer} an update {waited_us // 1000} ms late")


def _has_content(at_us: int, known: _Controller, fields: Mapping[str, int | str]) -> None:
    """The newest content was committed: each live broker lacks it. A fenced one is sent nothing."""
    if known.term != int(fields["controller_epoch"]):
        known.term = int(fields["controller_epoch"])
        known.sent.clear()
        known.due_us.clear()
    known.content_us = at_us
    for broker_id, broker in known.node.broker.loader.image.brokers.items():
        if broker.fenced:
            known.due_us.pop(broker_id, None)
        elif broker_id not in known.sent:
            known.due_us.setdefault(broker_id, at_us)


def _answered(at_us: int, known: _Controller, event: PeerReply | PeerDown) -> None:
    sent = known.sent[event.peer]
    if event.channel is not sent.channel or (isinstance(event, PeerReply) and event.token != sent.token):
        return
    del known.sent[event.peer]
    if isinstance(event, PeerDown) or bool(getattr(event.body, "error_code", 0)):
        known.due_us[event.peer] = at_us + LONGEST_PAUSE_US
    elif known.content_us > known.sent_us[event.peer]:
        known.due_us[event.peer] = at_us
