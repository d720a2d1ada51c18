"""A controller term: one period in which this node is the active controller.

It is the part of Kafka's QuorumController between claim() and renounce().

Changes are planned, written and completed in turn. When leadership is lost, each pending change gets NOT_CONTROLLER.

A large change is planned over several events. Records that do not fit into one batch are written as a transaction
(KIP-868): Begin, the batches, End, one append in each event, with nothing between them. Plans judge by ``latest``,
which also has the changes that are written but not committed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation_records import ActivationRecords
from reference_broker.controller.record_batches import (
    ChangeBatch,
    ChangeBatches,
    ChangeTooLarge,
    encode_batches,
    replay_batch,
    run_plan,
)
from reference_broker.controller.write_operations import ApiError, Completed, ControllerWriteEvent
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.features import allows_transactions, metadata_version
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    encode,
)
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import NodeContext
from reference_broker.ports.slicing import PLANNED_UNITS_PER_SLICE, Budget, Sliced
from reference_broker.quorum.values import NOWHERE, NotLeader, Provenance
from reference_broker.wire.errors import ErrorCode


class AppendKind(Enum):
    """The role of a record batch in the metadata log. The values are: the word in the trace, whether a transaction
    must be open before the batch, and whether one is open after it."""

    SINGLE = "single", False, False
    """A change that fits one batch."""
    BEGIN = "begin", False, True
    BATCH = "batch", True, True
    """One batch of a change between its markers."""
    END = "end", True, False
    ABORT = "abort", True, False

    def __init__(self, word: str, needs_transaction: bool, leaves_transaction: bool) -> None:
        self.word = word
        self.needs_transaction = needs_transaction
        self.leaves_transaction = leaves_transaction


class Leadership(Protocol):
    """The part of ``quorum.raft_client.KafkaRaftClient`` that a term needs."""

    @property
    def leader_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def append(self, values: Sequence[bytes]) -> Provenance:
        """Append one batch of records with these values, whole or not at all. Raise NotLeader or DiskError."""
        ...

    def resign(self, why: str) -> None:
        """Resign the leadership, which another voter may take. Listeners of its loss are called before the return. May
        only be called while this node leads."""
        ...


class InFlight(NamedTuple):
    """A change that is written and not published yet."""

    last_offset: int
    completed: Completed


class _TermOver(Exception):  # noqa: N818 - not an error: all callbacks have been called
    """Leadership was lost inside an append."""


@dataclass(slots=True, eq=False)
class ControllerTerm:
    """One term of this node as the active controller. It plans and writes one change at a time."""

    _node: NodeContext
    _config: BrokerConfig
    _loader: MetadataLoader
    _quorum: Leadership
    latest: MetadataImage
    """The metadata with all changes written so far, committed or not."""
    _leadership_lost: Callable[[], None]
    """Called when an append finds that leadership is gone; it calls ``end``."""
    budget: Budget = field(default_factory=lambda: Budget(PLANNED_UNITS_PER_SLICE))
    """The remaining work of the current event."""
    in_transaction: bool = False
    """A Begin is written, but not its End or Abort."""
    _is_over: bool = False
    _queue: deque[ControllerWriteEvent] = field(default_factory=deque)
    _current: ControllerWriteEvent | None = None
    """The change that is planned or written now."""
    _in_flight: deque[InFlight] = field(default_factory=deque)
    """In the order of offsets."""
    _work: Sliced[None] | None = None
    """The generator that writes the first records and then the queue, None if there is nothing to write."""
    _is_running: bool = False
    """True while ``_run_slice`` runs. A callback that queues a change must not start it again."""
    _timer: int | None = None
    """The timer of the next slice, None if there is no work."""

    def begin(self, first: ActivationRecords) -> None:
        """Write the activation records, before any change."""
        self._work = self._write_first_records(first)
        self._run_slice()

    def enqueue(self, event: ControllerWriteEvent) -> None:
        """Queue a change. It starts at once if nothing else is being worked on."""
        self._queue.append(event)
        if not self._is_running and self._timer is None:
            self._run_slice()

    def complete_published(self) -> None:
        """Complete the changes whose last record is published here (Kafka's DeferredEventQueue.completeUpTo)."""
        published_offset = self._loader.image.provenance.offset
        # Decision metadata-change-published
        while self._in_flight and self._in_flight[0].last_offset <= published_offset:
            self._in_flight.popleft().completed(None)

    def end(self) -> list[Completed]:
        """Stop writing. Returns the callbacks of all pending changes, in their order."""
        self._is_over = True
        if self._timer is not None:
            self._node.ports.cancel_timer(self._timer)
        waiting = [each.completed for each in self._in_flight]
        if self._current is not None:  # Decision controller-ends-in-change
            waiting.append(self._current.completed)
        waiting += (event.completed for event in self._queue)
        self._in_flight.clear()
        self._queue.clear()
        self._current = None
        return waiting

    def _run_slice(self) -> None:
        self._timer = None
        if self._is_over:
            return
        assert not self._is_running, "a step of the controller begins inside another step"
        self._is_running = True
        self.budget.renew()
        try:
            if self._work is None:
                self._work = self._run_queue()
            next(self._work)
        except StopIteration:
            self._work = None
        except _TermOver:
            return
        else:
            self._timer = self._node.after(0, self._run_slice)
        finally:
            self._is_running = False

    def _write_first_records(self, first: ActivationRecords) -> Sliced[None]:
        if first.abort is not None:  # Decision open-metadata-transaction-aborted
            self.in_transaction = True  # An earlier controller has opened it.
            try:  # Decision metadata-abort-at-activation
                self._append([encode(AbortTransactionRecord(reason=first.abort))], AppendKind.ABORT, 0, 0)
            except DiskError as failure:
                self._resign_in_transaction(failure)
                return
        if first.bootstrap:
            bootstrap = ControllerWriteEvent(
                "bootstrap", lambda: first.bootstrap, self._bootstrapped, as_transaction=first.as_transaction
            )
            yield from self._plan_and_write(bootstrap)
        yield from self._run_queue()

    def _bootstrapped(self, refusal: ApiError | None) -> None:
        """Resign if the bootstrap was refused. A change that followed would be made in a cluster without features."""
        if refusal is not None and not self._is_over:  # Decision bootstrap-failed
            self._quorum.resign(f"the first records of the cluster could not be written: {refusal.message}")

    def _run_queue(self) -> Sliced[None]:
        while self._queue:
            assert self._current is None, f"a change ({self._current.name}) is not over when the next one begins"
            self._current = self._queue.popleft()
            yield from self._plan_and_write(self._current)

    def _plan_and_write(self, event: ControllerWriteEvent) -> Sliced[None]:
        try:
            records = yield from run_plan(event.plan)
            batches = yield from encode_batches(
                records, MetadataDelta(self.latest), self._config.crucible_metadata_batch_max_bytes, self.budget
            )
        except ChangeTooLarge as refused:
            self._refuse(event, ErrorCode.policy_violation, f"{_TOO_LARGE}: {refused}.")
            return
        except Exception as bug:  # Nothing is written, and the plan changed nothing that others rely on.
            event.on_bug(event.name, bug)
            self._refuse(event, ErrorCode.unknown_server_error, "The change could not be planned.")
            return
        if not batches.batches:
            self._written(event, self._in_flight[-1].last_offset if self._in_flight else -1)
        elif len(batches.batches) == 1 and not event.as_transaction:  # Decision metadata-change-fits-batch
            self._write_batch(event, batches)
        # Decision metadata-change-in-transaction
        elif allows_transactions(metadata_version(self.latest)) or event.as_transaction:
            yield from self._write_transaction(event, batches)
        elif event.atomic:  # Decision metadata-change-too-large
            self._refuse(event, ErrorCode.policy_violation, _no_transactions(batches, self.latest))
        else:
            yield from self._write_separately(event, batches)

    def _write_batch(self, event: ControllerWriteEvent, batches: ChangeBatches) -> None:
        try:  # Decision metadata-change-written
            last_offset = self._write_one(batches.batches[0], batches.delta)
        except DiskError as failure:
            self._refuse(event, ErrorCode.kafka_storage_error, str(failure))
        else:
            self._written(event, last_offset)

    def _write_one(self, batch: ChangeBatch, delta: MetadataDelta) -> int:
        """Write a change of one batch, which ``delta`` has replayed, and return its last offset. After a DiskError
        nothing was written."""
        image = delta.build(NOWHERE)
        last = self._append(batch.values, AppendKind.SINGLE, 1, 1)
        self.latest = image.at(last)
        return last.offset

    def _write_transaction(self, event: ControllerWriteEvent, batches: ChangeBatches) -> Sliced[None]:
        """Append one batch in each event. If the disk refuses one, an Abort follows. If it refuses that too, this node
        resigns: the next leader writes the Abort."""
        of = len(batches.batches)
        yield
        image = batches.delta.build(NOWHERE)
        yield
        self._loader.expect(self._loader.end_offset, of)
        try:  # Decision metadata-transaction-written
            self._append([encode(BeginTransactionRecord(name=event.name))], AppendKind.BEGIN, 0, of)
            for number, batch in enumerate(batches.batches, 1):
                yield
                self._append(batch.values, AppendKind.BATCH, number, of)
            yield
            last = self._append([encode(EndTransactionRecord())], AppendKind.END, of, of)
        except DiskError as failure:
            refused = self._aborted(of) if self.in_transaction else None
            self._refuse(event, ErrorCode.kafka_storage_error, str(failure))
            if refused is not None:  # Decision metadata-abort-refused
                self._resign_in_transaction(refused)
            return
        self.latest = image.at(last)
        self._written(event, last.offset)

    def _aborted(self, of: int) -> DiskError | None:
        """Write an Abort. Returns the failure if the disk refuses it."""
        try:
            self._append([encode(AbortTransactionRecord(reason="The disk failed"))], AppendKind.ABORT, 0, of)
        except DiskError as failure:
            return failure
        return None

    def _resign_in_transaction(self, failure: DiskError) -> None:
        """Resign, because only its Abort may follow on an open transaction, and the disk refuses that."""
        self._node.ports.note("metadata_not_written", ("what", "abort of a transaction"), ("why", str(failure)))
        if not self._is_over:
            self._quorum.resign(f"the abort of a transaction could not be written: {failure}")

    def _write_separately(self, event: ControllerWriteEvent, batches: ChangeBatches) -> Sliced[None]:
        """Write each batch as a change of its own, where the metadata.version has no transactions (T-2).

        Only changes that need not be atomic come here: those caused by brokers and timers, where each record is right
        by itself, and the records that a lost leadership leaves unwritten are caused again. The response follows when
        the last batch is published.
        """
        last_offset = -1
        for batch in batches.batches:
            delta = MetadataDelta(self.latest)
            yield from replay_batch(batch, delta, self.budget)
            try:
                last_offset = self._write_one(batch, delta)
            except DiskError as failure:
                self._refuse(event, ErrorCode.kafka_storage_error, str(failure))
                return
            yield
        self._written(event, last_offset)

    def _append(self, values: Sequence[bytes], kind: AppendKind, number: int, of: int) -> Provenance:
        """Raise DiskError if nothing was written, and _TermOver if leadership is lost."""
        assert self.in_transaction == kind.needs_transaction, (
            f"the metadata log is about to get {kind.word} {number} of {of} while a transaction is "
            f"{'open' if self.in_transaction else 'not open'}: its markers would not pair up"
        )
        try:  # Decision metadata-append-as-leader
            last = self._quorum.append(values)
        except NotLeader:
            self._leadership_lost()
            raise _TermOver from None
        self.in_transaction = kind.leaves_transaction
        if self._is_over:
            raise _TermOver
        self._node.ports.note(
            "metadata_appended",
            ("offset", last.offset),
            ("kind", kind.word),
            ("number", number),
            ("of", of),
            ("change", "" if self._current is None else self._current.name),
        )
        return last

    def _written(self, event: ControllerWriteEvent, last_offset: int) -> None:
        self._current = None
        assert not self._in_flight or self._in_flight[-1].last_offset <= last_offset, (
            f"a change ({event.name}) ends at offset {last_offset}, before the change ahead of it, which ends at "
            f"{self._in_flight[-1].last_offset}: they would be completed out of order"
        )
        self._in_flight.append(InFlight(last_offset, event.completed))
        self.complete_published()

    def _refuse(self, event: ControllerWriteEvent, error: ErrorCode, why: str) -> None:
        self._current = None
        event.completed(ApiError(error, why))


_TOO_LARGE = "Unable to perform excessively large batch operation"


def _no_transactions(batches: ChangeBatches, latest: MetadataImage) -> str:
    return (
        f"{_TOO_LARGE}: {batches.records} metadata records do not fit one batch, and metadata.version "
        f"{metadata_version(latest)} has no transactions."
    )
