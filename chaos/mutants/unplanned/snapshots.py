"""Mutants of metadata snapshots that no scenario names: their content, download, load, and the cleaner (KIP-630)."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.records import PartitionRecord


@mutant("reference_broker.metadata.snapshots:_topic")
def elr_missing_from_snapshot(original: Function, topic: Any) -> Iterator[Any]:
    """A snapshot does not contain the eligible leader replicas, so that after the last in-sync replica no replica may
    lead on a node that loads it (E-1, S-15)."""
    for record in original(topic):
        is_partition = isinstance(record, PartitionRecord)
        yield replace(record, eligible_leader_replicas=None) if is_partition else record


@mutant("reference_broker.quorum.snapshots.partial:Partial.sync")
async def download_never_synced(original: Function, self: Any, ports: Any) -> None:
    """The bytes of a download are not synced, neither before the next request nor before the file gets its name. A
    power loss tears a snapshot that the log already relies on (S-9, S-11)."""
    self.synced = self.length


@mutant("reference_broker.quorum.snapshots.store:SnapshotReaders.advanced_us")
def advancing_download_keeps_nothing(original: Function, self: Any, snapshot: Any) -> int | None:
    """A superseded snapshot is deleted after its time, although a download of it advances (S-15)."""
    return None


@mutant("reference_broker.metadata.snapshots:SnapshotGenerator._failed")
def making_after_failure(original: Function, self: Any, attempt: Any, error: Any) -> None:
    """A snapshot that could not be written, because the disk was full, counts as being made from then on. No other one
    is made (S-12, S-15)."""
    making = self._making
    original(self, attempt, error)
    self._making = making


@mutant("reference_broker.metadata.delta:MetadataDelta.between")
def settings_not_published_with_snapshot(original: Function, before: Any, after: Any) -> Any:
    """A node that installs a snapshot publishes the difference without settings, so that its open logs keep their old
    ones (S-15)."""
    delta = original(before, after)
    delta.configs = {}
    return delta


class _WithoutContact:
    """Wraps a leadership, and ignores contacts."""

    def __init__(self, leadership: Any) -> None:
        self._leadership = leadership

    def note_contact(self, replica_id: int) -> None:
        """Ignore the contact."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leadership, name)


@mutant("reference_broker.quorum.snapshots.serving:serve")
def download_is_no_contact(
    original: Function, request: Any, store: Any, leadership: Any, now_us: int, is_draft: bool
) -> Any:
    """A leader takes a voter that downloads a snapshot for silent, and resigns if a majority is not fetching its log
    (S-12)."""
    return original(request, store, _WithoutContact(leadership), now_us, is_draft)


@mutant("reference_broker.metadata.loader:MetadataLoader._reload")
def records_behind_snapshot_wait(original: Function, self: Any, snapshot: Any) -> Generator[None, None, None]:
    """Records that were committed while an installed snapshot was loaded are not read before the high watermark moves
    again (S-9)."""
    image = yield from self._loading(snapshot)
    self._reloading = None
    before = self.image
    self._replace_image(snapshot, image)
    self._publish(MetadataDelta.between(before, image), image, True)
