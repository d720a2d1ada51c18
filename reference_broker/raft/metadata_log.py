"""The metadata log on disk: an ordinary partition log whose record values are metadata records."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from reference_broker.log.config import LogConfig
from reference_broker.log.disk import Disk
from reference_broker.log.now import Now
from reference_broker.log.partition_log import Origin, PartitionLog, open_log
from reference_broker.model.broker_keys import MIN_METADATA_SEGMENT_BYTES
from reference_broker.model.config import BrokerConfig
from reference_broker.model.metadata_image import Provenance
from reference_broker.raft.metadata_records import MetadataRecord
from reference_broker.raft.node_files import METADATA_DIRECTORY
from reference_broker.raft.record_codec import decode, encode, write_varint
from reference_broker.records.batch import validate
from reference_broker.records.builder import build
from reference_broker.records.reader import Record, read_records

MAX_BATCH_BYTES = MIN_METADATA_SEGMENT_BYTES
"""Kafka's raft batch limit; a batch must fit a segment."""

READ_BYTES = 32 * 2**10
"""Read in one slice of replay: some 400 records, below 5 ms (a larger batch is read whole)."""

_LEADER_CHANGE_KEY = bytes((0, 0, 0, 2))
"""ControlRecordType: version 0, type LEADER_CHANGE."""


class BatchTooLarge(Exception):  # noqa: N818 - the limit is the news
    """Records that do not fit one batch; nothing was written."""


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """Records that were appended together, with the offset and epoch of the last."""

    records: tuple[MetadataRecord, ...]
    provenance: Provenance


@dataclass(slots=True)
class MetadataLog:
    """Appends and reads batches. Every append is one batch: whole or not at all (T-5)."""

    log: PartitionLog

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    def append(self, now: Now, records: Sequence[MetadataRecord], epoch: int) -> Provenance:
        """Raises BatchTooLarge or DiskError, after which the log is as before."""
        stamped = [Record(timestamp_ms=now.wall_ms, value=encode(record)) for record in records]
        return self._append(now, build(stamped, leader_epoch=epoch), epoch)

    def append_leader_change(self, now: Now, leader_id: int, voters: Sequence[int], epoch: int) -> Provenance:
        """The control record that opens an epoch (LeaderChangeMessage version 0)."""
        record = Record(timestamp_ms=now.wall_ms, key=_LEADER_CHANGE_KEY, value=_leader_change(leader_id, voters))
        return self._append(now, build([record], leader_epoch=epoch, is_control=True), epoch)

    def _append(self, now: Now, batch: bytes, epoch: int) -> Provenance:
        if len(batch) > MAX_BATCH_BYTES:
            raise BatchTooLarge(f"a batch of {len(batch)} bytes, at most {MAX_BATCH_BYTES} are allowed")
        appended = self.log.append(now, batch, epoch, origin=Origin.BROKER)
        return Provenance(appended.last_offset, epoch, now.wall_ms)

    def batches(self, offset: int) -> Iterator[MetadataBatch]:
        """The batches of one slice from ``offset`` on, at least one if there is any; control batches are empty.

        Their CRC is looked at again: after a clean stop nobody else does. Raises InvalidRecords.
        """
        data = self.log.read(offset, READ_BYTES, self.end_offset, True)
        view = memoryview(data)
        for position, header in validate(view):
            records: tuple[MetadataRecord, ...] = ()
            if not header.is_control:
                batch = view[position : position + header.size_bytes]
                records = tuple(decode(record.value or b"") for record in read_records(batch))
            yield MetadataBatch(records, Provenance(header.last_offset, header.leader_epoch, header.max_timestamp_ms))


def open_metadata_log(
    disk: Disk, config: BrokerConfig, now: Now, clean: bool
) -> Generator[None, None, MetadataLog]:
    """Recovers it in slices: a torn tail is cut at the first bad batch."""
    log_config = LogConfig(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        retention_bytes=-1,
        retention_ms=-1,
        max_message_bytes=MAX_BATCH_BYTES,
    )
    log = yield from open_log(disk, METADATA_DIRECTORY, log_config, now, clean)
    return MetadataLog(log)


def segment_paths(disk: Disk) -> tuple[str, ...]:
    """The log files of the metadata log."""
    return tuple(f"{METADATA_DIRECTORY}/{name}" for name in disk.list(METADATA_DIRECTORY) if name.endswith(".log"))


def _leader_change(leader_id: int, voters: Sequence[int]) -> bytes:
    out = bytearray((0).to_bytes(2, "big") + leader_id.to_bytes(4, "big", signed=True))
    for _ in ("voters", "granting voters"):
        write_varint(out, len(voters) + 1)
        for voter in voters:
            out += voter.to_bytes(4, "big", signed=True) + b"\x00"
    return bytes(out + b"\x00")
