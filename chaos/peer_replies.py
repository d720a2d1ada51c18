"""The answers of other nodes on their way to a node. The interceptor holds some of them back, or doubles them."""

from collections.abc import Sequence

from chaos.powers import Powers
from reference_broker.core.events import Event, PeerDown, PeerReply, PeerUp, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.tags import Tag

_Channel = tuple[int, Channel]


class PeerReplies:
    """The answers to one node. They keep their order within a channel: if one is held back, those behind it wait."""

    def __init__(self, powers: Powers) -> None:
        self._powers = powers
        self._tags: dict[_Channel, dict[int, Tag]] = {}
        self._held: dict[_Channel, list[Event]] = {}
        self._doubled: dict[_Channel, tuple[Tag, PeerReply]] = {}
        self._second: list[PeerReply] = []

    def asked(self, send: Send) -> None:
        """Notes a request that goes out. If an answer of its kind is to be doubled (``double``), the second copy comes
        now as the answer to this request."""
        channel = (send.peer, send.channel)
        self._tags.setdefault(channel, {})[send.token] = send.tag
        doubled = self._doubled.get(channel)
        if doubled is not None and doubled[0].api_key == send.api_key:
            del self._doubled[channel]
            again = doubled[1]._replace(token=send.token)
            self._second.append(again)
            self._powers.deliver_later(again, 0)

    def arrived(self, event: PeerReply | PeerDown | PeerUp) -> tuple[Sequence[Event], Tag | None]:
        """Returns the events that the node gets now. It also returns the request's tag if rules may strike the answer;
        an answer that was held back or doubled is not struck again."""
        channel = (event.peer, event.channel)
        waiting = self._held.get(channel)
        if waiting is not None:
            if waiting[0] is not event:
                waiting.append(event)
                return (), None
            del self._held[channel]
            return tuple(waiting), None
        if isinstance(event, PeerDown):
            self._tags.pop(channel, None)
            self._doubled.pop(channel, None)
        if not isinstance(event, PeerReply):
            return (event,), None
        tag = self._tags.get(channel, {}).pop(event.token, None)
        if any(each is event for each in self._second):
            self._second = [each for each in self._second if each is not event]
            return (event,), None
        return (event,), tag

    def hold(self, event: PeerReply, delay_us: int) -> None:
        """Holds back the answer, and all that follow on its channel, for the delay."""
        self._held[event.peer, event.channel] = [event]
        self._powers.deliver_later(event, delay_us)

    def double(self, event: PeerReply, tag: Tag) -> None:
        """Makes the answer come a second time, as the answer to the next request of the same API on its channel."""
        self._doubled[event.peer, event.channel] = (tag, event)
