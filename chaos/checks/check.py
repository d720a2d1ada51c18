"""Base class of all checks. A check watches one guarantee during a run, and collects its violations.

A check declares what it subscribes to in one of two ways. The attributes of its class name what calls the methods of
``Check``:

- ``rows``: the kinds of trace rows for ``trace``.
- ``acts_on``: the kinds of a node's events and effects for ``acted``.
- ``inspection``: whether ``inspect`` gets the state of nodes, only when everything is compared, or after events, too.
- ``end`` is called in every run, with the history of the clients.

And its ``__init__`` adds methods to the lists of the views, which call them when something of their subject has
changed: ``self.quorum.on_committed.append(self.committed)``. The lists say what they pass. In the simulator the calls
of ``one-abort-per-begin`` are, after each event of a node:

1. ``Machine`` calls ``SimCluster._after_event`` (``chaos/sim``), which calls ``CheckSuite.inspect``.
2. ``CheckSuite.inspect`` calls ``inspect`` of the checks, then ``observe`` of each view, here ``QuorumView.observe``.
3. ``QuorumView.observe`` compares the node's metadata log with the last state that it saw, and calls what is in
   ``on_committed``, with the batches that have become known to be committed.
4. ``TransactionCheck.committed`` reads their records and calls ``record`` of the check, which finds the violation.

The cost of a check is proportional to what an event changed.

Checks run in the simulator. Those with ``needs_one_node`` run inside live nodes, too, and those with
``judges_recordings`` after a live run. Spark jobs judge the recorded history of both worlds by the same guarantees.
"""

import json
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from chaos.checks.groups.group_state import OffsetsView
from chaos.checks.history import History, TopicPartition
from chaos.checks.log.producer_view import ProducerView
from chaos.checks.log.segment_view import SegmentView
from chaos.checks.quorum.quorum_view import QuorumView
from chaos.checks.replication.follower_progress import ProgressView
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.sessions.fetch_model import CompletedFetch, FetchModel
from chaos.checks.transactions.transaction_state import StateView
from reference_broker.core.events import Effect, Event
from reports.guarantees import GUARANTEES
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the cluster that checks need.

    A node is judged only if no fault has affected it for these times.
    """

    first_session_epoch: int = 1
    settled_us: int = 6_000_000
    """after this time a leader of the quorum must stay leader"""
    session_us: int = 12_000_000
    """after this time a broker must stay unfenced"""
    in_sync_us: int = 45_000_000
    """after this time a follower must stay in sync"""
    slices_us: int = 0
    """how much longer nodes may take because a scenario makes each slice of long work short (``sim_slice_items``): each
    slice is an event of its own, up to 2 ms after the one before"""
    tombstone_horizon: bool = False
    """whether replicas heed the marker of their leader (H-1 to H-7)"""
    subscribed: Mapping[str, Sequence[TopicPartition]] = field(default_factory=dict)
    """by group: the partitions that its members share"""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The arguments of a check: the cluster's settings, and the views of it that all checks share."""

    settings: Settings
    quorum: QuorumView
    replicas: ReplicaView
    alone: bool = False
    """whether the check runs inside one node's process and sees no other node"""
    tier: Mapping[str, bytes] = field(default_factory=dict)
    """objects of the remote tier, by their keys"""
    producers: ProducerView = field(default_factory=ProducerView)
    transactions: StateView = field(default_factory=StateView)
    offsets: OffsetsView = field(default_factory=OffsetsView)
    segments: SegmentView = field(default_factory=SegmentView)
    progress: ProgressView = field(default_factory=ProgressView)
    fetches: FetchModel = field(default_factory=FetchModel)

    def is_forgotten(self, producer_id: int | None) -> bool:
        """Return whether the coordinator of the producer's transactional ID may have lost its state (E-7), so that it
        never ends the transactions from before."""
        owner = None if producer_id is None else self.transactions.owners.get(producer_id)
        return owner is not None and self.replicas.transactions_excused(owner[1])


Kind: TypeAlias = type | str | int | tuple[type, int]
"""One kind of what an event touches: the key of the API of its request or of a reply, the name of a note, ``Send``
with the key of the API of a request to another node, or the class of the event or of an effect that is no note
(NoneType for a start). So ``Request``, ``Reply`` and ``Send`` alone are the requests, replies and sends of all APIs."""
MAX_VIOLATIONS = 20
"""A check keeps at most this many violations, the earliest. One is enough to fail a run."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a guarantee that a check has found."""

    guarantee: str
    """public name of the guarantee"""
    at_us: int
    explanation: str
    """what happened, with partition, offset, session and time"""


class Inspection(Enum):
    """The events after which ``inspect`` of a check is called."""

    NEVER = "never"
    ONLY_THOROUGH = "every 1,000 events, and at the end"
    AFTER_EVENTS = "the same, and after each event that is not between nodes"


class Check:
    """Base of all checks. The attributes of its class say which methods are called."""

    guarantee: str = ""
    """name of a guarantee of ``reports/guarantees.py``; a base class has none"""
    rows: ClassVar[tuple[str, ...]] = ()
    """kinds of trace rows that ``trace`` is called with: request, reply, metadata_image, and the names of notes"""
    acts_on: ClassVar[tuple[Kind, ...]] = ()
    """``acted`` is called for events that touch one of these kinds"""
    needs_one_node: ClassVar[bool] = False
    """whether it looks inside one node only, so that a live node's own process can run it"""
    judges_recordings: ClassVar[bool] = False
    """whether it needs only what ``QuorumRecorder`` records of each live node, so that the runner can play it back"""
    inspection: ClassVar[Inspection] = Inspection.NEVER
    """when ``inspect`` is called"""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        assert not cls.guarantee or cls.guarantee in GUARANTEES, f"{cls.__name__} judges an unknown guarantee"

    def __init__(self, context: CheckContext) -> None:
        self.context = context
        self.violations: list[Violation] = []
        """in the order of their times"""
        self.evidence = 0
        """number of things judged by what clients or traces show; with 0 there was nothing to judge"""

    def trace(self, row: TraceRow) -> None:
        """Called with each trace row of its ``rows``, in order, before ``inspect`` is called with the state that the
        row is about. A node's views do not have that state yet."""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """Called with a node's effects for an event (None for its start), before ``inspect`` is called. An event may
        touch none of ``acts_on``."""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        """Called after events (None after the start), but not after those between nodes. Occasionally, and at the end,
        it is called after any event and is ``thorough``: then the check must compare everything, not only what the
        event touched."""

    def end(self, history: History) -> None:
        """Called when the run is over: all faults are healed, the nodes had their time, and all is recorded."""

    def violated(self, at_us: int, explanation: str) -> None:
        insort(self.violations, Violation(self.guarantee, at_us, explanation), key=lambda violation: violation.at_us)
        del self.violations[MAX_VIOLATIONS:]


class QuorumCheck(Check):
    """Base of checks that subscribe to the quorum's view."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum = context.quorum


class ReplicaCheck(Check):
    """Base of checks that subscribe to the replicas' view."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas = context.replicas


class ProducerCheck(Check):
    """Base of checks that subscribe to the producers' view, or read it."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.producers = context.producers
        self.producers.follow(context.replicas)


class StateCheck(Check):
    """Base of checks that subscribe to the view of transactional IDs, or read it."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.transactions = context.transactions
        self.transactions.follow(context.replicas)


class OffsetsCheck(Check):
    """Base of checks that subscribe to the view of the offsets topic, or read it."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.offsets = context.offsets
        self.offsets.follow(context.replicas)


class SegmentCheck(Check):
    """Base of checks that subscribe to the view of segments."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.segments = context.segments
        self.segments.follow(context.replicas)


class FetchCheck(Check):
    """Base of checks of single fetches, which the model of fetches follows from request to response."""

    judges_followers: ClassVar[bool] = False
    """whether ``fetched`` is also called with fetches in sessions of followers"""

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        """Called with each client fetch whose response has no top-level error."""


def fields_of(row: TraceRow) -> Mapping[str, Any]:
    """Return the fields of a note, or of a published image, from its trace row."""
    return _parsed(row.detail)


@lru_cache(64)
def _parsed(detail: str) -> dict[str, Any]:
    """Parse the detail of a row. Several checks get the same row, and several nodes record rows with equal details."""
    fields: dict[str, Any] = json.loads(detail)
    return fields
