"""What a scenario file says, as frozen values; ``scenarios/README.md`` explains every key.

Times are seconds since the load's start where the name ends in ``_s``. A ``Range`` is inclusive; where a file
gives one number, both ends are that number. Ranges are drawn from the run's seed, so that a search over seeds
moves the fault through the states around it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Range(NamedTuple):
    """``low <= x <= high``."""

    low: int
    high: int


NEEDS = ("interceptor", "signals", "proxy", "drafts", "disk", "clock")
"""What a scenario may ask of the world that plays it. ``interceptor``, ``disk`` and ``clock`` exist only inside our
own broker's process; ``signals`` need a process that we started; ``proxy`` needs the links through Toxiproxy."""

GUARANTEES = (
    "inconsistent-offsets",
    "duplicate",
    "lost-write",
    "unseen",
    "poll-skip",
    "nonmonotonic-poll",
    "int-poll-skip",
    "int-nonmonotonic-poll",
    "nonmonotonic-send",
    "unrequested-partition",
    "fetch-gap",
    "session-epoch-order",
    "session-lost",
    "eviction-rules",
    "metrics-exact",
)
"""Client-level names as in Jepsen's Kafka workload, then the names of the mechanisms' own invariants."""

FROM_WITHIN = ("session-epoch-order", "session-lost", "eviction-rules", "metrics-exact")
"""Guarantees judged from a node's own trace, which only our broker writes."""

STATE_KINDS = (
    "request_dropped",
    "request_duplicated",
    "request_delayed",
    "response_dropped",
    "response_delayed",
    "node_killed",
    "node_paused",
    "node_powered_off",
    "clock_stepped",
    "disk_write_failed",
)
"""Faults that the interceptor can do when a frame or disk write matches (``on = ...``)."""

PLACES = {
    "request": tuple(kind for kind in STATE_KINDS if not kind.startswith(("response", "disk"))),
    "reply": tuple(kind for kind in STATE_KINDS if not kind.startswith(("request", "disk"))),
    "disk_write": ("node_killed", "node_paused", "node_powered_off", "clock_stepped", "disk_write_failed"),
}
"""Where a fault at a state can strike, and which of the kinds it can be there."""

TIMED_KINDS = (
    "node_killed",
    "node_paused",
    "node_powered_off",
    "node_terminated",
    "link_cut",
    "link_delayed",
    "link_reset",
    "link_truncated",
    "link_sliced",
    "link_slowed",
    "link_down",
)
"""Faults done from outside at a time (``at_s = ...``): signals, and links by Toxiproxy or the simulator."""

BEHAVIOURS = ("full", "incremental", "forgetting", "rotating", "resending", "presuming")
"""What a fetcher does: only full fetches without a session; incremental; incremental that forgets and takes back
partitions; that reads some from the start again; that after a lost answer re-sends epoch N; that presumes N + 1."""

ONCE = Range(1, 1)
NOTHING = Range(0, 0)


@dataclass(frozen=True, slots=True)
class Cluster:
    """``config``: broker settings by Kafka's names, values as strings."""

    nodes: int = 1
    config: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    """``config``: topic settings by Kafka's names."""

    name: str
    partitions: int
    config: tuple[tuple[str, str], ...] = ()


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


@dataclass(frozen=True, slots=True)
class Match:
    """Which frames or writes a fault hits; None matches all. ``client_id`` and ``path`` are shell patterns.

    ``api``: Kafka's API key; ``session``: session ID non-zero (true) or zero (false) in the request;
    ``session_epoch`` of the request; ``error``: top-level code of a reply; ``position`` in the file written or the
    snapshot.
    """

    api: int | None = None
    client_id: str | None = None
    session: bool | None = None
    session_epoch: Range | None = None
    error: int | None = None
    role: str | None = None
    path: str | None = None
    position: Range | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. With ``on`` it is done by the interceptor at a state, else from outside at ``at_s``.

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
    node: int = 0
    direction: str = "both"
    """of a link fault: ``upstream`` (requests), ``downstream`` (answers) or ``both``"""
    delay_ms: Range = NOTHING
    jitter_ms: int = 0
    step_ms: int = 0
    cut_bytes: Range = NOTHING
    """link_truncated: bytes that still pass; node_killed on disk_write: bytes of that write that are kept"""
    bytes_per_s: int = 0
    optional: bool = False
    """the run is valid although this fault never fired"""

    @property
    def timed(self) -> bool:
        return self.on == ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``path`` is the file it came from, ``name`` its stem. ``state``: named states set before the load, with their
    value (chaos/presets). ``min_fetches`` / ``min_acked``: fetches and acknowledged records without which the run is
    INVALID (``sim_``: in the simulator). ``mutants``: those that this scenario must turn red."""

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

    @property
    def expected_faults(self) -> tuple[str, ...]:
        """Without which a run shows nothing: a name for each time that a fault must fire, and the states to be set."""
        fired = [fault.name for fault in self.faults if not fault.optional for _ in range(fault.repeat)]
        return (*fired, *(name for name, _ in self.state))
