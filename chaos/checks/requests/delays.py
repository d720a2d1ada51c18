"""Each request has one response in time.

All bounds are here. They come from the settings of the node, from the request, and from what the simulator adds.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from chaos.checks.check import Check, CheckContext, Kind, QuorumCheck
from chaos.checks.history import OFFSETS_TOPIC
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.quorum.quorum_view import Member, Seen
from chaos.checks.replication.replica_view import offsets_partition
from reference_broker.core.events import Close, Closed, Effect, Event, Reply, Request
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey, api_name
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from reference_broker.core.node import Node

TRANSACTION_TOPIC = "__transaction_state"
SLICES_US = 500_000
"""Time that a node may take beyond its own timeouts. The simulator adds up to 2 ms to each slice of long work, up to 4
ms to each sync, and the length of a tick of its clock to each timer."""
SCAN_US = 250_000
"""Pending requests are compared with their limits at this interval."""
LOOK_US = 1_000_000
"""Brokers, nodes and partitions are compared with what the controller should have done at this interval."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest time from a request to its response, without ``SLICES_US``."""

    us: int
    why: str
    of_quorum: bool = False
    """whether it holds only while the quorum can commit records of the metadata log"""


@dataclass(slots=True)
class Waiting:
    """A request without its response."""

    at_us: int
    request: Request
    config: Any
    """the node's settings when the request came"""
    reported: bool = False
    """whether its delay is a violation already"""
    waits_for_replicas: bool = False
    """whether it is an OffsetFetch of a group whose partition had records that were not replicated when it came"""
    unserved_us: int = -1
    """when the node was first seen without the role that the request needs, -1 while it has the role"""


def _own_us(body: Any) -> int:
    """Return the timeout that the request itself gives, in microseconds. It is 0 if the request has none."""
    timeout = getattr(body, "timeout", None)
    if timeout is not None:
        return int(timeout.total_seconds() * 1_000_000)
    return int(getattr(body, "timeout_ms", 0)) * 1000


def _of_fetch(body: Any, config: Any) -> tuple[int, str]:
    """Protocol guide: a response comes once min_bytes are there, or after max_wait_ms. KIP-1018: the remote tier may
    take ``remote.fetch.max.wait.ms`` of its own."""
    of_tier_ms = config.remote_fetch_max_wait_ms if config.remote_log_storage_system_enable else 0
    return (body.max_wait_ms + of_tier_ms) * 1000, "max_wait_ms"


def _of_list_offsets(body: Any, config: Any) -> tuple[int, str]:
    """KIP-1075: offsets from the remote tier are awaited for the request's timeout, or for that of the settings."""
    if not config.remote_log_storage_system_enable:
        return 0, "no wait for other nodes"
    return max(_own_us(body), config.remote_list_offsets_request_timeout_ms * 1000), "the remote tier's timeout"


def _of_produce(body: Any, config: Any) -> tuple[int, str]:
    """Protocol guide: acks=all waits for timeout_ms. KIP-890: before that the transaction's coordinator verifies it."""
    verified_ms = _verified_ms(config) if body.transactional_id else 0
    return (body.timeout_ms + verified_ms) * 1000, "timeout_ms"


def _verified_ms(config: Any) -> int:
    """KIP-890: a broker has one verification in flight to a coordinator, for ``request.timeout.ms`` at most. Meanwhile
    others wait, and are then sent in the next request."""
    return 2 * int(config.request_timeout_ms)


def _of_commit(_body: Any, config: Any) -> tuple[int, str]:
    """Broker settings: a commit waits for ``offsets.commit.timeout.ms`` to be replicated."""
    return config.offsets_commit_timeout_ms * 1000, "offsets.commit.timeout.ms"


def _of_transaction(_body: Any, config: Any) -> tuple[int, str]:
    """KIP-98: the coordinator waits for ``request.timeout.ms`` until its record or marker is replicated."""
    return config.request_timeout_ms * 1000, "request.timeout.ms"


def _of_transactional_commit(_body: Any, config: Any) -> tuple[int, str]:
    """KIP-890: the commit is verified by the transaction's coordinator before it is appended."""
    return (_verified_ms(config) + config.offsets_commit_timeout_ms) * 1000, "request.timeout.ms and the commit's"


def _of_request(body: Any, _config: Any) -> tuple[int, str]:
    return _own_us(body), "its own timeout"


_LimitOf = Callable[[Any, Any], tuple[int, str]]

BY_API: Mapping[int, _LimitOf] = {
    ApiKey.PRODUCE: _of_produce,
    ApiKey.FETCH: _of_fetch,
    ApiKey.LIST_OFFSETS: _of_list_offsets,
    ApiKey.OFFSET_COMMIT: _of_commit,
    ApiKey.LEAVE_GROUP: _of_commit,
    ApiKey.DELETE_GROUPS: _of_commit,
    ApiKey.OFFSET_DELETE: _of_commit,
    ApiKey.INIT_PRODUCER_ID: _of_transaction,
    ApiKey.ADD_PARTITIONS_TO_TXN: _of_transaction,
    ApiKey.ADD_OFFSETS_TO_TXN: _of_transaction,
    ApiKey.END_TXN: _of_transaction,
    ApiKey.WRITE_TXN_MARKERS: _of_transaction,
    ApiKey.TXN_OFFSET_COMMIT: _of_transactional_commit,
    ApiKey.DELETE_RECORDS: _of_request,
}
"""Requests that wait for other replicas, coordinators or the remote tier, and how long each may wait."""

OF_CONTROLLER = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.DESCRIBE_QUORUM,
    }
)
"""KIP-631: requests to which the active controller responds when their records are committed, or when it resigns; other
brokers forward some of them to it. A controller that no fault keeps from a majority commits them or resigns within
``Settings.settled_us``."""

OF_REBALANCE = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Consumer protocol: they wait for the slowest rebalance timeout of the group's members. The first rebalance waits for
``group.initial.rebalance.delay.ms`` at least, and what it decides is replicated within the timeout of commits."""


OF_CONTROLLER_ALONE = frozenset(
    {
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    }
)
"""Requests that brokers send to the active controller, and that nobody forwards."""

OF_GROUP = frozenset(
    {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT, ApiKey.LEAVE_GROUP}
)
VERIFIED = frozenset({ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT})
OF_TRANSACTION = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})


class RequestsCompleted(Check):
    """responses-after-heal: each request to a node that no fault affects has exactly one response, in time.

    The response has the API, the version and the correlation ID of the request. In place of a response, the node may
    close the connection of a request that it does not serve: while it starts or stops, in a version that it does not
    have, and for acks=0, which has no response to report an error with. A request that waits has a time limit
    (``BY_API``, ``OF_CONTROLLER``, ``OF_REBALANCE``). All others depend on no other node, so their limit is 0.
    Kafka's GroupCoordinatorService: OffsetFetch with ``require_stable`` waits until all commits before it are
    replicated, for ``offsets.commit.timeout.ms``. Physical: a new coordinator does not know yet whether the commits
    that it has loaded are replicated. Where the log has nothing to replicate the limit of OffsetFetch is 0, too.
    Physical: a node that is paused, or whose disk is slow, responds after that, so the time counts from the end of its
    last fault.

    No request stays parked at a node that has lost the role which it needs: a new leader, coordinator or controller can
    serve it (NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR, NOT_CONTROLLER). And no produce or DeleteRecords gets
    REQUEST_TIMED_OUT before its timeout, or from a node that does not lead any more.
    """

    guarantee = "responses-after-heal"
    acts_on: ClassVar[tuple[Kind, ...]] = (Request, Reply, Close, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending: PendingRequests[Waiting] = PendingRequests()
        self._rebalance_us: dict[str, int] = {}
        """by group: the longest rebalance timeout that any member ever had"""
        self._nodes: dict[int, Node] = {}
        """the incarnation of each node that was seen last"""
        self._scan_at_us = 0

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id, kind = node.broker.node_id, type(event)
        if event is None and self._nodes.get(node_id) is not node:  # A shutdown has no event, either.
            self._nodes[node_id] = node
            self._pending.restarted(node_id)
        elif type(event) is Request:
            behind = event.api_key == ApiKey.OFFSET_FETCH and _is_behind(node, event.body)
            self._pending.add(node_id, event, Waiting(at_us, event, node.broker.config, waits_for_replicas=behind))
            if event.api_key == ApiKey.JOIN_GROUP:
                self._joined(event.body)
        elif kind is Closed:
            self._pending.closed(node_id, event.connection)  # type: ignore[union-attr]
        for effect in effects:
            if type(effect) is Reply:
                self._responded(at_us, node_id, effect)
            elif type(effect) is Close:
                self._closed(at_us, node, effect)
        if at_us >= self._scan_at_us:
            self._scan_at_us = at_us + SCAN_US
            self._scan(at_us)

    def _joined(self, body: Any) -> None:
        of_member = int(max(body.rebalance_timeout, body.session_timeout).total_seconds() * 1_000_000)
        self._rebalance_us[body.group_id] = max(self._rebalance_us.get(body.group_id, 0), of_member)

    def _responded(self, at_us: int, node_id: int, reply: Reply) -> None:
        waiting = self._pending.pop(node_id, reply)
        if waiting is None:
            self.violated(
                at_us, f"node {node_id} sent {_name(reply)} on connection {reply.connection} without a request"
            )
            return
        self.evidence += 1
        request = waiting.request
        of_request = request.api_key, request.api_version
        # KIP-511: the response to a version of ApiVersions that is not served has version 0.
        if (reply.api_key, reply.api_version) != of_request and reply.api_key != ApiKey.API_VERSIONS:
            self.violated(at_us, f"node {node_id} responded with {_name(reply)} to {_described(waiting)}")
        waited_us = at_us - waiting.at_us
        if waited_us > SLICES_US:
            self._judge(at_us, node_id, waiting, "responded to")
        if request.api_key in _MAY_TIME_OUT and _has_timed_out(reply.body):
            role = _lost_role(self._nodes[node_id], request) if node_id in self._nodes else ""
            if waited_us < _own_us(request.body) or role:
                how = f"responded with REQUEST_TIMED_OUT after {waited_us} us to {_described(waiting)}"
                self.violated(at_us, f"node {node_id} {how}" + (f", although it was not {role}" if role else ""))

    def _closed(self, at_us: int, node: "Node", close: Close) -> None:
        node_id = node.broker.node_id
        for waiting in self._pending.of_connection(node_id, close.connection):
            request = waiting.request
            is_served = request.body is not None and request.api_version < FIRST_DRAFT_VERSION
            has_response = request.api_key != ApiKey.PRODUCE or getattr(request.body, "acks", 0) != 0
            if node.ready and is_served and has_response:
                self.violated(at_us, f"node {node_id} closed the connection of {_described(waiting)}: {close.reason}")
        self._pending.closed(node_id, close.connection)

    def _scan(self, at_us: int) -> None:
        for node_id, waiting in self._pending.all():
            if at_us - waiting.at_us > SLICES_US:
                self._judge(at_us, node_id, waiting, "has not responded to")
                self._judge_role(at_us, node_id, waiting)

    def _judge_role(self, at_us: int, node_id: int, waiting: Waiting) -> None:
        role = _lost_role(self._nodes[node_id], waiting.request) if node_id in self._nodes else ""
        if not role:
            waiting.unserved_us = -1
        elif waiting.unserved_us < 0:
            waiting.unserved_us = at_us
        else:
            since_us = max(waiting.unserved_us, self.context.quorum.fault_times.nodes.get(node_id, 0))
            # KIP-890: what the transaction's coordinator verifies is not in the log yet, and waits for its response.
            is_verified = waiting.request.api_key in VERIFIED and getattr(
                waiting.request.body, "transactional_id", None
            )
            verified_us = _verified_ms(waiting.config) * 1000 if is_verified else 0
            if at_us - since_us > SLICES_US + verified_us and not waiting.reported:
                waiting.reported = True
                self.violated(
                    at_us,
                    f"node {node_id} has not responded to {_described(waiting)}, although it has not been {role} for "
                    f"{(at_us - since_us) // 1000} ms",
                )

    def _judge(self, at_us: int, node_id: int, waiting: Waiting, how: str) -> None:
        """Report a response that is too late, once."""
        limit = self._limit_of(waiting)
        fault_times = self.context.quorum.fault_times
        since_us = max(waiting.at_us, fault_times.nodes.get(node_id, 0))
        if limit.of_quorum:
            # Physical: without a majority nothing is committed. A change waits for the slowest link to a voter.
            since_us = max(since_us, fault_times.last_us())
        if waiting.reported or at_us - since_us <= limit.us + SLICES_US:
            return
        waiting.reported = True
        self.violated(
            at_us,
            f"node {node_id} {how} {_described(waiting)} after {(at_us - waiting.at_us) // 1000} ms, although no fault "
            f"affected it for {(at_us - since_us) // 1000} ms and {limit.why} allows {limit.us // 1000} ms",
        )

    def _limit_of(self, waiting: Waiting) -> Limit:
        request, config = waiting.request, waiting.config
        key, body = request.api_key, request.body
        if body is None:
            return Limit(0, "no wait for other nodes")
        if key in OF_CONTROLLER:
            return Limit(_own_us(body) + self.context.settings.settled_us, "the quorum", of_quorum=True)
        if key in OF_REBALANCE:
            others_us = (config.group_initial_rebalance_delay_ms + config.offsets_commit_timeout_ms) * 1000
            return Limit(self._rebalance_us.get(getattr(body, "group_id", ""), 0) + others_us, "the rebalance")
        if waiting.waits_for_replicas:
            return Limit(*_of_commit(body, config))
        of_api = BY_API.get(key)
        return Limit(0, "no wait for other nodes") if of_api is None else Limit(*of_api(body, config))


_MAY_TIME_OUT = frozenset({ApiKey.PRODUCE, ApiKey.DELETE_RECORDS})


def _has_timed_out(body: Any) -> bool:
    """Return whether any partition of the response has REQUEST_TIMED_OUT."""
    topics: Any = getattr(body, "responses", ()) or getattr(body, "topics", ())
    return any(
        int(partition.error_code) == ErrorCode.request_timed_out for topic in topics for partition in topic.partitions
    )


def _lost_role(node: "Node", request: Request) -> str:
    """Return the role that the request needs and the node does not have, in words. It is empty if the node has it."""
    key, body = request.api_key, cast("Any", request.body)
    if body is None:
        return ""
    if key in OF_CONTROLLER_ALONE:
        return "" if node.broker.quorum.is_leader else "the controller"
    if key == ApiKey.PRODUCE and body.acks == -1:
        names = node.broker.loader.image.topic_names
        named = [(topic.topic or names.get(topic.topic_id, ""), topic.partitions) for topic in body.topics]
        led = (_leads(node, topic, partition.partition) for topic, partitions in named for partition in partitions)
        return "" if any(led) else "the leader of its partitions"
    groups = _groups_of(body) if key == ApiKey.OFFSET_FETCH else [body.group_id] if key in OF_GROUP else []
    if groups:
        lost = [_lost_coordinator(node, OFFSETS_TOPIC, group) for group in groups]
        return lost[0] if all(lost) else ""
    transactional_id = body.transactional_id if key in OF_TRANSACTION else None
    return _lost_coordinator(node, TRANSACTION_TOPIC, str(transactional_id)) if transactional_id else ""


def _groups_of(body: Any) -> list[str]:
    """Return the groups of an OffsetFetch. The draft's versions have one."""
    return [str(group.group_id) for group in body.groups] if hasattr(body, "groups") else [str(body.group_id)]


def _is_behind(node: "Node", body: Any) -> bool:
    """Return whether the log of any group of an OffsetFetch has records that are not replicated."""
    image = node.broker.loader.image.topics.get(OFFSETS_TOPIC)
    if body is None or image is None:
        return False
    for group in _groups_of(body):
        led = node.broker.partitions.by_name.get((OFFSETS_TOPIC, offsets_partition(group, len(image.partitions))))
        if led is not None and led.log.high_watermark < led.log.log_end_offset:
            return True
    return False


def _lost_coordinator(node: "Node", topic: str, key: str) -> str:
    """Return the coordinator's role if the node does not lead the key's partition of the internal topic. Groups and
    transactional IDs are assigned to partitions in the same way."""
    image = node.broker.loader.image.topics.get(topic)
    if image is None or _leads(node, topic, offsets_partition(key, len(image.partitions))):
        return ""
    return "the coordinator"


def _leads(node: "Node", topic: str, index: int) -> bool:
    partition = node.broker.partitions.by_name.get((topic, index))
    return partition is not None and partition.followed_leader is None


def _name(message: Request | Reply) -> str:
    return f"{api_name(message.api_key)} v{message.api_version} (correlation ID {message.correlation_id})"


def _described(waiting: Waiting) -> str:
    request = waiting.request
    sender = f"{request.client_id!r} on connection {request.connection}"
    return f"{_name(request)} of {sender}, which came at {waiting.at_us} us"


class ControllerCheck(QuorumCheck):
    """Base of checks of what an undisturbed controller does in time. ``look`` is called once a second."""

    acts_on: ClassVar[tuple[Kind, ...]] = (Request, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self.fault_times = self.quorum.fault_times
        self._leads_since_us: dict[int, int] = {}
        """by node: when it became leader of the quorum last"""
        self._look_at_us = 0

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.leads and not (before.leads and before.epoch == after.epoch):
            self._leads_since_us[member.node_id] = at_us

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if at_us >= self._look_at_us:
            self._look_at_us = at_us + LOOK_US
            self.look(at_us)

    @abstractmethod
    def look(self, at_us: int) -> None:
        """Judge what the controller has done until now."""

    def controller_since(self, from_us: int, without: int = -1) -> Member | None:
        """Return the node that has led the quorum since ``from_us``, with a majority of voters that no fault has
        affected since then. The voter ``without`` counts as affected. Return None if there is none."""
        times = self.fault_times
        for member in self.quorum.nodes:
            leader = member.node_id
            if not member.leads or self._leads_since_us[leader] > from_us or times.node_since(leader, from_us):
                continue
            calm = sum(
                node.is_voter
                and node.node_id != without
                and not times.node_since(node.node_id, from_us)
                and not times.between_since(leader, node.node_id, from_us)
                for node in self.quorum.nodes
            )
            # Physical: without a majority the controller commits nothing.
            if calm >= self.quorum.majority:
                return member
        return None

    def is_idle(self, member: Member) -> bool:
        """Return whether all that the controller has written is committed and published. So it could write more,
        whatever the links to the other voters are like."""
        seen = member.seen
        return bool(member.replica.loader.last_offset + 1 == seen.high_watermark == seen.end_offset)

    def calm_since_us(self, member: Member, since_us: int) -> int:
        """Return ``since_us``, or the end of the last fault of the controller after it."""
        return max(since_us, self.fault_times.nodes.get(member.node_id, since_us))


IDLE_US = 1_000_000
"""An idle controller has written the record for what is due within this time. No clause gives one."""


class SilentFenced(ControllerCheck):
    """no-false-fencing, the other way round (KIP-631): a broker whose heartbeats do not arrive is fenced in time.

    Heartbeats of an earlier or a later start of the broker have another broker epoch, so they do not count. A
    controller that nothing disturbs fences it ``broker.session.timeout.ms`` after the last heartbeat, or after the
    controller's own start. ``Settings.session_us`` has 3 s more for its check and for the commit. So has one that is
    idle later, when it has nothing to commit.
    """

    guarantee = "no-false-fencing"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._last_us: dict[tuple[int, int, int], int] = {}
        """by controller, broker and broker epoch: when the last heartbeat arrived"""
        self._session_us = 0

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        self._session_us = node.broker.config.broker_session_timeout_ms * 1000
        if type(event) is Request and event.api_key == ApiKey.BROKER_HEARTBEAT:
            body: Any = event.body
            self._last_us[node.broker.node_id, int(body.broker_id), int(body.broker_epoch)] = at_us
        super().acted(at_us, node, event, effects)

    def look(self, at_us: int) -> None:
        limit_us = self.context.settings.session_us
        for member in self.quorum.nodes:
            if member.leads:
                since_us = self._leads_since_us[member.node_id]
                for broker in self._unfenced(member):
                    key = member.node_id, broker.broker_id, broker.broker_epoch
                    last_us = max(self._last_us.get(key, 0), since_us)
                    self.evidence += at_us - last_us > self._session_us // 2
                    calm_us = at_us - self.calm_since_us(member, last_us)
                    if calm_us > limit_us + IDLE_US and self.is_idle(member):
                        self._report(at_us, member, broker.broker_id, last_us, "it was idle")
                    elif at_us - last_us > limit_us:
                        self._overdue(at_us, member, broker.broker_id, last_us)

    def _unfenced(self, member: Member) -> list[BrokerImage]:
        """Return the brokers other than the controller's own, which sends its heartbeats inside its process."""
        brokers = member.replica.loader.image.brokers.values()
        return [broker for broker in brokers if not broker.fenced and broker.broker_id != member.node_id]

    def _overdue(self, at_us: int, member: Member, broker: int, last_us: int) -> None:
        if self.controller_since(at_us - self.context.settings.session_us, without=broker) is member:
            why = "no fault affected the controller and a majority of voters"
            self._report(at_us, member, broker, last_us, why)

    def _report(self, at_us: int, member: Member, broker: int, last_us: int, why: str) -> None:
        self.violated(
            at_us,
            f"controller {member.node_id} has not fenced broker {broker}, which sent no heartbeat for "
            f"{(at_us - last_us) // 1000} ms, although {why}",
        )


UNFENCED_US = 2_000_000
"""A controller unfences a broker within this time of the first heartbeat that shows it to be ready. No clause gives
one."""


class ReadyUnfenced(ControllerCheck):
    """responses-after-heal, during the run (KIP-631): a fenced broker that says it is ready is unfenced.

    It is ready when it requests neither to be fenced nor to shut down, and has the metadata up to its registration. The
    heartbeats count while they come without a gap of a session. The controller must be idle, so that a write that its
    disk has refused excuses nothing for long.
    """

    guarantee = "responses-after-heal"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._ready: dict[tuple[int, int, int], tuple[int, int]] = {}
        """by controller, broker and broker epoch: when the first and the last of such heartbeats came"""
        self._session_us = 0

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._session_us = node.broker.config.broker_session_timeout_ms * 1000
        if event is None:
            self._ready = {key: times for key, times in self._ready.items() if key[0] != node_id}
        elif type(event) is Request and event.api_key == ApiKey.BROKER_HEARTBEAT:
            body: Any = event.body
            key = node_id, int(body.broker_id), int(body.broker_epoch)
            if body.want_fence or body.want_shut_down or int(body.current_metadata_offset) < key[2]:
                self._ready.pop(key, None)
            else:
                first_us, last_us = self._ready.get(key, (at_us, at_us))
                is_gap = at_us - last_us >= self._session_us
                self._ready[key] = at_us if is_gap else first_us, at_us
        super().acted(at_us, node, event, effects)

    def look(self, at_us: int) -> None:
        for member in self.quorum.nodes:
            if not member.leads:
                continue
            for broker in member.replica.loader.image.brokers.values():
                key = member.node_id, broker.broker_id, broker.broker_epoch
                if not broker.fenced or key not in self._ready:
                    continue
                first_us, last_us = self._ready[key]
                since_us = self.calm_since_us(member, max(first_us, self._leads_since_us[member.node_id]))
                self.evidence += 1
                # The last heartbeat must be fresh: a broker that has gone silent since then stays fenced.
                is_due = last_us - since_us > UNFENCED_US and at_us - last_us < self._session_us // 2
                if is_due and self.is_idle(member):
                    self.violated(
                        at_us,
                        f"controller {member.node_id} has not unfenced broker {broker.broker_id}, whose heartbeats "
                        f"have said for {(last_us - since_us) // 1000} ms that it is ready (KIP-631)",
                    )


class ReadyInTime(ControllerCheck):
    """responses-after-heal, during the run (KIP-631): a node that no fault affects any more serves clients.

    It waits until its last session has expired, registers with the controller, opens its logs and is unfenced. That
    takes ``Settings.session_us`` and, for a controller that was elected meanwhile, ``Settings.settled_us``. In this
    time no fault may affect the node, the controller, their links, and a majority of voters.
    """

    guarantee = "responses-after-heal"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._nodes: dict[int, Node] = {}
        self._judged: dict[int, tuple[Node, bool]] = {}
        """by node: the incarnation that was judged last, and whether it was ready"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if event is None:
            self._nodes[node.broker.node_id] = node
        super().acted(at_us, node, event, effects)

    def look(self, at_us: int) -> None:
        settings, times = self.context.settings, self.fault_times
        from_us = at_us - settings.session_us - settings.settled_us
        waiting = [
            (node_id, node)
            for node_id, node in self._nodes.items()
            if not times.node_since(node_id, from_us) and self._judged.get(node_id) != (node, node.ready)
        ]
        controller = self.controller_since(from_us) if waiting else None
        if controller is None:
            return
        for node_id, node in waiting:
            # Physical: a node that is cut off from the controller cannot register.
            if not times.between_since(node_id, controller.node_id, from_us):
                self._judged[node_id] = (node, node.ready)
                self.evidence += 1
                if not node.ready:
                    self.violated(
                        at_us,
                        f"node {node_id} does not serve, although no fault has affected it and controller "
                        f"{controller.node_id} for {(at_us - from_us) // 1000} ms",
                    )


class LedInTime(ControllerCheck):
    """replicas-converge, during the run (E-3, E-5): a partition that has a replica to elect has a leader.

    An undisturbed controller elects one within ``Settings.settled_us``: from the ISR, else from the ELR, else the last
    leader if there is no other replica. A replica can be elected if its broker is unfenced and does not shut down, and
    has the replica's directory (E-6).
    """

    guarantee = "replicas-converge"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._image: MetadataImage | None = None
        """the image that was searched last"""
        self._since_us: dict[tuple[str, int], int] = {}
        """when each partition was first found without its leader, though a replica can be elected"""

    def look(self, at_us: int) -> None:
        controller = next((node for node in self.quorum.nodes if node.leads), None)
        if controller is None:
            return
        image = controller.replica.loader.image
        if image is not self._image:
            self._image = image
            self._since_us = {key: self._since_us.get(key, at_us) for key in self._leaderless(image)}
        from_us = at_us - self.context.settings.settled_us
        overdue = [key for key, since_us in self._since_us.items() if since_us < from_us]
        if overdue and self.controller_since(from_us) is controller:
            topic, index = overdue[0]
            partition = image.topics[topic].partitions[index]
            self._since_us.clear()
            self.violated(
                at_us,
                f"controller {controller.node_id} left {topic}-{index} without a leader (leader {partition.leader}, "
                f"ISR {partition.isr}, ELR {partition.elr}) for {(at_us - from_us) // 1000} ms, although it could "
                f"elect {_electable(image, partition)}",
            )

    def _leaderless(self, image: MetadataImage) -> list[tuple[str, int]]:
        live = {broker.broker_id for broker in image.brokers.values() if not broker.fenced}
        leaderless = []
        for name, topic in image.topics.items():
            for index, partition in enumerate(topic.partitions):
                if partition.leader not in live:
                    self.evidence += 1
                    if _electable(image, partition):
                        leaderless.append((name, index))
        return leaderless


_UNREPORTED = (bytes(16), (1).to_bytes(16, "big"))
"""KIP-858: MIGRATING and UNASSIGNED, the directory IDs of replicas whose directory nobody has reported yet."""
_LOST = (2).to_bytes(16, "big")
"""KIP-858: the directory ID of a replica that is in no directory."""


def _electable(image: MetadataImage, partition: PartitionImage) -> list[int]:
    """Return the replicas that E-3 or E-5 let the controller elect now."""
    eligible = (*partition.isr, *partition.elr)
    if not eligible and len(partition.last_known_elr) == 1:
        eligible = partition.last_known_elr
    directories = dict(zip(partition.replicas, partition.directories, strict=False))
    electable = []
    for replica in eligible:
        broker, directory = image.brokers.get(replica), directories.get(replica, _UNREPORTED[0])
        if broker is None or broker.fenced or broker.in_controlled_shutdown or directory == _LOST:
            continue
        if not broker.log_dirs or directory in (*_UNREPORTED, *broker.log_dirs):
            electable.append(replica)
    return electable
