"""Faults at protocol states: watches what goes into and comes out of a node, and strikes where a rule matches.

The same object works in both worlds. It changes events and effects itself (hooks of the driver), and asks the driver,
through ``Powers``, for what only a driver can do. Each hit is reported *before* its action, so that a SIGKILL leaves
its evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Protocol

from chaos.evidence import FaultRow
from chaos.rules import Counter, Rule, counters, matches_frame, matches_write
from chaos.watched_disk import Strike, WatchedDisk
from reference_broker.core.effects import Close, Effect, Reply
from reference_broker.core.events import Closed, Event, Opened, Request
from reference_broker.log.disk import Disk, DiskError
from reference_broker.log.now import Now
from reference_broker.wire.tags import Tag

FIRST_PHANTOM = -2
"""Phantom connections count down from here; drivers number theirs upward from 0 or 1, -1 means none."""


class Powers(Protocol):
    """What a driver does for the interceptor. Live: chaos/live; simulated: chaos/sim."""

    def report(self, row: FaultRow) -> None:
        """Keeps the evidence where it survives the node's death, before returning."""
        ...

    def kill(self) -> None:
        """Ends the node as SIGKILL does: appended bytes stay (page cache). Never returns."""
        ...

    def power_off(self) -> None:
        """Ends the node as a power loss does: unsynced bytes are lost or torn. Never returns."""
        ...

    def pause(self, for_us: int) -> None:
        """Stops the node as SIGSTOP does, for so long (microseconds)."""
        ...

    def step_clock(self, by_ms: int) -> None:
        """Moves the node's wall clock; later events carry the new time."""
        ...

    def discard_connection(self, connection: int) -> None:
        """Drops what is not yet sent to that client and all later bytes, then closes the connection; the node is
        given Closed as for any other loss."""
        ...

    def deliver_later(self, event: Event, delay_us: int) -> None:
        """Gives this very object to the node after the delay, through the hooks' ``before``; forgotten if it ends."""
        ...

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        """Sends the reply after the delay, without passing the hooks again; dropped if its connection is gone."""
        ...


class Interceptor:
    """Implements core.hooks.Hooks. ``earlier``: hits by rule name of earlier incarnations of this node."""

    def __init__(
        self,
        node: int,
        rules: Sequence[Rule],
        powers: Powers,
        random: Random,
        origin_us: int = 0,
        earlier: Mapping[str, int] | None = None,
    ) -> None:
        self._node = node
        self._powers = powers
        self._random = random
        self._origin_us = origin_us
        self._now_us = 0
        self._load_from_us = 0
        self._armed = True
        self._held: dict[int, Request] = {}
        self._late: dict[int, Rule] = {}
        self._left: dict[int, None] = {}
        self._phantoms: dict[int, tuple[Rule, Tag]] = {}
        self._next_phantom = FIRST_PHANTOM
        by_place: dict[str, list[Counter]] = {"request": [], "reply": [], "disk_write": []}
        for counter in counters(tuple(rules), earlier or {}):
            by_place[counter.rule.on].append(counter)
        self._on_request = by_place["request"]
        self._on_reply = by_place["reply"]
        self._on_write = by_place["disk_write"]

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        self._now_us = now.mono_us - self._origin_us
        if type(event) is Request:
            return self._before_request(event)
        if type(event) is Closed and event.connection in self._held:
            self._left[event.connection] = None
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        self._now_us = now.mono_us - self._origin_us
        if not self._on_reply and not self._phantoms:
            return effects
        kept: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, Reply | Close):
                kept.append(effect)
            elif effect.connection in self._phantoms:
                self._phantom_answered(effect)
            elif isinstance(effect, Close) or self._keeps_reply(effect):
                kept.append(effect)
        return kept

    def load_from(self, at_us: int) -> None:
        """The rules' own times count from here (since the run's start); nothing hits before it."""
        self._load_from_us = at_us

    def disarm(self) -> None:
        """No rule hits any more; what is under way (late and doubled requests) still ends as planned."""
        self._armed = False

    def watch(self, disk: Disk) -> Disk:
        """The disk to give to the node: the same, unless a rule looks at disk writes."""
        return WatchedDisk(disk, self._before_write) if self._on_write else disk

    # Requests

    def _before_request(self, event: Request) -> Sequence[Event]:
        if event.connection in self._phantoms:
            return (Opened(event.connection, "phantom"), event)
        if self._held.get(event.connection) is event:
            return self._arrived_late(event)
        for counter in self._on_request if self._armed else ():
            if matches_frame(counter.rule.match, event.tag) and counter.hit(
                event.client_id, self._now_us - self._load_from_us
            ):
                return self._strike_request(counter, event)
        return (event,)

    def _strike_request(self, counter: Counter, event: Request) -> Sequence[Event]:
        rule = counter.rule
        self._report(counter, event.tag)
        if rule.kind == "request_dropped":
            self._powers.discard_connection(event.connection)
            return ()
        if rule.kind == "request_delayed":
            self._held[event.connection] = event
            self._late[event.connection] = rule
            self._powers.deliver_later(event, self._delay_us(rule))
            return ()
        if rule.kind == "request_duplicated":
            again = replace(event, connection=self._phantom(rule, event.tag))
            delay_us = self._delay_us(rule)
            if delay_us:
                self._powers.deliver_later(again, delay_us)
                return (event,)
            return (event, Opened(again.connection, "phantom"), again)
        self._strike_node(rule)
        return (event,)

    def _arrived_late(self, event: Request) -> Sequence[Event]:
        """A held request arrives, even if its client has left meanwhile; then nobody hears the answer."""
        del self._held[event.connection]
        rule = self._late.pop(event.connection)
        if event.connection not in self._left:
            return (event,)
        del self._left[event.connection]
        phantom = self._phantom(rule, event.tag)
        return (Opened(phantom, "phantom"), replace(event, connection=phantom))

    # Replies

    def _keeps_reply(self, reply: Reply) -> bool:
        for counter in self._on_reply if self._armed else ():
            rule = counter.rule
            if not matches_frame(rule.match, reply.tag) or not counter.hit(
                reply.tag.client_id, self._now_us - self._load_from_us
            ):
                continue
            self._report(counter, reply.tag)
            if rule.kind == "response_dropped":
                self._powers.discard_connection(reply.connection)
                return False
            if rule.kind == "response_delayed":
                self._powers.reply_later(reply, self._delay_us(rule))
                return False
            self._strike_node(rule)
            return True
        return True

    def _phantom_answered(self, effect: Reply | Close) -> None:
        rule, tag = self._phantoms.pop(effect.connection)
        answer = f"answered with error {effect.tag.error}" if isinstance(effect, Reply) else f"closed: {effect.reason}"
        self._powers.report(self._row(rule.name, f"{rule.kind}_answered", 1, tag, answer))
        self._powers.deliver_later(Closed(effect.connection), 0)

    # Disk writes

    def _before_write(self, path: str, position: int, size: int) -> Strike | None:
        for counter in self._on_write if self._armed else ():
            rule = counter.rule
            if matches_write(rule.match, path, position) and counter.hit("", self._now_us - self._load_from_us):
                kept = min(self._random.randint(*rule.cut_bytes), size)
                story = f"{path} at {position}, {kept} of {size} bytes"
                self._powers.report(self._row(rule.name, rule.kind, counter.hits, None, story))
                return Strike(kept, partial(self._strike_write, rule, path))
        return None

    def _strike_write(self, rule: Rule, path: str) -> None:
        if rule.kind == "disk_write_failed":
            raise DiskError(f"{path}: no space left on device (injected by {rule.name})")
        self._strike_node(rule)

    # Common

    def _strike_node(self, rule: Rule) -> None:
        if rule.kind == "node_killed":
            self._powers.kill()
        elif rule.kind == "node_powered_off":
            self._powers.power_off()
        elif rule.kind == "node_paused":
            self._powers.pause(rule.duration_us)
        elif rule.kind == "clock_stepped":
            self._powers.step_clock(rule.step_ms)
        else:
            raise AssertionError(
                f"rule {rule.name}: {rule.kind} cannot be done on {rule.on}; the loader should have refused it"
            )

    def _phantom(self, rule: Rule, tag: Tag) -> int:
        connection = self._next_phantom
        self._next_phantom -= 1
        self._phantoms[connection] = (rule, tag)
        return connection

    def _delay_us(self, rule: Rule) -> int:
        return self._random.randint(*rule.delay_ms) * 1000

    def _report(self, counter: Counter, tag: Tag) -> None:
        self._powers.report(self._row(counter.rule.name, counter.rule.kind, counter.hits, tag, ""))

    def _row(self, name: str, kind: str, hit: int, tag: Tag | None, detail: str) -> FaultRow:
        target = f"node-{self._node}"
        if tag is None:
            return FaultRow(name, kind, self._now_us, self._now_us, target, hit, detail=detail)
        return FaultRow(
            name, kind, self._now_us, self._now_us, target, hit,
            tag.client_id, tag.api_key, tag.session_id, tag.session_epoch, detail,
        )  # fmt: skip
