"""Options of a benchmark run."""

from dataclasses import dataclass, field

ROWS = (
    "ladder",
    "start",
    "memory",
    "records",
    "produce",
    "fetch",
    "rest",
    "leader-killed",
    "group-join",
    "rebalance",
    "commits",
    "coordinator-killed",
    "transactions",
    "transform",
    "transaction-coordinator-killed",
    "restart",
    "cleaner",
    "tier-upload",
    "cold-read",
    "failover",
    "metadata",
    "hostile",
)
"""Names of the measurements, in the order in which they run; ``bench/rows`` declares each."""
ALONE = ("ladder", "start", "memory", "records")
"""Rows that are measured when there is no peer and none was chosen."""
OURS = ("failover", "metadata", "hostile")
"""Rows of the reference broker alone, measured only if they were chosen."""
NODES = (1, 3)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amounts that are measured. A number is a count unless its name says a unit. A pair is one measurement on each
    broker."""

    ladder: tuple[int, ...] = (100, 1_000, 5_000, 10_000)
    ladder_blocks: int = 5
    ladder_rounds: int = 100
    starts: int = 5
    cluster_starts: int = 3
    memory_pairs: int = 3
    session_steps: tuple[int, ...] = (1, 10, 100, 1_000)
    session_partitions: int = 50
    session_fetches: int = 200
    record_bytes: tuple[int, ...] = (100, 1_024, 10_240, 102_400, 1_000_000)
    record_blocks: int = 7
    record_rounds: int = 40
    produce_pairs: int = 3
    produce_bytes: int = 300_000_000
    """Bytes of all values in a run on one node. Three nodes get a third of it."""
    fetch_pairs: int = 5
    fetch_bytes: int = 500_000_000
    rest_partitions: int = 10_000
    rest_settle_s: float = 20.0
    rest_windows: int = 5
    rest_window_s: float = 12.0
    kills: int = 3
    """Number of kills of a leader of each kind."""
    join_pairs: int = 5
    rebalance_members: int = 100
    rebalance_pairs: int = 7
    commit_pairs: int = 7
    commit_block: int = 20_000
    """Commits in one block."""
    coordinator_kills: int = 5
    transaction_pairs: int = 5
    transactions: int = 4_000
    """Transactions without records in one block."""
    transform_pairs: int = 5
    transform_records: int = 100_000
    restart_pairs: int = 3
    restart_producers: int = 20_000
    restart_bytes: int = 300_000_000
    cleaner_pairs: int = 3
    cleaner_bytes: int = 100_000_000
    """Bytes of all values that one pass reads."""
    cleaner_load_s: float = 20.0
    tier_pairs: int = 3
    tier_bytes: int = 120_000_000
    """Bytes of all values in a log that goes to the remote tier."""
    failovers: int = 20
    """Number of kills of the controller, and of its pauses."""
    metadata_partitions: int = 10_000
    metadata_creations: int = 7
    metadata_changes: int = 100_000
    metadata_loads: int = 7
    hostile_peers: int = 500
    """Of each kind."""
    hostile_s: float = 45.0


QUICK = Sizes(
    ladder=(100, 1_000),
    ladder_blocks=2,
    ladder_rounds=20,
    starts=2,
    cluster_starts=1,
    memory_pairs=1,
    session_steps=(1, 20),
    session_fetches=40,
    record_bytes=(100, 10_240),
    record_blocks=2,
    record_rounds=10,
    produce_pairs=1,
    produce_bytes=20_000_000,
    fetch_pairs=1,
    fetch_bytes=20_000_000,
    rest_partitions=200,
    rest_settle_s=5.0,
    rest_windows=2,
    rest_window_s=3.0,
    kills=1,
    join_pairs=1,
    rebalance_members=10,
    rebalance_pairs=2,
    commit_pairs=2,
    commit_block=1_000,
    coordinator_kills=1,
    transaction_pairs=1,
    transactions=200,
    transform_pairs=1,
    transform_records=2_000,
    restart_pairs=1,
    restart_producers=500,
    restart_bytes=10_000_000,
    cleaner_pairs=1,
    cleaner_bytes=5_000_000,
    cleaner_load_s=3.0,
    tier_pairs=1,
    tier_bytes=20_000_000,
    failovers=1,
    metadata_partitions=500,
    metadata_creations=2,
    metadata_changes=5_000,
    metadata_loads=2,
    hostile_peers=20,
    hostile_s=4.0,
)
"""Sizes that only show that everything works. No figure of such a run is worth quoting."""


@dataclass(frozen=True, slots=True)
class Options:
    """Rows to measure, and how."""

    peer: str | None = None  # None or ``kafka``
    rows: tuple[str, ...] = ()
    """Some of ROWS. If there are none, ALONE is measured without a peer, and all but OURS beside one."""
    nodes: tuple[int, ...] = NODES  # some of NODES
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown row or number of nodes."""
        for given, known in ((self.rows, ROWS), (self.nodes, NODES)):
            for each in given:
                if each not in known:
                    raise ValueError(f"{each} is not known; there are: {', '.join(map(str, known))}")

    def chosen(self) -> tuple[str, ...]:
        beside = tuple(row for row in ROWS if row not in OURS)
        wanted = self.rows or (beside if self.peer else ALONE)
        return tuple(row for row in ROWS if row in wanted)
