"""Faults at the replies that a node gets from other nodes."""

from collections.abc import Sequence
from functools import partial

from chaos.interceptor.actions import FaultActions
from chaos.interceptor.rules import Rule, RuleBook, matches_peer_reply
from reference_broker.core.events import Event, PeerDown, PeerReply, PeerUp, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.tags import Tag

_Channel = tuple[int, Channel]


class PeerReplyFaults:
    """Replies keep their order within a channel: if one is held back, those behind it wait."""

    def __init__(self, book: RuleBook, actions: FaultActions) -> None:
        self._book = book
        self._actions = actions
        self._tags: dict[_Channel, dict[int, Tag]] = {}
        self._held: dict[_Channel, list[Event]] = {}
        self._doubled: dict[_Channel, tuple[Tag, PeerReply]] = {}
        self._second: list[PeerReply] = []

    def sent(self, send: Send) -> None:
        """Record an outgoing request. If a reply of its API is to be duplicated, the second copy is delivered now as
        the reply to this request."""
        channel = (send.peer, send.channel)
        self._tags.setdefault(channel, {})[send.token] = send.tag
        doubled = self._doubled.get(channel)
        if doubled is not None and doubled[0].api_key == send.api_key:
            del self._doubled[channel]
            copy = doubled[1]._replace(token=send.token)
            self._second.append(copy)
            self._actions.deliver_later(copy, 0)

    def arrived(self, event: PeerReply | PeerDown | PeerUp) -> Sequence[Event]:
        """Return the events that the node gets now."""
        passed, tag = self._in_order(event)
        if tag is None or not isinstance(event, PeerReply):
            return passed
        peer = f"node-{event.peer}"
        matches = partial(matches_peer_reply, tag=tag, peer=event.peer)
        firing = self._book.first_hit("peer_response", peer, matches)
        if firing is None:
            return passed
        rule, hit = firing
        self._book.report(rule, hit, tag, f"from {peer}")
        return self._inject(rule, event, tag)

    def _in_order(self, event: PeerReply | PeerDown | PeerUp) -> tuple[Sequence[Event], Tag | None]:
        """Return the events that the node gets now, and the request's tag if rules may hit the reply. A reply that was
        held back or doubled is not hit a second time."""
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
        if any(copy is event for copy in self._second):
            self._second = [copy for copy in self._second if copy is not event]
            return (event,), None
        return (event,), tag

    def _inject(self, rule: Rule, event: PeerReply, tag: Tag) -> Sequence[Event]:
        channel = (event.peer, event.channel)
        if rule.kind == "response_delayed":  # All that follow on the channel wait, too.
            self._held[channel] = [event]
            self._actions.deliver_later(event, self._book.delay_us(rule))
            return ()
        if rule.kind == "response_duplicated":  # The copy is the reply to the next request of the same API.
            self._doubled[channel] = (tag, event)
        else:
            self._book.inject_at_node(rule)
        return (event,)
