"""The interface of a metadata change, and its place in the queue of the active controller.

* ``ControllerWriteOperation``: one request, without any version of an API. ``plan`` returns the records, and
  ``outcome`` the result for the caller (Kafka's generateRecordsAndResult).
* ``ControllerWriteEvent``: an operation in the queue. When its turn comes, the controller calls ``plan`` with the
  ``PlanContext`` of that moment, and writes the records. When the records are published, or the operation is refused,
  the controller calls ``outcome`` once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import MetadataRecord
from reference_broker.ports.node_ports import RandomSource
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode, bounded_message


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error code with its message (Kafka's ApiError): the reason why an operation changes nothing."""

    error: ErrorCode
    message: str
    """One sentence for people, for APIs with a field for it. A message that is too long for some version of a response
    is cut."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded_message(self.message))


UNKNOWN_TOPIC = ApiError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
NO_AUTHORIZER = ApiError(ErrorCode.security_disabled, "No Authorizer is configured on the broker")
NOT_CONTROLLER = ApiError(
    ErrorCode.not_controller,
    "This is not the active controller: find it with Metadata or DescribeCluster, and retry there.",
)


Records: TypeAlias = Iterable[MetadataRecord]
"""The records of a change. They may be made lazily."""

UNITS_PER_ENTRY = 3
"""The cost of one entry of a request, in units of about 10 us."""

Spend: TypeAlias = Callable[[int], bool]
"""Spends a number of units (of about 10 us) of the event's time. Returns True if the plan should yield now."""

FoundT = TypeVar("FoundT")
OutcomeT = TypeVar("OutcomeT")
OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class PlanContext:
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


class ControllerWriteOperation(Protocol[OutcomeT_co]):
    """One request of one caller, or a change that the active controller makes on its own (Kafka's
    QuorumController.ControllerWriteOperation)."""

    name: str
    """The purpose of a transaction, for people. The Begin record has it."""
    atomic: bool = True
    """A change that is not atomic may be written in several plain batches where the metadata.version has no
    transactions."""

    def plan(self, context: PlanContext) -> Records | Sliced[Records]:
        """Validate the request against ``context.latest``, keep the result for ``outcome``, and return the records.

        A plan whose cost grows with the request is a generator. It yields where ``context.spend`` returns True.
        """
        ...

    def outcome(self, refused: ApiError | None) -> OutcomeT_co:
        """Return the result for the caller. ``refused`` is None if the records are published. Otherwise it is the
        reason why nothing was written, or NOT_CONTROLLER if this node cannot know whether it was."""
        ...


OnBug: TypeAlias = Callable[[str, Exception], None]
"""Called with the name of a change whose plan failed because of a bug, before anything was written. The change is
refused, unless this raises the bug again."""


def raise_bug(_change: str, bug: Exception) -> None:
    """The ``OnBug`` of changes that no client requested."""
    raise bug


Completed: TypeAlias = Callable[[ApiError | None], None]
"""Called once for a change: with None when it is published here, or with the reason why it was refused."""


@dataclass(slots=True)
class ControllerWriteEvent:
    """A write operation in the queue of the active controller (Kafka's QuorumController.ControllerWriteEvent)."""

    name: str
    plan: Callable[[], Records | Sliced[Records]]
    """The change's plan. It gets the context of the moment of the call."""
    completed: Completed
    atomic: bool = True
    on_bug: OnBug = raise_bug
    as_transaction: bool = False
    """Whether markers are written even around a single batch, as for the bootstrap of an empty log."""


ServeLocally: TypeAlias = Callable[[int, object, Callable[[object], None]], None]
"""(API key, request, callback for the response): the node's own APIs."""


class ActiveController(Protocol):
    """The part of ``controller.controller.QuorumController`` that its periodic tasks need."""

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
    def append_write_event(
        self,
        operation: ControllerWriteOperation[OutcomeT],
        completed: Callable[[OutcomeT], None],
        on_bug: OnBug | None = None,
    ) -> None: ...


def outcomes_by_name(
    found: Mapping[str, FoundT | ApiError], names: Iterable[str], refused: ApiError | None
) -> Mapping[str, FoundT | ApiError]:
    """The outcomes of a request whose entries have names. An entry's own refusal takes precedence over that of the
    whole change, but not over NOT_CONTROLLER: the plan was judged by changes that may never be committed."""
    if refused is None:
        return found
    if refused is NOT_CONTROLLER:
        return dict.fromkeys(names, refused)
    judged = ((name, found.get(name)) for name in names)  # A plan that failed has not found all of them.
    return {name: one if isinstance(one, ApiError) else refused for name, one in judged}
