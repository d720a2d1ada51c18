"""The plans of a member of a consumer group, and of a client that copies from one cluster to another.

Clients differ from stock clients only where a plan says so. With ``metadata_epoch`` a client speaks the draft versions
of Metadata, OffsetCommit and OffsetFetch and keeps M-5, M-6 and M-10. With ``leader_epochs`` it keeps KIP-320: it drops
stale news of a partition, and its fetches name the leader epoch. With neither, it believes what any node says.
"""

from dataclasses import dataclass
from typing import Final

from bench.fleet.behaviours.metadata_sources import ANY_NODE
from bench.fleet.behaviours.protocol import TopicPartition

ASSIGNED: Final = "assigned"
PROTOCOLS: Final = ("eager", "cooperative", ASSIGNED)
"""An ``assigned`` client is no member. It reads all partitions of its topics and commits as a simple consumer."""
RESETS: Final = ("earliest", "latest", "none")
"""What a client does without a committed offset, or if the leader does not have its position (Kafka's
``auto.offset.reset``). With ``none`` it keeps a position that is out of range and asks again. Without a committed
offset it then begins at offset 0."""
OUTSIDE: Final = "outside"
OFFSETS: Final = ("kafka", OUTSIDE)
IN_TRANSACTIONS: Final = "transactions"
"""The offsets of a worker, which its producer sends as part of transactions."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """``partitions`` are all partitions of the topics that it subscribes to or, if ``assigned``, reads. A static member
    has an ``instance_id``; that of a dynamic one is empty. With ``offsets`` outside, ``store`` keeps each offset with
    its metadata epoch.

    ``metadata_from`` is the node that is asked for metadata, ANY_NODE (one is drawn each time) or ALTERNATING (nodes
    take turns). Metadata is asked for every ``metadata_interval_us``, even if nothing is wrong. After ``stay_us`` the
    member leaves, forgets all that it knows, and joins again; 0 means that it stays. A member with a ``rack`` reads
    from followers there, and asks the leader again after ``metadata_interval_us``. One with a ``view`` reads from the
    beginning in each of its lives, and holds the newest record of each key. One with a ``tombstone_horizon`` forgets
    what it holds where it may have missed tombstones.
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
    max_wait_ms: int = 300
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    partition_max_bytes: int = 1 << 20
    stay_us: int = 0
    rack: str = ""
    isolation: str = "read_uncommitted"
    view: bool = False
    tombstone_horizon: bool = False

    @property
    def read_committed(self) -> bool:
        return self.isolation == "read_committed"

    @property
    def store(self) -> str:
        """The name of the store of its outside offsets. Members of a group share one, because they take over from each
        other. An ``assigned`` client has its own."""
        return self.process if self.protocol == ASSIGNED else self.group

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.topic for each in self.partitions))


