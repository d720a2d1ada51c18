"""Mutants of the metadata epoch: how it is advanced, stored, and awaited."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.controller.controller_term import AppendKind
from reference_broker.groups.committed_offsets import OffsetKey
from reference_broker.metadata.features import sends_metadata_epoch
from reference_broker.metadata.records import MetadataEpoch, NoOpRecord, encode
from reference_broker.wire.errors import Error, ErrorCode


@mutant("reference_broker.client.metadata_cache:MetadataCache.accepts", side="client")
def accepts_older_metadata(original: Function, self: Any, update: Any) -> bool:
    """A client accepts any metadata, also metadata older than its own (M-5, M-15)."""
    return True


@mutant("bench.fleet.behaviours.cluster:ClusterScript._take_metadata", side="client")
def producers_keep_no_epoch(original: Function, self: Any, update: Any) -> bool:
    """Producers and admins do not store the epoch of their metadata, and accept older metadata (M-5)."""
    self.metadata = replace(self.metadata, metadata_epoch=-1)
    return bool(original(self, update))


@mutant("reference_broker.metadata.cache:MetadataCache.served_epoch")
def epoch_forgotten_when_off(original: Function, self: Any) -> int:
    """When the metadata epoch is disabled, brokers send none, so clients with an epoch accept no metadata (M-14)."""
    return int(self.metadata_epoch)


@mutant("reference_broker.metadata.cache:MetadataCache.served_epoch")
def epoch_not_sent(original: Function, self: Any) -> int:
    """A broker does not send clients the epoch of its metadata (M-4)."""
    return -1


@mutant("reference_broker.metadata.cache:refusal")
def older_controller_obeyed(original: Function, update: Any, cache: Any, broker_epoch: int) -> Error:
    """A broker applies the update of a controller that was replaced (M-3)."""
    error: Error = original(update, cache, broker_epoch)
    return ErrorCode.none if error is ErrorCode.stale_controller_epoch else error


@mutant("reference_broker.metadata.cache:is_overtaken")
def older_update_applied(original: Function, update: Any, cache: Any) -> bool:
    """A broker applies an update that the same controller sent before the last one (M-3)."""
    return False


@mutant("reference_broker.client.offset_commits:_draft_partition", side="client")
def commits_without_epoch(original: Function, number: int, offset: Any) -> Any:
    """A consumer does not send the metadata epoch with its commits (M-6)."""
    return original(number, replace(offset, metadata_epoch=-1))


@mutant("reference_broker.apis.groups.k09_offset_fetch:_draft_partition")
def epoch_not_returned(original: Function, offset: Any) -> Any:
    """A coordinator does not return the metadata epoch of an offset (M-9)."""
    return replace(original(offset), metadata_epoch=-1)


@mutant("reference_broker.groups.offset_metadata_manager:validate_offsets")
def epoch_outlives_older_commit(
    original: Function, shard: Any, request: Any, image: Any, config: Any, now_ms: int, with_epoch: bool
) -> Any:
    """A commit in a version without the metadata epoch keeps the stored one (M-11)."""
    errors, accepted = original(shard, request, image, config, now_ms, with_epoch=with_epoch)
    if all(offset.metadata_epoch is None for offset in request.offsets):
        last = [shard.offsets.latest(OffsetKey(request.group_id, each.topic, each.partition)) for each in accepted]
        accepted = [
            each if known is None else replace(each, metadata_epoch=known.metadata_epoch)
            for each, known in zip(accepted, last, strict=True)
        ]
    return errors, accepted


@mutant("reference_broker.groups.offset_metadata_manager:epoch_refusal")
def last_write_wins(original: Function, metadata_epoch: int, last: Any) -> Error:
    """The coordinator does not compare a commit's metadata epoch with the stored one (M-7)."""
    return ErrorCode.none


@mutant("reference_broker.client.offset_commits:may_consume", side="client")
def no_wait_after_offset_fetch(original: Function, metadata_epoch: int, committed: Any) -> bool:
    """A consumer continues from a committed offset with whatever metadata it has (M-10)."""
    return True


@mutant("reference_broker.client.metadata_refresher:MetadataRefresher.has_reached", side="client")
def no_wait_before_seek(original: Function, self: Any, min_metadata_epoch: int) -> bool:
    """A consumer seeks to a stored offset with whatever metadata it has (M-12, M-13)."""
    return True


@mutant("reference_broker.controller.metadata_broadcast:NextMetadataEpoch.plan", remembers=True)
def epoch_in_memory_only(original: Function, counted: dict[int, int], self: Any, context: Any) -> Any:
    """Each controller counts metadata epochs from 1 on (M-1, M-2). ``counted`` holds its last one by its own epoch."""
    if not self.sends(context.latest):
        return ()
    term = self.controller_epoch
    counted[term] = counted.get(term, 0) + 1
    return (NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=counted[term])),)


@mutant("reference_broker.metadata.snapshots:records_of")
def epoch_missing_from_snapshot(original: Function, image: Any) -> Iterator[Any]:
    """A snapshot does not contain the metadata epoch (M-1, S-16)."""
    return (record for record in original(image) if type(record) is not NoOpRecord)


@mutant("reference_broker.groups.records:read_offset_value")
def epoch_not_loaded(original: Function, key: Any, data: bytes) -> Any:
    """After a takeover a coordinator does not load the stored epochs (M-7, M-8)."""
    return replace(original(key, data), metadata_epoch=-1)


@mutant(
    "reference_broker.groups.offset_metadata_manager:sends_metadata_epoch",
    one_use="Everywhere it would switch the feature on, and nothing would be used before it.",
)
def new_schema_before_switch(original: Function, image: Any) -> bool:
    """Offsets are stored with their epoch before the feature is finalized (M-14)."""
    return True


@mutant("reference_broker.controller.controller_term:ControllerTerm._append")
def epoch_written_in_transaction(
    original: Function, self: Any, values: Any, kind: AppendKind, number: int, of: int
) -> Any:
    """The controller writes the epoch inside an open transaction (M-2)."""
    if kind is AppendKind.BATCH and number == 1 and sends_metadata_epoch(self.latest):
        epoch = MetadataEpoch(metadata_epoch=self.latest.metadata_epoch + 1)
        values = [*values, encode(NoOpRecord(metadata_epoch=epoch))]
    return original(self, values, kind, number, of)


@mutant("reference_broker.controller.metadata_broadcast:MetadataBroadcast._sends", remembers=True)
def epoch_goes_on_when_off(original: Function, was_on: dict[int, bool], self: Any, image: Any) -> bool:
    """A controller that has sent the metadata epoch continues to send it after level 0 (M-14)."""
    is_on = original(self, image)
    was_on[id(self)] = was_on.get(id(self), False) or is_on
    return was_on[id(self)]


@mutant("reference_broker.controller.metadata_broadcast:MetadataBroadcast._send_next")
def brokers_updated_one_by_one(original: Function, self: Any, recipient: Any) -> None:
    """UpdateMetadata is sent to one broker after the other, each after the response of the previous one (M-3)."""
    if not any(each.in_flight for each in self._recipients.values()):
        original(self, recipient)
    elif not recipient.in_flight and recipient.timer is None:
        recipient.timer = self._node.after(10_000, lambda: self._again(recipient))
