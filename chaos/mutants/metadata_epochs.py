"""Mutants of the metadata epoch: who counts it, who keeps it, and who waits for it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Mutant
from reference_broker.metadata.features import sends_metadata_epoch
from reference_broker.metadata.record_codec import encode
from reference_broker.metadata.records import MetadataEpoch, NoOpRecord
from reference_broker.wire.errors import Error, ErrorCode

Function = Callable[..., Any]


def _accepts_older_metadata(original: Function) -> Function:  # noqa: ARG001
    def accepts(self: Any, update: Any) -> bool:  # noqa: ARG001
        return True

    return accepts


def _last_write_wins(original: Function) -> Function:  # noqa: ARG001
    def refusal(metadata_epoch: int, last: Any) -> Error:  # noqa: ARG001
        return ErrorCode.none

    return refusal


def _no_wait_after_offset_fetch(original: Function) -> Function:  # noqa: ARG001
    def may_consume(metadata_epoch: int, committed: Any) -> bool:  # noqa: ARG001
        return True

    return may_consume


def _no_wait_before_seek(original: Function) -> Function:  # noqa: ARG001
    def has_reached(self: Any, min_metadata_epoch: int) -> bool:  # noqa: ARG001
        return True

    return has_reached


def _epoch_in_memory_only(original: Function) -> Function:  # noqa: ARG001
    counted: dict[int, int] = {}

    def plan(self: Any) -> Any:
        if not self._sends(self._controller.latest):
            return ()
        reign = self._controller.epoch
        counted[reign] = counted.get(reign, 0) + 1
        return (NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=counted[reign])),)

    return plan


def _epoch_left_out_of_snapshot(original: Function) -> Function:
    def records_of(image: Any) -> Iterator[Any]:
        return (record for record in original(image) if type(record) is not NoOpRecord)

    return records_of


def _epoch_not_loaded(original: Function) -> Function:
    def read(key: Any, data: bytes) -> Any:
        return replace(original(key, data), metadata_epoch=-1)

    return read


def _new_schema_before_switch(original: Function) -> Function:  # noqa: ARG001
    def sends(image: Any) -> bool:  # noqa: ARG001
        return True

    return sends


def _epoch_written_in_transaction(original: Function) -> Function:
    def append(self: Any, values: Any, kind: str, number: int, of: int) -> Any:
        if kind == "batch" and number == 1 and sends_metadata_epoch(self.latest):
            epoch = MetadataEpoch(metadata_epoch=self.latest.metadata_epoch + 1)
            values = [*values, encode(NoOpRecord(metadata_epoch=epoch))]
        return original(self, values, kind, number, of)

    return append


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "accepts_older_metadata",
        "a client takes any metadata, also older than what it has",
        "client",
        "reference_broker.client.metadata_cache:MetadataCache.accepts",
        ("self", "update"),
        _accepts_older_metadata,
        ("M-5", "M-15"),
    ),
    Mutant(
        "last_write_wins",
        "the coordinator does not compare a commit's metadata epoch with the stored one",
        "node",
        "reference_broker.groups.offsets.judging:_epoch_refusal",
        ("metadata_epoch", "last"),
        _last_write_wins,
        ("M-7",),
    ),
    Mutant(
        "no_wait_after_offset_fetch",
        "a consumer goes on from a committed offset with whatever metadata it has",
        "client",
        "reference_broker.client.consumer_partitions:may_consume",
        ("metadata_epoch", "committed"),
        _no_wait_after_offset_fetch,
        ("M-10",),
    ),
    Mutant(
        "no_wait_before_seek",
        "a consumer seeks to a stored offset with whatever metadata it has",
        "client",
        "reference_broker.client.metadata_refresher:MetadataRefresher.has_reached",
        ("self", "min_metadata_epoch"),
        _no_wait_before_seek,
        ("M-12", "M-13"),
    ),
    Mutant(
        "epoch_in_memory_only",
        "each controller counts metadata epochs from 1 on",
        "node",
        "reference_broker.controller.metadata_broadcast:MetadataBroadcast._plan",
        ("self",),
        _epoch_in_memory_only,
        ("M-1", "M-2"),
    ),
    Mutant(
        "epoch_left_out_of_snapshot",
        "a snapshot does not hold the metadata epoch",
        "node",
        "reference_broker.metadata.snapshots.writer:records_of",
        ("image",),
        _epoch_left_out_of_snapshot,
        ("M-1",),
    ),
    Mutant(
        "epoch_not_loaded",
        "a coordinator that takes over does not read the stored epochs",
        "node",
        "reference_broker.groups.storage.loading:read_offset_value",
        ("key", "data"),
        _epoch_not_loaded,
        ("M-7", "M-8"),
    ),
    Mutant(
        "new_schema_before_switch",
        "offsets are stored with their epoch before the feature is finalized",
        "node",
        "reference_broker.groups.offsets.commits:sends_metadata_epoch",
        ("image",),
        _new_schema_before_switch,
        ("M-14",),
    ),
    Mutant(
        "epoch_written_in_transaction",
        "the controller counts the epoch inside an open transaction",
        "node",
        "reference_broker.controller.reign:Reign._append",
        ("self", "values", "kind", "number", "of"),
        _epoch_written_in_transaction,
        ("M-2",),
    ),
)
