"""Faults at requests and replies of one node. They are the same in the simulator, inside a node and in front of one.

Whoever drives this gives it each request before the node gets it, and each reply before its client does. What only a
driver can do is asked of ``Powers``. Each hit is reported *before* its action, so that the evidence survives a SIGKILL.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from chaos.powers import Powers
from chaos.raw_frames import reply_frame, request_frame, value_of
from chaos.rule_book import RuleBook
from chaos.rules import Rule, matches_frame
from chaos.stamped_errors import stamped
from chaos.wire_damage import RequestStream, damaged, has_part
from reference_broker.core.events import Close, Closed, Event, Opened, Reply, Request
from reference_broker.wire.errors import ProtocolError, error_name
from reference_broker.wire.tags import Tag
from reports.rows import ANSWERED
from scenarios.vocabulary import DAMAGES

FIRST_PHANTOM = -2
"""The number of the first phantom connection. The next ones have smaller numbers. Drivers number their connections
upward from 0 or 1, and -1 means no connection."""


class FrameFaults:
    """A phantom is a connection of no client: its requests come from a rule, and nobody hears the answers."""

    def __init__(self, book: RuleBook, powers: Powers, random: Random) -> None:
        self._book = book
        self._powers = powers
        self._random = random
        self._held: dict[int, Request] = {}
        self._late: dict[int, Rule] = {}
        self._left: dict[int, None] = {}
        self.phantoms: dict[int, tuple[Rule, Tag]] = {}
        self._garbled: dict[int, RequestStream] = {}
        self._next_phantom = FIRST_PHANTOM

    def arrived(self, event: Request) -> Sequence[Event]:
        """Returns what the node gets in place of the request."""
        if event.connection in self.phantoms:
            return (Opened(event.connection, "phantom"), event)
        if self._held.get(event.connection) is event:
            return self._arrived_late(event)
        if event.connection in self._garbled:
            return self._read_on(event, request_frame(event))[0]
        for rule, hit in self._hits("request", event.tag, event.body):
            return self._strike_request(rule, hit, event)
        return (event,)

    def closed(self, connection: int) -> None:
        """Notes that a client has left."""
        self._garbled.pop(connection, None)
        if connection in self._held:
            self._left[connection] = None

    def answered(self, reply: Reply) -> Reply | None:
        """Returns what goes to the client now. With None, ``Powers`` has got what becomes of the reply."""
        for rule, hit in self._hits("reply", reply.tag, reply.body):
            return self._strike_reply(rule, hit, reply)
        return reply

    def phantom_answered(self, effect: Reply | Close) -> None:
        rule, tag = self.phantoms.pop(effect.connection)
        answer = f"answered with error {effect.tag.error}" if isinstance(effect, Reply) else f"closed: {effect.reason}"
        self._book.report(rule, 1, tag, answer, kind=rule.kind + ANSWERED)
        self._powers.deliver_later(Closed(effect.connection), 0)

    # Requests

    def _strike_request(self, rule: Rule, hit: int, event: Request) -> Sequence[Event]:
        if rule.kind == "request_damaged":
            return self._damage_request(rule, hit, event)
        self._book.report(rule, hit, event.tag)
        if rule.kind == "request_dropped":
            self._powers.discard_connection(event.connection)
            return ()
        if rule.kind == "request_delayed":
            self._held[event.connection] = event
            self._late[event.connection] = rule
            self._powers.deliver_later(event, self._book.delay_us(rule))
            return ()
        if rule.kind == "request_duplicated":
            again = event._replace(connection=self._phantom(rule, event.tag))
            delay_us = self._book.delay_us(rule)
            if delay_us:
                self._powers.deliver_later(again, delay_us)
                return (event,)
            return (event, Opened(again.connection, "phantom"), again)
        self._book.strike_node(rule)
        return (event,)

    def _arrived_late(self, event: Request) -> Sequence[Event]:
        """Delivers a held request. If its client has left meanwhile, nobody hears the answer."""
        del self._held[event.connection]
        rule = self._late.pop(event.connection)
        if event.connection not in self._left:
            return (event,)
        del self._left[event.connection]
        phantom = self._phantom(rule, event.tag)
        return (Opened(phantom, "phantom"), event._replace(connection=phantom))

    def _damage_request(self, rule: Rule, hit: int, event: Request) -> Sequence[Event]:
        struck = damaged(request_frame(event), value_of(event.body), rule.part, self._random)
        self._garbled[event.connection] = RequestStream()
        events, outcome = self._read_on(event, struck.frame)
        self._book.report(rule, hit, event.tag, f"{struck.told}; {outcome}")
        return events

    def _read_on(self, event: Request, frame: bytes) -> tuple[list[Request], str]:
        """Returns what the node reads now on a connection whose bytes were damaged, and a word for that."""
        found: list[Request] = []
        try:
            found.extend(self._garbled[event.connection].arrived(event.connection, frame))
        except ProtocolError as broken:
            self._powers.discard_connection(event.connection)
            return found, f"closed: {broken}"
        if not found:  # The node waits for the rest of the frame, and reads what comes next.
            done = Reply(event.connection, event.correlation_id, event.api_key, event.api_version, None, event.tag)
            self._powers.reply_later(done, 0)
        return found, "read as a request" if found else "not whole"

    def _phantom(self, rule: Rule, tag: Tag) -> int:
        connection = self._next_phantom
        self._next_phantom -= 1
        self.phantoms[connection] = (rule, tag)
        return connection

    # Replies

    def _strike_reply(self, rule: Rule, hit: int, reply: Reply) -> Reply | None:
        if rule.kind in _OTHER_BYTES:
            return _OTHER_BYTES[rule.kind](self, rule, hit, reply)
        self._book.report(rule, hit, reply.tag)
        if rule.kind == "response_dropped":
            self._powers.discard_connection(reply.connection)
            return None
        if rule.kind == "response_delayed":
            self._powers.reply_later(reply, self._book.delay_us(rule))
            return None
        self._book.strike_node(rule)
        return reply

    def _damage_reply(self, rule: Rule, hit: int, reply: Reply) -> None:
        struck = damaged(reply_frame(reply), value_of(reply.body), rule.part, self._random)
        self._book.report(rule, hit, reply.tag, struck.told)
        self._powers.reply_bytes(reply, struck.frame)

    def _truncate_reply(self, rule: Rule, hit: int, reply: Reply) -> None:
        frame = reply_frame(reply)
        kept = min(self._random.randint(*rule.cut_bytes), len(frame) - 1)
        self._book.report(rule, hit, reply.tag, f"{kept} of {len(frame)} bytes")
        self._powers.reply_cut(reply, frame[:kept])

    def _double_reply(self, rule: Rule, hit: int, reply: Reply) -> None:
        """Both copies have the request's correlation ID, so the second one is a response to nothing."""
        self._book.report(rule, hit, reply.tag)
        self._powers.reply_bytes(reply, reply_frame(reply) * 2)

    def _refuse(self, rule: Rule, hit: int, reply: Reply) -> Reply:
        body = stamped(reply.api_key, reply.api_version, value_of(reply.body), rule.code, rule.code_in)
        self._book.report(rule, hit, reply.tag, f"{error_name(reply.tag.error)} became {error_name(rule.code)}")
        return reply._replace(body=body)

    # Common

    def _hits(self, place: str, tag: Tag, body: object) -> Iterator[tuple[Rule, int]]:
        return self._book.hits(place, tag.client_id, partial(matches_frame, tag=tag), partial(_offers, tag, body))


_OTHER_BYTES: dict[str, Callable[[FrameFaults, Rule, int, Reply], Reply | None]] = {
    "response_damaged": FrameFaults._damage_reply,
    "response_duplicated": FrameFaults._double_reply,
    "response_truncated": FrameFaults._truncate_reply,
    "response_error": FrameFaults._refuse,
}


def _offers(tag: Tag, body: object, rule: Rule) -> bool:
    """Returns whether a frame with this body has what the rule changes. An answer without a body is not sent."""
    if rule.kind in DAMAGES:
        return body is not None and has_part(rule.part, value_of(body))
    if rule.kind == "response_error":
        return stamped(tag.api_key, tag.api_version, value_of(body), rule.code, rule.code_in) is not None
    return rule.kind not in ("response_truncated", "response_duplicated") or body is not None
