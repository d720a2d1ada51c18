"""One change of the metadata: its request and outcome, how it is planned in slices, checked, and cut into batches.

A ``Change`` holds the request as values of the controller's own. When its turn comes, the controller calls ``plan``
with the situation of that moment. ``plan`` judges the request, keeps its result, and returns the records. It may yield
between slices. When the records are published, or the change is refused, the controller calls ``outcome`` once.

Each record is checked before it is appended. A plan that breaks an invariant of a partition is a bug of the controller.
It ends in an assertion before anything of the change is written, because the log would carry the damage to every node.
One check costs less than 1 us.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord, encode
from reference_broker.ports.node_ports import RandomSource
from reference_broker.records.batch import HEADER_BYTES
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


_OfPartition: TypeAlias = PartitionRecord | PartitionChangeRecord


def replay_checked(delta: MetadataDelta, record: MetadataRecord) -> None:
    """Replay the record, and check the partition that it creates or changes."""
    if type(record) is PartitionRecord:
        replay(delta, record)
        _check_state(record, delta.partition(record.topic_id, record.partition_id))
    elif type(record) is PartitionChangeRecord:
        before = delta.partition(record.topic_id, record.partition_id)
        replay(delta, record)
        after = delta.partition(record.topic_id, record.partition_id)
        _check_state(record, after)
        _check_change(record, before, after)
    else:
        replay(delta, record)


def _check_state(record: _OfPartition, partition: PartitionImage) -> None:
    isr, replicas, leader = partition.isr, partition.replicas, partition.leader
    assert isr or partition.elr or partition.last_known_elr, (
        f"{_place(record)} is about to have no replica in sync, none that is eligible and no last known leader: nobody "
        "could ever lead it again"
    )
    assert all(replica in replicas and replica not in isr for replica in partition.elr), (
        f"{_place(record)} is about to have the eligible leaders {partition.elr}, its replicas are {replicas}, and in "
        f"sync are {isr}"
    )
    assert isr is replicas or all(replica in replicas for replica in isr), (
        f"{_place(record)} is about to have the in-sync replicas {isr}, but its replicas are only {replicas}"
    )
    assert leader == NO_LEADER or leader in isr, (
        f"{_place(record)} is about to be led by {leader}, which is not one of the in-sync replicas {isr}: it may lack "
        "acknowledged records"
    )


def _check_change(record: _OfPartition, before: PartitionImage, after: PartitionImage) -> None:
    assert after.partition_epoch > before.partition_epoch, (
        f"{_place(record)} is about to change, and its partition epoch goes from {before.partition_epoch} to "
        f"{after.partition_epoch}: brokers would take the change for an old one"
    )
    assert after.leader_epoch >= before.leader_epoch, (
        f"{_place(record)} is about to go back from leader epoch {before.leader_epoch} to {after.leader_epoch}"
    )
    assert after.leader == before.leader or after.leader_epoch > before.leader_epoch, (
        f"{_place(record)} is about to pass from leader {before.leader} to {after.leader} within leader epoch "
        f"{before.leader_epoch}: two leaders would write in one epoch"
    )


def _place(record: _OfPartition) -> str:
    return f"Partition {record.partition_id} of topic {record.topic_id.hex()}"


Answered: TypeAlias = Callable[[Refusal | None], None]
Records: TypeAlias = Iterable[MetadataRecord]
Planning: TypeAlias = Generator[None, None, Records]
Plan: TypeAlias = Callable[[], Records | Planning]
"""Called when it is a change's turn. It judges by the controller's ``latest`` of that moment and returns the records. A
plan that is a generator may yield between slices. The records may be lazy; they are taken in slices too."""

OnBug: TypeAlias = Callable[[str, Exception], None]
"""Called with the name of a change whose plan failed because of a bug, before anything was written. The change is
refused, unless this raises the bug again."""

MAX_RECORDS_PER_OPERATION = 2_000_000
"""More than any cluster needs. It limits the memory that one request may cost the controller."""

MAX_RECORD_BYTES = 1_048_576
"""The limit for the value of one record. Only values of settings have no limit of their own."""

_RECORD_OVERHEAD_BYTES = 14
"""The most that a batch adds to a value: length, attributes, deltas, key length, value length, header count."""


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


@dataclass(slots=True)
class Slice:
    """The work that one event may do, in units of about 10 us."""

    size: int
    remaining: int = 0

    def begin(self) -> None:
        self.remaining = self.size

    def spend(self, units: int = 1) -> bool:
        """Returns True when the work is used up and it is time to yield."""
        self.remaining -= units
        return self.remaining <= 0


class TooMuch(Exception):  # noqa: N818 - the limit is the news
    """A change is larger than allowed. It is refused with POLICY_VIOLATION, and nothing was written."""


@dataclass(slots=True)
class Batch:
    """Records that are appended together. ``values`` holds the same records, encoded."""

    records: list[MetadataRecord] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Cut:
    """The records of a change as batches. ``delta`` has replayed all of them, and ``records`` counts them."""

    delta: MetadataDelta
    batches: list[Batch] = field(default_factory=list)
    records: int = 0


def planned(plan: Plan) -> Planning:
    """Run a plan whose turn has come, and return its records."""
    found = plan()
    if isinstance(found, Generator):
        return (yield from found)
    return found


def cut(records: Records, delta: MetadataDelta, max_batch_bytes: int, work: Slice) -> Generator[None, None, Cut]:
    """Cut the records into batches of at most ``max_batch_bytes``, and replay them on ``delta``. A larger record gets a
    batch of its own.

    Raises TooMuch, and MetadataFault for a record that cannot follow the ones before it.
    """
    found, size_bytes = Cut(delta), max_batch_bytes
    for record in records:
        value = encode(record)
        length = len(value) + _RECORD_OVERHEAD_BYTES
        if length > MAX_RECORD_BYTES:
            raise TooMuch(f"a metadata record of {length} bytes, at most {MAX_RECORD_BYTES} are allowed")
        if size_bytes + length > max_batch_bytes:
            found.batches.append(Batch())
            size_bytes = HEADER_BYTES
        found.batches[-1].records.append(record)
        found.batches[-1].values.append(value)
        size_bytes += length
        found.records += 1
        if found.records > MAX_RECORDS_PER_OPERATION:
            raise TooMuch(f"more than {MAX_RECORDS_PER_OPERATION} metadata records in one operation")
        replay_checked(delta, record)
        if work.spend(2):
            yield
    return found


def replayed(batch: Batch, delta: MetadataDelta, work: Slice) -> Generator[None, None, None]:
    """Replay one batch of a cut on ``delta``. Raises MetadataFault for a record that cannot follow."""
    for record in batch.records:
        replay(delta, record)
        if work.spend(2):
            yield


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
