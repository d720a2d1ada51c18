"""Rules at work inside one node: what happens to a request before the node gets it, and to its response.

The driver hands the node one request of a connection at a time, so at most one rule acts on a request and its response.
All rules that match count the request; the first one that is due acts.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from crucible_kafka.library.error_responses import merged, refused, refused_items, split, stamped
from crucible_kafka.library.frame_recorder import FrameRecorder, RecordedFrame
from crucible_kafka.library.hit_counts import ACTS, MATCHES, HitCounts
from crucible_kafka.library.message_facts import Facts, TopicName, facts_of
from crucible_kafka.library.response_changes import changed
from crucible_kafka.library.rule_spec import NEED_NO_RESPONSE, RuleSpec
from reference_broker.core.events import Close, Closed, Effect, Event, Opened, Reply, Request
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import encode_response
from reference_broker.wire.produce import ProduceRequest

if TYPE_CHECKING:
    from reference_broker.serve.driver import DriverFaultActions

FIRST_PHANTOM: Final = -1000
"""The number of the first phantom connection; the next ones are smaller. Drivers number connections upward."""


@dataclass(frozen=True, slots=True)
class ActiveRule:
    """A rule with its counts."""

    spec: RuleSpec
    counts: HitCounts


@dataclass(slots=True)
class Pending:
    """A request whose response a rule changes."""

    rule: ActiveRule
    more: object | None = None
    """Items that the response gets beside the node's own."""
    topic: str | None = None
    """The topic that the error is about, None for any."""


class RuleEngine:
    """``transaction_state`` returns the state of a transactional ID that this node coordinates, else None, and
    ``session_partitions`` the partitions of a fetch session here by its ID."""

    def __init__(
        self,
        node: int,
        actions: "DriverFaultActions",
        recorder: FrameRecorder,
        topic_name: TopicName,
        transaction_state: Callable[[str], str | None],
        session_partitions: Callable[[int], Iterable[tuple[str, int]]],
    ) -> None:
        self._node = node
        self._actions = actions
        self._recorder = recorder
        self._topic_name = topic_name
        self._transaction_state = transaction_state
        self._session_partitions = session_partitions
        self._rules: dict[int, ActiveRule] = {}
        """By ID, in order of creation."""
        self._pending: dict[int, Pending] = {}
        """By connection."""
        self._held: dict[int, Request] = {}
        """Delayed requests by connection."""
        self._overtakable: dict[int, tuple[Request, asyncio.TimerHandle]] = {}
        """By rule, the request that the next match overtakes, with the timer that ends its wait."""
        self._left: set[int] = set()
        """Connections of delayed requests whose clients have left."""
        self._phantoms: dict[int, None] = {}
        """Connections of no client: of duplicates, and of delayed requests whose clients have left."""
        self._last_phantom = FIRST_PHANTOM

    def set(self, rules: Sequence[tuple[RuleSpec, Path]]) -> None:
        """Let these rules hold, each with the folder of its counts, and no others. A request that is held for a rule
        that ends goes on."""
        self._rules = {spec.id: ActiveRule(spec, HitCounts(folder)) for spec, folder in rules}
        for rule_id in [each for each in self._overtakable if each not in self._rules]:
            self._release(rule_id)

    # Requests

    def arrived(self, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        """Return what the node gets in place of the request."""
        if not self._rules:
            return (request,)
        rule = self._due(request)
        if rule is None:
            return (request,)
        act_at_request = ACTS_AT_REQUEST.get(rule.spec.act)
        if act_at_request is not None:
            return act_at_request(self, rule, request, frame)
        self._pending[request.connection] = Pending(rule)
        return (request,)

    def is_late(self, request: Request) -> bool:
        """Return whether this is a delayed request that comes now. ``arrived_late`` must follow."""
        return self._held.get(request.connection) is request

    def arrived_late(self, request: Request) -> Sequence[Event]:
        """Deliver a delayed request. If its client has left meanwhile, nobody gets the response."""
        del self._held[request.connection]
        if request.connection not in self._left:
            return (request,)
        self._left.discard(request.connection)
        return self._as_phantom(request)

    def closed(self, connection: int) -> None:
        self._end_pending(connection)
        if connection in self._held:
            self._left.add(connection)

    def _due(self, request: Request) -> ActiveRule | None:
        """Count the request for each rule that matches, and return the first one that acts on it."""
        facts: Facts | None = None
        found: ActiveRule | None = None
        for rule in self._rules.values():
            spec = rule.spec
            if not spec.matches(self._node, request) or not _has_response(spec, request):
                continue
            if spec.needs_facts:
                facts = facts or self._facts_of(request)
                if not spec.matches_facts(facts) or not self._has_transaction(spec, facts):
                    continue
            self._release(spec.id)
            number = rule.counts.claim(MATCHES, self._node)
            if number is None or found is not None or not spec.acts_on(number):
                continue
            if rule.counts.claim(ACTS, self._node, spec.most) is not None:
                found = rule
        return found

    def _facts_of(self, request: Request) -> Facts:
        """Return what the request names. An incremental Fetch names all partitions of its session."""
        facts = facts_of(request.body, self._topic_name)
        if isinstance(request.body, FetchRequest) and request.body.session_epoch > 0:
            for topic, partition in self._session_partitions(request.body.session_id):
                facts.topics.add(topic)
                facts.partitions.add((topic, partition))
        return facts

    def _has_transaction(self, spec: RuleSpec, facts: Facts) -> bool:
        if spec.transaction is None:
            return True
        return any(
            self._transaction_state(transactional_id) == spec.transaction
            for transactional_id in facts.transactional_ids
        )

    def _drop_request(self, rule: ActiveRule, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        frame.fault = self._note(rule, request, "request dropped, connection lost")
        self._actions.discard_connection(request.connection)
        return ()

    def _close_before(self, rule: ActiveRule, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        frame.fault = self._note(rule, request, "connection closed before the request was handled")
        self.close_soon(request.connection)
        return ()

    def _hang(self, rule: ActiveRule, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        if rule.spec.handled:
            self._pending[request.connection] = Pending(rule)
            return (request,)
        frame.fault = self._note(rule, request, "no response, and the connection stays open")
        return ()

    def _delay_request(self, rule: ActiveRule, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        frame.fault = self._note(rule, request, f"request delayed by {rule.spec.seconds:g} s")
        self._held[request.connection] = request
        self._actions.deliver_later(request, int(rule.spec.seconds * 1e6))
        return ()

    def _reorder(self, rule: ActiveRule, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        frame.fault = self._note(rule, request, "request held until another one was handled")
        self._held[request.connection] = request
        release = partial(self._release, rule.spec.id)
        timer = asyncio.get_running_loop().call_later(rule.spec.seconds, release)
        self._overtakable[rule.spec.id] = (request, timer)
        return ()

    def _release(self, rule_id: int) -> None:
        """Hand over a request that was held to be overtaken, if there is one."""
        request, timer = self._overtakable.pop(rule_id, (None, None))
        if request is not None and timer is not None:
            timer.cancel()
            self._actions.deliver_later(request, 0)

    def _duplicate_request(self, rule: ActiveRule, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        frame.fault = self._note(rule, request, "request handled twice")
        return (request, *self._as_phantom(request))

    def _as_phantom(self, request: Request) -> Sequence[Event]:
        self._last_phantom -= 1
        self._phantoms[self._last_phantom] = None
        return (Opened(self._last_phantom, "phantom"), request._replace(connection=self._last_phantom))

    def _respond_error(self, rule: ActiveRule, request: Request, frame: RecordedFrame) -> Sequence[Event]:
        spec = rule.spec
        topic, partition = self._error_target(spec, request)
        if not spec.handled and partition is None:
            body = refused(request.api_key, request.api_version, request.body, spec.error)
            if body is not None:
                return self._refuse(rule, request, frame, body)
        elif not spec.handled and partition is not None:
            rest, refused_part = split(request.body, topic, partition, self._topic_name)
            body = refused_part and refused_items(request.api_key, request.api_version, refused_part, spec.error)
            if body is not None and rest is None:
                return self._refuse(rule, request, frame, body)
            if body is not None:
                self._pending[request.connection] = Pending(rule, body)
                return (request._replace(body=rest),)
        self._pending[request.connection] = Pending(rule, topic=topic)
        return (request,)

    def _error_target(self, spec: RuleSpec, request: Request) -> tuple[str | None, int | None]:
        """Return topic and partition of the error. A pattern becomes the first topic of the request that it fits."""
        partition, pattern = spec.error_partition, spec.error_topic or spec.topic
        if partition is None or pattern is None:
            return None, partition
        named = sorted(self._facts_of(request).partitions)
        found = next((name for name, index in named if index == partition and fnmatchcase(name, pattern)), None)
        return found, partition

    def _refuse(self, rule: ActiveRule, request: Request, frame: RecordedFrame, body: object) -> Sequence[Event]:
        fault = frame.fault = self._note(rule, request, f"responded with {error_name(rule.spec.error)}, not handled")
        key, version = request.api_key, request.api_version
        reply = Reply(request.connection, request.correlation_id, key, version, body, request.tag)
        self._recorder.response(reply, request.client_id, fault)
        self._actions.reply_later(reply, 0)
        return ()

    # Responses

    def replied(self, reply: Reply) -> tuple[Sequence[Effect], str]:
        """Return what goes out instead of the response, and what a rule did to it."""
        if reply.connection in self._phantoms:
            self._end_phantom(reply.connection)
            return (), "of a duplicate"
        pending = self._pending.pop(reply.connection, None)
        if pending is None:
            return (reply,), ""
        if pending.more is None and (reply.body is None or pending.rule.spec.id not in self._rules):
            pending.rule.counts.give_back(self._node)  # The rule was removed meanwhile.
            return (reply,), ""
        return ACTS_AT_RESPONSE[pending.rule.spec.act](self, pending, reply)

    def close_wanted(self, effect: Close) -> Sequence[Effect]:
        """Return the node's wish to close a connection, unless that is a phantom."""
        self._end_pending(effect.connection)
        if effect.connection in self._phantoms:
            self._end_phantom(effect.connection)
            return ()
        return (effect,)

    def is_phantom(self, connection: int) -> bool:
        return connection in self._phantoms

    def _end_pending(self, connection: int) -> None:
        """Forget a rule that was to change a response, since there is none."""
        pending = self._pending.pop(connection, None)
        if pending is not None and pending.more is None:
            pending.rule.counts.give_back(self._node)

    def _end_phantom(self, connection: int) -> None:
        del self._phantoms[connection]
        self._actions.deliver_later(Closed(connection), 0)

    def _drop_response(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        self._actions.discard_connection(reply.connection)
        return (), self._note(pending.rule, reply, "response dropped, connection lost")

    def _close_after(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        fault = self._note(pending.rule, reply, "connection closed after the response")
        return (reply, Close(reply.connection, fault)), fault

    def _hang_handled(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        return (), self._note(pending.rule, reply, "handled without a response, and the connection stays open")

    def _delay_response(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        seconds = pending.rule.spec.seconds
        self._actions.reply_later(reply, int(seconds * 1e6))
        return (), self._note(pending.rule, reply, f"response delayed by {seconds:g} s")

    def _truncate_response(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        frame = _bytes_of(reply)
        kept = min(pending.rule.spec.position, len(frame) - 1)
        self._actions.reply_cut(reply, frame[:kept])
        return (), self._note(
            pending.rule, reply, f"response cut after {kept} of {len(frame)} bytes, connection closed"
        )

    def _damage_response(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        frame = bytearray(_bytes_of(reply))
        position = pending.rule.spec.position
        position = max(0, len(frame) + position) if position < 0 else min(position, len(frame) - 1)
        frame[position] ^= 0xFF
        self._actions.reply_bytes(reply, bytes(frame))
        return (), self._note(pending.rule, reply, f"byte {position} of {len(frame)} damaged")

    def _throttle(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        time_ms = pending.rule.spec.milliseconds
        body: Any = reply.body
        if hasattr(body, "throttle_time_ms"):
            body = replace(body, throttle_time_ms=time_ms)
        elif hasattr(body, "throttle_time"):
            body = replace(body, throttle_time=timedelta(milliseconds=time_ms))
        else:
            pending.rule.counts.give_back(self._node)
            return (reply,), ""
        return (reply._replace(body=body),), self._note(pending.rule, reply, f"throttle time {time_ms} ms")

    def _change_response(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        body = changed(pending.rule.spec.change, reply.body)
        if body is reply.body:
            pending.rule.counts.give_back(self._node)
            return (reply,), ""
        if body is None:
            return self._drop_response(pending, reply)
        return (reply._replace(body=body),), self._note(pending.rule, reply, "response changed")

    def _change_bytes(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        frame = _bytes_of(reply)
        sent = changed(pending.rule.spec.change, frame)
        if sent is frame:
            pending.rule.counts.give_back(self._node)
            return (reply,), ""
        self._actions.reply_bytes(reply, sent)
        return (), self._note(pending.rule, reply, f"{len(sent)} bytes instead of {len(frame)}")

    def _change_error(self, pending: Pending, reply: Reply) -> tuple[Sequence[Effect], str]:
        spec = pending.rule.spec
        if pending.more is not None:
            body = merged(reply.body, pending.more)
        else:
            where = (pending.topic, spec.error_partition)
            body = stamped(reply.api_key, reply.api_version, reply.body, spec.error, *where, self._topic_name)
        if body is reply.body:  # The response has no place for it, such as an item of that partition.
            pending.rule.counts.give_back(self._node)
            return (reply,), ""
        part = "" if spec.error_partition is None else f" for partition {spec.error_partition}"
        return (reply._replace(body=body),), self._note(pending.rule, reply, f"{error_name(spec.error)}{part}")

    # Both

    def close_soon(self, connection: int) -> None:
        """Close a connection in order, whose request is not handled."""
        driver = self._actions.driver
        assert driver is not None, "a request came before its node was built"
        found = driver.connections.get(connection)
        if found is not None:
            found.discard()
            driver.close(found, "a rule of the test")

    def _note(self, rule: ActiveRule, event: Request | Reply, what: str) -> str:
        rule.counts.note_hit(
            {
                "at_s": time.time(),
                "node": self._node,
                "connection": event.connection,
                "client_id": event.tag.client_id,
                "api": api_name(event.api_key),
                "version": event.api_version,
                "what": what,
            }
        )
        return f"rule {rule.spec.id}: {what}"


ACTS_AT_REQUEST: Final[dict[str, Callable[[RuleEngine, ActiveRule, Request, RecordedFrame], Sequence[Event]]]] = {
    "drop_request": RuleEngine._drop_request,
    "close_before": RuleEngine._close_before,
    "hang": RuleEngine._hang,
    "delay_request": RuleEngine._delay_request,
    "reorder": RuleEngine._reorder,
    "duplicate_request": RuleEngine._duplicate_request,
    "respond_error": RuleEngine._respond_error,
}
ACTS_AT_RESPONSE: Final[dict[str, Callable[[RuleEngine, Pending, Reply], tuple[Sequence[Effect], str]]]] = {
    "drop_response": RuleEngine._drop_response,
    "close_after": RuleEngine._close_after,
    "hang": RuleEngine._hang_handled,
    "delay_response": RuleEngine._delay_response,
    "truncate_response": RuleEngine._truncate_response,
    "damage_response": RuleEngine._damage_response,
    "throttle": RuleEngine._throttle,
    "change_response": RuleEngine._change_response,
    "change_bytes": RuleEngine._change_bytes,
    "respond_error": RuleEngine._change_error,
}
"""``hang`` and ``respond_error`` act here if the node handles the request first."""


def _has_response(spec: RuleSpec, request: Request) -> bool:
    """Return whether the rule can act: a Produce without acknowledgements (acks=0) has no response."""
    no_response = isinstance(request.body, ProduceRequest) and request.body.acks == 0
    return not no_response or spec.act in NEED_NO_RESPONSE


def _bytes_of(reply: Reply) -> bytes:
    parts = encode_response(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
    return b"".join(bytes(part) for part in parts)
