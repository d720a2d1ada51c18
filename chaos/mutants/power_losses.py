"""Mutants that a power loss at one operation shows.

``crucible power-losses KIND --mutant NAME`` plays one. No scenario plays them.
"""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chaos.mutants import disks, quorum, snapshots
from chaos.mutants.mutant import Function, Mutant, MutantError, mutant
from chaos.mutants.registry import by_name
from scenarios.fields import did_you_mean


@mutant("reference_broker.log.segments:Segments.durable_before")
def recovery_point_ahead_of_sync(original: Function, self: Any) -> int:
    """A roll moves the recovery point to the log's end, although the closed segments are not durable yet."""
    return int(self.bases[-1])


@mutant("reference_broker.log.log_files:LogFiles._make_durable")
def append_behind_unsettled_cut(original: Function, self: Any, path: str) -> None:
    """Batches are appended behind a truncation that a power loss may still undo."""


@mutant("reference_broker.log.producer_state:ProducerSnapshots.delete_beyond")
def snapshots_beyond_cut_not_durably_deleted(original: Function, self: Any, offset: int) -> None:
    """A truncation does not wait until the snapshots of producers beyond it are durably gone."""
    for gone in [each for each in self.offsets if each > offset]:
        self.delete(gone)


@mutant("reference_broker.log.indexes:_checked")
def _transaction_index_believed(original: Function, data: bytes) -> list[str]:
    """A start takes any file of aborted transactions for whole."""
    return ["0", "00000000"]


@mutant("reference_broker.log.indexes:TransactionIndex.write", partner=_transaction_index_believed)
def transaction_index_unsynced(original: Function, self: Any, disk: Any) -> tuple[str, ...]:
    """The file of aborted transactions is not synced before the recovery point passes it, nor checked at a start."""
    original(self, disk)
    return ()


@mutant("reference_broker.log.segments:swap_files")
def swap_without_syncs(original: Function, disk: Any, sources: Sequence[Any], cleaned: Any) -> str:
    """A cleaned segment replaces the old ones without waiting for any name to be durable."""
    path = str(sources[0].path)
    disk.rename(cleaned.path, path + ".swap")
    for source in reversed(sources[1:]):
        source.delete(disk)
    sources[0].delete_indexes(disk)
    disk.rename(path + ".swap", path)
    return path


@mutant("reference_broker.quorum.raft_client:KafkaRaftClient._write_quorum_state")
def vote_in_known_epoch_not_written(original: Function, self: Any, done: Callable[[], None]) -> None:
    """A voter writes its vote only with a new epoch. In an epoch that it knows already, it votes from memory."""
    kept, election = self._synced, self.state.election
    if kept.leader_epoch == election.epoch and kept.voted_id < 0 <= election.voted_id:
        done()
    else:
        original(self, done)


@mutant("reference_broker.quorum.metadata_log:LogSync.request")
def fetch_ahead_of_sync(original: Function, self: Any, done: Callable[[], None]) -> None:
    """A node reports the end of its metadata log while the sync of it is still on its way."""
    original(self, lambda: None)
    done()


@mutant("reference_broker.metadata.snapshots:SnapshotGenerator._sync_name")
async def log_cut_before_snapshot_is_named(original: Function, self: Any, path: str) -> None:
    """A snapshot counts, and the log before it may be deleted, while the sync of its name is on its way (S-15)."""
    self._node.ports.sync((path,), lambda: None)


@mutant("reference_broker.quorum.snapshots.partial:Partial.sync")
async def next_piece_before_sync(original: Function, self: Any, ports: Any) -> None:
    """A download requests the next piece before the last one is durable (S-11)."""
    ports.sync(self.paths, lambda: None)


@mutant("reference_broker.log.log_files:LogFiles._delete_retired")
def deleted_before_local_start_is_durable(original: Function, self: Any) -> None:
    """Local segments that are listed in the remote tier are deleted before the new local log start is durable."""
    self.segments.delete_retired(self.segments.bases[-1])


@mutant("reference_broker.log.checkpoints:OffsetCheckpoints.lower_synced")
def lowered_offset_believed(original: Function, self: Any, offset: int) -> None:
    """A start takes the synced offset that it reads for durable, although a killed process may have just lowered it."""
    self._synced_may_rise = False
    original(self, offset)


@mutant("reference_broker.replication.syncing:sync_led_then")
def acknowledged_ahead_of_sync(
    original: Function, ports: Any, partitions: Sequence[Any], done: Callable[[], None]
) -> None:
    """A leader acknowledges records while the sync that ``flush.messages`` requires is on its way (P-6)."""
    original(ports, partitions, lambda: None)
    for partition in partitions:
        if partition.followers is None and partition.log.advance_high_watermark(partition.log.log_end_offset):
            partition.changed()
    done()


KILLED_BY: Mapping[str, Sequence[Mutant]] = {
    "log": (recovery_point_ahead_of_sync, append_behind_unsettled_cut, disks.deleted_before_log_start_is_durable),
    "producers": (snapshots_beyond_cut_not_durably_deleted,),
    "transactions": (transaction_index_unsynced,),
    "compaction": (swap_without_syncs,),
    "tier": (deleted_before_local_start_is_durable, lowered_offset_believed),
    "quorum": (
        vote_in_known_epoch_not_written,
        fetch_ahead_of_sync,
        quorum.vote_sent_before_its_name_is_durable,
    ),
    "groups": (acknowledged_ahead_of_sync,),
    "snapshots": (log_cut_before_snapshot_is_named, next_piece_before_sync, snapshots.rename_before_sync),
}
"""The mutants that each kind of ``chaos.search.power_losses`` must kill."""


def found_mutant(name: str) -> Mutant:
    """Return a mutant of this file, or one that scenarios play. Raise MutantError."""
    own = {each.name: each for each in globals().values() if isinstance(each, Mutant)}
    if name in own:
        return own[name]
    if near := did_you_mean(name, own):
        raise MutantError(f"there is no mutant {name!r}{near}?")
    return by_name(name)
