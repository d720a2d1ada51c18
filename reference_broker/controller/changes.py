"""A change of the metadata: its request, its plan and its outcome.

A ``Change`` holds the request as values of the controller's own. When its turn comes, the controller calls ``plan``
with the situation of that moment. ``plan`` judges the request, keeps its result, and returns the records. It may yield
between slices. When the records are published, or the change is refused, the controller calls ``outcome`` once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import MetadataRecord
from reference_broker.ports.node_ports import RandomSource
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode, bounded_message


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a change is not made."""

    error: ErrorCode
    message: str
    """One sentence for people. Some APIs have no field for it. It is cut where a request made it too long, so that
    every version of a response can hold it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded_message(self.message))


UNKNOWN_TOPIC = Refusal(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
NO_AUTHORIZER = Refusal(ErrorCode.security_disabled, "No Authorizer is configured on the broker")
NOT_CONTROLLER = Refusal(ErrorCode.not_controller, "This is not the active controller: ask for it and try there.")


Answered: TypeAlias = Callable[[Refusal | None], None]
Records: TypeAlias = Iterable[MetadataRecord]
Planning: TypeAlias = Sliced[Records]
Plan: TypeAlias = Callable[[], Records | Planning]
"""Called when it is a change's turn. It judges by the controller's ``latest`` of that moment and returns the records. A
plan that is a generator may yield between slices. The records may be lazy; they are taken in slices too."""

OnBug: TypeAlias = Callable[[str, Exception], None]
"""Called with the name of a change whose plan failed because of a bug, before anything was written. The change is
refused, unless this raises the bug again."""


def raised(_change: str, bug: Exception) -> None:
    """The ``OnBug`` of changes that no client requested."""
    raise bug


@dataclass(slots=True)
class Operation:
    """A change in the queue of the active controller. ``name`` and ``atomic`` are those of a ``Change``; the Begin
    record has the name."""

    name: str
    plan: Plan
    answered: Answered
    atomic: bool = True
    on_bug: OnBug = raised
    as_transaction: bool = False
    """Whether markers are written even around a single batch, as for the bootstrap of an empty log."""


UNITS_PER_ENTRY = 3
"""The cost of one entry of a request, in units of about 10 us."""

Spend: TypeAlias = Callable[[int], bool]
"""Spends a number of units (of about 10 us) of the event's time. Returns True if the plan should yield now."""

FoundT = TypeVar("FoundT")
OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a plan. It does not change until the plan ends, because one change at a time is planned."""

    latest: MetadataImage
    """The metadata with all changes written so far, committed or not. Plans judge by it."""
    published: MetadataImage
    """The metadata that this node publishes."""
    config: BrokerConfig
    spend: Spend
    next_offset: int
    """The offset of the change's first record, if all records fit into one batch."""
    for_topic_ids: RandomSource
    for_placement: RandomSource


ServeLocally: TypeAlias = Callable[[int, object, Callable[[object], None]], None]
"""(API key, request, answer): the node's own APIs."""


class ActiveController(Protocol):
    """The part of the controller that its upkeep needs (``controller.controller.Controller``)."""

    @property
    def is_active(self) -> bool: ...
    @property
    def epoch(self) -> int: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def latest(self) -> MetadataImage: ...
    @property
    def is_writing_transaction(self) -> bool: ...
    @property
    def serve_locally(self) -> ServeLocally: ...
    def submit(self, plan: Plan, answered: Answered, *, name: str = ..., atomic: bool = ...) -> None: ...
    def situation(self) -> Situation: ...


class Change(Protocol[OutcomeT_co]):
    """One request of one caller. ``name`` tells people what a transaction was for.

    A change that is not ``atomic`` may be written in several plain batches where the metadata.version has no
    transactions.
    """

    name: ClassVar[str]
    atomic: ClassVar[bool] = True

    def plan(self, situation: Situation) -> Records | Planning:
        """Return the records, judged by the situation."""
        ...

    def outcome(self, refused: Refusal | None) -> OutcomeT_co:
        """Return the outcome for the caller. ``refused`` is the reason why nothing was written, NOT_CONTROLLER if
        nobody knows whether it was, or None."""
        ...


def outcomes_by_name(
    found: Mapping[str, FoundT | Refusal], names: Iterable[str], refused: Refusal | None
) -> Mapping[str, FoundT | Refusal]:
    """The outcomes of a request whose entries have names. An entry's own refusal takes precedence over that of the
    whole change, but not over NOT_CONTROLLER: the plan was judged by changes that may never be committed."""
    if refused is None:
        return found
    if refused is NOT_CONTROLLER:
        return dict.fromkeys(names, refused)
    judged = ((name, found.get(name)) for name in names)  # A plan that failed has not found all of them.
    return {name: one if isinstance(one, Refusal) else refused for name, one in judged}
