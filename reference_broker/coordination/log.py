"""Appends records to one partition of a coordinator's topic, and tells when all replicas in sync have them.

Waiting for all replicas (acks=all) is what fences: a coordinator that was replaced, and does not know it yet, gets no
acknowledgement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from reference_broker.log.partition_log import Origin, RecordsRefused
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports
from reference_broker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from reference_broker.records.builder import build
from reference_broker.records.record import Record
from reference_broker.replication.durable import must_be_durable, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

KeyAndValue: TypeAlias = tuple[bytes, bytes | None]

Written: TypeAlias = Callable[[Error], None]
"""Told once, with NONE when the records are replicated, else with an error."""


class Producer(NamedTuple):
    """In whose transaction records are written. Such records have no sequence numbers, as in Kafka."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(slots=True)
class CoordinatorLog:
    """``led`` is the partition, as this node leads it. ``_timeout_ms``: how long replication may take.
    The errors are the log's own."""

    _ports: Ports
    _timeout_ms: int
    _leaders: Leaders
    led: Partition

    def append(
        self,
        records: Sequence[KeyAndValue],
        taken: Callable[[int], None],
        written: Written,
        producer: Producer = NO_PRODUCER,
        spare_bytes: int = 0,
    ) -> None:
        """Appends all records or none, in one batch. So a coordinator that takes over has all of them or none, too.
        With a ``producer`` they are part of its transaction. INVALID_PRODUCER_EPOCH says that a newer one is known.
        RECORD_LIST_TOO_LARGE comes also where the log could not take ``spare_bytes`` more.

        If they are in the log, ``taken`` is told at once, with one past the last record. ``written`` is told when they
        are replicated, or when nothing was appended. It is told REQUEST_TIMED_OUT after the timeout;
        the records may be replicated later."""
        refusal = self._refusal(producer)
        if refusal:
            written(refusal)
            return
        led, now = self.led, self._ports.now()
        batch = build(
            [Record(timestamp_ms=now.wall_ms, key=key, value=value) for key, value in records],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_transactional=producer is not NO_PRODUCER,
        )
        config, segments = led.log.config, len(led.log.segments)
        if len(batch) + spare_bytes > min(config.max_message_bytes, config.segment_bytes):
            written(ErrorCode.record_list_too_large)
            return
        try:
            appended = led.log.append(now, batch, led.leader_epoch, origin=Origin.BROKER)
        except RecordsRefused as refused:
            written(refused.error)
            return
        except DiskError as failure:
            self._ports.note("append_failed", ("partition", led.log.directory), ("reason", str(failure)))
            written(ErrorCode.kafka_storage_error)
            return
        end_offset = appended.last_offset + 1
        taken(end_offset)
        self._leaders.appended(led)
        plan_timed_flush(self._ports, led)
        if len(led.log.segments) > segments > 0:
            sync_led_then(self._ports, [led], nobody_waits)  # So that a crash need not scan it again.
        if must_be_durable(led.log):
            sync_led_then(self._ports, [led], lambda: self._acknowledge(end_offset, written))
        else:
            self._acknowledge(end_offset, written)
        led.changed()

    def replicated(self, end_offset: int, told: Written) -> None:
        """Tells when all records below ``end_offset`` are replicated, even if too few replicas are left by then. The
        errors are otherwise those of ``append``."""
        led = self.led
        if led.log.high_watermark >= end_offset:
            told(ErrorCode.not_leader_or_follower if led.deleted else ErrorCode.none)
            return

        def answered(error: Error) -> None:
            told(ErrorCode.none if error is ErrorCode.not_enough_replicas_after_append else error)

        self._acknowledge(end_offset, answered)

    @property
    def lacks_replicas(self) -> bool:
        """Fewer replicas are in sync than ``min.insync.replicas`` says."""
        followers = self.led.followers
        return followers is not None and followers.is_under_min_isr(self.led.log.config.min_insync_replicas)

    def _refusal(self, producer: Producer) -> Error:
        led = self.led
        if led.deleted:
            return ErrorCode.not_leader_or_follower
        if self.lacks_replicas:
            return ErrorCode.not_enough_replicas
        known = led.log.producers.by_id.get(producer.producer_id)
        if known is not None and producer.producer_epoch < known.producer_epoch:
            return ErrorCode.invalid_producer_epoch
        return ErrorCode.none

    def _acknowledge(self, end_offset: int, written: Written) -> None:
        led = self.led
        if led.deleted:
            written(ErrorCode.not_leader_or_follower)
        elif led.followers is None:
            written(ErrorCode.none)
        else:
            self._leaders.acknowledge(
                [(led, end_offset)],
                self._timeout_ms,
                lambda errors: written(errors.get(led, ErrorCode.none)),
            )
