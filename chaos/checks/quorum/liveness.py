"""The quorum stays live and converges: leaders stay, brokers stay registered, and nodes agree after the heal."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from chaos.checks.check import Check, CheckContext, Kind, QuorumCheck, fields_of
from chaos.checks.history import History
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.quorum.quorum_view import Member, Seen
from chaos.checks.quorum.synced_before_sent import METADATA_ID, RAFT_CHANNEL, fetched_metadata, is_fetch_of_metadata
from chaos.hooks.metadata_digest import digest_of
from reference_broker.core.events import Closed, Effect, Event, Note, PeerDown, PeerReply, Reply, Request, Send
from reference_broker.wire.apis import ApiKey
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class StableLeadership(QuorumCheck):
    """stable-leadership: a leader stays leader while no fault affects it or its links to a majority of unaffected
    voters.

    So a node that was cut off or restarted deposes no leader (pre-vote). The check judges a leader once such a majority
    has been without faults for ``Settings.settled_us``. A node that had already reached a higher epoch may still depose
    the leader, because in raft every node follows the highest epoch that it receives.
    """

    guarantee = "stable-leadership"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
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
        fault_times, from_us = self.quorum.fault_times, until_us - self._settled_us
        # Physical: a leader that is dead, paused or cut off from a majority cannot stay leader.
        if since_us > from_us or fault_times.node_since(leader, from_us):
            return False
        with_it = [
            node.node_id
            for node in self.quorum.nodes
            if node.is_voter and (node.node_id == leader or self._calm(leader, node.node_id, from_us))
        ]
        return len(with_it) >= self.quorum.majority

    def _calm(self, leader: int, voter: int, from_us: int) -> bool:
        fault_times = self.quorum.fault_times
        return not (fault_times.node_since(voter, from_us) or fault_times.between_since(leader, voter, from_us))


LATE_US = 1_000_000
"""Time that a node may take beyond its own timeouts. The simulator adds a few milliseconds to each sync and to each
slice of long work, and the length of a tick of its clock to each timer."""
SCAN_US = 250_000
"""Voters are compared with their limits at this interval."""
LEADER_FACTOR = 1.5
"""KAFKA-15489: how many fetch timeouts a leader waits for a majority (LeaderState.CHECK_QUORUM_TIMEOUT_FACTOR)."""


class VoterCheck(QuorumCheck):
    """Base of checks of what a voter does in time. ``judge`` is called with each running voter every ``SCAN_US``."""

    acts_on: ClassVar[tuple[Kind, ...]] = (Request, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.configs: dict[int, Any] = {}
        """by node: the settings of its newest process"""
        self._scan_at_us = 0

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if event is None:
            self.configs[node.broker.node_id] = node.broker.config
        self.follow(at_us, node, event, effects)
        if at_us >= self._scan_at_us:
            self._scan_at_us = at_us + SCAN_US
            for member in self.quorum.nodes:
                if member.is_voter and member.replica is not None and member.node_id in self.configs:
                    self.judge(at_us, member, self.configs[member.node_id])

    def follow(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """Called with each event that touches ``acts_on``."""

    @abstractmethod
    def judge(self, at_us: int, member: Member, config: Any) -> None:
        """Judge a running voter with the settings of its newest process."""


class LeaderKeepsMajority(VoterCheck):
    """responses-after-heal, during the run: a leader that has lost its majority resigns in time (KAFKA-15489).

    Broker settings, ``controller.quorum.fetch.timeout.ms``: a leader resigns when it got no valid Fetch or
    FetchSnapshot from a majority of the voters for this time. Kafka allows 1.5 times the setting. A request is valid in
    the leader's own epoch. Physical: a leader that is paused, or waits for its disk, resigns after that.
    """

    guarantee = "responses-after-heal"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._contacts: dict[int, dict[int, int]] = {}
        """by leader: when each other voter sent the last valid request"""
        self._since_us: dict[int, int] = {}
        """by leader: when its term began"""
        self._reported: dict[int, int] = {}
        """by leader: the epoch in which it was reported"""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.leads and not (before.leads and before[:2] == after[:2]):
            self._since_us[member.node_id] = at_us
            self._contacts[member.node_id] = {}

    def follow(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if type(event) is not Request or event.api_key not in (ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT):
            return
        body: Any = event.body
        sender = int(getattr(body, "replica_id", -1))
        member = self.quorum.nodes[node.broker.node_id]
        if not 0 <= sender < self.quorum.voters or not member.leads or sender == member.node_id:
            return
        if event.api_key == ApiKey.FETCH and not is_fetch_of_metadata(body):
            return
        if any(int(partition.current_leader_epoch) == member.seen.epoch for partition in body.topics[0].partitions):
            self._contacts[member.node_id][sender] = at_us

    def judge(self, at_us: int, member: Member, config: Any) -> None:
        if not member.leads or self.quorum.voters < 2:
            return
        node_id, contacts = member.node_id, self._contacts[member.node_id]
        newest = sorted(contacts.values(), reverse=True)
        others = self.quorum.majority - 1
        last_us = newest[others - 1] if len(newest) >= others else self._since_us[node_id]
        since_us = max(last_us, self.quorum.fault_times.nodes.get(node_id, 0))
        limit_us = int(LEADER_FACTOR * config.controller_quorum_fetch_timeout_ms * 1000)
        self.evidence += at_us - since_us > limit_us // 2
        if at_us - since_us > limit_us + LATE_US and self._reported.get(node_id) != member.seen.epoch:
            self._reported[node_id] = member.seen.epoch
            self.violated(
                at_us,
                f"node {node_id} still leads epoch {member.seen.epoch}, and no majority of the voters has fetched from "
                f"it for {(at_us - last_us) // 1000} ms; {limit_us // 1000} ms are allowed (KAFKA-15489)",
            )


class VotesSought(VoterCheck):
    """responses-after-heal, during the run: a voter without a leader seeks votes in time (KIP-595).

    Broker settings: a voter that could not fetch from its leader for ``controller.quorum.fetch.timeout.ms`` seeks an
    election. One that knows no leader, because it has started, voted, lost an election or resigned, waits for
    ``controller.quorum.election.timeout.ms``, and Kafka adds a random time of at most the same length. Before the next
    attempt it waits for ``controller.quorum.election.backoff.max.ms`` at most. KIP-996: it requests pre-votes first.

    A voter has contact with its leader by a response to a Fetch or FetchSnapshot, or by BeginQuorumEpoch. Physical: a
    voter that is paused, or waits for its disk, is late.
    """

    guarantee = "responses-after-heal"
    acts_on = (*VoterCheck.acts_on, PeerReply, (Send, ApiKey.VOTE), "voted")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._since_us: dict[int, int] = {}
        """by voter: when it last had contact with a leader, voted, sought votes, or entered an epoch or its role"""
        self._leaderless_us: dict[int, int] = {}
        """by voter that knows no leader: since when"""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        is_new = (before.incarnation, before.epoch, before.leads) != (after.incarnation, after.epoch, after.leads)
        if after.leader_id >= 0:
            self._leaderless_us.pop(member.node_id, None)
        elif is_new or before.leader_id >= 0:
            self._leaderless_us[member.node_id] = at_us
        if is_new or (after.leader_id != before.leader_id and after.leader_id >= 0):
            self._since_us[member.node_id] = at_us

    def follow(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        is_contact = (type(event) is PeerReply and event.channel == RAFT_CHANNEL and _is_of_leader(event.body)) or (
            type(event) is Request and event.api_key == ApiKey.BEGIN_QUORUM_EPOCH
        )
        if is_contact or any(
            (type(effect) is Send and effect.api_key == ApiKey.VOTE)
            or (type(effect) is Note and effect.what == "voted")
            for effect in effects
        ):
            self._since_us[node.broker.node_id] = at_us

    def judge(self, at_us: int, member: Member, config: Any) -> None:
        node_id = member.node_id
        if member.leads or node_id not in self._since_us:
            return
        since_us = max(self._since_us[node_id], self.quorum.fault_times.nodes.get(node_id, 0))
        limit_us = 1000 * (
            2 * config.controller_quorum_election_timeout_ms + config.controller_quorum_election_backoff_max_ms
        )
        if node_id in self._leaderless_us:
            since_us = max(since_us, self._leaderless_us[node_id])
        else:
            limit_us += 2000 * config.controller_quorum_fetch_timeout_ms
        self.evidence += at_us - since_us > limit_us // 2
        if at_us - since_us > limit_us + LATE_US:
            self._since_us[node_id] = at_us
            self.violated(
                at_us,
                f"voter {node_id} in epoch {member.seen.epoch} has had no leader for {(at_us - since_us) // 1000} ms, "
                f"and has not sought votes; {limit_us // 1000} ms are allowed (KIP-595)",
            )


class _Contact(NamedTuple):
    """A response of its leader to a follower's fetch."""

    epoch: int
    leader: int
    at_us: int


class PreVotesRefused(QuorumCheck):
    """stable-leadership: neither a leader nor a follower that fetches from it grants a pre-vote in the leader's epoch.

    KIP-996: a follower that has fetched from its leader within ``controller.quorum.fetch.timeout.ms`` refuses
    pre-votes, so that a voter whose link to the leader is cut deposes nobody. A follower may consider its leader gone
    sooner: after EndQuorumEpoch, a broken connection, an error, or a log that diverges. A response to a fetch from
    before it sought votes does not bring the leader back. The leader itself may have restarted.
    """

    guarantee = "stable-leadership"
    acts_on = (
        *(ApiKey.VOTE, ApiKey.END_QUORUM_EPOCH, (Send, ApiKey.VOTE), (Send, ApiKey.FETCH)),
        *(PeerReply, PeerDown, Closed, type(None)),
    )

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._contacts: dict[int, _Contact] = {}
        """by follower: the last one, while nothing says that the leader is gone"""
        self._fetches: dict[int, int] = {}
        """by follower: token of the fetch that it has sent last, and that nothing has overtaken"""
        self._pending = PendingRequests[_Contact]()
        """pre-votes that must be refused, with the last contact or the leader's own term"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        member = self.quorum.nodes[node.broker.node_id]
        if type(event) is PeerReply and event.channel == RAFT_CHANNEL:
            self._replied(at_us, member, event)
        elif type(event) is Request and event.api_key == ApiKey.VOTE:
            self._requested(at_us, node, member, event)
        elif type(event) is Closed:
            self._pending.closed(member.node_id, event.connection)
        else:
            self._may_be_gone(node, event)
        for effect in effects:
            if type(effect) is Send and effect.api_key == ApiKey.VOTE:
                self._forget(member.node_id)
            elif type(effect) is Send and effect.api_key == ApiKey.FETCH and is_fetch_of_metadata(effect.body):
                self._fetches[member.node_id] = effect.token
            elif type(effect) is Reply and effect.api_key == ApiKey.VOTE:
                self._responded(at_us, member, effect)

    def _may_be_gone(self, node: "Node", event: Event | None) -> None:
        node_id = node.broker.node_id
        is_down = type(event) is PeerDown and event.channel == RAFT_CHANNEL
        if event is None:
            self._pending.restarted(node_id)
        if event is None or is_down or (type(event) is Request and event.api_key == ApiKey.END_QUORUM_EPOCH):
            self._forget(node_id)

    def _forget(self, node_id: int) -> None:
        self._contacts.pop(node_id, None)
        self._fetches.pop(node_id, None)

    def _replied(self, at_us: int, member: Member, event: PeerReply) -> None:
        seen = member.seen
        is_awaited = self._fetches.get(member.node_id) == event.token
        if event.peer == seen.leader_id and is_awaited and _is_contact(event, seen.epoch):
            self._contacts[member.node_id] = _Contact(seen.epoch, seen.leader_id, at_us)
        elif event.peer == seen.leader_id:
            self._forget(member.node_id)

    def _requested(self, at_us: int, node: "Node", member: Member, event: Request) -> None:
        topics: Any = getattr(event.body, "topics", ())
        wanted: Any = topics[0].partitions[0] if len(topics) == 1 and len(topics[0].partitions) == 1 else None
        if wanted is None or not wanted.pre_vote or int(wanted.replica_epoch) != member.seen.epoch:
            return
        contact = self._contacts.get(member.node_id)
        if member.leads:
            contact = _Contact(member.seen.epoch, member.node_id, at_us)
        limit_us = node.broker.config.controller_quorum_fetch_timeout_ms * 1000
        is_fresh = contact is not None and contact.epoch == member.seen.epoch and at_us - contact.at_us < limit_us
        if contact is not None and is_fresh and int(wanted.replica_id) != contact.leader:
            self._pending.add(member.node_id, event, contact)

    def _responded(self, at_us: int, member: Member, reply: Reply) -> None:
        contact, body = self._pending.pop(member.node_id, reply), reply.body
        if contact is None or body is None or (member.seen.epoch, member.seen.leader_id) != contact[:2]:
            return
        self.evidence += 1
        granted: Any = getattr(body, "topics", ())
        if len(granted) == 1 and granted[0].partitions[0].vote_granted:
            self.violated(
                at_us,
                f"node {member.node_id} grants a pre-vote in epoch {contact.epoch}, which node {contact.leader} leads, "
                f"{(at_us - contact.at_us) // 1000} ms after that leader's last response to it (KIP-996)",
            )


def _is_contact(event: PeerReply, epoch: int) -> bool:
    """Return whether a response to a fetch is of the leader's epoch and continues the follower's log."""
    partition = fetched_metadata(event)
    if partition is None or partition.diverging_epoch is not None or partition.snapshot_id is not None:
        return False
    return partition.current_leader is None or int(partition.current_leader.leader_epoch) == epoch


def _is_of_leader(body: Any) -> bool:
    """Return whether a response to a Fetch or FetchSnapshot of the metadata log has no error."""
    topics: Any = getattr(body, "responses", None) or getattr(body, "topics", ())
    if int(getattr(body, "error_code", 1)) or len(topics) != 1 or len(topics[0].partitions) != 1:
        return False
    partition = topics[0].partitions[0]
    is_fetch = getattr(topics[0], "topic_id", None) == METADATA_ID
    return (is_fetch or hasattr(partition, "position")) and not int(partition.error_code)


class QuorumConverges(QuorumCheck):
    """quorum-converges: after the heal every node reaches the same high watermark and the same metadata."""

    guarantee = "quorum-converges"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_ended.append(self.ended)
        self.expected = False
        """whether the nodes must agree; so it is after the heal"""

    def ended(self, at_us: int, node_id: int, explanation: str) -> None:
        """Report a node that ended itself, because it cannot converge with the others."""
        self.violated(at_us, f"node {node_id} ended itself: {explanation}")

    def end(self, history: History) -> None:
        if not self.expected:
            return
        if not self.reached():
            states = "; ".join(_state_of(member) for member in self.quorum.nodes)
            self.violated(history.end_us, f"the nodes do not agree: {states}")
            return
        digests = {member.node_id: digest_of(member.replica.loader.image) for member in self.quorum.nodes}
        if len(dict.fromkeys(digests.values())) > 1:
            self.violated(history.end_us, f"the nodes end with different metadata: {digests}")

    def reached(self) -> bool:
        """Return whether all nodes agree. This is cheap, so the run's end may call it after every event."""
        first = self.quorum.nodes[0].seen
        for member in self.quorum.nodes:
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

    No process registers as a broker twice, which it would do only if another registration had taken its ID.
    """

    guarantee = "no-false-fencing"
    rows = ("broker_fenced", "broker_registered")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._session_us = context.settings.session_us
        self._leads_since_us: dict[int, int] = {}
        self._registered: dict[int, tuple[int, int]] = {}
        """For each node its last incarnation, and the broker epoch of that."""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.leads and not (before.leads and before.epoch == after.epoch):
            self._leads_since_us[member.node_id] = at_us

    def trace(self, row: TraceRow) -> None:
        if row.what == "broker_registered":
            self._has_registered(row.at_us, self.quorum.nodes[row.node], fields_of(row)["epoch"])
            return
        controller, broker = row.node, fields_of(row)["broker"]
        fault_times, from_us = self.quorum.fault_times, row.at_us - self._session_us
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


ACTIVATED = "controller_activated"
ACTIVATION_US = 100_000
"""An activation is made in slices, and the sessions may begin before its note."""


@dataclass(slots=True)
class Beating:
    """An unfenced broker's uninterrupted heartbeats: when they began, and the time of the last response."""

    since_us: int
    last_us: int


class SessionKept(Check):
    """no-false-fencing, as the active controller's own process shows it (KIP-631): a broker whose heartbeats get
    responses in time is not fenced, and no other broker gets its ID.

    A session lasts from the response to each heartbeat for ``broker.session.timeout.ms`` on the controller's own clock.
    So a busy machine causes no false verdict: a late heartbeat is a gap, and a gap of a whole session is an excuse. So
    is a heartbeat that requests to be fenced or to shut down. KAFKA-15441: a new active controller has no heartbeats
    yet, and gives each broker a whole session from its activation. KIP-631: a broker that is fenced in the metadata has
    no session, whichever controller fenced it, so its next process may register at once. Physical: a fencing is visible
    when it is committed, some time after its decision. So gaps up to a session before it are excuses, too. A leader
    that could not commit for a whole session is no longer the leader.
    """

    guarantee = "no-false-fencing"
    needs_one_node = True
    acts_on = (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION, Closed, ACTIVATED, type(None))
    rows: ClassVar[tuple[str, ...]] = ("broker_fenced",)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending: dict[tuple[int, int], tuple[Request, bool]] = {}
        """the request that each connection of a node waits for, and whether another start of the broker was known"""
        self._alive: dict[tuple[int, int], Beating] = {}
        """by controller and broker"""
        self._session_us: dict[int, int] = {}
        self._activated_us: dict[int, int] = {}
        """by node: when it became the active controller last"""
        self._wants_to_go: set[tuple[int, int]] = set()
        """controllers, and brokers that have requested since then to be fenced or to shut down"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        controller = node.broker.node_id
        if event is None:
            self._forget(controller)
        elif type(event) is Request and event.api_key in (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION):
            self._session_us[controller] = node.broker.config.broker_session_timeout_ms * 1000
            body: Any = event.body
            if event.api_key == ApiKey.BROKER_HEARTBEAT and (body.want_fence or body.want_shut_down):
                self._wants_to_go.add((controller, int(body.broker_id)))
            known = node.broker.controller.image.brokers.get(int(body.broker_id))
            is_another = event.api_key == ApiKey.BROKER_REGISTRATION and (
                known is not None and not known.fenced and known.incarnation_id != body.incarnation_id.bytes
            )
            self._pending[controller, event.connection] = event, is_another
        elif type(event) is Closed:
            self._pending.pop((controller, event.connection), None)
        for effect in effects:
            if type(effect) is Note and effect.what == ACTIVATED:
                self._activated(at_us, node)
            if type(effect) is Reply and effect.api_key in (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION):
                request, is_another = self._pending.pop((controller, effect.connection), (None, False))
                response: Any = effect.body
                if request is None or response.error_code:
                    continue
                if request.api_key == ApiKey.BROKER_HEARTBEAT:
                    self._beat(at_us, controller, request.body, response)
                elif is_another:
                    self._registered(at_us, controller, request.body)

    def _activated(self, at_us: int, node: "Node") -> None:
        controller = node.broker.node_id
        self._activated_us[controller] = at_us
        self._session_us[controller] = node.broker.config.broker_session_timeout_ms * 1000
        self._wants_to_go = {want for want in self._wants_to_go if want[0] != controller}

    def _forget(self, controller: int) -> None:
        """KIP-631: sessions are in the memory of the process. After its start a controller has had no heartbeat."""
        self._activated_us.pop(controller, None)
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
        elif (row.node, broker) not in self._wants_to_go and row.node in self._activated_us:
            led_us = row.at_us - self._activated_us[row.node]
            self.evidence += 1
            if led_us < self._session_us[row.node] - ACTIVATION_US:
                self.violated(
                    row.at_us,
                    f"controller {row.node} fenced broker {broker} {led_us // 1000} ms after its activation, before a "
                    f"session of {self._session_us[row.node] // 1000} ms was over (KAFKA-15441)",
                )
        self._alive.pop((row.node, broker), None)

    def _has_session(self, at_us: int, controller: int, broker: int) -> bool:
        beating, session_us = self._alive.get((controller, broker)), self._session_us.get(controller, 0)
        return beating is not None and at_us - beating.since_us > session_us > at_us - beating.last_us
