"""Liveness of the quorum: leaders stay, brokers stay registered, and nodes agree after the heal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from chaos.checks.check import Check, CheckContext, QuorumCheck, fields_of
from chaos.checks.history import History
from chaos.checks.quorum_view import Member, Seen
from chaos.hooks.metadata_digest import digest_of
from reference_broker.core.events import Closed, Effect, Event, Reply, Request
from reference_broker.wire.apis import ApiKey
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class StableLeadership(QuorumCheck):
    """stable-leadership: a leader stays leader while no fault affects it or its links to a majority of unaffected
    voters.

    So a node that was cut off or restarted deposes no leader (pre-vote). The check judges once such a majority has been
    without faults for ``Settings.settled_us``. A node that had already reached a higher epoch may still depose the
    leader: raft lets every node follow the highest epoch that it is sent.
    """

    guarantee = "stable-leadership"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._settled_us = context.settings.settled_us
        self._leader = (-1, -1)
        """(epoch, node) of the newest leader."""
        self._since_us = 0
        self._risen: dict[int, int] = {}
        """by epoch: when the first node reached it"""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.epoch != before.epoch:
            self._risen.setdefault(after.epoch, at_us)
        if not after.leads or after.epoch <= self._leader[0]:
            return
        (epoch, leader), since_us = self._leader, self._since_us
        self._leader, self._since_us = (after.epoch, member.node_id), at_us
        if leader < 0:
            return
        deposed_us = min((when for each, when in self._risen.items() if each > epoch), default=at_us)
        if self._untouched(leader, since_us, deposed_us):
            self.violated(
                at_us,
                f"node {member.node_id} leads in epoch {after.epoch}, although leader {leader} of epoch {epoch} had a "
                f"majority that no fault had touched for {self._settled_us // 1000} ms",
            )

    def _untouched(self, leader: int, since_us: int, until_us: int) -> bool:
        fault_times, from_us = self.view.fault_times, until_us - self._settled_us
        # Physical: a leader that is dead, paused or cut off from a majority cannot stay leader.
        if since_us > from_us or fault_times.node_since(leader, from_us):
            return False
        with_it = [
            each.node_id
            for each in self.view.nodes
            if each.is_voter and (each.node_id == leader or self._calm(leader, each.node_id, from_us))
        ]
        return len(with_it) >= self.view.majority

    def _calm(self, leader: int, voter: int, from_us: int) -> bool:
        fault_times = self.view.fault_times
        return not (fault_times.node_since(voter, from_us) or fault_times.between_since(leader, voter, from_us))


class QuorumConverges(QuorumCheck):
    """quorum-converges: after the heal every node reaches the same high watermark and the same metadata."""

    guarantee = "quorum-converges"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.expected = False
        """whether the nodes must agree; so it is after the heal"""

    def ended(self, at_us: int, node_id: int, story: str) -> None:
        """Report a node that ended itself, because it cannot converge with the others."""
        self.violated(at_us, f"node {node_id} ended itself: {story}")

    def end(self, history: History) -> None:
        if not self.expected:
            return
        if not self.reached():
            states = "; ".join(_state_of(member) for member in self.view.nodes)
            self.violated(history.end_us, f"the nodes do not agree: {states}")
            return
        digests = {member.node_id: digest_of(member.replica.loader.image) for member in self.view.nodes}
        if len(dict.fromkeys(digests.values())) > 1:
            self.violated(history.end_us, f"the nodes end with different metadata: {digests}")

    def reached(self) -> bool:
        """Return whether all nodes agree. This is cheap, so the run's end may call it after every event."""
        first = self.view.nodes[0].seen
        for member in self.view.nodes:
            seen = member.seen
            if member.replica is None or seen.leader_id < 0 or seen.high_watermark != seen.end_offset:
                return False
            if (seen.epoch, seen.high_watermark) != (first.epoch, first.high_watermark):
                return False
            if member.replica.loader.last_offset + 1 != seen.high_watermark:
                return False
        return True


def _state_of(member: Member) -> str:
    if member.replica is None:
        return f"node {member.node_id} is not there"
    seen, image = member.seen, member.replica.loader.image
    return (
        f"node {member.node_id}: epoch {seen.epoch}, leader {seen.leader_id}, high watermark {seen.high_watermark} of "
        f"{seen.end_offset}, metadata up to {image.provenance.offset}"
    )


class NoFalseFencing(QuorumCheck):
    """no-false-fencing: no broker is fenced if it and its links to the controller had no fault for a whole session.

    No process registers as a broker twice. It would do so only if another registration had taken its ID.
    """

    guarantee = "no-false-fencing"
    rows = ("broker_fenced", "broker_registered")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._session_us = context.settings.session_us
        self._leads_since_us: dict[int, int] = {}
        self._registered: dict[int, tuple[int, int]] = {}
        """For each node its last incarnation, and the broker epoch of that."""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.leads and not (before.leads and before.epoch == after.epoch):
            self._leads_since_us[member.node_id] = at_us

    def trace(self, row: TraceRow) -> None:
        if row.what == "broker_registered":
            self._has_registered(row.at_us, self.view.nodes[row.node], fields_of(row)["epoch"])
            return
        controller, broker = row.node, fields_of(row)["broker"]
        fault_times, from_us = self.view.fault_times, row.at_us - self._session_us
        # Physical: heartbeats of a node that is dead, paused or cut off do not arrive.
        touched = (
            fault_times.node_since(broker, from_us)
            or fault_times.node_since(controller, from_us)
            or (broker != controller and fault_times.between_since(broker, controller, from_us))
        )
        if not touched and self._leads_since_us.get(controller, row.at_us) < from_us:
            self.violated(
                row.at_us,
                f"controller {controller} fenced broker {broker}, although no fault had touched them for "
                f"{self._session_us // 1000} ms",
            )

    def _has_registered(self, at_us: int, member: Member, epoch: int) -> None:
        incarnation, first = self._registered.get(member.node_id, (-1, epoch))
        if incarnation == member.seen.incarnation and first != epoch:
            self.violated(
                at_us, f"broker {member.node_id} lost its ID, for it had epoch {first} and has epoch {epoch} now"
            )
        self._registered[member.node_id] = (member.seen.incarnation, epoch)


@dataclass(slots=True)
class Beating:
    """An unfenced broker's uninterrupted heartbeats: when they began, and the time of the last response."""

    since_us: int
    last_us: int


class SessionKept(Check):
    """no-false-fencing, as the active controller's own process shows it (KIP-631): a broker whose heartbeats get
    responses in time is not fenced, and no other broker gets its ID.

    A session lasts from the response to each heartbeat for ``broker.session.timeout.ms`` on the controller's own clock.
    So it does not matter how busy the machine is: a heartbeat that comes late is a gap, and a gap of a whole session
    excuses. So does a heartbeat that requests to be fenced or to shut down. KIP-631: a broker that the metadata has as
    fenced has no session, whichever controller fenced it, so another start of it may register at once. Physical: a
    fencing is visible when it is committed, some time after it was decided. So gaps up to a session before it excuse as
    well. A leader that could not commit for so long is no longer the leader.
    """

    guarantee = "no-false-fencing"
    needs_one_node = True
    acts_on = (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION, Closed, type(None))
    rows: ClassVar[tuple[str, ...]] = ("broker_fenced",)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending: dict[tuple[int, int], tuple[Request, bool]] = {}
        """the request that each connection of a node waits for, and whether another start of the broker was known"""
        self._alive: dict[tuple[int, int], Beating] = {}
        """by controller and broker"""
        self._session_us: dict[int, int] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        controller = node.broker.node_id
        if event is None:
            self._forget(controller)
        elif type(event) is Request and event.api_key in (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION):
            self._session_us[controller] = node.broker.config.broker_session_timeout_ms * 1000
            body: Any = event.body
            known = node.broker.controller.image.brokers.get(int(body.broker_id))
            is_another = event.api_key == ApiKey.BROKER_REGISTRATION and (
                known is not None and not known.fenced and known.incarnation_id != body.incarnation_id.bytes
            )
            self._pending[controller, event.connection] = event, is_another
        elif type(event) is Closed:
            self._pending.pop((controller, event.connection), None)
        for effect in effects if self._pending else ():
            if type(effect) is Reply and effect.api_key in (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION):
                request, is_another = self._pending.pop((controller, effect.connection), (None, False))
                response: Any = effect.body
                if request is None or response.error_code:
                    continue
                if request.api_key == ApiKey.BROKER_HEARTBEAT:
                    self._beat(at_us, controller, request.body, response)
                elif is_another:
                    self._registered(at_us, controller, request.body)

    def _forget(self, controller: int) -> None:
        """KIP-631: sessions are in the memory of the process. After its start a controller has had no heartbeat."""
        for place in [each for each in self._pending if each[0] == controller]:
            del self._pending[place]
        for place in [each for each in self._alive if each[0] == controller]:
            del self._alive[place]

    def _beat(self, at_us: int, controller: int, request: Any, response: Any) -> None:
        place = controller, int(request.broker_id)
        if response.is_fenced or request.want_fence or request.want_shut_down:
            self._alive.pop(place, None)
            return
        before = self._alive.get(place)
        is_silence = before is None or at_us - before.last_us >= self._session_us[controller]
        if before is None or is_silence:
            self._alive[place] = Beating(at_us, at_us)
        else:
            before.last_us = at_us

    def _registered(self, at_us: int, controller: int, request: Any) -> None:
        """A broker that comes back waits until the session of its earlier life is over."""
        broker = int(request.broker_id)
        if self._has_session(at_us, controller, broker):
            self.violated(at_us, f"controller {controller} gave away the ID of broker {broker}, which is alive")
        self._alive.pop((controller, broker), None)

    def trace(self, row: TraceRow) -> None:
        broker = fields_of(row)["broker"]
        if self._has_session(row.at_us, row.node, broker):
            self.violated(
                row.at_us, f"controller {row.node} fenced broker {broker}, whose heartbeats had got responses in time"
            )
        self._alive.pop((row.node, broker), None)

    def _has_session(self, at_us: int, controller: int, broker: int) -> bool:
        beating, session_us = self._alive.get((controller, broker)), self._session_us.get(controller, 0)
        return beating is not None and at_us - beating.since_us > session_us > at_us - beating.last_us
