"""Long work in slices: generators that yield where a slice may end, the functions that run them, and how much fits one
slice.

A node handles one event at a time, and an event should take milliseconds. Code that needs more than one event is
written in one of three styles:

===================================  ==============================  ================================================
the code                             is                              and is run by
===================================  ==============================  ================================================
keeps the node busy for long         a ``Sliced`` generator, which   ``run_slices``, one slice in each event;
                                     yields between two pieces       ``SliceQueue``, one work after the other;
                                                                     ``run_to_end``, in this event (at start-up, in
                                                                     tests, or if the work is known to be small);
                                                                     for a request, the functions of ``apis.call``
waits for something (a sync,         a coroutine, which awaits       ``run_coroutine``, or ``start`` if its result is
replicas, the store, a timer), and   (``ports.coroutines``)          awaited elsewhere
then goes on
is called by a part that does not    a callback                      that part: a port, a timer, a ``Partition`` that
know who goes on, or at several                                      changes, the end of a parked request
moments of one piece of work
===================================  ==============================  ================================================

- Neither a generator nor a coroutine does anything before it is run. Generators call each other by ``yield from``, so
  that the code stays straight-line.
- A generator never waits. A coroutine may do long work: ``await result_of(ports, work)``.
- ``await Wait(function)`` waits for a function that takes a callback. A coroutine that is run by ``start`` gives a
  ``Future``.
- A write with one result returns a ``Future`` (``GroupCoordinatorShard.write_group``), and one with two moments two: in
  ``TransactionStateManager.append_transaction_to_log`` the response may be due before the transition completes.
- While a generator or a coroutine is suspended, other events see and change what it works on. So a generator yields
  between two pieces, never inside one, and both check what they rely on when they go on.

The budgets at the end say how much fits one slice.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from reference_broker.ports.node_ports import Ports, later

T = TypeVar("T")

Sliced: TypeAlias = Generator[None, None, T]
"""Long work. It yields between its slices, and returns its result."""


def run_to_end(work: Sliced[T]) -> T:
    """Do the work in this event, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def run_slices(ports: Ports, work: Sliced[object], then: Callable[[], object] = lambda: None) -> None:
    """Run the first slice now, and each further one in an event of its own. Call ``then`` after the last one."""
    for _ in work:
        later(ports, 0, lambda: run_slices(ports, work, then))
        return
    then()


@dataclass(slots=True)
class SliceQueue:
    """Long work that is done one piece after the other, one slice in each event. An empty queue has no timer."""

    _ports: Ports
    _work: deque[Sliced[object]] = field(default_factory=deque)
    _is_armed: bool = False

    def add(self, work: Sliced[object]) -> None:
        """Start the work in the next event, after the work that was added before."""
        self._work.append(work)
        self._arm()

    def _arm(self) -> None:
        if self._work and not self._is_armed:
            self._is_armed = True
            later(self._ports, 0, self._step)

    def _step(self) -> None:
        self._is_armed = False
        for _ in self._work[0]:
            break
        else:
            self._work.popleft()
        self._arm()


_OVER: Final = object()


def slices_run_by(run: Callable[[Callable[[], object]], bool], work: Sliced[object]) -> Sliced[None]:
    """Run each slice through ``run``, which returns False if the slice failed because of a bug. The work ends then.
    Requests pass ``Call.run``, so that a bug fails only the request."""
    is_over = False

    def step() -> None:
        nonlocal is_over
        is_over = next(work, _OVER) is _OVER

    while run(step) and not is_over:
        yield


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut the items into lists of ``size``; the last one may be shorter. The caller yields between them."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def in_slices(items: Collection[T], size: int, do: Callable[[Collection[T]], object]) -> Sliced[None]:
    """Call ``do`` with all items, or with one batch of ``size`` in each slice where there are more."""
    if len(items) <= size:
        do(items)
        return
    for batch in in_batches(list(items), size):
        do(batch)
        yield


def sort_in_slices(items: Collection[T], size: int, key: Callable[[T], int | tuple[str, int]]) -> Sliced[list[T]]:
    """Return the items in ascending order of ``key``. Each slice sorts a batch of ``size``, or merges as many."""
    if len(items) <= size:
        return sorted(items, key=key)
    batches = []
    for batch in in_batches(items, size):
        batch.sort(key=key)
        batches.append(batch)
        yield
    ordered: list[T] = []
    for item in merge(*batches, key=key):
        ordered.append(item)
        if len(ordered) % size == 0:
            yield
    return ordered


class Budget:
    """The remaining work of a slice, in units that the caller chooses. Several pieces of work may share it."""

    __slots__ = ("_units", "remaining")

    def __init__(self, units: int) -> None:
        self._units = units
        self.remaining = units

    def spend(self, units: int = 1) -> bool:
        """Return True if the slice is over and the caller should yield. A new slice begins then."""
        self.remaining -= units
        if self.remaining > 0:
            return False
        self.remaining = self._units
        return True

    def renew(self) -> None:
        """Begin a new slice."""
        self.remaining = self._units


# The budgets: what one slice may do, and about how long that takes. Where two numbers bound a slice, it ends at the
# first of them.

# wire
WIRE_UNITS_PER_SLICE: Final = 1000
"""Items, or KiB of text, that are decoded or encoded: 3 ms."""

# records
VALIDATED_RECORDS_PER_SLICE: Final = 500
"""Records of a produced batch that are decoded and validated: 2 ms."""

# log
RECOVERED_BYTES_PER_SLICE: Final = 256 * 1024
"""Bytes of a segment that are scanned when a log is opened."""
REPLAYED_BATCHES_PER_SLICE: Final = 2000
"""Batch headers that are read for the state of the producers, or for the end of a cleaned segment."""
RECREATED_BATCHES_PER_SLICE: Final = 500
"""Batch headers that are read to recreate the producer snapshot of an old segment."""
PRODUCERS_PER_SLICE: Final = 500
"""Producers of a snapshot that are encoded or decoded: 0.3 ms."""
LOOKUP_US_PER_SLICE: Final = 3000
"""Microseconds for a lookup in a log, or for a request that names many things."""
INDEXED_OFFSETS_PER_SLICE: Final = 5000
"""Newest offsets of keys for which the cleaner finds the batch."""
CLEANED_RECORDS_PER_SLICE: Final = 3000
"""Records that the cleaner reads: 1 to 2 ms."""
REBUILT_RECORDS_PER_SLICE: Final = 1000
"""Records that the cleaner writes into a new batch: 2 ms."""

# quorum
SNAPSHOT_BYTES_PER_SLICE: Final = 1 << 20
"""Bytes of a metadata snapshot whose checksum is computed: 0.5 to 3 ms."""

# metadata
LOADED_RECORDS_PER_SLICE: Final = 100
"""Records of the metadata log that are decoded and replayed: 2 ms. A batch is never split, and one of 8 KiB takes 2 to
4 ms."""
SNAPSHOT_RECORDS_PER_SLICE: Final = 200
"""Records of a metadata snapshot that are decoded and replayed: 3 ms."""
PARTITION_STATES_PER_SLICE: Final = 500
"""Partition states that the controller puts into UpdateMetadata, or that a broker takes from it: 2 ms."""
COMPARED_TOPICS_PER_SLICE: Final = 5000
"""Topics that the controller compares where it is not known which of them changed."""

# controller
PLANNED_UNITS_PER_SLICE: Final = 250
"""Work on a change of the metadata: 10 us a unit, 3 ms."""

# replication
PUBLISHED_CHANGES_PER_SLICE: Final = 64
"""Partitions without files that are opened or closed, or whose role changes: 3 ms. Opening one with files yields by
itself."""
OPENED_LOGS_PER_SLICE: Final = 16
"""Partitions with files that are opened at the start: 3 ms."""
RENAMED_DIRECTORIES_PER_SLICE: Final = 32
"""Directories of deleted partitions that are renamed: 2 ms."""
FOLLOWED_PARTITIONS_PER_SLICE: Final = 256
FOLLOWED_BYTES_PER_SLICE: Final = 1 << 20
"""Partitions and bytes of a leader's response that a follower applies."""
ISR_PARTITIONS_PER_SLICE: Final = 256
"""Partitions whose in-sync replicas are checked: 2 ms."""

# sessions
SESSION_PARTITIONS_PER_SLICE: Final = 2000
"""Cached partitions of a fetch session that are looked up, compared or sorted: 1 to 4 ms."""

# coordination, groups, transactions
COORDINATOR_RECORDS_PER_SLICE: Final = 200
"""Records of a coordinator's partition that are loaded: 3 ms."""
COORDINATOR_STEPS_PER_EVENT: Final = 20
"""Steps that follow on replicated records. Each may append a record, in 100 us, and one fetch of a follower may
acknowledge hundreds."""
SERVED_GROUPS_PER_SLICE: Final = 64
SERVED_MEMBERS_PER_SLICE: Final = 500
"""Groups and members that a coordinator begins or ceases to serve."""
REBALANCED_MEMBERS_PER_SLICE: Final = 256
"""Members whose JoinGroup or SyncGroup gets its response."""
COMMITTED_OFFSETS_PER_SLICE: Final = 250
"""Offsets of a commit that are validated: 3 ms. Writing them takes a third of that."""
DECIDED_OFFSETS_PER_SLICE: Final = 1000
"""Offsets of a transaction that are committed or aborted: 4 ms."""
DELETED_OFFSETS_PER_SLICE: Final = 500
"""Offsets that are deleted, by a request or with their group: 2 ms."""
EXPIRED_OFFSETS_PER_SLICE: Final = 200
"""Tombstones of expired offsets that are written: 3 ms."""
EXPIRY_TOPICS_PER_SLICE: Final = 500
"""Deleted topics for which a group's offsets are searched."""
RESUMED_TRANSACTIONS_PER_SLICE: Final = 100
"""Transactions whose end is resumed after the load."""
DUE_TRANSACTIONS_PER_SLICE: Final = 20
"""Transactional IDs that time out or expire. Each may append a record, in 100 us."""
MARKER_PARTITIONS_PER_SLICE: Final = 500
"""Partitions of a marker whose leaders are looked up: 2 ms."""

# remote_log
REMOTE_REPLICAS_PER_SLICE: Final = 64
"""Partitions that are checked for segments to copy or to delete."""
REMOTE_SEGMENTS_PER_SLICE: Final = 100
"""Remote segments whose retention is checked: 0.5 ms."""
REMOTE_OBJECTS_PER_SLICE: Final = 500
"""Names of objects that are compared with the metadata of remote segments: 3 ms."""
REMOTE_RECORDS_PER_SLICE: Final = 50
"""Records of ``__remote_log_metadata`` that are applied: 3 ms."""
REMOTE_RANGES_PER_EVENT: Final = 8
"""Cached ranges of a segment that a read is given. Each may be a block of 1 MiB."""
REMOTE_HEADERS_PER_SLICE: Final = 1000
"""Batch headers of a remote segment that are read: 2 ms."""
REMOTE_STEPS_PER_SLICE: Final = 2000
"""Index entries and segments that are searched for aborted transactions: 2 ms."""

# apis
READ_PARTITIONS_PER_SLICE: Final = 1000
"""Partitions of a Fetch that are read: 5 to 10 ms. A Fetch of at most as many partitions is done in one event."""
PRODUCED_UNITS_PER_SLICE: Final = 600
"""Work of a Produce: 8 us a unit, 5 ms. A batch costs one unit, and one more for every 16 KiB."""
ERRORS_PER_SLICE: Final = 1000
"""Partitions whose errors are put into a response: 3 ms."""
DESCRIBED_TOPICS_PER_SLICE: Final = 1000
"""Topics, or their partitions, that are described, refused or created by a request: 2 ms."""
DESCRIBED_RESOURCES_PER_SLICE: Final = 20
"""Resources whose settings are described. A slice may end earlier where the settings are many."""
LISTED_PER_SLICE: Final = 1000
"""Groups or transactions that are listed."""
MATCHED_TRANSACTIONS_PER_SLICE: Final = 50
"""Transactional IDs that are matched with a pattern, the longest of them in up to 25 ms."""
DELETED_GROUPS_PER_SLICE: Final = 10
"""Groups that are deleted. An ID may have 32,767 characters, which take 2 ms to hash; the deletion takes a tenth of
that."""

# core
HOUSEKEPT_PARTITIONS_PER_SLICE: Final = 64
"""Partitions whose retention or cleaning is checked: less than 5 ms."""
CLEANED_TOPICS_PER_SLICE: Final = 2000
"""Topics that are checked when the broker's default cleanup policy changes: 2 ms."""
