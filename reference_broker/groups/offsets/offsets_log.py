"""Records into one partition of ``__consumer_offsets``, acknowledged when all replicas in sync have them.

acks=all is what fences: a coordinator that another one has replaced, and does not know it yet, gets no acknowledgement.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.partition_log import Origin, RecordsRefused
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports
from reference_broker.records.builder import build
from reference_broker.records.record import Record
from reference_broker.replication.durable import must_be_durable, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error

KeyAndValue: TypeAlias = tuple[bytes, bytes | None]

Written: TypeAlias = Callable[[Error], None]
"""Told once: NONE when replicated, else the log's own error (``told_as`` has what clients are told)."""

BATCH_RECORDS: Final = 500
"""A consumer of many partitions commits them in one request, which must not be larger than a batch may be."""

_TOLD: Final = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Error.COORDINATOR_NOT_AVAILABLE,
    Error.REQUEST_TIMED_OUT: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_LEADER_OR_FOLLOWER: Error.NOT_COORDINATOR,
    Error.KAFKA_STORAGE_ERROR: Error.NOT_COORDINATOR,
    Error.RECORD_LIST_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
    Error.MESSAGE_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
}


def told_as(error: Error) -> Error:
    """What a group's clients are told of an error of the log (Kafka's CoordinatorOperationExceptionHelper)."""
    return _TOLD.get(error, error)


class OffsetsLog:
    """``led``: the partition, as this node leads it."""

    __slots__ = ("_leaders", "_ports", "_timeout_ms", "led")

    def __init__(self, ports: Ports, config: BrokerConfig, leaders: Leaders, led: Partition) -> None:
        self.led = led
        self._ports = ports
        self._leaders = leaders
        self._timeout_ms = config.offsets_commit_timeout_ms

    def append(self, records: Sequence[KeyAndValue], taken: Callable[[int], None], written: Written) -> None:
        """Writes them all or none, a batch for each BATCH_RECORDS. ``taken`` is told one past the last record, at once,
        unless nothing was written; ``written`` when it is replicated, or ``offsets.commit.timeout.ms`` have passed
        (REQUEST_TIMED_OUT: it may still be), or nothing was written."""
        refusal = self._refusal()
        if refusal is not Error.NONE:
            written(refusal)
            return
        led, now = self.led, self._ports.now()
        batches = _batches(records, now.wall_ms)
        config, segments = led.log.config, len(led.log.segments)
        if max(map(len, batches)) > config.max_message_bytes or sum(map(len, batches)) > config.segment_bytes:
            written(Error.RECORD_LIST_TOO_LARGE)
            return
        try:
            appended = led.log.append(now, b"".join(batches), led.leader_epoch, origin=Origin.BROKER)
        except RecordsRefused as refused:
            written(refused.error)
            return
        except DiskError as failure:
            self._ports.note("append_failed", ("partition", led.log.directory), ("reason", str(failure)))
            written(Error.KAFKA_STORAGE_ERROR)
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
        """Tells when all below ``end_offset`` is replicated, also where too few replicas are left by then; else as
        ``append`` does."""
        led = self.led
        if led.log.high_watermark >= end_offset:
            told(Error.NOT_LEADER_OR_FOLLOWER if led.deleted else Error.NONE)
            return

        def answered(error: Error) -> None:
            told(Error.NONE if error is Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND else error)

        self._acknowledge(end_offset, answered)

    def _refusal(self) -> Error:
        led = self.led
        if led.deleted:
            return Error.NOT_LEADER_OR_FOLLOWER
        followers = led.followers
        if followers is not None and followers.is_under_min_isr(led.log.config.min_insync_replicas):
            return Error.NOT_ENOUGH_REPLICAS
        return Error.NONE

    def _acknowledge(self, end_offset: int, written: Written) -> None:
        led = self.led
        if led.deleted:
            written(Error.NOT_LEADER_OR_FOLLOWER)
        elif led.followers is None:
            written(Error.NONE)
        else:
            self._leaders.acknowledge(
                [(led, end_offset)], self._timeout_ms, lambda errors: written(errors.get(led, Error.NONE))
            )


def _batches(records: Sequence[KeyAndValue], now_ms: int) -> list[bytes]:
    found = [Record(timestamp_ms=now_ms, key=key, value=value) for key, value in records]
    return [build(found[at : at + BATCH_RECORDS]) for at in range(0, len(found), BATCH_RECORDS)]
