"""Mutants of the transactions in the metadata log (KIP-868)."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Mutant
from reference_broker.metadata.record_codec import decode
from reference_broker.metadata.records import MARKERS
from reference_broker.records.batch import InvalidRecords

BATCH_LOADER = "reference_broker.metadata.batch_loader"
SUCCESSION = "reference_broker.controller.succession"
LOADER = "reference_broker.metadata.loader"
REIGN = "reference_broker.controller.reign"
RECOVERY = "reference_broker.log.recovery"
METADATA_DIRECTORY = "__cluster_metadata-0/"
ACTIVATION = ("image", "in_transaction", "bootstrap_version", "bootstrap_epoch_level")
Function = Callable[..., Any]


def _no_abort(original: Function) -> Function:
    def activation(image: Any, in_transaction: bool, bootstrap_version: int, bootstrap_epoch_level: int = 0) -> Any:
        return replace(original(image, in_transaction, bootstrap_version, bootstrap_epoch_level), abort=None)

    return activation


def _abort_without_bootstrap(original: Function) -> Function:
    def activation(image: Any, in_transaction: bool, bootstrap_version: int, bootstrap_epoch_level: int = 0) -> Any:
        found = original(image, in_transaction, bootstrap_version, bootstrap_epoch_level)
        return found if found.abort is None else replace(found, bootstrap=())

    return activation


def _apply_as_read(original: Function) -> Function:
    def load(self: Any, batch: Any) -> None:
        original(self, batch)
        self._publish(self.loaded, aligned=True)

    return load


def _high_watermark_decides_visibility(original: Function) -> Function:  # noqa: ARG001
    def flush(self: Any) -> None:
        self._publish(self.loaded, aligned=True)

    return flush


def _replay_ignores_markers(original: Function) -> Function:
    def load(self: Any) -> Generator[None, None, None]:
        end_offset = self._log.end_offset
        yield from original(self)
        if end_offset > 0:
            self._log = _WithoutMarkers(self._log, end_offset)

    return load


class _WithoutMarkers:
    """A metadata log whose batches below ``end_offset`` hold no markers."""

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


def _snapshot_at_high_watermark(original: Function) -> Function:
    def take_note(self: Any, batch: Any) -> None:
        original(self, batch)
        if self._batches.in_transaction:
            size_bytes, self._record_bytes = self._record_bytes, 0
            self.on_published(self._batches.delta.build(batch.provenance), size_bytes)

    return take_note


def _gate_ignored(original: Function) -> Function:  # noqa: ARG001
    def allows_transactions(version: int) -> bool:  # noqa: ARG001
        return True

    return allows_transactions


def _torn_batch_kept(original: Function) -> Function:
    def verified(disk: Any, path: str, end: int) -> Iterator[Any]:
        try:
            yield from original(disk, path, end)
        except InvalidRecords:
            if not path.startswith(METADATA_DIRECTORY):
                raise

    return verified


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "no_abort",
        "a new controller leaves the open transaction at the end of its log as it is",
        "node",
        f"{SUCCESSION}:activation",
        ACTIVATION,
        _no_abort,
        ("T-7",),
    ),
    Mutant(
        "apply_as_read",
        "each batch is published as it is read, whatever transaction it is in",
        "node",
        f"{BATCH_LOADER}:MetadataBatchLoader.load",
        ("self", "batch"),
        _apply_as_read,
        ("T-8",),
    ),
    Mutant(
        "high_watermark_decides_visibility",
        "what is committed is published, whether its transaction has ended or not",
        "node",
        f"{BATCH_LOADER}:MetadataBatchLoader.flush",
        ("self",),
        _high_watermark_decides_visibility,
        ("T-8",),
    ),
    Mutant(
        "replay_ignores_markers",
        "what a start finds in the log is replayed as if it held no markers",
        "node",
        f"{LOADER}:MetadataLoader.load",
        ("self",),
        _replay_ignores_markers,
        ("T-3", "T-8"),
    ),
    Mutant(
        "snapshot_at_high_watermark",
        "a snapshot is made of all that is committed, also inside a transaction",
        "node",
        f"{LOADER}:MetadataLoader._take_note",
        ("self", "batch"),
        _snapshot_at_high_watermark,
        ("T-9",),
    ),
    Mutant(
        "abort_without_bootstrap",
        "after an unfinished bootstrap the new controller writes its Abort and nothing more",
        "node",
        f"{SUCCESSION}:activation",
        ACTIVATION,
        _abort_without_bootstrap,
        ("T-7",),
    ),
    Mutant(
        "gate_ignored",
        "transactions are written whatever the metadata.version",
        "node",
        f"{REIGN}:allows_transactions",
        ("version",),
        _gate_ignored,
        ("T-2",),
    ),
    Mutant(
        "torn_batch_kept",
        "the start does not cut what is left of a torn batch from the metadata log",
        "node",
        f"{RECOVERY}:_verified",
        ("disk", "path", "end"),
        _torn_batch_kept,
        ("T-5",),
    ),
)
