"""Mutants of the transactions in the metadata log (KIP-868)."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.controller.controller_term import AppendKind
from reference_broker.metadata.records import MARKERS, EndTransactionRecord, decode, encode
from reference_broker.records.batch import InvalidRecords

LOADER = "reference_broker.metadata.loader"
ACTIVATION = "reference_broker.controller.activation_records"
CONTROLLER_TERM = "reference_broker.controller.controller_term"
RECOVERY = "reference_broker.log.recovery"
METADATA_DIRECTORY = "__cluster_metadata-0/"


class _WithoutMarkers:
    """A metadata log whose batches below ``end_offset`` have no markers."""

    def __init__(self, log: Any, end_offset: int) -> None:
        self._inner = log
        self._end_offset = end_offset

    def batches(self, offset: int, end_offset: int) -> Iterator[Any]:
        for batch in self._inner.batches(offset, end_offset):
            if batch.provenance.offset < self._end_offset:
                kept = tuple(value for value in batch.values if not isinstance(decode(value), MARKERS))
                yield replace(batch, values=kept)
            else:
                yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@mutant(f"{ACTIVATION}:activation_records")
def no_abort(
    original: Function,
    image: Any,
    in_transaction: bool,
    bootstrap_version: int,
    bootstrap_epoch_level: int = 0,
    bootstrap_min_isr: int = 0,
    bootstrap_transaction_level: int = 0,
) -> Any:
    """A new controller ignores the open transaction at the end of its log (T-7)."""
    return replace(
        original(
            image,
            in_transaction,
            bootstrap_version,
            bootstrap_epoch_level,
            bootstrap_min_isr,
            bootstrap_transaction_level,
        ),
        abort=None,
    )


@mutant(f"{CONTROLLER_TERM}:ControllerTerm._append")
def ends_instead_of_abort(original: Function, self: Any, values: Any, kind: AppendKind, number: int, of: int) -> Any:
    """A new controller ends the open transaction at the end of its log, instead of aborting it (T-7, T-8)."""
    if kind is AppendKind.ABORT:
        kind, values = AppendKind.END, [encode(EndTransactionRecord())]
    return original(self, values, kind, number, of)


@mutant(f"{LOADER}:MetadataBatchLoader.load")
def apply_as_read(original: Function, self: Any, batch: Any) -> None:
    """Each batch is published when it is read, also inside an open transaction (T-8).

    No snapshot is made inside a transaction, so that every node can start again.
    """
    original(self, batch)
    self._publish(self.loaded, aligned=not self.in_transaction)


@mutant(f"{LOADER}:MetadataBatchLoader.flush")
def high_watermark_decides_visibility(original: Function, self: Any) -> None:
    """Committed batches are published, whether their transaction has ended or not (T-8).

    No snapshot is made inside a transaction, so that every node can start again.
    """
    self._publish(self.loaded, aligned=not self.in_transaction)


@mutant(f"{LOADER}:MetadataLoader.load")
def replay_ignores_markers(original: Function, self: Any) -> Generator[None, None, None]:
    """A node that starts replays the log as if it had no markers (T-3, T-8)."""
    end_offset = self._log.end_offset
    yield from original(self)
    if end_offset > 0:
        self._log = _WithoutMarkers(self._log, end_offset)


@mutant(f"{LOADER}:MetadataLoader._take_note")
def snapshot_at_high_watermark(original: Function, self: Any, batch: Any) -> None:
    """A snapshot has all committed records, also a part of an open transaction (T-9)."""
    original(self, batch)
    if self._batches.in_transaction:
        size_bytes, self._record_bytes = self._record_bytes, 0
        self.on_published(self._batches.delta.build(batch.provenance), size_bytes)


@mutant(f"{ACTIVATION}:activation_records")
def abort_without_bootstrap(
    original: Function,
    image: Any,
    in_transaction: bool,
    bootstrap_version: int,
    bootstrap_epoch_level: int = 0,
    bootstrap_min_isr: int = 0,
    bootstrap_transaction_level: int = 0,
) -> Any:
    """After an unfinished bootstrap the new controller writes only the Abort, and does not bootstrap again (T-7)."""
    found = original(
        image,
        in_transaction,
        bootstrap_version,
        bootstrap_epoch_level,
        bootstrap_min_isr,
        bootstrap_transaction_level,
    )
    return found if found.abort is None else replace(found, bootstrap=())


@mutant(f"{CONTROLLER_TERM}:ControllerTerm._bootstrapped")
def goes_on_without_bootstrap(original: Function, self: Any, refusal: Any) -> None:
    """A controller whose disk rejected the bootstrap continues without it (T-7)."""


@mutant("reference_broker.metadata.features:allows_transactions")
def gate_ignored(original: Function, version: int) -> bool:
    """Transactions are written at any metadata.version (T-2)."""
    return True


@mutant(f"{RECOVERY}:_verified")
def torn_batch_kept(original: Function, disk: Any, path: str, end: int) -> Iterator[Any]:
    """A node that starts does not truncate a torn batch at the end of the metadata log (T-5)."""
    try:
        yield from original(disk, path, end)
    except InvalidRecords:
        if not path.startswith(METADATA_DIRECTORY):
            raise


@mutant(f"{CONTROLLER_TERM}:ControllerTerm._write_transaction")
def markers_omitted(original: Function, self: Any, event: Any, batches: Any) -> Generator[None, None, None]:
    """A event that is larger than a batch is written without markers, as several changes (T-1, T-6)."""
    yield from self._write_separately(event, batches)


@mutant(f"{CONTROLLER_TERM}:ControllerTerm._append")
def acknowledged_at_begin(original: Function, self: Any, values: Any, kind: AppendKind, number: int, of: int) -> Any:
    """A client gets success once the Begin is written, and does not retry if the transaction is aborted later
    (T-10)."""
    last = original(self, values, kind, number, of)
    if kind is AppendKind.BEGIN and self._current is not None:
        self._current.completed(None)
        self._current.completed = lambda _refusal: None
    return last


@mutant(f"{CONTROLLER_TERM}:ControllerTerm._append")
def _two_ends(original: Function, self: Any, values: Any, kind: AppendKind, number: int, of: int) -> Any:
    return original(self, [*values, *values] if kind is AppendKind.END else values, kind, number, of)


@mutant("reference_broker.metadata.loader:MetadataBatchLoader._check_markers", partner=_two_ends)
def markers_unchecked(original: Function, self: Any, markers: Any) -> None:
    """Replay takes a marker that is out of place, and the controller writes one: the second of two Ends (T-3)."""
