"""What one member of a consumer group does, and one that copies from a cluster to another, as values.

Clients differ from stock ones only where a plan says so: ``metadata_epoch`` speaks the draft versions of Metadata,
OffsetCommit and OffsetFetch and keeps M-5, M-6 and M-10; ``leader_epochs`` keeps KIP-320 (stale news of a partition
dropped, fetches name its leader epoch). With neither a client believes whatever a node says of the cluster.
"""

from dataclasses import dataclass
from typing import Final

from bench.fleet.behaviours.metadata_sources import ANY_NODE
from bench.fleet.behaviours.protocol import ClientSettings, TopicPartition

ASSIGNED: Final = "assigned"
PROTOCOLS: Final = ("eager", "cooperative", ASSIGNED)
"""``assigned``: no membership; reads all partitions of its topics and commits as a simple consumer does."""
RESETS: Final = ("earliest", "latest", "none")
"""What a client does about a position that the leader does not have, or without a committed offset (Kafka's
``auto.offset.reset``). With ``none`` it keeps a position that is out of range and asks again; without a committed
offset it begins at the log's start."""
OUTSIDE: Final = "outside"
OFFSETS: Final = ("kafka", OUTSIDE)


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """``partitions``: all of the topics that it subscribes to (or, ``assigned``, reads). ``instance_id``: of a static
    member, empty: a dynamic one. ``offsets`` outside: kept in ``store``, each with its metadata epoch.

    ``metadata_from``: the node that is asked for metadata, ANY_NODE (one drawn each time) or ALTERNATING (one after
    the other). ``metadata_interval_us``: how often, although nothing is wrong. ``stay_us``: leaves after so long,
    forgets all that it knows, and joins again; 0 stays.
    """

    process: str
    group: str
    partitions: tuple[TopicPartition, ...]
    protocol: str = "eager"
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: str = "earliest"
    commit_interval_us: int = 500_000
    instance_id: str = ""
    offsets: str = "kafka"
    metadata_from: int = ANY_NODE
    metadata_interval_us: int = 1_000_000
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 500
    poll_interval_us: int = 100_000
    max_wait_ms: int = 100
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    partition_max_bytes: int = 1 << 20
    stay_us: int = 0

    @property
    def store(self) -> str:
        """Whose offsets are together that are kept outside: a group's whose members take over from each other, else
        this client's own."""
        return self.process if self.protocol == ASSIGNED else self.group

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.topic for each in self.partitions))


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """Copies what ``member`` reads to the topics of the same names in another cluster, partition by partition and value
    by value; an offset is committed once the target has acknowledged the records before it. ``target``: how that
    cluster is reached."""

    member: MemberPlan
    target: ClientSettings
    delivery_timeout_us: int = 30_000_000
    request_wait_ms: int = 1_000
