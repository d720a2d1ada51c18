"""Faults at requests and replies of one node. They are the same in the simulator, inside a node and in front of one.

The driver hands in each request before the node gets it, and each reply before its client does. Actions that need a
driver are delegated to ``FaultActions``. Each hit is reported *before* its action, so that the evidence survives a
SIGKILL. Only a damaged request is reported afterwards, with what the node read of it.

Some bytes are unprotected: a frame has no checksum, and the CRC of a batch omits its base offset and leader epoch. A
scenario therefore chooses the ``part`` in which ``damaged`` flips a bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from chaos.interceptor.actions import FaultActions
from chaos.interceptor.raw_frames import reply_frame, request_frame, value_of
from chaos.interceptor.rules import Rule, RuleBook, matches_frame
from reference_broker.apis.registry import SERVED
from reference_broker.core.events import Close, Closed, Event, Opened, Reply, Request
from reference_broker.records.batch import CRC_FROM, LENGTH_OVERHEAD_BYTES, InvalidRecords, iterate
from reference_broker.serve.request_decoder import decode
from reference_broker.wire.apis import is_known
from reference_broker.wire.errors import ErrorCode, ProtocolError, error_name, known_error
from reference_broker.wire.fetch import FetchResponse
from reference_broker.wire.frames import FrameReader
from reference_broker.wire.messages import empty_response, has_error_code
from reference_broker.wire.produce import ProduceRequest
from reference_broker.wire.tags import Tag
from reports.rows import RESPONSE
from scenarios.fault_kinds import FAULT_KINDS

FIRST_PHANTOM = -2
"""The number of the first phantom connection. The next ones have smaller numbers. Drivers number their connections
upward from 0 or 1, and -1 means no connection."""


class FrameFaults:
    """Injects a rule's fault at a request or a reply.

    A phantom is a connection without a client: its requests come from a rule, and its responses are dropped.
    """

    def __init__(self, book: RuleBook, actions: FaultActions, random: Random) -> None:
        self._book = book
        self._actions = actions
        self._random = random
        self._held: dict[int, Request] = {}
        """Delayed requests that the node does not have yet, by connection."""
        self._late: dict[int, Rule] = {}
        """The rule that delays each of them."""
        self._left: dict[int, None] = {}
        """Connections of delayed requests whose clients have disconnected."""
        self.phantoms: dict[int, tuple[Rule, Tag]] = {}
        self._garbled: dict[int, RequestStream] = {}
        """The bytes that follow a damaged request, by connection."""
        self._next_phantom = FIRST_PHANTOM

    def arrived(self, event: Request) -> Sequence[Event]:
        """Return the events that the node gets in place of the request."""
        if event.connection in self.phantoms:
            return (Opened(event.connection, "phantom"), event)
        if self._held.get(event.connection) is event:
            return self._arrived_late(event)
        if event.connection in self._garbled:
            return self._read_on(event, request_frame(event))[0]
        if self._book.is_any_due("request"):
            firing = self._first_hit("request", event.tag, event.body)
            if firing is not None:
                return self._inject_at_request(*firing, event)
        return (event,)

    def closed(self, connection: int) -> None:
        """Record that a client has disconnected."""
        self._garbled.pop(connection, None)
        if connection in self._held:
            self._left[connection] = None

    def replied(self, reply: Reply) -> Reply | None:
        """Return the reply to send to the client now. None: the reply was passed to ``FaultActions``."""
        if self._book.is_any_due("response"):
            firing = self._first_hit("response", reply.tag, reply.body)
            if firing is not None:
                return self._inject_at_reply(*firing, reply)
        return reply

    def phantom_replied(self, effect: Reply | Close) -> None:
        rule, tag = self.phantoms.pop(effect.connection)
        detail = f"responded with error {effect.tag.error}" if isinstance(effect, Reply) else f"closed: {effect.reason}"
        self._book.report(rule, 1, tag, detail, kind=rule.kind + RESPONSE)
        self._actions.deliver_later(Closed(effect.connection), 0)

    # Requests

    def _inject_at_request(self, rule: Rule, hit: int, event: Request) -> Sequence[Event]:
        if rule.kind == "request_damaged":
            return self._damage_request(rule, hit, event)
        self._book.report(rule, hit, event.tag)
        if rule.kind == "request_dropped":
            self._actions.discard_connection(event.connection)
            return ()
        if rule.kind == "request_delayed":
            self._held[event.connection] = event
            self._late[event.connection] = rule
            self._actions.deliver_later(event, self._book.delay_us(rule))
            return ()
        if rule.kind == "request_duplicated":
            again = event._replace(connection=self._phantom(rule, event.tag))
            delay_us = self._book.delay_us(rule)
            if delay_us:
                self._actions.deliver_later(again, delay_us)
                return (event,)
            return (event, Opened(again.connection, "phantom"), again)
        self._book.inject_at_node(rule)
        return (event,)

    def _arrived_late(self, event: Request) -> Sequence[Event]:
        """Deliver a held request. If its client has disconnected meanwhile, the response is dropped."""
        del self._held[event.connection]
        rule = self._late.pop(event.connection)
        if event.connection not in self._left:
            return (event,)
        del self._left[event.connection]
        phantom = self._phantom(rule, event.tag)
        return (Opened(phantom, "phantom"), event._replace(connection=phantom))

    def _damage_request(self, rule: Rule, hit: int, event: Request) -> Sequence[Event]:
        changed = damaged(request_frame(event), value_of(event.body), rule.part, self._random)
        self._garbled[event.connection] = RequestStream()
        events, outcome = self._read_on(event, changed.frame)
        self._book.report(rule, hit, event.tag, f"{changed.detail}; {outcome}")
        return events

    def _read_on(self, event: Request, frame: bytes) -> tuple[list[Request], str]:
        """Return what the node reads now on a connection whose bytes were damaged, and a word for that."""
        requests: list[Request] = []
        try:
            requests.extend(self._garbled[event.connection].arrived(event.connection, frame))
        except ProtocolError as broken:
            self._actions.discard_connection(event.connection)
            return requests, f"closed: {broken}"
        if not requests:  # The node waits for the rest of the frame, and reads what comes next.
            done = Reply(event.connection, event.correlation_id, event.api_key, event.api_version, None, event.tag)
            self._actions.reply_later(done, 0)
        return requests, "read as a request" if requests else "not whole"

    def _phantom(self, rule: Rule, tag: Tag) -> int:
        connection = self._next_phantom
        self._next_phantom -= 1
        self.phantoms[connection] = (rule, tag)
        return connection

    # Replies

    def _inject_at_reply(self, rule: Rule, hit: int, reply: Reply) -> Reply | None:
        if rule.kind in _CHANGED_REPLIES:
            return _CHANGED_REPLIES[rule.kind](self, rule, hit, reply)
        self._book.report(rule, hit, reply.tag)
        if rule.kind == "response_dropped":
            self._actions.discard_connection(reply.connection)
            return None
        if rule.kind == "response_lost_by_proxy":
            self._actions.lose_by_proxy(reply)
            return None
        if rule.kind == "response_delayed":
            self._actions.reply_later(reply, self._book.delay_us(rule))
            return None
        self._book.inject_at_node(rule)
        return reply

    def _damage_reply(self, rule: Rule, hit: int, reply: Reply) -> None:
        changed = damaged(reply_frame(reply), value_of(reply.body), rule.part, self._random)
        self._book.report(rule, hit, reply.tag, changed.detail)
        self._actions.reply_bytes(reply, changed.frame)

    def _truncate_reply(self, rule: Rule, hit: int, reply: Reply) -> None:
        frame = reply_frame(reply)
        sent_bytes = min(self._random.randint(*rule.cut_bytes), len(frame) - 1)
        self._book.report(rule, hit, reply.tag, f"{sent_bytes} of {len(frame)} bytes")
        self._actions.reply_cut(reply, frame[:sent_bytes])

    def _double_reply(self, rule: Rule, hit: int, reply: Reply) -> None:
        """Both copies have the request's correlation ID, so the second one is a response to nothing."""
        self._book.report(rule, hit, reply.tag)
        self._actions.reply_bytes(reply, reply_frame(reply) * 2)

    def _refuse(self, rule: Rule, hit: int, reply: Reply) -> Reply:
        body = stamped(reply.api_key, reply.api_version, value_of(reply.body), rule.code, rule.code_in)
        self._book.report(rule, hit, reply.tag, f"{error_name(reply.tag.error)} became {error_name(rule.code)}")
        return reply._replace(body=body)

    # Common

    def _first_hit(self, place: str, tag: Tag, body: object) -> tuple[Rule, int] | None:
        return self._book.first_hit(place, tag.client_id, partial(matches_frame, tag=tag), partial(_offers, tag, body))


_CHANGED_REPLIES: dict[str, Callable[[FrameFaults, Rule, int, Reply], Reply | None]] = {
    "response_damaged": FrameFaults._damage_reply,
    "response_duplicated": FrameFaults._double_reply,
    "response_truncated": FrameFaults._truncate_reply,
    "response_error": FrameFaults._refuse,
}


def _offers(tag: Tag, body: object, rule: Rule) -> bool:
    """Return whether a frame with this body has the part that the rule changes. A response without a body is not
    sent."""
    if FAULT_KINDS[rule.kind].flips_frame_bit:
        return body is not None and has_part(rule.part, value_of(body))
    if rule.kind == "response_error":
        return stamped(tag.api_key, tag.api_version, value_of(body), rule.code, rule.code_in) is not None
    if rule.kind == "response_lost_by_proxy":
        return body is not None and tag.role == "client"
    return rule.kind not in ("response_truncated", "response_duplicated") or body is not None


ERROR_CODE: Final = "error_code"
NOT_BESIDE_AN_ERROR: Final = {"records": b"", "base_offset": -1}
"""The other fields of an item that has an error: a broker that refuses sends neither records nor an offset."""


def stamped(api_key: int, version: int, body: object, code: int, code_in: str) -> object | None:
    """Return the response with the error, or None if it has no place for it (``vocabulary.CODE_PLACES``).

    An error above all items leaves nothing else in the response, as with brokers. With errors in the items all else
    stays.
    """
    if body is None or not is_known(api_key, version):
        return None
    if code_in != "items" and has_error_code(api_key, version):
        return empty_response(api_key, version, known_error(code))  # type: ignore[arg-type]
    if code_in == "response" or not is_dataclass(body):
        return None
    changed = _with_items(body, code)
    return None if changed is body else changed


def _with_items(value: Any, code: int) -> Any:
    """Return the value with the error in each item below it. It is the same object if there is no such item."""
    changes = {}
    for field in fields(value):
        old = getattr(value, field.name)
        new = _within(old, code)
        if new is not old:
            changes[field.name] = new
    return replace(value, **changes) if changes else value


def _within(value: Any, code: int) -> Any:
    if isinstance(value, list | tuple):
        items: Iterable[Any] = [_item(item, code) for item in value]
        return type(value)(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _item(value: Any, code: int) -> Any:
    if not is_dataclass(value):
        return value
    value = _with_items(value, code)
    names = {field.name for field in fields(value)}
    if ERROR_CODE not in names:
        return value
    error = known_error(code) if isinstance(getattr(value, ERROR_CODE), ErrorCode) else code
    beside = {name: nothing for name, nothing in NOT_BESIDE_AN_ERROR.items() if name in names}
    return replace(value, **{ERROR_CODE: error}, **beside)


LENGTH_BYTES = 4
"""The size of a frame's length, of a batch's length, and of the length before records in a version without tags."""
BATCH_LENGTH_FROM = 8
"""The position of the length in a batch, behind its base offset. Its CRC does not cover it."""
CRC_FIELD_FROM = 17
"""The position of the CRC in a batch. Damage to the CRC itself is found as damage to what it covers is."""
MAX_FRAME_BYTES = 64 << 20


class Damaged(NamedTuple):
    """A frame with one damaged byte."""

    frame: bytes
    position: int
    """Index of the byte."""
    old: int
    """Its original value."""
    new: int
    """Its value now."""

    @property
    def detail(self) -> str:
        return f"byte {self.position} of {len(self.frame)}: {self.old:#04x} became {self.new:#04x}"


def has_part(part: str, body: object) -> bool:
    """Return whether a frame with this body has bytes of the part. ``anywhere`` and ``length`` are in every frame."""
    return part != "checksummed" or any(True for records in _records(body) for _ in _batches(records))


def damaged(frame: bytes, body: object, part: str, random: Random) -> Damaged:
    """Return the frame with one bit of the part turned over. Each byte of the part has the same chance."""
    spots = _spots(frame, body, part)
    number = random.randrange(sum(map(len, spots)))
    for spot in spots:
        if number < len(spot):
            break
        number -= len(spot)
    position, changed = spot[number], bytearray(frame)
    changed[position] ^= 1 << random.randrange(8)
    return Damaged(bytes(changed), position, frame[position], changed[position])


def _spots(frame: bytes, body: object, part: str) -> Sequence[range]:
    if part == "anywhere":
        return (range(len(frame)),)
    spots: list[range] = [] if part == "checksummed" else [range(LENGTH_BYTES)]
    end = 0
    for records in _records(body):
        start = frame.index(bytes(records), end)
        end = start + len(records)
        for position, size in _batches(records):
            batch = start + position
            if part == "checksummed":
                spots.append(range(batch + CRC_FIELD_FROM, batch + size))
            else:
                spots.append(range(batch + BATCH_LENGTH_FROM, batch + BATCH_LENGTH_FROM + LENGTH_BYTES))
    return spots


def _records(body: object) -> Iterator[bytes | memoryview]:
    """Yield the records of each partition in the order of the frame."""
    if isinstance(body, ProduceRequest):
        yield from (partition.records for topic in body.topics for partition in topic.partitions if partition.records)
    elif isinstance(body, FetchResponse):
        yield from (
            partition.records for topic in body.responses for partition in topic.partitions if partition.records
        )


def _batches(records: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield position and size of each batch that is there as a whole and has a body."""
    try:
        for position, header in iterate(records):
            if header.size_bytes > CRC_FROM:
                yield position, header.batch_length + LENGTH_OVERHEAD_BYTES
    except InvalidRecords:
        return  # A client may send what is no batch. It has no checksummed part.


class RequestStream:
    """A node's view of a connection's bytes from the first damaged frame on.

    A damaged length shifts where the next frames begin, so all later requests of the connection come through here.
    """

    def __init__(self) -> None:
        self._reader = FrameReader(MAX_FRAME_BYTES)

    def arrived(self, connection: int, frame: bytes) -> Iterator[Request]:
        """Yield the requests that are complete now, decoded by the server's own code. Raise ProtocolError where the
        server closes the connection."""
        self._reader.feed(frame)
        while True:
            found = self._reader.next_frame()
            if found is None:
                return
            yield decode(connection, found, SERVED)
