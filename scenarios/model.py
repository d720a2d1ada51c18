"""What a scenario file says, as frozen values; ``scenarios/README.md`` explains every key.

Times are seconds since the load's start where the name ends in ``_s``. A ``Range`` is inclusive; where a file
gives one number, both ends are that number. Ranges are drawn from the run's seed, so that a search over seeds
moves the fault through the states around it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from scenarios.vocabulary import (
    BEHAVIOURS,
    NEEDS,
    PLACES,
    REVISIONS,
    STATE_KINDS,
    TIMED_KINDS,
)

__all__ = [
    "BEHAVIOURS",
    "NEEDS",
    "NOTHING",
    "ONCE",
    "PLACES",
    "REVISIONS",
    "STATE_KINDS",
    "TIMED_KINDS",
    "Admins",
    "Cluster",
    "Fault",
    "Fetchers",
    "Groups",
    "Link",
    "Load",
    "Match",
    "MetadataReaders",
    "Mirror",
    "NodeChoice",
    "Producers",
    "Range",
    "Scenario",
    "Swarm",
    "Topic",
]


class Range(NamedTuple):
    """``low <= x <= high``."""

    low: int
    high: int


ONCE = Range(1, 1)
NOTHING = Range(0, 0)

NodeChoice = int | str
"""A node's number, or a role that is resolved when the fault strikes (vocabulary.NODE_ROLES)."""


class Link(NamedTuple):
    """A directed link: ``source`` dials ``target``. Each end a node's number or one of vocabulary.LINK_ENDS."""

    source: NodeChoice
    target: NodeChoice

    def __str__(self) -> str:
        return f"{self.source}>{self.target}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """``nodes`` voters, numbered from 0, then ``observers``. ``config``: broker settings by Kafka's names, values as
    strings."""

    nodes: int = 1
    config: tuple[tuple[str, str], ...] = ()
    observers: int = 0

    @property
    def total(self) -> int:
        """Voters and observers."""
        return self.nodes + self.observers


@dataclass(frozen=True, slots=True)
class Topic:
    """``config``: topic settings by Kafka's names. ``replicas``: replication factor; the idle partitions and the topics
    that admins make have the same."""

    name: str
    partitions: int
    config: tuple[tuple[str, str], ...] = ()
    replicas: int = 1

    @property
    def min_insync(self) -> int:
        """``min.insync.replicas``, 1 unless told."""
        return int(dict(self.config).get("min.insync.replicas", "1"))


@dataclass(frozen=True, slots=True)
class Fetchers:
    """A group of like fetchers. Each reads ``partitions`` partitions of ``topic`` and an idle one of its own, which is
    appended to once. ``sim_count``: how many in the simulator. Fetchers are numbered through all groups, and a client
    ID is ``fetcher-<behaviour>-<number>``.
    """

    name: str
    behaviour: str
    count: int
    sim_count: int
    topic: str
    partitions: int
    poll_interval_ms: int = 100
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 8 << 20
    partition_max_bytes: int = 1 << 20
    revision: str = "final"
    """of the session that it speaks: vocabulary.FETCHER_REVISIONS"""


@dataclass(frozen=True, slots=True)
class Producers:
    """A group of like producers, each at ``rate_per_s`` records a second (open loop), in requests of ``batch_records``,
    over all partitions of ``topic`` in turn. Client IDs are ``producer-<number>``."""

    name: str
    count: int
    sim_count: int
    topic: str
    rate_per_s: float
    sim_rate_per_s: float
    record_bytes: int = 100
    batch_records: int = 10
    acks: int = -1
    idempotent: bool = True


@dataclass(frozen=True, slots=True)
class Admins:
    """A group of like admins, each ``rate_per_s`` operations a second (open loop), drawn by the weights in ``mix``.

    A creation asks for ``topics_per_request`` topics of ``partitions`` partitions each. ``sim_``: in the simulator.
    Client IDs are ``admin-<number>``.
    """

    name: str
    count: int
    sim_count: int
    rate_per_s: float
    sim_rate_per_s: float
    partitions: int
    sim_partitions: int
    topics_per_request: int
    sim_topics_per_request: int
    mix: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class MetadataReaders:
    """Clients that read the whole metadata again and again, each from one node (they are spread over the nodes).
    Client IDs are ``metadata-reader-<number>``."""

    name: str
    count: int
    sim_count: int
    poll_interval_ms: int = 200


@dataclass(frozen=True, slots=True)
class Groups:
    """Like members of the consumer group ``name``; several tables with one name are one group of mixed members. Client
    IDs are ``member-<number>``, numbered through all tables.

    ``protocol``: vocabulary.GROUP_PROTOCOLS; ``assigned``: without membership, each reads all partitions of ``topics``
    and commits as a simple consumer does. ``metadata_epoch``: draft versions, the guard and the waits of the metadata
    epoch, else the usual versions. ``leader_epochs``: sends current leader epochs (KIP-320), else -1. ``static``: with
    a ``group.instance.id``. ``offsets``: vocabulary.OFFSET_PLACES. ``metadata_from``: a node's number, or
    vocabulary.METADATA_SOURCES. ``stay_s``: leaves and begins anew after so long, 0: stays. ``sim_``: in the simulator.
    """

    name: str
    count: int
    sim_count: int
    topics: tuple[str, ...]
    protocol: str = "eager"
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: str = "earliest"
    commit_interval_ms: int = 500
    static: bool = False
    offsets: str = "kafka"
    metadata_from: int | str = "any"
    metadata_interval_ms: int = 1000
    """how often the metadata is asked for although nothing is wrong"""
    session_timeout_ms: int = 6000
    rebalance_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 500
    max_wait_ms: int = 100
    poll_interval_ms: int = 100
    max_bytes: int = 1 << 20
    stay_s: float = 0.0
    sim_stay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Mirror:
    """``count`` group members that copy ``topic`` to the topic of the same name in a second cluster of one node, by an
    idempotent producer; what they have copied they commit to the source cluster. ``reset`` and the switches as those
    of Groups. Client IDs are ``mirror-<number>``, the group is ``mirror``."""

    topic: str
    count: int = 1
    sim_count: int = 1
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: str = "earliest"
    commit_interval_ms: int = 500
    metadata_from: int | str = "alternating"
    metadata_interval_ms: int = 1000
    session_timeout_ms: int = 6000
    heartbeat_interval_ms: int = 500
    poll_interval_ms: int = 50


@dataclass(frozen=True, slots=True)
class Load:
    """``seconds`` live and ``sim_seconds`` in virtual time; then heal, final polls and the final read.

    ``idle_appends_s``: over how many seconds from the load's start the idle partitions get their one append, one
    after the other; 0: all before the load. ``request_timeout_ms``: beyond the time that a request lets the broker
    wait.
    """

    seconds: float
    sim_seconds: float
    topics: tuple[Topic, ...]
    fetchers: tuple[Fetchers, ...]
    producers: tuple[Producers, ...]
    idle_appends_s: float = 0.0
    sim_idle_appends_s: float = 0.0
    request_timeout_ms: int = 2000
    admins: tuple[Admins, ...] = ()
    metadata_readers: tuple[MetadataReaders, ...] = ()
    groups: tuple[Groups, ...] = ()
    mirror: Mirror | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """Which frames, writes or notes a fault hits; None matches all. ``client_id`` and ``path`` are shell patterns.

    ``api``: Kafka's API key; ``session``: session ID non-zero (true) or zero (false) in the request;
    ``session_epoch`` of the request; ``error``: top-level code of a reply; ``position`` in the file written or the
    snapshot; ``role``: who sent the frame (``client``, ``peer``), or what the struck node is at that moment
    (``leader``, ``follower``, ``observer``); ``from_node``: the node that sent the frame. ``note``: the name of a
    Note; ``fields``: what its fields must be (numbers in a range, or texts as shell patterns), and ``remaining``, its
    ``of`` minus its ``number`` or, of a chunk, the bytes of ``size`` behind it.
    """

    api: int | None = None
    client_id: str | None = None
    session: bool | None = None
    session_epoch: Range | None = None
    error: int | None = None
    role: str | None = None
    path: str | None = None
    position: Range | None = None
    from_node: int | None = None
    note: str | None = None
    fields: tuple[tuple[str, Range | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. With ``on`` it is done by the interceptor at a state, else from outside at ``at_s``.

    ``node`` may be a role: at a state the rule watches all nodes and strikes where the node is that at that moment; at
    a time it is resolved when the fault begins. ``total`` counts over all nodes and incarnations. Of the faults with
    the same ``either`` each seed plays one; ``swept``: ``nth`` goes through its range with the seeds, in order
    (``scenarios.draw``).

    State: of the matches of each client ID it hits the ``nth`` and, if ``every`` > 0, each ``every``-th after it, at
    most ``times`` a client (0: no bound) and ``total`` over all (0: no bound), from ``after_s`` to ``until_s`` of the
    load. Time: begins at ``at_s`` and is healed after ``duration_s``; ``repeat`` > 1 begins again every
    ``repeat_every_s``. ``sim_``: the same in the simulator, whose load is shorter. ``restart_after_s``: of a killed,
    powered off or terminated node, -1: never.
    """

    name: str
    kind: str
    on: str = ""
    match: Match = field(default_factory=Match)
    nth: Range = ONCE
    every: int = 0
    times: int = 1
    total: int = 0
    after_s: float = 0.0
    until_s: float = -1.0
    at_s: float = 0.0
    sim_at_s: float = 0.0
    duration_s: float = 0.0
    sim_duration_s: float = 0.0
    repeat: int = 1
    repeat_every_s: float = 0.0
    sim_repeat_every_s: float = 0.0
    restart_after_s: float = 1.0
    node: NodeChoice = 0
    link: Link | None = None
    """of a link fault, never None there: unless told, from the clients to ``node``"""
    clients: bool = False
    """node_isolated: clients cannot reach it either"""
    direction: str = "both"
    """of a link fault: ``upstream`` (bytes from its source), ``downstream`` (bytes to it) or ``both``"""
    delay_ms: Range = NOTHING
    jitter_ms: int = 0
    step_ms: int = 0
    cut_bytes: Range = NOTHING
    """link_truncated: bytes that still pass; at a disk_write: bytes of that write that are kept"""
    bytes_per_s: int = 0
    config: tuple[tuple[str, str], ...] = ()
    """rolling_bounce: settings with which the nodes come back, beside or instead of what they had"""
    between_s: float = 1.0
    """rolling_bounce: from a node's return until the next is stopped"""
    feature: str = ""
    level: int = 0
    """feature_finalized: the name, and the level to which it is raised through UpdateFeatures"""
    optional: bool = False
    """the run is valid although this fault never fired"""
    either: str = ""
    swept: bool = False
    boot: bool = False
    """a state fault that may strike from the first start of the nodes on, not only during the load"""

    @property
    def timed(self) -> bool:
        return self.on == ""


@dataclass(frozen=True, slots=True)
class Swarm:
    """Random faults beside the written ones: each seed draws which of ``kinds`` are on and how often each comes, on
    average one fault every ``every_s`` seconds of the load (``sim_every_s`` in the simulator)."""

    kinds: tuple[str, ...]
    every_s: float
    sim_every_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """``path`` is the file it came from, ``name`` its stem. ``state``: named states set before the load, with their
    value (chaos/presets). ``revisions``: in which it is played, each by itself (scenarios.revisions); with one
    only, the run is of that one. ``min_fetches`` / ``min_acked``: fetches and acknowledged records without which the
    run is INVALID (``sim_``: in the simulator). ``mutants``: those that this scenario must turn red."""

    name: str
    path: str
    number: int | None
    title: str
    clauses: tuple[str, ...]
    needs: tuple[str, ...]
    mutants: tuple[str, ...]
    guarantees: tuple[str, ...]
    min_fetches: int
    min_acked: int
    sim_min_fetches: int
    sim_min_acked: int
    max_schedule_slip_ms: int
    cluster: Cluster
    load: Load
    faults: tuple[Fault, ...]
    state: tuple[tuple[str, int], ...]
    swarm: Swarm | None = None
    revisions: tuple[str, ...] = ("final",)

    @property
    def expected_faults(self) -> tuple[str, ...]:
        """Without which a run shows nothing: a name for each time that a fault must fire (of a rolling bounce for each
        node), and the states to be set.

        Of a scenario that is drawn for a seed (``scenarios.draw``)."""
        nodes = self.cluster.total
        fired = [
            fault.name
            for fault in self.faults
            if not fault.optional
            for _ in range(nodes if fault.kind == "rolling_bounce" else fault.repeat)
        ]
        return (*fired, *(name for name, _ in self.state))
