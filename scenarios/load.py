"""The load: topics, and the clients that write and read them. Each field is declared only here.

The scenario file, the fleet's spec, the simulator and the live runner all follow these classes. Times whose name ends
in ``_s`` are seconds. A ``sim_`` field says how the simulator differs; where it is None, the simulator does the same.
"""

from dataclasses import dataclass
from typing import Annotated

from scenarios.declared import node, number, settings, simulated, text, texts, weights, whole
from scenarios.vocabulary import (
    ADMIN_OPERATIONS,
    BEHAVIOURS,
    FETCHER_REVISIONS,
    GROUP_PROTOCOLS,
    ISOLATION_LEVELS,
    METADATA_SOURCES,
    OFFSET_PLACES,
    RESETS,
)

Count = Annotated[int, whole(1)]
Pause = Annotated[int, whole(0)]
"""A time that may be 0."""
Rate = Annotated[float, number(0.01)]
Bytes = Annotated[int, whole(1)]
Partitions = Annotated[int, whole(1, 100_000)]
TopicsPerRequest = Annotated[int, whole(1, 10_000)]
Reset = Annotated[str, text(RESETS)]
Percent = Annotated[int, whole(0, 100)]
MetadataFrom = Annotated[int | str, node(METADATA_SOURCES)]
MIRROR_GROUP = "mirror"
"""The consumer group of a mirror's members."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the load."""

    name: str
    partitions: Annotated[int, whole(1, 10_000)]
    replicas: Annotated[int, whole(1, 9)] = 1
    """Replication factor."""
    config: Annotated[tuple[tuple[str, str], ...], settings()] = ()
    """Topic settings by Kafka's names, with values as strings."""

    @property
    def min_insync(self) -> int:
        """``min.insync.replicas``, which is 1 by default."""
        return int(dict(self.config).get("min.insync.replicas", "1"))

    @property
    def is_compacted(self) -> bool:
        return "compact" in dict(self.config).get("cleanup.policy", "delete").split(",")

    @property
    def delete_retention_ms(self) -> int:
        """``delete.retention.ms``, which is a day by default."""
        return int(dict(self.config).get("delete.retention.ms", "86400000"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetchers:
    """A group of like fetchers, each of which also reads an idle partition of its own, which is appended to once.

    Fetchers are numbered through all groups, and a client ID is ``fetcher-<behaviour>-<number>``.
    """

    name: str = "fetcher"
    behaviour: Annotated[str, text(BEHAVIOURS)]
    count: Count
    sim_count: Count | None = None
    topic: str
    partitions: Annotated[int, whole(0)]
    """Number of partitions of ``topic`` that each reads. They are taken in a ring, so that each is read by about the
    same number of fetchers."""
    poll_interval_ms: Pause = 100
    max_wait_ms: Pause = 500
    min_bytes: Annotated[int, whole(0)] = 1
    max_bytes: Bytes = 8 << 20
    partition_max_bytes: Bytes = 1 << 20
    revision: Annotated[str, text(FETCHER_REVISIONS)] = "final"
    """Revision of the fetch session."""
    first_epoch: Annotated[int, whole(1)] = 1
    """First epoch of a session. It is 1 unless the nodes have the state ``fetch_session_epoch``."""
    newest_version: Annotated[int, whole(4, 18)] = 18
    """Newest version of Fetch that they speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """A group of like producers. Client IDs are ``producer-<number>``."""

    name: str = "producer"
    count: Count
    sim_count: Count | None = None
    topic: str
    """They write to all its partitions in turn."""
    rate_per_s: Rate
    """Records per second of each producer (open loop)."""
    sim_rate_per_s: Rate | None = None
    record_bytes: Bytes = 100
    batch_records: Count = 10
    """Records of one request."""
    keys: Count = 16
    """Number of keys, which the records of a partition have in turn."""
    delete_percent: Percent = 0
    """Share of the records that are tombstones."""
    acks: Annotated[int, whole(-1, 1)] = -1
    idempotent: bool = True
    metadata_epoch: bool = False
    """Whether they speak the draft of Metadata, and drop older metadata (M-5)."""
    metadata_interval_ms: Pause = 0
    """Interval at which they fetch metadata from another node although nothing is wrong. 0 means never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admins:
    """A group of like admins. Client IDs are ``admin-<number>``."""

    name: str = "admin"
    count: Count = 1
    sim_count: Count | None = None
    rate_per_s: Rate
    """Operations per second of each admin (open loop)."""
    sim_rate_per_s: Rate | None = None
    partitions: Partitions = 1
    """Partitions of each topic that they create. Its replicas are those of the load's first topic."""
    sim_partitions: Partitions | None = None
    topics_per_request: TopicsPerRequest = 1
    """Topics of one CreateTopics request."""
    sim_topics_per_request: TopicsPerRequest | None = None
    mix: Annotated[tuple[tuple[str, int], ...], weights(ADMIN_OPERATIONS)]
    """Operations with the weights by which they are drawn."""
    metadata_epoch: bool = False
    """As for producers."""
    metadata_interval_ms: Pause = 0
    """As for producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReaders:
    """Clients that read the whole metadata again and again, each from one node (they are spread over the nodes).
    Client IDs are ``metadata-reader-<number>``."""

    name: str = "metadata-reader"
    count: Count = 1
    sim_count: Count | None = None
    poll_interval_ms: Count = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Like members of one consumer group. Client IDs are ``member-<number>``, numbered through all tables."""

    name: str
    """The group's ID. Several tables with one name are one group of mixed members."""
    count: Count
    sim_count: Count | None = None
    topics: Annotated[tuple[str, ...], texts()]
    protocol: Annotated[str, text(GROUP_PROTOCOLS)] = "eager"
    """With ``assigned`` there is no membership: each reads all partitions of ``topics``, and commits as a simple
    consumer does."""
    metadata_epoch: bool = True
    """Whether members speak draft versions, and use the guard and the waits of the metadata epoch. Without it they
    speak the usual versions."""
    leader_epochs: bool = False
    """Whether they send current leader epochs (KIP-320) instead of -1."""
    reset: Reset = "earliest"
    commit_interval_ms: Count = 500
    static: bool = False
    """Whether they have a ``group.instance.id``."""
    offsets: Annotated[str, text(OFFSET_PLACES)] = "kafka"
    metadata_from: MetadataFrom = "any"
    metadata_interval_ms: Count = 1000
    """Interval at which a member fetches metadata although nothing is wrong."""
    session_timeout_ms: Count = 6000
    rebalance_timeout_ms: Count = 10_000
    heartbeat_interval_ms: Count = 500
    max_wait_ms: Pause = 300
    poll_interval_ms: Pause = 100
    max_bytes: Bytes = 1 << 20
    rack: Annotated[str, text()] = ""
    """The rack of the members, which read from followers there (KIP-392). Empty: they read from leaders."""
    isolation: Annotated[str, text(ISOLATION_LEVELS)] = "read_uncommitted"
    """Whether they read records of transactions that are not committed."""
    view: bool = False
    """Whether they commit nothing, read from the beginning after each start, and keep the newest record of each key."""
    tombstone_horizon: bool = False
    """Whether a ``view`` fetches with the draft Fetch 1001, and begins again where it may have missed tombstones."""
    stay_s: Annotated[float, number(0.0)] = 0.0
    """Time after which a member leaves and starts again. 0 means that it stays."""
    sim_stay_s: Annotated[float, number(0.0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """Group members that copy a topic to the topic of the same name in a second cluster of one node.

    They write with an idempotent producer, and commit to the source cluster what they have copied. Client IDs are
    ``mirror-<number>``, and the group is ``mirror``. Fields without a note mean the same as in Groups.
    """

    topic: str
    """The topic that is copied."""
    count: Count = 1
    """Number of members."""
    sim_count: Count | None = None
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: Reset = "earliest"
    commit_interval_ms: Count = 500
    metadata_from: MetadataFrom = "alternating"
    metadata_interval_ms: Count = 1000
    session_timeout_ms: Count = 6000
    heartbeat_interval_ms: Count = 500
    poll_interval_ms: Pause = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalWriters:
    """Like writers of transactions. Client IDs are ``transactional-<number>``, and transactional IDs are the same."""

    name: str = "transactional"
    count: Count
    sim_count: Count | None = None
    topic: str
    transactions_per_s: Rate
    """Transactions that each begins per second, one after the other."""
    sim_transactions_per_s: Rate | None = None
    partitions: Annotated[int, whole(1)] = 2
    """Number of partitions of ``topic`` in each transaction."""
    batch_records: Count = 5
    """Records that are sent to each of these partitions."""
    record_bytes: Bytes = 100
    keys: Count = 16
    """As for producers."""
    delete_percent: Percent = 0
    """As for producers."""
    abort_percent: Percent = 15
    """Share of the transactions that are aborted on purpose."""
    die_percent: Percent = 5
    """Share of the transactions in which the writer dies."""
    away_ms: Count = 2_000
    """Longest time until a dead writer's successor comes, with the same transactional ID."""
    comes_back: bool = True
    """Whether a dead writer has a successor."""
    timeout_ms: Count = 5_000
    """Time after which the coordinator aborts an open transaction."""
    delivery_timeout_ms: Count = 30_000
    """Time after which a record that is not acknowledged is given up, and its transaction aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Members of a group that consume, transform and produce in transactions. The offsets belong to the transactions,
    and only committed records are read.

    Client IDs are ``worker-<number>``, and the transactional IDs are ``worker-<number>-writer``. What was aborted is
    done again.
    """

    name: str
    """The group's ID."""
    count: Count
    sim_count: Count | None = None
    source: str
    """The topic that they consume."""
    target: str
    """The topic to which they produce."""
    protocol: Annotated[str, text(("eager", "cooperative"))] = "eager"
    leader_epochs: bool = True
    commit_interval_ms: Count = 300
    """Interval after which a transaction takes the records that wait."""
    poll_interval_ms: Pause = 50
    session_timeout_ms: Count = 6000
    rebalance_timeout_ms: Count = 10_000
    heartbeat_interval_ms: Count = 500
    record_bytes: Bytes = 100
    abort_percent: Percent = 10
    """As for transactional writers."""
    die_percent: Percent = 0
    """As for transactional writers. A worker that dies sends no LeaveGroup."""
    away_ms: Count = 2_000
    """As for transactional writers."""
    timeout_ms: Count = 5_000
    stay_s: Annotated[float, number(0.0)] = 0.0
    """Time after which a worker leaves and starts again. 0 means that it stays."""
    sim_stay_s: Annotated[float, number(0.0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strays:
    """Producers that leave hanging transactions, which no coordinator knows. Leaders must not verify transactions.

    Client IDs are ``stray-<number>``, and transactional IDs begin with them.
    """

    name: str = "stray"
    count: Count = 1
    sim_count: Count | None = None
    topic: str
    transactions_per_s: Rate
    """Transactions that each leaves per second, in one partition of ``topic``."""
    sim_transactions_per_s: Rate | None = None
    batch_records: Count = 3
    """Records of each transaction."""
    record_bytes: Bytes = 100
    timeout_ms: Count = 1_000
    """Time after which a coordinator that knew the transaction would abort it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Janitors:
    """Admins that look for hanging transactions in a topic as Kafka's tool does, and abort those that they find twice
    in a row. Client IDs are ``janitor-<number>``."""

    name: str = "janitor"
    count: Count = 1
    topic: str
    interval_ms: Count = 1_000
    """Interval between the beginnings of two searches."""
    older_than_ms: Count = 1_000
    """A transaction whose producer wrote less than this ago is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All clients of a run, and the topics that they use."""

    seconds: Annotated[float, number(0.0)]
    """Duration of the load. Then faults heal, and final polls and the final read follow."""
    sim_seconds: Annotated[float, number(0.1)] | None = None
    topics: tuple[Topic, ...] = ()
    """The first one is the hot one. Idle partitions, and the topics that admins make, have its replicas."""
    fetchers: tuple[Fetchers, ...] = ()
    producers: tuple[Producers, ...] = ()
    idle_appends_s: Annotated[float, number(0.0)] = 0.0
    """Time from the start of the load in which the idle partitions get their one append, one after the other. 0 means
    that all get it before the load."""
    sim_idle_appends_s: Annotated[float, number(0.0)] | None = None
    request_timeout_ms: Count = 2000
    """Timeout beyond the time that a request lets the broker wait."""
    admins: tuple[Admins, ...] = ()
    metadata_readers: tuple[MetadataReaders, ...] = ()
    groups: tuple[Groups, ...] = ()
    mirror: Mirror | None = None
    transactional: tuple[TransactionalWriters, ...] = ()
    workers: tuple[Workers, ...] = ()
    strays: tuple[Strays, ...] = ()
    janitors: tuple[Janitors, ...] = ()

    @property
    def has_transactions(self) -> bool:
        return bool(self.transactional or self.workers or self.strays)

    @property
    def hot(self) -> Topic:
        """The first topic."""
        return self.topics[0]

    @property
    def in_simulator(self) -> "Load":
        """The load at the simulator's size and speed."""
        return simulated(self)
