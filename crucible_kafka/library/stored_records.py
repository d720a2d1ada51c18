"""Records of a partition's log, and whether each is committed."""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from crucible_kafka.library.observation import StoredRecord
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, iterate
from reference_broker.records.record import read_records


class LogReader:
    """Decodes what ``InsideNode.do_read_log`` returns, piece by piece."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = 0
        self._aborted: dict[int, list[int]] = {}
        """First offsets of the aborted transactions of each producer, ascending."""

    def read(self, piece: Mapping[str, Any]) -> Iterator[StoredRecord]:
        """Yield the records of a piece, without markers. ``next_offset`` is where the next piece begins."""
        self.next_offset = max(self.next_offset, piece["log_start_offset"])
        batches = memoryview(b64decode(piece["batches"]))
        for producer_id, first_offset in piece["aborted"]:
            known = self._aborted.setdefault(producer_id, [])
            if first_offset not in known:
                known.append(first_offset)
        for position, header in iterate(batches):
            if header.is_control:
                self._end_aborted(header)
            else:
                is_aborted = header.is_transactional and self._is_aborted(header)
                committed = not is_aborted and header.last_offset < piece["last_stable_offset"]
                yield from self._records(header, batches[position : position + header.size_bytes], committed)
            self.next_offset = header.last_offset + 1

    def _records(self, header: BatchHeader, batch: memoryview, committed: bool) -> Iterator[StoredRecord]:
        if len(batch) <= HEADER_BYTES:
            return
        for record in read_records(batch):
            if record.offset < self.next_offset:
                continue
            yield StoredRecord(
                self.topic,
                self.partition,
                record.offset,
                record.timestamp_ms,
                record.key,
                record.value,
                record.headers,
                committed,
                header.producer_id,
                header.producer_epoch,
                header.is_transactional,
                header.leader_epoch,
            )

    def _is_aborted(self, header: BatchHeader) -> bool:
        starts = self._aborted.get(header.producer_id, ())
        return len(starts) > 0 and starts[0] <= header.base_offset

    def _end_aborted(self, marker: BatchHeader) -> None:
        starts = self._aborted.get(marker.producer_id)
        if starts and starts[0] <= marker.base_offset:
            starts.pop(0)
