"""What a scenario file says, as frozen values; ``scenarios/README.md`` explains every key.

Times are seconds since the load's start where the name ends in ``_s``. A ``Range`` is inclusive; where a file
gives one number, both ends are that number. Ranges are drawn from the run's seed, so that a search over seeds
moves the fault through the states around it.
"""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from scenarios.declared import Number, Settings, Texts, Whole
from scenarios.fields import Range
from scenarios.load import Load
from scenarios.vocabulary import (
    BEHAVIOURS,
    NEEDS,
    PLACES,
    REVISIONS,
    STATE_KINDS,
    SWARM_KINDS,
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
    "Cluster",
    "Fault",
    "Link",
    "Match",
    "NodeChoice",
    "Range",
    "Scenario",
    "Swarm",
]


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

    nodes: Annotated[int, Whole(1, 9)] = 1
    config: Annotated[tuple[tuple[str, str], ...], Settings()] = ()
    observers: Annotated[int, Whole(0, 9)] = 0

    @property
    def total(self) -> int:
        """Voters and observers."""
        return self.nodes + self.observers


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


EveryS = Annotated[float, Number(0.1)]


@dataclass(frozen=True, slots=True)
class Swarm:
    """Random faults beside the written ones: each seed draws which of ``kinds`` are on and how often each comes, on
    average one fault every ``every_s`` seconds of the load (``sim_every_s`` in the simulator)."""

    kinds: Annotated[tuple[str, ...], Texts(SWARM_KINDS)]
    every_s: EveryS
    sim_every_s: EveryS | None = None


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
