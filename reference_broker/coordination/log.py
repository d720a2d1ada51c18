"""The log of one partition of a coordinator's topic: appends records with acks=all, reports when they are replicated.

Waiting for all in-sync replicas is what fences: a coordinator that was replaced, and does not know it yet, gets no
acknowledgement.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from reference_broker.log.unified_log import BatchOrigin, RecordsRefused
from reference_broker.ports.coroutines import Wait
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports
from reference_broker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from reference_broker.records.record import Record, build
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.replication.syncing import must_sync, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.wire.errors import Error, ErrorCode

_CLIENT_ERRORS: Final[Mapping[Error, Error]] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
}


def client_error(error: Error) -> Error:
    """Return what clients receive for an error of the log (Kafka's CoordinatorOperationExceptionHelper)."""
    return _CLIENT_ERRORS.get(error, error)


KeyAndValue: TypeAlias = tuple[bytes, bytes | None]

ReplicatedCallback: TypeAlias = Callable[[Error], None]
"""Called once, with NONE when the records are replicated, else with an error."""


class TransactionProducer(NamedTuple):
    """The producer in whose transaction records are written. Such records have no sequence numbers, as in Kafka."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = TransactionProducer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


async def first_error(errors: Iterable[Awaitable[Error]]) -> Error:
    """Wait for all of them. Return the first that is an error, or NONE."""
    arrived = [await each for each in errors]
    return next((each for each in arrived if each), ErrorCode.none)


@dataclass(frozen=True, slots=True)
class AppendedRecords:
    """Records that are in the log, and that nobody but the caller of ``append`` knows yet."""

    end_offset: int
    """One past the last record."""
    _announce: Callable[[ReplicatedCallback], None]
    """Announces the records to the followers, and calls back once they are replicated."""

    def announce_and_wait(self) -> Wait[Error]:
        """Announce the records to the followers, and wait until they are replicated: NONE, or an error. That is
        REQUEST_TIMED_OUT after the timeout; the records may be replicated later.

        The caller awaits it once, in the event of the append, after it has noted what it needs to know of the records:
        they may be replicated at once.
        """
        return Wait(self._announce)


@dataclass(slots=True)
class CoordinatorLog:
    """Appends to one led partition. The errors are the log's own; ``client_error`` translates them."""

    _ports: Ports
    _timeout_ms: int
    """How long replication may take."""
    _leaders: Leaders
    led: Partition

    def append(
        self,
        records: Sequence[KeyAndValue],
        producer: TransactionProducer = NO_PRODUCER,
        spare_bytes: int = 0,
    ) -> AppendedRecords | Error:
        """Append all records or none, in one batch, so that a coordinator that takes over has all of them or none, too.
        An error means that nothing was appended.

        With a ``producer`` they are part of its transaction. INVALID_PRODUCER_EPOCH means that a newer epoch is known.
        RECORD_LIST_TOO_LARGE is also returned where the batch would not fit with ``spare_bytes`` more."""
        refusal = self._refusal(producer)
        if refusal:  # Decision coordinator-append
            return refusal
        led, now = self.led, self._ports.now()
        batch = build(
            [Record(timestamp_ms=now.wall_ms, key=key, value=value) for key, value in records],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_transactional=producer is not NO_PRODUCER,
        )
        config, segments = led.log.config, len(led.log.segments)
        if len(batch) + spare_bytes > min(config.max_message_bytes, config.segment_bytes):
            return ErrorCode.record_list_too_large
        try:
            append_info = led.log.append(now, batch, led.leader_epoch, origin=BatchOrigin.BROKER)
        except RecordsRefused as refused:
            return refused.error
        except DiskError as failure:
            self._ports.note("append_failed", ("partition", led.log.directory), ("reason", str(failure)))
            return ErrorCode.kafka_storage_error
        end_offset = append_info.last_offset + 1
        has_rolled = len(led.log.segments) > segments > 0
        return AppendedRecords(end_offset, partial(self._announce, end_offset, has_rolled))

    def _announce(self, end_offset: int, has_rolled: bool, replicated: ReplicatedCallback) -> None:
        led = self.led
        self._leaders.appended(led)
        plan_timed_flush(self._ports, led)
        if has_rolled:
            sync_led_then(self._ports, [led], nobody_waits)  # So that a crash need not scan it again.
        if must_sync(led.log):
            sync_led_then(self._ports, [led], lambda: self._await_replication(end_offset, replicated))
        else:
            self._await_replication(end_offset, replicated)
        led.changed()

    def when_replicated(self, end_offset: int, replicated: ReplicatedCallback) -> None:
        """Call ``replicated`` when all records below ``end_offset`` are, even if too few replicas are in sync by then.
        The errors are otherwise those of ``append``."""
        led = self.led
        if led.log.high_watermark >= end_offset:  # Decision coordinator-write-replicated
            replicated(ErrorCode.not_leader_or_follower if led.is_removed else ErrorCode.none)
            return

        def replicated_by_now(error: Error) -> None:
            replicated(ErrorCode.none if error is ErrorCode.not_enough_replicas_after_append else error)

        self._await_replication(end_offset, replicated_by_now)

    @property
    def lacks_replicas(self) -> bool:
        """Whether fewer replicas are in sync than ``min.insync.replicas``."""
        followers = self.led.followers
        return followers is not None and followers.is_under_min_isr(self.led.log.config.min_insync_replicas)

    def _refusal(self, producer: TransactionProducer) -> Error:
        led = self.led
        if led.is_removed:
            return ErrorCode.not_leader_or_follower
        if self.lacks_replicas:
            return ErrorCode.not_enough_replicas
        state = led.log.producers.by_id.get(producer.producer_id)
        if state is not None and producer.producer_epoch < state.producer_epoch:  # Decision coordinator-write-producer
            return ErrorCode.invalid_producer_epoch
        return ErrorCode.none

    def _await_replication(self, end_offset: int, replicated: ReplicatedCallback) -> None:
        led = self.led
        if led.is_removed:
            replicated(ErrorCode.not_leader_or_follower)
        elif led.followers is None:
            replicated(ErrorCode.none)
        else:
            self._leaders.acknowledge(
                [(led, end_offset)],
                self._timeout_ms,
                lambda errors: replicated(errors.get(led, ErrorCode.none)),
            )
