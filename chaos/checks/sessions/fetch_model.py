"""A model of fetch sessions: the partitions of each fetch and of each session, from requests and responses alone.

Fetches of followers are modelled if they belong to a session. All others are fetches of clients.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from chaos.checks.history import without_node
from chaos.checks.pending_requests import PendingRequests
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import FetchRequest, FetchResponse, PartitionData

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FETCH = 1
FIRST_WITH_TOPIC_IDS = 13
FIRST_REVISION = 1000
FIRST_REVISIONS = (FIRST_REVISION, 1002)
"""The drafts of Fetch for the first revision of sessions: the page's, and that of followers."""
INVALID_REQUEST = 42
READ_COMMITTED = 1
EVICTED = "session_evicted"
"""The note of a node that evicts a session for another one. eviction-rules judges whether it may."""
FIRST_FROM_FOLLOWERS = 11
"""The least version of Fetch with which a consumer may read from a follower (KIP-392)."""

PartitionName: TypeAlias = tuple[str | bytes, int]
"""(topic, index of the partition). The topic is its ID, or its name in versions of Fetch that have no IDs."""


SentState: TypeAlias = tuple[int, int]
"""High watermark and log start offset of a partition, as last sent to the fetcher."""


@dataclass(slots=True)
class WantedPartition:
    """A partition's fields in the latest request that named it, and its state as last sent in the session."""

    offset: int
    max_bytes: int
    leader_epoch: int
    sent: SentState | None = None
    """None before the first response and after an error (F-14: the next state is always sent)"""
    served: bool = False
    """whether a response had records from this offset"""
    last_epoch: int = -1
    """epoch of the last record that the fetcher has"""
    log_start_offset: int = -1
    """of the fetcher's log"""
    sent_end: int = 0
    """first revision: end offset of the records in the last response that had the partition, 0 if that had none"""
    sent_number: int = -1
    """number of the incremental request that got those records, -1 if a full one did"""

    # Kept by the checks of responses; responses are counted from 1 in each session.
    due: str = ""
    """why the next response must have the partition"""
    fed_at: int = 0
    """number of the response since which the partition waits for records, 0 if it does not"""
    idle_at: int = 0
    """number of the last response after which it had no data"""


WantedPartitions: TypeAlias = dict[PartitionName, WantedPartition]
KeptT = TypeVar("KeptT")


@dataclass(slots=True)
class Session:
    """A session's partitions, and the state of checks about the session, which ends with it."""

    partitions: WantedPartitions = field(default_factory=dict)
    number: int | None = None
    """epoch, or number in the first revision, of the last request that got a response"""
    _kept: dict[type, Any] = field(default_factory=dict)

    def kept(self, kind: type[KeptT]) -> KeptT:
        """Return a check's object of this class, which is created at the first call."""
        if kind not in self._kept:
            self._kept[kind] = kind()
        kept: KeptT = self._kept[kind]
        return kept


@dataclass(slots=True)
class PendingFetch:
    """A request that waits for its response."""

    partitions: WantedPartitions
    """all that it requests, those of its session too"""
    session_id: int
    number: int
    """its epoch, or number in the first revision"""
    incremental: bool
    is_first: bool
    """of the first revision"""
    max_bytes: int
    reads_committed: bool
    """its isolation level"""
    named: WantedPartitions
    """partitions that the request itself names"""
    reads_followers: bool = False
    """whether followers may serve it (KIP-392)"""
    rack: str = ""
    """the client's rack"""
    by_follower: bool = False
    """whether another node replicates with it, which its replica ID says. Its client ID may be damaged on its way."""
    replica_id: int = -1
    min_bytes: int = 0
    max_wait_ms: int = 0
    held_before: WantedPartitions = field(default_factory=dict)
    """the partitions of its session before the request"""
    full_under_way: "Sequence[PendingFetch]" = ()
    """first revision: full requests in its session that had no response when it came"""


@dataclass(slots=True)
class CompletedFetch:
    """A request with its response, which has no top-level error."""

    node: "Node"
    client_id: str
    session_id: int
    session: Session
    """an empty one if ``session_id`` is 0"""
    request: PendingFetch
    repeated: bool
    """whether the request had got a response before (the first revision's retransmission)"""
    data: dict[PartitionName, PartitionData]
    reply: Reply | None = None
    may_be_replaced: bool = False
    """Whether the node may have replaced all partitions of the session just before the request (G-4). Physical: a full
    request that was under way when this one came may be handled before it or after it. It was not handled after it if
    it has its response before this one."""

    def led(self, named: PartitionName) -> Partition | None:
        topic, index = named
        led = self.node.broker.partitions
        return led.by_name.get((topic, index)) if isinstance(topic, str) else led.by_id.get((topic, index))

    def served(self, named: PartitionName) -> Partition | None:
        """Return the partition from which the node serves the client: one that it leads or, if the client may read
        from followers, one that it follows."""
        led = self.led(named)
        if led is not None or not self.request.reads_followers:
            return led
        topic, index = named
        if isinstance(topic, str):
            known = self.node.broker.controller.image.topics.get(topic)
            topic = b"" if known is None else known.topic_id
        return self.node.broker.partitions.followed.get((topic, index))


@dataclass(slots=True)
class FetchModel:
    """The fetch sessions of all nodes.

    A session ends with the node's process, with a response that does not name it any more, and when the node evicts it.
    """

    sessions: dict[tuple[int, int], Session] = field(default_factory=dict)
    """by node and session ID"""
    _pending: PendingRequests[PendingFetch] = field(default_factory=PendingRequests)
    _nodes: "dict[int, Node]" = field(default_factory=dict)
    """last incarnation of each node"""

    def acted(self, node: "Node", event: Event | None, effects: Sequence[Effect]) -> Iterator[CompletedFetch]:
        """Follow a node's effects for an event, and yield the fetches that got a response."""
        node_id = node.broker.node_id
        if event is None:  # It starts, or it was requested to shut down and continues for a while.
            if self._nodes.get(node_id) is not node:
                self.sessions = without_node(self.sessions, node_id)
                self._pending.restarted(node_id)
            self._nodes[node_id] = node
        elif type(event) is Request and event.api_key == FETCH:
            body = event.body
            assert isinstance(body, FetchRequest)
            if _is_modelled(event, body):
                self._pending.add(node_id, event, self._read(node_id, event.api_version, body))
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        for effect in effects:
            if type(effect) is Note and effect.what == EVICTED:
                self.sessions.pop((node_id, int(dict(effect.fields)["session_id"])), None)
            elif type(effect) is Reply and effect.api_key == FETCH and isinstance(effect.body, FetchResponse):
                pending = self._pending.pop(node_id, effect)
                if pending is not None and effect.body.error_code == 0:
                    yield self._completed(node, pending, effect.body, effect)
                elif pending is not None and (effect.body.error_code == INVALID_REQUEST or not pending.is_first):
                    self._refused(node_id, pending)
        if type(event) is Request:
            waiting = self._pending.get(node_id, event)
            if waiting is not None and (waiting.incremental or (waiting.is_first and waiting.session_id)):
                # The request was accepted and waits. It changes the session even if its connection is lost. A full
                # request of the first revision replaces the partitions of its session (G-4).
                self._session(node_id, waiting.session_id).partitions = waiting.partitions

    def pending(self, node_id: int, request: Request) -> PendingFetch | None:
        """Return the fetch of this request, if it has no response yet."""
        return self._pending.get(node_id, request)

    def _read(self, node_id: int, version: int, body: FetchRequest) -> PendingFetch:
        incremental = body.fetch_type == 1 if version in FIRST_REVISIONS else body.session_epoch > 0
        named = {
            key: WantedPartition(
                each.fetch_offset,
                each.partition_max_bytes,
                each.current_leader_epoch,
                last_epoch=each.last_fetched_epoch,
                log_start_offset=each.log_start_offset,
            )
            for key, each in partitions_of(version, body.topics)
        }
        session = self.sessions.get((node_id, body.session_id)) if incremental else None
        held = {} if session is None else session.partitions
        for key, wanted in named.items():
            if key in held:
                wanted.sent = held[key].sent  # F-13: naming a partition again overwrites only the fetcher's own fields.
        partitions = {**held, **named}
        for key, _ in partitions_of(version, body.forgotten):
            partitions.pop(key, None)
        return PendingFetch(
            partitions,
            body.session_id,
            body.session_epoch,
            incremental,
            version in FIRST_REVISIONS,
            body.max_bytes,
            body.isolation_level == READ_COMMITTED,
            named,
            body.replica_id < 0 and version >= FIRST_FROM_FOLLOWERS and version not in FIRST_REVISIONS,
            body.rack_id,
            body.replica_id >= 0,
            body.replica_id,
            body.min_bytes,
            body.max_wait_ms,
            held,
            self._full_under_way(node_id, body.session_id) if incremental and version in FIRST_REVISIONS else (),
        )

    def _full_under_way(self, node_id: int, session_id: int) -> "Sequence[PendingFetch]":
        pending = self._pending.of_node(node_id)
        return [each for each in pending if each.is_first and not each.incremental and each.session_id == session_id]

    def _refused(self, node_id: int, request: PendingFetch) -> None:
        """Undo a request that was refused. G-4: an incremental request of the first revision changes nothing if it
        names a partition outside the session. One of the final revision changes nothing if it has a wrong epoch, or
        names topics in another way than the session (KIP-227, KIP-516).

        A request may be refused several events after its arrival, if it is long or waits for the one before it. One
        that was accepted and gets an error since a newer one has come is not undone: the newer one has its changes."""
        session = self.sessions.get((node_id, request.session_id))
        if session is not None and session.partitions is request.partitions:
            session.partitions = request.held_before

    def _completed(self, node: "Node", request: PendingFetch, body: FetchResponse, reply: Reply) -> CompletedFetch:
        node_id, data = node.broker.node_id, dict(partitions_of(reply.api_version, body.responses))
        if request.session_id not in (0, body.session_id):
            self.sessions.pop((node_id, request.session_id), None)
        session = self._session(node_id, body.session_id) if body.session_id else Session()
        repeated = request.incremental and session.number == request.number
        session.partitions = request.partitions
        if request.incremental or not (request.is_first and request.session_id):
            session.number = request.number  # G-4: a full request of the first revision keeps the session's number.
        pending = self._pending.of_node(node_id) if request.full_under_way else ()
        may_be_replaced = any(all(full is not each for each in pending) for full in request.full_under_way)
        return CompletedFetch(
            node, reply.tag.client_id, body.session_id, session, request, repeated, data, reply, may_be_replaced
        )

    def _session(self, node_id: int, session_id: int) -> Session:
        return self.sessions.setdefault((node_id, session_id), Session())


def _is_modelled(request: Request, body: FetchRequest) -> bool:
    """Return whether it is a client's fetch or belongs to a session. Nodes fetch the metadata log outside sessions, and
    name their replica ID, also if their client ID is damaged on its way."""
    return (request.tag.role == "client" and body.replica_id < 0) or body.session_epoch >= 0


def partitions_of(version: int, topics: Iterable[Any]) -> list[tuple[PartitionName, Any]]:
    """Return the partitions of a message's topics, by the name of the partition in that version.

    A message that did not go through the codec may have both of a topic's names.
    """
    by_id = version >= FIRST_WITH_TOPIC_IDS and version not in FIRST_REVISIONS
    return [
        (
            (
                topic.topic_id if by_id else topic.topic,
                partition if isinstance(partition, int) else partition.partition,
            ),
            partition,
        )
        for topic in topics
        for partition in topic.partitions
    ]
