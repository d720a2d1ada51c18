"""Requests to other nodes: each Send is answered exactly once, by its reply or by the loss of its channel."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_broker.core.events import Effect, PeerDown, PeerReply, Send
from reference_broker.metadata.identifiers import node_name
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.tags import Tag


class _Asked(NamedTuple):
    replied: Callable[[object], None]
    failed: Callable[[], None]


@dataclass(slots=True)
class Peers:
    """``client_id`` is what this node calls itself to others.

    ``asked`` holds the sends without an answer: by (peer, channel), then by token, oldest first.
    """

    node_id: int
    client_id: Callable[[], str]
    effects: list[Effect]
    asked: dict[tuple[int, Channel], dict[int, _Asked]] = field(default_factory=dict)
    last: int = 0

    def send(
        self,
        peer: int,
        channel: Channel,
        api_key: int,
        api_version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        self.last += 1
        self.asked.setdefault((peer, channel), {})[self.last] = _Asked(replied, failed)
        tag = _tag(api_key, api_version, node_name(self.node_id), body)
        self.effects.append(
            Send(peer, channel, self.last, api_key, api_version, body, tag, timeout_ms, self.client_id())
        )

    def replied(self, event: PeerReply) -> None:
        """A reply that nobody waits for (its channel broke meanwhile) is ignored."""
        asked = self.asked.get((event.peer, event.channel), {}).pop(event.token, None)
        if asked is not None:
            asked.replied(event.body)

    def down(self, event: PeerDown) -> None:
        for asked in self.asked.pop((event.peer, event.channel), {}).values():
            asked.failed()


def _tag(api_key: int, api_version: int, client_id: str, body: object) -> Tag:
    if isinstance(body, FetchRequest):
        return Tag(api_key, api_version, client_id, body.session_id, body.session_epoch, role="peer")
    position = snapshot_position(body) if api_key == ApiKey.FETCH_SNAPSHOT else -1
    return Tag(api_key, api_version, client_id, position=position, role="peer")


def snapshot_position(body: object) -> int:
    """The position of a snapshot fetch, or -1 if it names no partition."""
    topics = getattr(body, "topics", ())
    return int(topics[0].partitions[0].position) if topics and topics[0].partitions else -1
