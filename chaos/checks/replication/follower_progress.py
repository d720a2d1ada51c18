"""View of followers' progress at leaders: how far each follower has fetched from them, and which in-sync replicas they
propose.

A follower's progress is the fetch offset of its accepted requests, never the end of the records that were sent to it. A
partition that an incremental request does not name counts as fetched at its cached offset (F-22). A new leader knows no
progress. A leader that stays leader in the next leader epoch keeps it, because no other node led in between. When a
leader epoch begins, the replicas that are in sync have caught up then, and no other replica has until a request shows
it (Kafka's ``Replica.resetReplicaState``).

Physical: a leader cannot read its log while the disk fails or a batch is damaged, and returns an error instead of the
records. The follower has requested the offset all the same (F-22), so the leader may count it, and need not: Kafka
reads first, and counts nothing if that fails (``Partition.fetchRecords``).

A proposal is followed from its AlterPartition request on. It ends with a greater partition epoch, or with a refusal
that was certainly not applied (KIP-497).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chaos.checks.history import without_node
from chaos.checks.replication.replica_view import PartitionKey
from chaos.checks.sessions.fetch_model import FETCH, FIRST_REVISIONS, PartitionName, partitions_of
from reference_broker.core.events import Effect, Event, PeerDown, PeerReply, Reply, Request, Send
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from reference_broker.core.node import Node

ALTER_PARTITION = 56
NOT_APPLIED = (55, 107)
"""OPERATION_NOT_ATTEMPTED and INELIGIBLE_REPLICA: the proposal was not applied, and the leader knows what holds."""
_NodeAndPartition: TypeAlias = tuple[int, PartitionKey]
"""A node's ID, with a topic's ID and the index of a partition."""


@dataclass(slots=True)
class Progress:
    """One follower of a leader."""

    offset: int
    """from which its last accepted request fetches"""
    broker_epoch: int
    """of the follower, as that request says; -1 if it does not"""
    caught_up_us: int
    """last time at which it had all that the leader had then; ``NEVER_US`` if no request has shown that"""
    fetched_us: int
    """time of that request, or the beginning of a later leader epoch as for ``caught_up_us``"""
    leader_end: int
    """end of the leader's log then"""
    is_cached: bool = True
    """whether the follower's session has the partition, so that requests that do not name it count"""
    has_lagged: bool = False
    """whether replica.lag.time.max.ms have passed without its being caught up, in this leader epoch and since it is in
    sync"""


class Unread(NamedTuple):
    """A request of a follower for records that the leader failed to read."""

    offset: int
    broker_epoch: int


@dataclass(slots=True)
class LeaderTerm:
    """A node that leads a partition in one leader epoch."""

    node: "Node"
    leader_epoch: int
    began_us: int
    start_offset: int
    """end of its log then"""
    in_sync: tuple[int, ...]
    """in-sync replicas then"""
    followers: dict[int, Progress] = field(default_factory=dict)
    unread: dict[int, Unread] = field(default_factory=dict)
    """by follower: its last request, if the leader failed to read the records"""

    def latest(self, replica: int) -> "Progress | Unread | None":
        """Return the request with the greatest offset that the leader may have counted, None if there is none."""
        known, unread = self.followers.get(replica), self.unread.get(replica)
        if known is None or unread is None:
            return known or unread
        return unread if unread.offset > known.offset else known

    def caught_up_at_start_us(self, replica: int) -> int:
        """Return when a replica had caught up, before any request of it in this leader epoch."""
        return self.began_us if replica in self.in_sync else NEVER_US


class Proposed(NamedTuple):
    """In-sync replicas that a leader has proposed."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    is_first: bool
    """whether the request was the first with this proposal, and no other one was in flight"""


class Counted(NamedTuple):
    """A request of a follower that a leader has accepted in this event, for one partition."""

    partition: Partition
    replica: int
    offset: int
    is_single: bool
    """whether the request is small, so that the leader counts all of it in one event if slices are not short"""


READ_FAILED = (2, 56)
"""CORRUPT_MESSAGE and KAFKA_STORAGE_ERROR"""
NEVER_US = -(1 << 62)
"""Before all times."""
FULL_EPOCHS = (0, -1)
"""Session epochs of full requests (KIP-227)."""
INCREMENTAL = 1
"""fetch_type of incremental requests in KIP-227's first revision"""
SMALL_REQUEST = 20
"""A leader may count a request with more partitions in several events, and with short slices any."""
SOON_US = 100_000
"""Within this time of a response a proposal may have waited for it."""
MAX_NAMED = 200
"""Physical: a request has a bounded size. One with as many partitions may have left others for the next one."""
KEPT_REQUESTS = 64
"""number of the last AlterPartition requests of a node whose times are kept"""


class _AlterPartition(NamedTuple):
    """An AlterPartition request of a node that has not ended."""

    sent_us: int
    channel: tuple[int, object]
    """to which node, and by which of its channels"""
    keys: tuple[_NodeAndPartition, ...]

    def names(self, key: _NodeAndPartition) -> bool:
        return key in self.keys or len(self.keys) >= MAX_NAMED


@dataclass(slots=True)
class ProgressView:
    """The leaders of all partitions. ``HighWatermarkByRequests`` passes events on to it, before other checks get
    them."""

    nodes: "dict[int, Node]" = field(default_factory=dict)
    """the last incarnation of each node, if the view has followed it since its start"""
    terms: dict[_NodeAndPartition, LeaderTerm] = field(default_factory=dict)
    proposals: dict[_NodeAndPartition, Proposed] = field(default_factory=dict)
    contacts_us: dict[tuple[int, int], int] = field(default_factory=dict)
    """time of the last accepted Fetch, by leader and follower"""
    counted: list[Counted] = field(default_factory=list)
    """in the current event"""
    sent: list[tuple[Partition, Proposed]] = field(default_factory=list)
    """the proposals of the current event's AlterPartition requests"""
    accepted: list[tuple[PartitionKey, Proposed, int]] = field(default_factory=list)
    """proposals that a response has accepted in this event, with the partition epoch that it returned"""
    _tokens: dict[tuple[int, int], _AlterPartition] = field(default_factory=dict)
    """AlterPartition requests without a response, by node and token"""
    _ended: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    """by node: when such requests were sent, and when they ended"""
    _named_us: dict[_NodeAndPartition, int] = field(default_factory=dict)
    """end of the last such request that named the partition"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """Follow a node's effects for an event."""
        node_id = node.broker.node_id
        self.counted.clear()
        self.sent.clear()
        self.accepted.clear()
        if event is None:
            if self.nodes.get(node_id) is not node:
                self._forget(node_id)
            self.nodes[node_id] = node
            return
        kind = type(event)
        if kind is Request and event.api_key == FETCH:  # type: ignore[union-attr]
            self._requested(at_us, node, event, effects)  # type: ignore[arg-type]
        elif kind is PeerReply:
            self._settled(at_us, node_id, event)  # type: ignore[arg-type]
        elif kind is PeerDown and self._tokens:
            channel = event.peer, event.channel  # type: ignore[union-attr]
            for key, each in list(self._tokens.items()):
                if key[0] == node_id and each.channel == channel:
                    self._over(at_us, node_id, self._tokens.pop(key))
        for effect in effects:
            if type(effect) is Send and effect.api_key == ALTER_PARTITION:
                self._proposed(at_us, node, effect)

    def term(self, at_us: int, node: "Node", led: Partition) -> LeaderTerm:
        """Return the state of a partition that the node leads. The first call in a leader epoch begins it."""
        key = (node.broker.node_id, (led.topic_id, led.index))
        known = self.terms.get(key)
        if known is not None and known.node is node and known.leader_epoch == led.leader_epoch:
            return known
        term = self.terms[key] = LeaderTerm(node, led.leader_epoch, at_us, _start_offset(led), _in_sync(node, led))
        if known is not None and known.node is node and known.leader_epoch + 1 == led.leader_epoch:
            term.followers, term.unread = known.followers, known.unread
            for replica, each in term.followers.items():
                each.caught_up_us = each.fetched_us = term.caught_up_at_start_us(replica)
                each.leader_end, each.has_lagged = led.log.log_end_offset, False
        return term

    def proposal(self, node_id: int, partition: Partition, partition_epoch: int) -> Proposed | None:
        """Return what the leader has proposed and what neither the controller nor its metadata, in which the partition
        has this epoch, has settled."""
        proposed = self.proposals.get((node_id, (partition.topic_id, partition.index)))
        if proposed is None or (proposed.leader_epoch, proposed.partition_epoch) != (
            partition.leader_epoch,
            partition_epoch,
        ):
            return None
        return proposed

    def held_until(self, node_id: int, key: PartitionKey, due_us: int) -> int | None:
        """Return when the leader could send a proposal that was due at ``due_us``, or None if it cannot yet.

        KIP-497: it has one AlterPartition in flight at a time. The one that was in flight then holds it back, and those
        that name the partition. Any other one should have named it.
        """
        name = node_id, key
        for (sender, _), each in self._tokens.items():
            if sender == node_id and (each.sent_us <= due_us or each.names(name)):
                return None
        ends = (ended for sent, ended in self._ended.get(node_id, ()) if sent <= due_us <= ended)
        return max(due_us, self._named_us.get(name, 0), *ends)

    def _over(self, at_us: int, node_id: int, request: _AlterPartition) -> None:
        self._ended.setdefault(node_id, deque(maxlen=KEPT_REQUESTS)).append((request.sent_us, at_us))
        for key in request.keys:
            self._named_us[key] = at_us

    def _forget(self, node_id: int) -> None:
        self.terms = without_node(self.terms, node_id)
        self.contacts_us = {key: at_us for key, at_us in self.contacts_us.items() if key[0] != node_id}
        self.forget_proposals(node_id)

    def forget_proposals(self, node_id: int) -> None:
        self.proposals = without_node(self.proposals, node_id)
        self._tokens = without_node(self._tokens, node_id)

    # Fetches

    def _requested(self, at_us: int, node: "Node", event: Request, effects: Sequence[Effect]) -> None:
        body = event.body
        if not isinstance(body, FetchRequest) or body.replica_id < 0:
            return
        refused = refused_partitions(event, effects)
        if refused is None:
            return
        named = {name: each.fetch_offset for name, each in partitions_of(event.api_version, body.topics)}
        self.contacts_us[node.broker.node_id, body.replica_id] = at_us
        self._leave(node, event.api_version, body)
        is_single = len(named) <= SMALL_REQUEST
        for name, offset in named.items():
            led = led_partition(node, name)
            error = refused.get(name, 0)
            if led is None or error not in (0, *READ_FAILED):
                continue
            # KIP-405: below its local log start the leader sends the follower to the tier, where it begins elsewhere.
            if not led.log.local_log_start_offset <= offset <= led.log.log_end_offset:
                continue
            if error:
                self.term(at_us, node, led).unread[body.replica_id] = Unread(offset, body.replica_epoch)
            else:
                self._count(at_us, node, led, body, offset)
                self.counted.append(Counted(led, body.replica_id, offset, is_single))

    def _leave(self, node: "Node", version: int, body: FetchRequest) -> None:
        """Note which partitions the follower's session no longer has: a full request has those that it names."""
        node_id, replica = node.broker.node_id, body.replica_id
        if body.fetch_type != INCREMENTAL if version in FIRST_REVISIONS else body.session_epoch in FULL_EPOCHS:
            for (leader_id, _), term in self.terms.items():
                if leader_id == node_id and replica in term.followers:
                    term.followers[replica].is_cached = False
        for name, _ in partitions_of(version, body.forgotten):
            led = led_partition(node, name)
            left = None if led is None else self.terms.get((node_id, (led.topic_id, led.index)))
            if left is not None and replica in left.followers:
                left.followers[replica].is_cached = False

    def appended(self, leader_id: int, key: PartitionKey, end_before: int) -> None:
        """Note that a leader's log has grown. Followers at its end had all of it at their last request, whether that
        named the partition or not (F-22)."""
        term = self.terms.get((leader_id, key))
        for replica, known in () if term is None else term.followers.items():
            if known.is_cached and known.offset == end_before:
                known.caught_up_us = max(known.caught_up_us, self.contacts_us.get((leader_id, replica), 0))

    def _count(self, at_us: int, node: "Node", led: Partition, body: FetchRequest, offset: int) -> None:
        term, end = self.term(at_us, node, led), led.log.log_end_offset
        known = term.followers.get(body.replica_id)
        if known is None or known.broker_epoch != body.replica_epoch:
            # A replica that restarted in this leader epoch has lost its progress (E-4).
            caught_up_us = term.caught_up_at_start_us(body.replica_id) if known is None else NEVER_US
            known = Progress(offset, body.replica_epoch, caught_up_us, at_us, end)
            term.followers[body.replica_id] = known
        known.is_cached = True
        term.unread.pop(body.replica_id, None)
        caught_up_us = known.caught_up_us
        if offset >= end:
            known.caught_up_us = at_us
        elif offset >= known.leader_end:
            known.caught_up_us = max(caught_up_us, known.fetched_us)
        lag_us = node.broker.config.replica_lag_time_max_ms * 1000
        # The leader removes only replicas that are in sync. Lag from before a replica joined is no reason to remove it.
        is_lagging = known.has_lagged or at_us - caught_up_us > lag_us
        known.has_lagged = is_lagging and body.replica_id in _in_sync(node, led)
        known.offset, known.fetched_us, known.leader_end = offset, at_us, end

    # Proposals

    def _proposed(self, at_us: int, node: "Node", send: Send) -> None:
        node_id = node.broker.node_id
        is_idle = not any(key[0] == node_id for key in self._tokens)
        ended = self._ended.get(node_id)
        at_once = is_idle and (not ended or at_us - ended[-1][1] >= SOON_US)
        keys = []
        for topic_id, each in altered(send.body):
            key = (node_id, (topic_id, int(each.partition_index)))
            keys.append(key)
            led = node.broker.partitions.by_id.get(key[1])
            if led is None:
                continue
            isr = tuple(int(replica.broker_id) for replica in each.new_isr_with_epochs)
            broker_epochs = tuple(int(replica.broker_epoch) for replica in each.new_isr_with_epochs)
            known = self.proposals.get(key)
            proposal = isr, broker_epochs, int(each.leader_epoch), int(each.partition_epoch)
            is_first = at_once and (known is None or known[:4] != proposal)
            self.proposals[key] = Proposed(*proposal, is_first)
            self.sent.append((led, self.proposals[key]))
        self._tokens[node_id, send.token] = _AlterPartition(at_us, (send.peer, send.channel), tuple(keys))

    def _settled(self, at_us: int, node_id: int, event: PeerReply) -> None:
        request = self._tokens.pop((node_id, event.token), None)
        if request is None:
            return
        self._over(at_us, node_id, request)
        for topic_id, each in altered(event.body):
            key = topic_id, int(each.partition_index)
            proposed = self.proposals.get((node_id, key))
            if int(each.error_code) in NOT_APPLIED:
                self.proposals.pop((node_id, key), None)
            elif int(each.error_code) == 0 and proposed is not None:
                self.accepted.append((key, proposed, int(each.partition_epoch)))


def _start_offset(led: Partition) -> int:
    """Return where the log ended when its leader epoch began. It may have grown since then, before the first look."""
    epochs = led.log.epochs
    return epochs.starts[-1] if epochs.latest == led.leader_epoch else led.log.log_end_offset


def _in_sync(node: "Node", led: Partition) -> tuple[int, ...]:
    """Return the in-sync replicas of the node's metadata, none if it lacks the partition."""
    topic = node.broker.quorum_node.loader.image.topic_by_id(led.topic_id)
    return () if topic is None else topic.partitions[led.index].isr


def altered(body: Any) -> Iterator[tuple[bytes, Any]]:
    """Yield the partitions of an AlterPartition request or response, each with its topic's ID."""
    for topic in body.topics:
        for partition in topic.partitions:
            yield topic.topic_id.bytes, partition


DIVERGES = -1
"""in place of an error: the follower's log diverges"""


def refused_partitions(request: Request, effects: Sequence[Effect]) -> dict[PartitionName, int] | None:
    """Return the partitions that the response to a Fetch, if it is among the effects, refuses or finds diverging, with
    the error or ``DIVERGES``, or None if it refuses the whole request."""
    refused: dict[PartitionName, int] = {}
    for effect in effects:
        if type(effect) is Reply and (effect.connection, effect.correlation_id) == request[:2]:
            if not isinstance(effect.body, FetchResponse) or effect.body.error_code:
                return None
            refused.update(
                (name, each.error_code or DIVERGES)
                for name, each in partitions_of(effect.api_version, effect.body.responses)
                if each.error_code or each.diverging_epoch is not None
            )
    return refused


def led_partition(node: "Node", name: PartitionName) -> Partition | None:
    """Return the partition that a Fetch names by the ID or the name of its topic, None if the node has none."""
    topic, index = name
    partitions = node.broker.partitions
    if isinstance(topic, str):
        return partitions.by_name.get((topic, index))
    return partitions.by_id.get((topic, index))
