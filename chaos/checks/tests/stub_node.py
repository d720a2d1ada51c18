"""A node as the checks see it, for their tests: the parts of a broker that checks read, with real values in them.

Metadata, configuration, partitions and followers are the broker's own classes. Only logs are stubs where a test must
set their offsets at will, to states that a real log never reaches.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.committed_offsets import CommittedOffsets
from reference_broker.groups.group import Group
from reference_broker.log.config import LogConfig
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.disk import Disk, MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadata
from reference_broker.replication.leader.replicas import Followers, Replica
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.transactions.transaction_metadata import TransactionMetadata

if TYPE_CHECKING:
    from reference_broker.core.node import Node


@dataclass
class StubEpochs:
    """The leader epochs of a log, each with its first offset at the same index of ``starts``."""

    epochs: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


@dataclass(eq=False)
class StubLog:
    """A log without records, whose offsets a test sets."""

    directory: str = "t-0"
    topic_id: bytes = b""
    log_start_offset: int = 0
    local_log_start_offset: int = 0
    high_watermark: int = 0
    last_stable_offset: int = 0
    log_end_offset: int = 0
    synced_offset: int = 0
    epochs: StubEpochs = field(default_factory=StubEpochs)
    config: LogConfig = field(default_factory=LogConfig)
    is_offline: bool = False
    bases: Sequence[int] = (0,)
    """first offsets of its segments"""
    read: Callable[[int, int, int], bytes] = lambda _offset, _max_bytes, _end_offset: b""
    """returns the batches from an offset on"""

    def as_log(self) -> UnifiedLog:
        return cast(UnifiedLog, self)


@dataclass
class StubImages:
    """Has the image that the node has published last: the metadata loader, and the handle of the controller."""

    image: MetadataImage = EMPTY_IMAGE
    last_offset: int = -1
    """offset of the last record that was replayed"""


@dataclass
class StubQuorum:
    """The role of a node in the quorum of the metadata log."""

    epoch: int = 0
    leader_id: int = -1
    is_leader: bool = False
    voted_id: int = -1
    high_watermark: int = -1
    node_id: int = 0
    has_led: bool = False
    state: Any = None


@dataclass
class StubMetadataLog:
    """The metadata log on the node's disk. ``end`` is the end of its log with the epoch of the last batch."""

    log: StubLog = field(default_factory=lambda: StubLog("__cluster_metadata-0"))
    end: OffsetAndEpoch = OffsetAndEpoch(0, 0)  # noqa: RUF009 - immutable
    start_offset: int = 0

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:
        return self.log.read(offset, max_bytes, end)


@dataclass
class StubSnapshotStore:
    """The snapshots on the node's disk, by the offset and the epoch at their end."""

    ids: list[OffsetAndEpoch] = field(default_factory=list)


@dataclass
class StubControllerState:
    """The active controller's own state."""

    is_writing_transaction: bool = False


@dataclass
class StubQuorumNode:
    """The node's replica of the metadata log, and its part in the quorum."""

    loader: StubImages = field(default_factory=StubImages)
    quorum: StubQuorum = field(default_factory=StubQuorum)
    log: StubMetadataLog = field(default_factory=StubMetadataLog)
    store: StubSnapshotStore = field(default_factory=StubSnapshotStore)
    controller: StubControllerState = field(default_factory=StubControllerState)


@dataclass
class StubGroupCoordinatorShard:
    """The groups and offsets of one partition of ``__consumer_offsets`` at their coordinator."""

    index: int = 0
    led: Partition | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)


@dataclass
class StubTransactionsPartition:
    """The transactional IDs of one partition of ``__transaction_state`` at their coordinator."""

    led: Partition
    entries: dict[str, TransactionMetadata] = field(default_factory=dict)
    index: int = 0
    loaded_end: int = 0


@dataclass
class StubCoordinator:
    """The group coordinator or the transaction coordinator of a node."""

    shards: Sequence[Any] = ()
    """those of the partitions that the node coordinates"""

    def active(self) -> Sequence[Any]:
        return self.shards


@dataclass
class StubSegments:
    """The node's copy of ``__remote_log_metadata``. Each partition has the same segments."""

    listed_segments: Sequence[RemoteLogSegmentMetadata] = ()
    other_segments: Sequence[RemoteLogSegmentMetadata] = ()
    """copies that have begun, failed or been replaced by a newer one"""

    def is_ready(self, *_: object) -> bool:
        return True

    def of(self, *_: object) -> "StubSegments":
        return self

    def listed(self) -> Sequence[RemoteLogSegmentMetadata]:
        return self.listed_segments

    def unfinished(self) -> Sequence[RemoteLogSegmentMetadata]:
        return self.other_segments


@dataclass
class StubRemoteLog:
    """The node's part in the remote tier."""

    metadata: StubSegments = field(default_factory=StubSegments)


@dataclass
class StubSessions:
    """The cache of fetch sessions."""

    sessions: dict[int, Any] = field(default_factory=dict)


@dataclass
class StubPublisher:
    """Applies published metadata to the node's logs and coordinators."""

    is_behind: bool = False
    """whether a publication goes on in later events"""
    not_led: Sequence[Any] = ()
    log: Any = None
    """the log of each partition that is queried"""

    def log_of(self, _: object) -> Any:
        return self.log

    def logs_not_led(self) -> Sequence[Any]:
        return self.not_led

    def resting_logs(self) -> Sequence[Any]:
        return ()


@dataclass
class StubBroker:
    """The node's state that handlers share."""

    node_id: int = 0
    config: BrokerConfig = field(default_factory=BrokerConfig)
    now: Now = field(default_factory=lambda: Now(0, 0))
    disk: Disk = field(default_factory=MemoryDisk)
    partitions: Partitions = field(default_factory=Partitions)
    controller: StubImages = field(default_factory=StubImages)
    groups: StubCoordinator = field(default_factory=StubCoordinator)
    transactions: StubCoordinator = field(default_factory=StubCoordinator)
    remote_log: StubRemoteLog = field(default_factory=StubRemoteLog)
    fetch_sessions: StubSessions = field(default_factory=StubSessions)
    metrics: Any = None
    metadata: Any = None
    quorum_node: StubQuorumNode = field(default_factory=StubQuorumNode)

    def __post_init__(self) -> None:
        self.loader = self.quorum_node.loader = self.controller
        self.quorum = self.quorum_node.quorum


@dataclass(eq=False)
class StubNode:
    """One process of a node. A restarted node is another object."""

    broker: StubBroker = field(default_factory=StubBroker)
    ready: bool = True
    listening: bool = True
    stopped: bool = False
    all_logs: Sequence[Any] = ()
    _publisher: StubPublisher = field(default_factory=StubPublisher)

    def logs(self) -> Sequence[Any]:
        return self.all_logs

    def as_node(self) -> "Node":
        return cast("Node", self)

    @property
    def image(self) -> MetadataImage:
        return self.broker.loader.image

    def publish(self, image: MetadataImage) -> None:
        self.broker.loader.image = image

    def lags_behind_metadata(self, is_behind: bool = True) -> None:
        """Let the node apply a publication over several events, or end that."""
        self._publisher.is_behind = is_behind


def led_partition(
    index: int,
    log: StubLog,
    *,
    leader_epoch: int,
    topic: str = "t",
    topic_id: bytes = b"",
    followers: Sequence[int] = (),
) -> Partition:
    """Return a partition that node 0 leads, with these followers in sync."""
    return Partition(topic, topic_id, index, leader_epoch, log.as_log(), followers=_followers(followers, leader_epoch))


def _followers(ids: Sequence[int], leader_epoch: int) -> Followers | None:
    if not ids:
        return None
    states = {each: Replica(each, 0) for each in ids}
    return Followers(0, leader_epoch, 0, 0, isr=(0, *ids), states=states)


def node_partitions(*partitions: Partition) -> Partitions:
    """Return the node's partitions: those that it leads, and those that it follows."""
    registered = Partitions()
    for partition in partitions:
        if partition.followed_leader is None:
            registered.add(partition)
        else:
            registered.followed[partition.topic_id, partition.index] = partition
    return registered


def image_of(*topics: TopicImage, brokers: Iterable[BrokerImage] = (), **fields: Any) -> MetadataImage:
    """Return an image with these topics and brokers."""
    return MetadataImage(
        topics={topic.name: topic for topic in topics},
        topic_names={topic.topic_id: topic.name for topic in topics},
        brokers={broker.broker_id: broker for broker in brokers},
        **fields,
    )


def topic_image(name: str, *partitions: PartitionImage, topic_id: bytes = b"") -> TopicImage:
    """Return a topic. Without ``partitions`` it has one, which node 0 leads alone."""
    return TopicImage(name, topic_id, partitions or (PartitionImage((0,), (0,), 0, 0, 0),))


def broker_image(broker_id: int, *, broker_epoch: int = 0, fenced: bool = False, **fields: Any) -> BrokerImage:
    """Return a registered broker, which listens on port 9092 of ``host-<ID>``."""
    incarnation_id = fields.pop("incarnation_id", bytes(16))
    return BrokerImage(broker_id, broker_epoch, incarnation_id, f"host-{broker_id}", 9092, fenced, **fields)
