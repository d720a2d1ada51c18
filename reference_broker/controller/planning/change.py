"""Defines a change of the metadata, which is planned once and then has an outcome.

A change holds the request as values of the controller's own. When its turn comes, the controller calls ``plan`` with
the situation of that moment. ``plan`` judges the request, keeps what it found, and returns the records. It may yield
between slices. When the records are published, or the change is refused, the controller calls ``outcome`` once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.operations import Answered, Plan, Planning, Records
from reference_broker.controller.refusal import NOT_CONTROLLER, Refusal
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.chance import RandomSource

UNITS_PER_ENTRY = 3
"""The cost of one entry of a request, in units of about 10 us."""

Spend: TypeAlias = Callable[[int], bool]
"""Spends so many units (of about 10 us) of the event's time. Returns True if the plan should yield now."""

FoundT = TypeVar("FoundT")
OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan may look at. It does not change until the plan ends, because one change at a time is planned.

    ``latest`` is the metadata with all changes written so far, committed or not. Plans judge by it. ``published`` is
    the metadata that this node publishes. ``next_offset`` is the offset of the change's first record, if all records
    fit into one batch. ``for_topic_ids`` and ``for_placement`` are sources of chance.
    """

    latest: MetadataImage
    published: MetadataImage
    config: BrokerConfig
    spend: Spend
    next_offset: int
    for_topic_ids: RandomSource
    for_placement: RandomSource


ServeLocally: TypeAlias = Callable[[int, object, Callable[[object], None]], None]
"""(API key, request, answer): the node's own APIs."""


class ActiveController(Protocol):
    """What its upkeep uses of the controller (``controller.controller.Controller``)."""

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
        """Returns the records, judged by the situation."""
        ...

    def outcome(self, refused: Refusal | None) -> OutcomeT_co:
        """What the caller is told. ``refused`` is the reason why nothing was written, NOT_CONTROLLER if nobody knows
        whether it was, or None."""
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
