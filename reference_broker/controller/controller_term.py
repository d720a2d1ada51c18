"""A controller term: one period in which this node is the active controller. Changes are planned, written and answered
in turn.

A leader becomes the active controller when the first record of its epoch is committed and loaded, because it has
everything that was committed before. It first writes an Abort if its predecessor left a transaction open, and the first
records of an empty log (Kafka's ActivationRecordsGenerator). When leadership is lost, each pending change gets
NOT_CONTROLLER.

Each change is planned in slices of less than 5 ms, one in each event. Records that do not fit into one batch are
written as a transaction: Begin, the batches, End, one append in each event, with nothing between them. Plans judge by
``latest``, which also holds the changes that are written but not committed.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import DEFAULT_NAME
from reference_broker.controller.changes import (
    NOT_CONTROLLER,
    Answered,
    Batch,
    Cut,
    Operation,
    Refusal,
    Slice,
    TooMuch,
    cut,
    planned,
    replayed,
)
from reference_broker.metadata.broker_settings import cluster_min_isr_record
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.features import (
    ELR_FEATURE,
    ELR_FROM,
    ELR_LEVEL,
    METADATA_EPOCH_FEATURE,
    METADATA_VERSION_FEATURE,
    TRANSACTION_FEATURE,
    TRANSACTION_LEVEL_FROM,
    allows_transactions,
    check_levels,
    metadata_version,
)
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataFault,
    MetadataRecord,
    encode,
)
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Surroundings
from reference_broker.quorum.values import NOWHERE, NotLeader, Provenance
from reference_broker.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address at which others reach this node, on the listener ``name``."""

    host: str
    port: int
    name: str = DEFAULT_NAME


@dataclass(frozen=True, slots=True)
class Activation:
    """``abort`` is the reason in the Abort record, or None if no transaction is open at the end of the log.

    ``bootstrap`` holds the first records of an empty log. ``as_transaction`` says that they are written as a
    transaction.
    """

    abort: str | None
    bootstrap: tuple[MetadataRecord, ...]
    as_transaction: bool


def activation(
    image: MetadataImage,
    in_transaction: bool,
    bootstrap_version: int,
    bootstrap_epoch_level: int = 0,
    bootstrap_min_isr: int = 0,
    bootstrap_transaction_level: int = 0,
) -> Activation:
    """``image`` is the metadata at the end of the log, without the open transaction. The two levels are those of
    metadata.version and crucible.metadata.epoch in a new cluster. A new cluster keeps eligible leader replicas if its
    metadata.version has them, unless ``bootstrap_min_isr`` is 0. That is then the cluster's min.insync.replicas. It
    begins with ``bootstrap_transaction_level`` of transaction.version if its metadata.version has that.

    Raises MetadataFault if a transaction is open although the metadata.version allows none. Then another controller
    of the quorum is configured differently.
    """
    is_empty = metadata_version(image) == 0
    version = bootstrap_version if is_empty else metadata_version(image)
    if in_transaction and not allows_transactions(version):
        raise MetadataFault(
            f"The metadata log ends in a transaction, which metadata.version {version} does not allow: give all "
            "controllers the same crucible.bootstrap.metadata.version."
        )
    reason = "Bootstrap was not finished" if is_empty else "Controller failover"
    bootstrap: tuple[MetadataRecord, ...] = ()
    if is_empty:
        bootstrap = (FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=version),)
        if bootstrap_epoch_level:
            bootstrap += (FeatureLevelRecord(name=METADATA_EPOCH_FEATURE, feature_level=bootstrap_epoch_level),)
        if bootstrap_min_isr and version >= ELR_FROM:
            bootstrap += (FeatureLevelRecord(name=ELR_FEATURE, feature_level=ELR_LEVEL),)
            bootstrap += (cluster_min_isr_record(bootstrap_min_isr),)
        if bootstrap_transaction_level and version >= TRANSACTION_LEVEL_FROM:
            bootstrap += (FeatureLevelRecord(name=TRANSACTION_FEATURE, feature_level=bootstrap_transaction_level),)
    return Activation(reason if in_transaction else None, bootstrap, is_empty and allows_transactions(version))


UNITS_PER_SLICE = 250
"""The work of one event, in units of about 10 us. It takes some 3 ms."""

Steps = Generator[None, None, None]

_INSIDE_TRANSACTION = {"single": False, "begin": False, "batch": True, "end": True, "abort": True}
"""For each kind of append, whether a transaction must be open before it."""
_OPENS = {"begin": True, "end": False, "abort": False}
"""For each marker, whether a transaction is open after it."""


class Leadership(Protocol):
    """The part of ``quorum.quorum.Quorum`` that a term needs."""

    @property
    def leader_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def append(self, values: Sequence[bytes]) -> Provenance:
        """Append one batch of records with these values, whole or not at all. Raises NotLeader or DiskError."""
        ...

    def resign(self, why: str) -> None:
        """Resign the leadership, which another voter may take. Listeners of its loss are called before the return. May
        only be called while this node leads."""
        ...


class _TermOver(Exception):  # noqa: N818 - not an error: all callbacks have been called
    """Leadership was lost inside an append."""


@dataclass(slots=True, eq=False)
class ControllerTerm:
    """One term of this node as the active controller. It plans and writes one change at a time."""

    _surroundings: Surroundings
    _config: BrokerConfig
    _loader: MetadataLoader
    _quorum: Leadership
    latest: MetadataImage
    """The metadata with all changes written so far, committed or not."""
    _lost: Callable[[], None]
    """Called when an append finds that leadership is gone; it calls ``end``."""
    work: Slice = field(default_factory=lambda: Slice(UNITS_PER_SLICE))
    """The remaining work of the current event."""
    in_transaction: bool = False
    """A Begin is written, but not its End or Abort."""
    _is_over: bool = False
    _queue: deque[Operation] = field(default_factory=deque)
    _current: Operation | None = None
    """The change that is planned or written now."""
    _in_flight: deque[tuple[int, Answered]] = field(default_factory=deque)
    """(last offset, callback for when that is published)."""
    _pump: Steps | None = None
    """The work that continues in the next event."""
    _stepping: bool = False
    _timer: int | None = None

    def begin(self, first: Activation) -> None:
        """Write what comes before all changes."""
        self._pump = self._open(first)
        self._step()

    def submit(self, operation: Operation) -> None:
        """Queue a change. It begins at once if nothing else is being worked on."""
        self._queue.append(operation)
        if not self._stepping and self._timer is None:
            self._step()

    def answer_published(self) -> None:
        """Complete the changes that are published here."""
        stable = self._loader.image.provenance.offset
        while self._in_flight and self._in_flight[0][0] <= stable:
            self._in_flight.popleft()[1](None)

    def end(self) -> list[Answered]:
        """Stop writing. Returns the callbacks of all pending changes, in their order."""
        self._is_over = True
        if self._timer is not None:
            self._surroundings.ports.cancel_timer(self._timer)
        waiting = [answered for _, answered in self._in_flight]
        if self._current is not None:
            waiting.append(self._current.answered)
        waiting += (operation.answered for operation in self._queue)
        self._in_flight.clear()
        self._queue.clear()
        self._current = None
        return waiting

    def _step(self) -> None:
        self._timer = None
        if self._is_over:
            return
        assert not self._stepping, "a step of the controller begins inside another step"
        self._stepping = True
        self.work.begin()
        try:
            if self._pump is None:
                self._pump = self._run_queue()
            next(self._pump)
        except StopIteration:
            self._pump = None
        except _TermOver:
            return
        else:
            self._timer = self._surroundings.after(0, self._step)
        finally:
            self._stepping = False

    def _open(self, first: Activation) -> Steps:
        if first.abort is not None:
            self.in_transaction = True  # It was opened by an earlier controller.
            try:
                self._append([encode(AbortTransactionRecord(reason=first.abort))], "abort", 0, 0)
            except DiskError as failure:
                self._resign_in_transaction(failure)
                return
        if first.bootstrap:
            bootstrap = Operation(
                "bootstrap", lambda: first.bootstrap, self._bootstrapped, as_transaction=first.as_transaction
            )
            yield from self._run(bootstrap)
        yield from self._run_queue()

    def _bootstrapped(self, refusal: Refusal | None) -> None:
        """Resign if the bootstrap was refused. A change that followed would be made in a cluster without features."""
        if refusal is not None and not self._is_over:
            self._quorum.resign(f"the first records of the cluster could not be written: {refusal.message}")

    def _run_queue(self) -> Steps:
        while self._queue:
            assert self._current is None, f"a change ({self._current.name}) is not over when the next one begins"
            self._current = self._queue.popleft()
            yield from self._run(self._current)

    def _run(self, operation: Operation) -> Steps:
        try:
            records = yield from planned(operation.plan)
            batches = yield from cut(
                records, MetadataDelta(self.latest), self._config.crucible_metadata_batch_max_bytes, self.work
            )
        except TooMuch as refused:
            self._refuse(operation, ErrorCode.policy_violation, f"{_TOO_LARGE}: {refused}.")
            return
        except Exception as bug:  # Nothing is written, and the plan changed nothing that others rely on.
            operation.on_bug(operation.name, bug)
            self._refuse(operation, ErrorCode.unknown_server_error, "The change could not be planned.")
            return
        if not batches.batches:
            self._written(operation, self._in_flight[-1][0] if self._in_flight else -1)
        elif len(batches.batches) == 1 and not operation.as_transaction:
            self._write_batch(operation, batches)
        elif allows_transactions(metadata_version(self.latest)) or operation.as_transaction:
            yield from self._write_transaction(operation, batches)
        elif operation.atomic:
            self._refuse(operation, ErrorCode.policy_violation, _no_transactions(batches, self.latest))
        else:
            yield from self._write_separately(operation, batches)

    def _write_batch(self, operation: Operation, batches: Cut) -> None:
        try:
            last_offset = self._write_one(batches.batches[0], batches.delta)
        except DiskError as failure:
            self._refuse(operation, ErrorCode.kafka_storage_error, str(failure))
        else:
            self._written(operation, last_offset)

    def _write_one(self, batch: Batch, delta: MetadataDelta) -> int:
        """Write a change of one batch, which ``delta`` has replayed, and return its last offset. After a DiskError
        nothing was written."""
        image = delta.build(NOWHERE)
        last = self._append(batch.values, "single", 1, 1)
        self.latest = image.at(last)
        return last.offset

    def _write_transaction(self, operation: Operation, batches: Cut) -> Steps:
        """Append one batch in each event. If the disk refuses one, an Abort follows. If it refuses that too, this node
        resigns: the next leader writes the Abort."""
        of = len(batches.batches)
        yield
        image = batches.delta.build(NOWHERE)
        yield
        self._loader.expect(self._loader.end_offset, of)
        try:
            self._append([encode(BeginTransactionRecord(name=operation.name))], "begin", 0, of)
            for number, batch in enumerate(batches.batches, 1):
                yield
                self._append(batch.values, "batch", number, of)
            yield
            last = self._append([encode(EndTransactionRecord())], "end", of, of)
        except DiskError as failure:
            refused = self._aborted(of) if self.in_transaction else None
            self._refuse(operation, ErrorCode.kafka_storage_error, str(failure))
            if refused is not None:
                self._resign_in_transaction(refused)
            return
        self.latest = image.at(last)
        self._written(operation, last.offset)

    def _aborted(self, of: int) -> DiskError | None:
        """Write an Abort. Returns the failure if the disk refuses it."""
        try:
            self._append([encode(AbortTransactionRecord(reason="The disk failed"))], "abort", 0, of)
        except DiskError as failure:
            return failure
        return None

    def _resign_in_transaction(self, failure: DiskError) -> None:
        """Resign, because only its Abort may follow on an open transaction, and the disk refuses that."""
        self._surroundings.ports.note("metadata_not_written", ("what", "abort of a transaction"), ("why", str(failure)))
        if not self._is_over:
            self._quorum.resign(f"the abort of a transaction could not be written: {failure}")

    def _write_separately(self, operation: Operation, batches: Cut) -> Steps:
        """Write each batch as a change of its own, where the metadata.version has no transactions (T-2).

        Only changes that need not be atomic come here: those caused by brokers and timers, where each record is right
        by itself, and the records that a lost leadership leaves unwritten are caused again. The response follows when
        the last batch is published.
        """
        last_offset = -1
        for batch in batches.batches:
            delta = MetadataDelta(self.latest)
            yield from replayed(batch, delta, self.work)
            try:
                last_offset = self._write_one(batch, delta)
            except DiskError as failure:
                self._refuse(operation, ErrorCode.kafka_storage_error, str(failure))
                return
            yield
        self._written(operation, last_offset)

    def _append(self, values: Sequence[bytes], kind: str, number: int, of: int) -> Provenance:
        """Raises DiskError if nothing was written, and _TermOver if leadership is lost."""
        assert self.in_transaction == _INSIDE_TRANSACTION[kind], (
            f"the metadata log is about to get {kind} {number} of {of} while a transaction is "
            f"{'open' if self.in_transaction else 'not open'}: its markers would not pair up"
        )
        try:
            last = self._quorum.append(values)
        except NotLeader:
            self._lost()
            raise _TermOver from None
        self.in_transaction = _OPENS.get(kind, self.in_transaction)
        if self._is_over:
            raise _TermOver
        self._surroundings.ports.note(
            "metadata_appended",
            ("offset", last.offset),
            ("kind", kind),
            ("number", number),
            ("of", of),
            ("change", "" if self._current is None else self._current.name),
        )
        return last

    def _written(self, operation: Operation, last_offset: int) -> None:
        self._current = None
        assert not self._in_flight or self._in_flight[-1][0] <= last_offset, (
            f"a change ({operation.name}) ends at offset {last_offset}, before the change ahead of it, which ends at "
            f"{self._in_flight[-1][0]}: they would be answered out of order"
        )
        self._in_flight.append((last_offset, operation.answered))
        self.answer_published()

    def _refuse(self, operation: Operation, error: ErrorCode, why: str) -> None:
        self._current = None
        operation.answered(Refusal(error, why))


_TOO_LARGE = "Unable to perform excessively large batch operation"


def _no_transactions(batches: Cut, latest: MetadataImage) -> str:
    return (
        f"{_TOO_LARGE}: {batches.records} metadata records do not fit one batch, and metadata.version "
        f"{metadata_version(latest)} has no transactions."
    )


class Upkeep(Protocol):
    """Work that the active controller does on its own while it is active."""

    def activated(self) -> None: ...
    def deactivated(self) -> None: ...


@dataclass(slots=True, eq=False)
class Succession:
    """Decides when this node becomes the active controller, and when it stops."""

    _surroundings: Surroundings
    _config: BrokerConfig
    _loader: MetadataLoader
    _quorum: Leadership
    _upkeep: Sequence[Upkeep]
    _activated: Callable[[], None]
    """Called last when a term begins."""
    term: ControllerTerm | None = None
    """The present term, or None while this node is not active."""
    _claim: tuple[int, int] | None = None
    """A leadership that has not become a term yet: (epoch, offset of its first record)."""

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Drop the claim if another node leads a newer epoch."""
        if leader_id != self._surroundings.node_id and self._claim is not None and epoch > self._claim[0]:
            self._claim = None

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        """Become active once the record at ``start_offset``, the epoch's first, is committed and loaded."""
        assert self.term is None, f"leadership of epoch {epoch} is won before that of an earlier one was lost"
        self._claim = (epoch, start_offset)
        self.progressed()

    def leadership_lost(self, epoch: int) -> None:  # noqa: ARG002 - the listener's signature
        """End the term. All pending changes get NOT_CONTROLLER, because this node will not know their outcome."""
        self._claim = None
        term, self.term = self.term, None
        if term is None:
            return
        for each in self._upkeep:
            each.deactivated()
        self._loader.split_at_epochs(False)
        for answered in term.end():
            answered(NOT_CONTROLLER)

    def progressed(self) -> None:
        """Become active if the first record of the claimed epoch has been loaded."""
        if self._claim is None or self._loader.last_offset < self._claim[1]:
            return
        epoch, start_offset = self._claim
        self._claim = None
        image, in_transaction = self._loader.image, self._loader.in_transaction
        first = self._first(image, in_transaction)
        term = self.term = ControllerTerm(
            self._surroundings, self._config, self._loader, self._quorum, image, lambda: self.leadership_lost(epoch)
        )
        self._surroundings.ports.note("controller_activated", ("epoch", epoch), ("offset", start_offset))
        self._loader.split_at_epochs(True)
        for each in self._upkeep:
            each.activated()
        term.begin(first)
        if self.term is term:  # It ends at once if the disk refuses its first records.
            self._activated()

    def _first(self, image: MetadataImage, in_transaction: bool) -> Activation:
        """What the term writes first. Raises MetadataFault if this node does not know a finalized feature level."""
        config = self._config
        check_levels(image, config)
        epoch_level = config.crucible_bootstrap_metadata_epoch if config.crucible_metadata_epoch_enable else 0
        min_isr = config.min_insync_replicas if config.crucible_bootstrap_eligible_leader_replicas else 0
        version = config.crucible_bootstrap_metadata_version
        transaction_level = config.crucible_bootstrap_transaction_version
        return activation(image, in_transaction, version, epoch_level, min_isr, transaction_level)
