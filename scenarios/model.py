"""Scenarios as frozen values. ``docs/scenario-keys.md`` explains every key.

Times whose name ends in ``_s`` are seconds since the load's start. A ``Range`` is inclusive; where a file gives one
number, both ends are that number. A number in a range is drawn from the run's seed, so that a search over seeds moves
the fault through the states around it.
"""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from scenarios.declared import between, number, settings, text, texts, whole
from scenarios.fault_kinds import SWARM_KINDS
from scenarios.fields import Range
from scenarios.load import Load
from scenarios.vocabulary import (
    CODE_PLACES,
    DIRECTIONS,
    ERRORS,
    FRAME_PARTS,
    NEEDS,
    REVISIONS,
    STORE_FAILURES,
)

__all__ = ["Range"]

Natural = Annotated[int, whole(0)]
Seconds = Annotated[float, number(0.0)]
RangeFrom0 = Annotated[Range, between(0)]
Words = Annotated[tuple[str, ...], texts(may_be_empty=True)]
Pairs = Annotated[tuple[tuple[str, str], ...], settings()]

ONCE = Range(1, 1)
NOTHING = Range(0, 0)

NodeChoice = int | str
"""A node's number, or a role that is resolved when the fault fires (vocabulary.NODE_ROLES)."""


class Link(NamedTuple):
    """A directed link: the source dials the target. Each end is a node's number or one of vocabulary.LINK_ENDS."""

    source: NodeChoice
    target: NodeChoice

    def __str__(self) -> str:
        return f"{self.source}>{self.target}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes of the cluster under test, numbered from 0: voters first, observers after them."""

    nodes: Annotated[int, whole(1, 9)] = 1
    """Number of voters."""
    config: Pairs = ()
    """Broker settings by Kafka's names, with values as strings."""
    observers: Annotated[int, whole(0, 9)] = 0
    """Number of nodes without a vote."""
    racks: Words = ()
    """Racks that the nodes are in, in turn. Empty: no racks."""
    sim_slice_items: Annotated[int, whole(0)] = 0
    """Number of items after which each slice of long work ends in the simulator, so that other events come between. 0
    means the broker's own budgets, which seldom end in a small cluster."""
    sim_clock_tick_ms: Annotated[int, whole(1)] = 1
    """In the simulator all wall clocks, those of clients too, move in steps of this size only. So times that lie apart
    by exactly so many milliseconds are common."""

    def config_of(self, node_id: int) -> dict[str, str]:
        """The settings of one node."""
        rack = {"broker.rack": self.racks[node_id % len(self.racks)]} if self.racks else {}
        return {**dict(self.config), **rack}

    @property
    def total(self) -> int:
        """Voters and observers."""
        return self.nodes + self.observers


@dataclass(frozen=True, slots=True)
class Match:
    """Frames, writes or notes that match a fault. None matches all."""

    api: int | None = None
    """Kafka's API key."""
    client_id: str | None = None
    """A shell pattern."""
    session: bool | None = None
    """Whether the request's session ID is non-zero."""
    session_epoch: Range | None = None
    """Session epochs of the request."""
    error: int | None = None
    """Top-level error code of a response."""
    role: str | None = None
    """Who sent the frame (``client``, ``peer``), or what the target node is at that moment (``leader``, ``follower``,
    ``observer``)."""
    path: str | None = None
    """A shell pattern of a file, relative to the node's folder, or of the key of an object."""
    operation: str | None = None
    """One of vocabulary.DISK_OPERATIONS, or at the object store one of STORE_OPERATIONS."""
    position: Range | None = None
    """Positions in the written file or in the snapshot."""
    from_node: int | None = None
    """The node that sent the frame."""
    note: str | None = None
    """The name of a Note."""
    decision: str | None = None
    """An outcome of a decision point, ``NAME=OUTCOME``. None: any outcome."""
    fields: tuple[tuple[str, Range | str], ...] = ()
    """Fields of the note, and what they must be: numbers in a range, or texts as shell patterns. ``remaining`` is the
    note's ``of`` minus its ``number`` or, for a chunk, the bytes of ``size`` behind it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. With ``on`` the interceptor injects it at a state; otherwise it begins from outside at a time.

    The ``sim_`` fields replace those without the prefix in the simulator, whose load is shorter.
    """

    name: str
    kind: str
    on: str = ""
    """One of vocabulary.STATES. Empty: at the time ``at_s``."""
    match: Match = field(default_factory=Match)
    nth: Annotated[Range, between(1)] = ONCE
    """At a state: the first match of each client ID that the fault hits."""
    every: int = 0
    """At a state: with N > 0 it also hits each Nth match after ``nth``."""
    times: int = 1
    """At a state: limit of the hits for each client ID. 0 means no limit."""
    total: Natural = 0
    """At a state: limit of the hits over all nodes and incarnations. 0 means no limit."""
    after_s: Seconds = 0.0
    """At a state: time of the load from which on it hits."""
    until_s: Seconds = -1.0
    """At a state: time of the load until which it hits. -1 means the end."""
    at_s: float = 0.0
    """At a time: when it begins."""
    sim_at_s: float = 0.0
    duration_s: float = 0.0
    """At a time: it is healed after this."""
    sim_duration_s: float = 0.0
    repeat: Annotated[int, whole(1)] = 1
    """At a time: how often it begins, every ``repeat_every_s``."""
    repeat_every_s: float = 0.0
    sim_repeat_every_s: float = 0.0
    restart_after_s: Annotated[float, number(-1.0)] = 1.0
    """Time after which a killed, powered off or terminated node comes back. -1 means never."""
    node: NodeChoice = 0
    """The target. A role is resolved when a fault at a time begins. At a state the rule watches all nodes, and targets
    a node that has the role at that moment."""
    link: Link | None = None
    """The link of a link fault. If the file gives none, it is the one from the clients to ``node``. At a state it is
    the link between two nodes on which the fault hits a frame. Its target is then also ``node``."""
    clients: bool = False
    """For node_isolated: whether clients cannot reach the node either."""
    alone: bool = False
    """For a fault at a time: it waits until all nodes serve."""
    direction: Annotated[str, text(DIRECTIONS)] = "both"
    """For a link fault: ``upstream`` (bytes from the link's source), ``downstream`` (bytes to it) or ``both``."""
    delay_ms: RangeFrom0 = NOTHING
    jitter_ms: Natural = 0
    step_ms: int = 0
    cut_bytes: RangeFrom0 = NOTHING
    """For link_truncated the bytes that still pass. At a disk_write the bytes of that write that are kept. For
    response_truncated the bytes of the response that are still sent."""
    part: Annotated[str, text(FRAME_PARTS)] = "anywhere"
    """For request_damaged and response_damaged: the part of the frame in which one bit is turned over."""
    bytes_per_s: Natural = 0
    error: Annotated[str, text(ERRORS)] = "EIO"
    """For disk_error: why the operation fails."""
    failure: Annotated[str, text(STORE_FAILURES)] = "unavailable"
    """For store_refused: the failure that the node gets."""
    code: Annotated[int, whole(-1, 32_767)] = 0
    code_in: Annotated[str, text(CODE_PLACES)] = "either"
    """For response_error: Kafka's number of the error, and where it is in the response."""
    undo_fails: bool = False
    """For a disk_error at a disk_write: what the write has left cannot be cut off again."""
    names_only: bool = False
    """For disk_slowed: only the syncs of folders take longer, that is, of names."""
    config: Pairs = ()
    """For rolling_bounce: the settings with which nodes come back. They add to or replace those that the nodes had."""
    between_s: Seconds = 1.0
    """For rolling_bounce: the time from a node's return until the next node is stopped."""
    feature: str = ""
    level: Annotated[int, whole(-1)] = -1
    """For feature_finalized: UpdateFeatures raises ``feature`` to this level. 0 switches it off."""
    optional: bool = False
    """Whether the run is valid even if this fault never fired."""
    either: str = ""
    """Of the faults with the same value each seed plays one."""
    swept: bool = False
    """Whether ``nth`` goes through its range with the seeds, in order (``scenarios.derived``)."""
    after: str = ""
    """The name of an earlier fault in the file, without whose hit this one does not fire. Then ``node`` may be
    ``same``: the node that the other fault hit. A fault at a time begins ``at_s`` after that hit. Only in the
    simulator, where all nodes see each other's faults."""
    boot: bool = False
    """Whether a fault at a state may fire before the load, from the first start of the nodes on."""

    @property
    def timed(self) -> bool:
        return self.on == ""


EveryS = Annotated[float, number(0.1)]


@dataclass(frozen=True, slots=True)
class Swarm:
    """Random faults in addition to the written ones. Each seed draws which kinds are on and how often each comes."""

    kinds: Annotated[tuple[str, ...], texts(SWARM_KINDS)]
    """The kinds that a seed may draw."""
    every_s: EveryS
    """Average interval between two faults of the load."""
    sim_every_s: EveryS | None = None
    """The same in the simulator."""
    alone_every_s: EveryS | None = None
    """Average interval between two cuts that keep all others from a node for longer than replicas may lag, if any."""
    sliced_percent: Annotated[int, whole(0, 100)] = 0
    """The share of the seeds in which slices of long work are short (``sim_slice_items``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The content of one scenario file."""

    name: str
    """The file's stem."""
    path: str
    """The file."""
    number: Annotated[int, whole(1)] | None = None
    title: str
    clauses: Words
    needs: Annotated[tuple[str, ...], texts(NEEDS, may_be_empty=True)]
    mutants: Words
    """Those that this scenario must turn red."""
    guarantees: Words
    min_fetches: int
    """With fewer successful fetches the run is INVALID (``sim_``: in the simulator)."""
    min_acked: int
    """With fewer acknowledged records the run is INVALID (``sim_``: in the simulator)."""
    sim_min_fetches: int
    sim_min_acked: int
    max_schedule_slip_ms: Annotated[int, whole(1)]
    cluster: Cluster
    load: Load
    faults: tuple[Fault, ...]
    state: tuple[tuple[str, int], ...]
    """Named states that are set before the load, with their values (``chaos/hooks/presets.py``)."""
    swarm: Swarm | None = None
    external_faults: tuple[Fault, ...] = ()
    """The faults for an external target, instead of ``faults``. Without any they are the same."""
    sim_max_lost_commits: Annotated[int, whole(-1)] = -1
    """With more commits that never got a response the run is INVALID in the simulator. -1 means no bound."""
    min_rewinds: Natural = 0
    """With fewer positions that were out of range for a client, and that it left for an earlier one, the run is
    INVALID, in both worlds."""
    points: Words = ()
    """Outcomes of decision points (``NAME=OUTCOME``) without which a simulated run is INVALID. One that ends in
    ``@final`` or ``@first`` counts in that revision alone (``scenarios.revisions.own_points``)."""
    revisions: Annotated[tuple[str, ...], texts(REVISIONS, may_be_empty=True)] = ("final",)
    """The scenario is played in each by itself (scenarios.revisions). If there is only one, the run is of that one."""

    @property
    def expected_faults(self) -> tuple[str, ...]:
        """The faults and states without which a run shows nothing.

        A fault's name is here for each time that it must fire; a rolling bounce fires once for each node. The
        scenario must be drawn for a seed (``scenarios.derived``).
        """
        nodes = self.cluster.total
        fired = [
            fault.name
            for fault in self.faults
            if not fault.optional
            for _ in range(nodes if fault.kind == "rolling_bounce" else fault.repeat)
        ]
        return (*fired, *(name for name, _ in self.state))
