"""Mutants of the state of idempotent producers in a partition (KIP-98, KAFKA-15195)."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from typing import Any

from chaos.mutants.mutant import Function, mutant

STATES = "reference_broker.log.producer_state:ProducerStateManager"


@mutant(f"{STATES}._check_one")
def retries_appended_again(original: Function, self: Any, producer: Any, header: Any) -> Any:
    """A retried batch is appended again, because its producer has no state (P-1)."""
    return None


@mutant(f"{STATES}._check_one")
def unknown_producer_believed(original: Function, self: Any, producer: Any, header: Any) -> Any:
    """A batch of an unknown producer is appended, whatever its sequence and the policy (P-5)."""
    return None if producer is None else original(self, producer, header)


@mutant(f"{STATES}.expire")
def idle_producer_remembered(original: Function, self: Any, wall_ms: int) -> int:
    """A producer that was idle for ``producer.id.expiration.ms`` does not expire (P-7)."""
    self.swept_ms = wall_ms
    return 0


@mutant(f"{STATES}.expire")
def busy_producer_forgotten(original: Function, self: Any, wall_ms: int) -> int:
    """A producer expires after half of ``producer.id.expiration.ms`` (P-7)."""
    forgotten = int(original(self, wall_ms + self.expiration_ms // 2))
    self.swept_ms = wall_ms
    return forgotten


@mutant("reference_broker.replication.leader.leaders:Leaders.leads")
def expiry_resets_on_failover(original: Function, self: Any, partition: Any, state: Any) -> None:
    """A new leader takes the current time as the last write of all producers (P-7)."""
    led_before = partition.followers
    original(self, partition, state)
    if partition.followers is not led_before:
        known, now_ms = partition.log.producers.by_id, self._ports.now().wall_ms
        known.update({each: producer._replace(last_timestamp_ms=now_ms) for each, producer in known.items()})


@mutant("reference_broker.log.producer_state:fits")
def snapshot_crc_unchecked(original: Function, crc: int, data: bytes) -> bool:
    """A producer snapshot is loaded without checking its CRC (P-12)."""
    return True


@mutant("reference_broker.log.producer_state:pieces_of")
def snapshot_without_producers(original: Function, producers: Any) -> Any:
    """A snapshot at a roll or a clean stop has no producers (P-2, P-3)."""
    return original({})


@mutant("reference_broker.log.producer_replay:_walk")
def batches_behind_snapshot_ignored(
    original: Function, segments: Any, offset: int, end_offset: int, states: Any, log_start_offset: int = 0
) -> Generator[None, None, None]:
    """A start that has loaded a snapshot ignores the batches behind it (P-4)."""
    if not segments.snapshots.loaded:
        yield from original(segments, offset, end_offset, states, log_start_offset)


@mutant("reference_broker.log.log_files:LogFiles.close_cleanly")
def no_snapshot_at_clean_stop(
    original: Function, self: Any, log_end_offset: int, log_start_offset: int, producers: Any
) -> None:
    """A log that is closed cleanly gets no producer snapshot (P-3)."""
    for segment in self.segments:
        self.segments.write_indexes(segment)
    is_synced = not self.durability.dirty and self.durability.synced_offset == log_end_offset
    if self.segments and is_synced and log_end_offset > self.checkpoints.recovery_point:
        self.durability.note_changed(self.checkpoints.raise_recovery_point(log_end_offset))
