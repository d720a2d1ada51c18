"""Changes of the metadata on their way: how one is planned in slices and cut into batches."""

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
"""Gives the records of a change when its turn comes, judged by the controller's ``latest`` of then; a generator may
yield between slices of planning. The records may be made lazily: they are taken in slices, too."""

MAX_RECORDS_PER_OPERATION = 2_000_000
"""Beyond any cluster's size; bounds what one request may make the controller hold."""

MAX_RECORD_BYTES = 1_048_576
"""Of one record's value: config values are the only ones without a limit of their own."""

_RECORD_OVERHEAD_BYTES = 14
"""Of a record in a batch, at most: length, attributes, deltas, key length, value length, header count."""


@dataclass(slots=True)
class Operation:
    """``name``: for the Begin marker. ``atomic`` False: where transactions are not allowed, it may be split."""

    name: str
    plan: Plan
    answered: Answered
    atomic: bool = True
    as_transaction: bool = False
    """Between markers even if one batch would do (the bootstrap of an empty log)."""


@dataclass(slots=True)
class Slice:
    """The work that one event may do, in units of about 10 us."""

    size: int
    left: int = 0

    def begin(self) -> None:
        self.left = self.size

    def spend(self, units: int = 1) -> bool:
        """Whether it is used up: time to yield."""
        self.left -= units
        return self.left <= 0


class TooMuch(Exception):  # noqa: N818 - the limit is the news
    """An operation beyond what one may have: POLICY_VIOLATION, nothing was written."""


@dataclass(slots=True)
class Batch:
    """Records that are appended together. ``values``: the same records, encoded."""

    records: list[MetadataRecord] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Cut:
    """Records as batches, and what they do to ``delta``."""

    delta: MetadataDelta
    batches: list[Batch] = field(default_factory=list)
    records: int = 0


def planned(plan: Plan) -> Planning:
    """Runs the plan: its turn has come."""
    found = plan()
    if isinstance(found, Generator):
        return (yield from found)
    return found


def cut(records: Records, delta: MetadataDelta, max_batch_bytes: int, work: Slice) -> Generator[None, None, Cut]:
    """Batches of at most ``max_batch_bytes`` (a larger record is one of its own), replayed on ``delta`` on the way.

    Raises TooMuch, and MetadataFault for records that cannot follow.
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
    """Does to ``delta`` what one batch of a cut does. Raises MetadataFault for records that cannot follow."""
    for record in batch.records:
        replay(delta, record)
        if work.spend(2):
            yield
