"""How a change of the metadata is planned in slices and cut into batches."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.partition_invariants import replay_checked
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.record_codec import encode
from reference_broker.metadata.records import MetadataRecord
from reference_broker.metadata.replay import replay
from reference_broker.records.batch import HEADER_BYTES

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
"""More than any cluster needs. It limits what one request may make the controller hold."""

MAX_RECORD_BYTES = 1_048_576
"""The limit for the value of one record. Only values of settings have no limit of their own."""

_RECORD_OVERHEAD_BYTES = 14
"""The most that a batch adds to a value: length, attributes, deltas, key length, value length, header count."""


def raised(_change: str, bug: Exception) -> None:
    """The ``OnBug`` of changes that no client asked for."""
    raise bug


@dataclass(slots=True)
class Operation:
    """``name`` and ``atomic`` are those of a ``Change``. ``name`` stands in the Begin record."""

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
    left: int = 0

    def begin(self) -> None:
        self.left = self.size

    def spend(self, units: int = 1) -> bool:
        """Returns True when the work is used up and it is time to yield."""
        self.left -= units
        return self.left <= 0


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
    """Runs a plan whose turn has come, and returns its records."""
    found = plan()
    if isinstance(found, Generator):
        return (yield from found)
    return found


def cut(records: Records, delta: MetadataDelta, max_batch_bytes: int, work: Slice) -> Generator[None, None, Cut]:
    """Cuts the records into batches of at most ``max_batch_bytes``, and replays them on ``delta``. A larger record gets
    a batch of its own.

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
    """Replays one batch of a cut on ``delta``. Raises MetadataFault for a record that cannot follow."""
    for record in batch.records:
        replay(delta, record)
        if work.spend(2):
            yield
