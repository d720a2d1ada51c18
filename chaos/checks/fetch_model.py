"""Models what each fetch asked for and what each session holds, from requests and answers alone.

Fetches of followers are modelled if they belong to a session. All others are clients'.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from chaos.checks.history import without_node
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import FetchRequest, FetchResponse, PartitionData

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FETCH = 1
FIRST_WITH_TOPIC_IDS = 13
FIRST_REVISION = 1000
FIRST_REVISIONS = (FIRST_REVISION, 1002)
"""The drafts of Fetch that carry the first revision of sessions: the page's, and that of followers."""
READ_COMMITTED = 1
EVICTED = "session_evicted"
"""The note of a node that makes room for another session. Whether it may is judged by eviction-rules."""
FIRST_FROM_FOLLOWERS = 11
"""The least version of Fetch with which a consumer may read from a follower (KIP-392)."""

Named: TypeAlias = tuple[str | bytes, int]
"""(topic, index of the partition). The topic is its ID, or its name in versions of Fetch that have no IDs."""


Told: TypeAlias = tuple[int, int]
"""(high watermark, log start offset) of a partition, as an answer told them."""


@dataclass(slots=True)
class Wish:
    """What the latest request that named a partition said of it, and what the session's answers have told of it.

    ``told`` is None before the first answer and after an error (F-14: the next state is always reported). ``served``
    says whether an answer held records for this offset. The checks of answers keep their own notes here: ``owed``, what
    the next answer must tell, ``fed_at``, the answer since which the partition waits for records (0 if it does not),
    and ``idle_at``, the last answer after which it had no data.
    """

    offset: int
    max_bytes: int
    leader_epoch: int
    told: Told | None = None
    served: bool = False
    owed: str = ""
    fed_at: int = 0
    idle_at: int = 0


Wishes: TypeAlias = dict[Named, Wish]
KeptT = TypeVar("KeptT")


@dataclass(slots=True)
class Session:
    """What a session holds, and its epoch, or the number of the last incremental request that it answered. The checks
    of answers keep what they know of it here, too, so that it goes with the session."""

    wishes: Wishes = field(default_factory=dict)
    number: int | None = None
    _kept: dict[type, Any] = field(default_factory=dict)

    def kept(self, kind: type[KeptT]) -> KeptT:
        """Returns what a check keeps under this class of its own, and makes it at first."""
        if kind not in self._kept:
            self._kept[kind] = kind()
        found: KeptT = self._kept[kind]
        return found


@dataclass(slots=True)
class Asked:
    """One request under way, with all that it asks for, and the epoch or number that it carries in its session.

    ``named`` are the partitions that the request itself names. ``reads_committed`` is its isolation level.
    ``reads_followers`` says whether followers serve it (KIP-392), and ``rack`` is where the client stands.
    ``by_follower`` says that another node replicates with it.
    """

    wishes: Wishes
    session_id: int
    number: int
    incremental: bool
    is_first: bool
    """of the first revision"""
    max_bytes: int
    reads_committed: bool
    named: Wishes
    reads_followers: bool = False
    rack: str = ""
    by_follower: bool = False


@dataclass(slots=True)
class Answer:
    """One answer without a top-level error."""

    node: "Node"
    client_id: str
    session_id: int
    session: Session
    """an empty one if ``session_id`` is 0"""
    asked: Asked
    repeated: bool
    """the answer to a request that was answered before (the first revision's retransmission)"""
    data: dict[Named, PartitionData]

    def led(self, named: Named) -> Partition | None:
        topic, index = named
        led = self.node.broker.partitions
        return led.by_name.get((topic, index)) if isinstance(topic, str) else led.by_id.get((topic, index))

    def served(self, named: Named) -> Partition | None:
        """The partition that the node serves the client from: one that it leads or, if the client may read from
        followers, one that it follows."""
        led = self.led(named)
        if led is not None or not self.asked.reads_followers:
            return led
        topic, index = named
        if isinstance(topic, str):
            known = self.node.broker.controller.image.topics.get(topic)
            topic = b"" if known is None else known.topic_id
        return self.node.broker.partitions.followed.get((topic, index))


@dataclass(slots=True)
class FetchModel:
    """``sessions`` are by node and session ID. They end with the node's process, with an answer that does not name them
    any more, and when the node evicts them.

    ``_asked`` holds the requests under way, by node and connection, then by correlation ID. ``_nodes`` holds the last
    incarnation of each node.
    """

    sessions: dict[tuple[int, int], Session] = field(default_factory=dict)
    _asked: dict[tuple[int, int], dict[int, Asked]] = field(default_factory=dict)
    _nodes: "dict[int, Node]" = field(default_factory=dict)

    def acted(self, node: "Node", event: Event | None, effects: Sequence[Effect]) -> Iterator[Answer]:
        """Takes in what a node did, and yields the answers to fetches in it."""
        node_id = node.broker.node_id
        if event is None:  # It starts, or it was told to shut down and goes on for a while.
            if self._nodes.get(node_id) is not node:
                self.sessions = without_node(self.sessions, node_id)
                self._asked = without_node(self._asked, node_id)
            self._nodes[node_id] = node
        elif type(event) is Request and event.api_key == FETCH and _is_modelled(event):
            body = event.body
            assert isinstance(body, FetchRequest)
            asked_there = self._asked.setdefault((node_id, event.connection), {})
            asked_there[event.correlation_id] = self._read(node_id, event.api_version, body, event.tag.role != "client")
        elif type(event) is Closed:
            self._asked.pop((node_id, event.connection), None)
        for effect in effects:
            if type(effect) is Note and effect.what == EVICTED:
                self.sessions.pop((node_id, int(dict(effect.fields)["session_id"])), None)
            elif type(effect) is Reply and effect.api_key == FETCH and isinstance(effect.body, FetchResponse):
                asked = self._asked.get((node_id, effect.connection), {}).pop(effect.correlation_id, None)
                if asked is not None and effect.body.error_code == 0:
                    yield self._answered(node, asked, effect.body, effect)
        if type(event) is Request:
            waiting = self._asked.get((node_id, event.connection), {}).get(event.correlation_id)
            if waiting is not None and (waiting.incremental or (waiting.is_first and waiting.session_id)):
                # The request was accepted and waits. It changes the session even if its connection is lost. A full
                # request of the first revision replaces the partitions of its session (G-4).
                self._session(node_id, waiting.session_id).wishes = waiting.wishes

    def _read(self, node_id: int, version: int, body: FetchRequest, by_follower: bool) -> Asked:
        incremental = body.fetch_type == 1 if version in FIRST_REVISIONS else body.session_epoch > 0
        named = {
            key: Wish(each.fetch_offset, each.partition_max_bytes, each.current_leader_epoch)
            for key, each in partitions_of(version, body.topics)
        }
        session = self.sessions.get((node_id, body.session_id)) if incremental else None
        held = {} if session is None else session.wishes
        for key, wish in named.items():
            if key in held:
                wish.told = held[key].told  # F-13: being named again overwrites only what the fetcher says.
        wishes = {**held, **named}
        for key, _ in partitions_of(version, body.forgotten):
            wishes.pop(key, None)
        return Asked(
            wishes,
            body.session_id,
            body.session_epoch,
            incremental,
            version in FIRST_REVISIONS,
            body.max_bytes,
            body.isolation_level == READ_COMMITTED,
            named,
            body.replica_id < 0 and version >= FIRST_FROM_FOLLOWERS and version not in FIRST_REVISIONS,
            body.rack_id,
            by_follower,
        )

    def _answered(self, node: "Node", asked: Asked, body: FetchResponse, reply: Reply) -> Answer:
        node_id, data = node.broker.node_id, dict(partitions_of(reply.api_version, body.responses))
        if asked.session_id not in (0, body.session_id):
            self.sessions.pop((node_id, asked.session_id), None)
        session = self._session(node_id, body.session_id) if body.session_id else Session()
        repeated = asked.incremental and session.number == asked.number
        session.wishes = asked.wishes
        if asked.incremental or not (asked.is_first and asked.session_id):
            session.number = asked.number  # G-4: a full request of the first revision keeps the session's number.
        return Answer(node, reply.tag.client_id, body.session_id, session, asked, repeated, data)

    def _session(self, node_id: int, session_id: int) -> Session:
        return self.sessions.setdefault((node_id, session_id), Session())


def _is_modelled(request: Request) -> bool:
    """Nodes fetch the metadata log outside any session."""
    return request.tag.role == "client" or request.tag.session_epoch >= 0


def partitions_of(version: int, topics: Iterable[Any]) -> Iterator[tuple[Named, Any]]:
    """Yields what the topics of a message hold, by the name of the partition in that version.

    A message that did not go through the codec may hold both of a topic's names.
    """
    by_id = version >= FIRST_WITH_TOPIC_IDS and version not in FIRST_REVISIONS
    for topic in topics:
        for each in topic.partitions:
            index = each if isinstance(each, int) else each.partition
            yield (topic.topic_id if by_id else topic.topic, index), each
