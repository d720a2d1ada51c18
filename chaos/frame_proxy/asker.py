"""What strikes the node that asked another one, when the answer passes on the link between them."""

from functools import partial

from chaos.powers import Powers
from chaos.rule_book import RuleBook
from chaos.rules import AT_THE_ASKER, matches_peer_reply
from reference_broker.core.events import Reply
from reference_broker.metadata.identifiers import node_name
from reference_broker.wire.tags import Tag


class Asker:
    """``book`` has the rules of the node that asked, and ``powers`` strike that node. ``peer`` is the node that
    answers."""

    def __init__(self, book: RuleBook, powers: Powers, peer: int) -> None:
        self.book = book
        self._powers = powers
        self._peer = peer

    def may_strike(self, tag: Tag) -> bool:
        return self.book.may_hit(AT_THE_ASKER, partial(matches_peer_reply, tag=tag, peer=self._peer))

    def hears(self, reply: Reply) -> Reply | None:
        """Returns what goes to the asker now. With None, ``Powers`` has got what becomes of the answer."""
        peer, matches = node_name(self._peer), partial(matches_peer_reply, tag=reply.tag, peer=self._peer)
        for rule, hit in self.book.hits(AT_THE_ASKER, peer, matches):
            self.book.report(rule, hit, reply.tag, f"from {peer}")
            if rule.kind == "response_delayed":
                self._powers.reply_later(reply, self.book.delay_us(rule))
                return None
            self.book.strike_node(rule)
            break
        return reply
