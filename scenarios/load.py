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
    """``config`` holds topic settings by Kafka's names. ``replicas`` is the replication factor."""

    name: str
    partitions: Annotated[int, whole(1, 10_000)]
    replicas: Annotated[int, whole(1, 9)] = 1
    config: Annotated[tuple[tuple[str, str], ...], settings()] = ()

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
    """A group of like fetchers. Each reads ``partitions`` partitions of ``topic`` and an idle one of its own, which is
    appended to once. The partitions are taken in a ring, so that each is read by about the same number of fetchers.
    Fetchers are numbered through all groups, and a client ID is ``fetcher-<behaviour>-<number>``.
    ``revision`` is that of the fetch session. ``first_epoch`` is a session's first epoch, 1 unless the nodes have the
    state ``fetch_session_epoch``. ``newest_version`` is the newest version of Fetch that it speaks.
    """

    name: str = "fetcher"
    behaviour: Annotated[str, text(BEHAVIOURS)]
    count: Count
    sim_count: Count | None = None
    topic: str
    partitions: Annotated[int, whole(0)]
    poll_interval_ms: Pause = 100
    max_wait_ms: Pause = 500
    min_bytes: Annotated[int, whole(0)] = 1
    max_bytes: Bytes = 8 << 20
    partition_max_bytes: Bytes = 1 << 20
    revision: Annotated[str, text(FETCHER_REVISIONS)] = "final"
    first_epoch: Annotated[int, whole(1)] = 1
    newest_version: Annotated[int, whole(4, 18)] = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """A group of like producers. Client IDs are ``producer-<number>``.

    Each sends ``rate_per_s`` records a second (open loop), in requests of ``batch_records``, to all partitions of
    ``topic`` in turn. With ``metadata_epoch`` they speak the draft of Metadata, and drop older metadata (M-5). After
    ``metadata_interval_ms`` they fetch metadata from another node although nothing is wrong; 0 means never. The records
    of a partition have ``keys`` in turn, and ``delete_percent`` of them are tombstones.
    """

    name: str = "producer"
    count: Count
    sim_count: Count | None = None
    topic: str
    rate_per_s: Rate
    sim_rate_per_s: Rate | None = None
    record_bytes: Bytes = 100
    batch_records: Count = 10
    keys: Count = 16
    delete_percent: Percent = 0
    acks: Annotated[int, whole(-1, 1)] = -1
    idempotent: bool = True
    metadata_epoch: bool = False
    metadata_interval_ms: Pause = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admins:
    """A group of like admins. Each does ``rate_per_s`` operations a second (open loop), drawn by the weights in
    ``mix``.

    A creation requests ``topics_per_request`` topics of ``partitions`` partitions each, with the replicas of the first
    topic. Client IDs are ``admin-<number>``. ``metadata_epoch`` and ``metadata_interval_ms`` are as for producers.
    """

    name: str = "admin"
    count: Count = 1
    sim_count: Count | None = None
    rate_per_s: Rate
    sim_rate_per_s: Rate | None = None
    partitions: Partitions = 1
    sim_partitions: Partitions | None = None
    topics_per_request: TopicsPerRequest = 1
    sim_topics_per_request: TopicsPerRequest | None = None
    mix: Annotated[tuple[tuple[str, int], ...], weights(ADMIN_OPERATIONS)]
    metadata_epoch: bool = False
    metadata_interval_ms: Pause = 0


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
    """Like members of the consumer group ``name``. Several tables with one name are one group of mixed members. Client
    IDs are ``member-<number>``, numbered through all tables.

    With ``protocol`` ``assigned`` there is no membership: each reads all partitions of ``topics`` and commits as a
    simple consumer does. With ``metadata_epoch`` members speak draft versions, and use the guard and the waits of the
    metadata epoch; without it they speak the usual versions. With ``leader_epochs`` they send current leader epochs
    (KIP-320), else -1. ``static`` members have a ``group.instance.id``. ``metadata_interval_ms`` is how often a member
    fetches metadata although nothing is wrong. A member leaves and starts again after ``stay_s``; 0 means that it
    stays. Members with a ``rack`` are there and read from followers (KIP-392). ``isolation`` says whether they read
    records of transactions that are not committed. A ``view`` commits nothing: it reads from the beginning in each of
    its lives, and holds the newest record of each key. With ``tombstone_horizon`` it fetches with the draft Fetch 1001,
    and begins again where it may have missed tombstones.
    """

    name: str
    count: Count
    sim_count: Count | None = None
    topics: Annotated[tuple[str, ...], texts()]
    protocol: Annotated[str, text(GROUP_PROTOCOLS)] = "eager"
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: Reset = "earliest"
    commit_interval_ms: Count = 500
    static: bool = False
    offsets: Annotated[str, text(OFFSET_PLACES)] = "kafka"
    metadata_from: MetadataFrom = "any"
    metadata_interval_ms: Count = 1000
    session_timeout_ms: Count = 6000
    rebalance_timeout_ms: Count = 10_000
    heartbeat_interval_ms: Count = 500
    max_wait_ms: Pause = 300
    poll_interval_ms: Pause = 100
    max_bytes: Bytes = 1 << 20
    rack: Annotated[str, text()] = ""
    isolation: Annotated[str, text(ISOLATION_LEVELS)] = "read_uncommitted"
    view: bool = False
    tombstone_horizon: bool = False
    stay_s: Annotated[float, number(0.0)] = 0.0
    sim_stay_s: Annotated[float, number(0.0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """``count`` group members copy ``topic`` to the topic of the same name in a second cluster of one node.

    They write with an idempotent producer, and commit to the source cluster what they have copied. ``reset`` and the
    switches mean the same as in Groups. Client IDs are ``mirror-<number>``, and the group is ``mirror``.
    """

    topic: str
    count: Count = 1
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
    """Like writers of transactions. Client IDs are ``transactional-<number>``, and transactional IDs are the same.

    Each begins ``transactions_per_s`` transactions a second, one after the other, and sends ``batch_records`` records
    to each of ``partitions`` partitions of ``topic``. Of its transactions it aborts ``abort_percent`` on purpose. In
    ``die_percent`` it dies inside, and a successor with the same transactional ID comes after ``away_ms`` at most, or
    never, if ``comes_back`` is false. A transaction that is open for ``timeout_ms`` is aborted by its coordinator.
    Records that are not acknowledged after ``delivery_timeout_ms`` are given up, and their transaction is aborted.
    ``keys`` and ``delete_percent`` are as for producers.
    """

    name: str = "transactional"
    count: Count
    sim_count: Count | None = None
    topic: str
    transactions_per_s: Rate
    sim_transactions_per_s: Rate | None = None
    partitions: Annotated[int, whole(1)] = 2
    batch_records: Count = 5
    record_bytes: Bytes = 100
    keys: Count = 16
    delete_percent: Percent = 0
    abort_percent: Percent = 15
    die_percent: Percent = 5
    away_ms: Count = 2_000
    comes_back: bool = True
    timeout_ms: Count = 5_000
    delivery_timeout_ms: Count = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Members of the group ``name`` that consume ``source``, transform, and produce to ``target``. The offsets belong
    to the transactions, and only committed records are read. Client IDs are ``worker-<number>``, and the transactional
    IDs are ``worker-<number>-writer``.

    A transaction holds what waits after ``commit_interval_ms``. ``abort_percent``, ``die_percent`` and ``away_ms`` are
    as for transactional writers. What was aborted is done again, and a worker that dies sends no LeaveGroup. A worker
    leaves and starts again after ``stay_s``; 0 means that it stays.
    """

    name: str
    count: Count
    sim_count: Count | None = None
    source: str
    target: str
    protocol: Annotated[str, text(("eager", "cooperative"))] = "eager"
    leader_epochs: bool = True
    commit_interval_ms: Count = 300
    poll_interval_ms: Pause = 50
    session_timeout_ms: Count = 6000
    rebalance_timeout_ms: Count = 10_000
    heartbeat_interval_ms: Count = 500
    record_bytes: Bytes = 100
    abort_percent: Percent = 10
    die_percent: Percent = 0
    away_ms: Count = 2_000
    timeout_ms: Count = 5_000
    stay_s: Annotated[float, number(0.0)] = 0.0
    sim_stay_s: Annotated[float, number(0.0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strays:
    """Producers that leave hanging transactions. Client IDs are ``stray-<number>``, and transactional IDs begin with
    them.

    Each leaves ``transactions_per_s`` transactions a second of ``batch_records`` records in one partition of ``topic``,
    that no coordinator knows. Leaders must not verify transactions. A coordinator that knew would abort them after
    ``timeout_ms``.
    """

    name: str = "stray"
    count: Count = 1
    sim_count: Count | None = None
    topic: str
    transactions_per_s: Rate
    sim_transactions_per_s: Rate | None = None
    batch_records: Count = 3
    record_bytes: Bytes = 100
    timeout_ms: Count = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Janitors:
    """Admins that look for hanging transactions in ``topic`` as Kafka's tool does, and abort what they find in two
    looks, one after the other. Client IDs are ``janitor-<number>``.

    A look begins every ``interval_ms``. Transactions whose producer wrote less than ``older_than_ms`` ago are left
    alone.
    """

    name: str = "janitor"
    count: Count = 1
    topic: str
    interval_ms: Count = 1_000
    older_than_ms: Count = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load lasts ``seconds``. Then faults heal, and final polls and the final read follow.

    The first of ``topics`` is the hot one. Idle partitions, and the topics that admins make, have its replicas. The
    idle partitions get their one append one after the other, during the first ``idle_appends_s`` seconds of the load;
    0 means that all get it before the load. ``request_timeout_ms`` counts beyond the time that a request lets the
    broker wait.
    """

    seconds: Annotated[float, number(0.0)]
    sim_seconds: Annotated[float, number(0.1)] | None = None
    topics: tuple[Topic, ...] = ()
    fetchers: tuple[Fetchers, ...] = ()
    producers: tuple[Producers, ...] = ()
    idle_appends_s: Annotated[float, number(0.0)] = 0.0
    sim_idle_appends_s: Annotated[float, number(0.0)] | None = None
    request_timeout_ms: Count = 2000
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
