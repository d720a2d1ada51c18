"""Scripts of one log for enumerated power losses: appends, producers, transactions, compaction.

What a resume finds is compared with the log's own batches, as ``chaos.checks.log.log_folders`` reads them, and with
what the script has written and synced.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from chaos.checks.log.batches import batches_of, record_count, records_in
from chaos.checks.log.log_folders import (
    LOCAL_START,
    ProducerRow,
    Replay,
    batches_in,
    contradictions,
    differing,
    false_claims,
    folder_of,
    offset_in,
    replayed,
    rows_of,
    segments_of,
)
from chaos.search.power_losses import FIXED, Resumed, Script, require
from chaos.sim.disk import SimDisk, Synced
from reference_broker.core.clean_shutdown import read_mark, write_mark
from reference_broker.log.cleaner.cleaning import Cleaning, cleanable
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.opening import open_log
from reference_broker.log.producer_state import encode_snapshot
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build

DIRECTORY = "t-0"
WALL_MS = 1_700_000_000_000
NOW = Now(0, WALL_MS)
AFTER = b"after the loss"
"""The value of records that a resumed log takes. They are owed only once they are synced."""
LATER_EPOCH = 1000
"""Leader epoch after a resume, above all of a script."""
DEDUPE_BYTES = 1 << 20
BEGUN = "begun"


@dataclass(frozen=True, slots=True)
class Written:
    """A batch of the script."""

    number: int
    """number of the batch, from the first one on"""
    offset: int
    data: bytes
    cut_at: int = -1
    """number of batches written when it was truncated; -1 if it was not"""
    void_from: int = -1
    """a log that starts at this offset or later was emptied, and has nothing of the batch any more"""


@dataclass(frozen=True, slots=True)
class OwedLog:
    """The part of a log that a power loss must leave."""

    config: LogConfig
    durable: tuple[tuple[int, bytes], ...]
    """the batches that were synced, by offset"""
    starts: tuple[int, int]
    """the least and the largest log start offset"""
    written: tuple[Written, ...]
    tier_end: int = 0
    """The records below it are listed in the remote tier, so that their segments may be deleted here."""
    may_be_empty: bool = False
    """The replica is being emptied, to go on behind the remote tier."""


class ResumedLog(Resumed):
    def __init__(self, disk: SimDisk, owed: OwedLog, log: UnifiedLog, segments: Sequence[bytes]) -> None:
        self.disk = disk
        self.owed = owed
        self.log = log
        self.batches = segments

    def use(self) -> OwedLog:
        """Retry the last batch of each producer, append, roll, append, and sync."""
        log, end = self.log, self.log.log_end_offset
        for data in self._last_of_each_producer():
            identity, _ = next(batches_of(data))
            retried = log.append(NOW, bytes(8) + data[8:], LATER_EPOCH)
            require(
                retried.duplicate and retried.first_offset == identity.base_offset,
                f"a retry of {identity.named} was appended again at offset {retried.first_offset}",
            )
        for _ in range(2):
            appended = log.append(NOW, build([Record(timestamp_ms=WALL_MS, key=b"k", value=AFTER)]), LATER_EPOCH)
            require(appended.first_offset == end, f"the next record has offset {appended.first_offset}, not {end}")
            end += 1
            log.roll(NOW)
        log.check_invariants()
        synced = log.sync_point()
        self.disk.finish_sync(self.disk.begin_sync(synced.paths))
        log.mark_synced(synced)
        log.files.note_synced()
        durable = dict(self.owed.durable)
        for data in batches_in(segments_of(folder_of(self.disk.all_files(), DIRECTORY))):
            identity, _ = next(batches_of(data))
            if identity.base_offset >= log.local_log_start_offset:
                durable[identity.base_offset] = data
        return replace(self.owed, durable=tuple(sorted(durable.items())))

    def _last_of_each_producer(self) -> list[bytes]:
        """The last data batch of each producer that has no open transaction and the same epoch still."""
        last: dict[int, bytes] = {}
        known = replayed(self.batches).producers
        for data in self.batches:
            identity, _ = next(batches_of(data))
            row = next((producer for producer in known.values() if producer.last_offset == identity.last_offset), None)
            if row is not None and not identity.control and row.last_sequence >= 0 and record_count(data):
                last[row.producer_id] = data
        return list(last.values())


class LogScript(Script):
    """A log over a disk, as a node has it: syncs end later than they begin, and a clean stop leaves a mark."""

    config: ClassVar[LogConfig]

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.epoch = 0
        self.written: list[Written] = []
        self.durable: dict[int, bytes] = {}
        self.least_start = self.most_start = self.tier_end = 0
        self.may_be_empty = False
        self._running: tuple[SyncPoint, Synced, int] | None = None
        self._owed: OwedLog | None = None
        self.log = _opened(disk, self.config)

    def owed(self) -> OwedLog:
        if self._owed is None:
            durable = tuple(sorted(self.durable.items()))
            starts = self.least_start, self.most_start
            self._owed = OwedLog(self.config, durable, starts, tuple(self.written), self.tier_end, self.may_be_empty)
        return self._owed

    # --- what scripts do --------------------------------------------------------------------------------------------

    def append(self, value: bytes = b"", key: bytes = b"k", count: int = 1, **how: int | bool) -> None:
        """Append one batch at the end. ``how`` has the fields of its producer."""
        number = len(self.written)
        value = value or b"record %d" % number
        records = [Record(timestamp_ms=WALL_MS + number, key=key, value=value) for _ in range(count)]
        self._write(build(records, **how))  # type: ignore[arg-type]

    def end_transaction(self, producer: int, epoch: int, commit: bool, coordinator_epoch: int = 0) -> None:
        marker = build_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=WALL_MS + len(self.written),
        )
        self._write(marker, BatchOrigin.BROKER)

    def _write(self, batch: bytes, origin: BatchOrigin = BatchOrigin.CLIENT) -> None:
        log, end = self.log, self.log.log_end_offset
        stamped = end.to_bytes(8, "big") + batch[8:12] + self.epoch.to_bytes(4, "big") + batch[16:]
        self.written.append(Written(len(self.written), end, stamped))
        self._owed = None
        appended = log.append(NOW, batch, self.epoch, origin=origin)
        assert appended.first_offset == end, (appended, end)
        log.advance_high_watermark(log.log_end_offset)

    def begin_sync(self) -> None:
        point = self.log.sync_point()
        self._running = point, self.disk.begin_sync(point.paths), self.most_start

    def end_sync(self) -> None:
        """End the sync that has begun. What it covers is owed from now on."""
        assert self._running is not None
        point, begun, start = self._running
        self._running = None
        self.disk.finish_sync(begun)
        self.log.mark_synced(point)
        self._take_durable(point.end_offset)
        self.least_start = max(self.least_start, start)
        self._owed = None
        self.log.files.note_synced()

    def sync(self) -> None:
        self.begin_sync()
        self.end_sync()

    def _take_durable(self, end_offset: int) -> None:
        for written in self.written:
            if written.cut_at < 0 and self.most_start <= written.offset < end_offset:
                self.durable[written.offset] = written.data

    def roll(self) -> None:
        self.log.roll(NOW)

    def truncate(self, offset: int) -> None:
        """Cut batches that reach ``offset``, as a follower does. A new leader follows."""
        count = len(self.written)
        self.written = [
            replace(written, cut_at=count) if written.cut_at < 0 and _end(written.data) > offset else written
            for written in self.written
        ]
        self.durable = {at: data for at, data in self.durable.items() if _end(data) <= offset}
        self._owed = None
        self.log.truncate_to(offset)
        self.epoch += 1

    def empty(self, offset: int) -> None:
        """Empty the log, and go on at ``offset``."""
        count = len(self.written)
        self.written = [
            written if written.cut_at >= 0 else replace(written, cut_at=count, void_from=offset)
            for written in self.written
        ]
        self.durable.clear()
        self.most_start = max(self.most_start, offset)
        self._owed = None
        self.log.truncate_fully_and_start_at(offset, NOW)
        self.epoch += 1

    @contextmanager
    def moving_start(self, offset: int) -> Iterator[None]:
        """The block moves the log start to ``offset``."""
        self.most_start = max(self.most_start, offset)
        self.durable = {at: data for at, data in self.durable.items() if at >= self.most_start}
        self._owed = None
        yield
        assert self.log.log_start_offset == offset, (self.log.log_start_offset, offset)

    def delete_records(self, offset: int) -> None:
        with self.moving_start(offset):
            self.log.delete_records_before(offset)

    def stop_and_start(self) -> None:
        """End cleanly, as the node does, and start with the mark."""
        while True:
            self.log.close_cleanly()
            if not self.log.sync_point().paths:
                break
            self.sync()
        self.disk.make_durable(write_mark(self.disk, 1))
        self._start()

    def kill_and_start(self) -> None:
        """The process is killed, and another one starts."""
        self._start()

    def lose_and_start(self, outcome: str) -> None:
        """Lose the power within the script, and start. Batches that are lost count as cut."""
        self.disk.power_loss(FIXED[outcome])
        self._start()
        end = self.log.log_end_offset
        self.written = [
            replace(written, cut_at=len(self.written)) if written.cut_at < 0 and written.offset >= end else written
            for written in self.written
        ]
        self._owed = None

    def _start(self) -> None:
        self._running = None
        self.disk.process_started()
        self.log = _opened(self.disk, self.config)
        self.epoch += 1

    # --- the comparison ---------------------------------------------------------------------------------------------

    @classmethod
    def resume(cls, disk: SimDisk, owed: OwedLog) -> ResumedLog:  # type: ignore[override]
        folder = folder_of(disk.all_files(), DIRECTORY)
        # The files of a swap that is not finished have to be put in place first. A replica that was being emptied voids
        # all of its files with this record.
        if not owed.config.is_compacted and rows_of(folder, LOCAL_START) != [BEGUN]:
            _check_claims(folder, owed)
        log = _opened(disk, owed.config)
        require(log.quarantine is None, f"the log is in quarantine: {log.quarantine and log.quarantine.why}")
        folder = folder_of(disk.all_files(), DIRECTORY)
        segments = segments_of(folder)
        batches = batches_in(segments)
        start, end = log.log_start_offset, log.log_end_offset
        least, most = owed.starts
        require(least <= start <= most, f"the log starts at {start}, and should between {least} and {most}")
        _check_claims(folder, owed)
        leftover = [name for name in folder if name.endswith((".cleaned", ".swap"))]
        require(not leftover, f"{leftover} are left over")
        compare = cls._compare_cleaned if owed.config.is_compacted else cls._compare_kept
        local = log.local_log_start_offset
        is_emptied = owed.may_be_empty and all(AFTER in data for data in batches)
        compare(owed, batches, local, end)
        if not is_emptied:
            require(local <= max(owed.tier_end, start), f"local records begin at {local}, behind the tier's end")
        before = [] if is_emptied and local < owed.tier_end else _before(owed, segments[0].base if segments else end)
        history = _written_up_to(owed, end, batches) if owed.config.is_compacted else [*before, *batches]
        for contradiction in contradictions(folder, before, history, start):
            require(False, contradiction)
        cls._compare_memory(log, replayed(history), batches)
        return ResumedLog(disk, owed, log, batches)

    @staticmethod
    def _compare_kept(owed: OwedLog, batches: Sequence[bytes], start: int, end: int) -> None:
        """Every batch is one of the script's, in order and without a hole, and those that were synced are there."""
        there, next_offset, cut = {}, -1, -1
        known = {(each.offset, each.data): each for each in owed.written}
        for data in batches:
            identity, _ = next(batches_of(data))
            at = identity.base_offset
            require(next_offset in (-1, at), f"the records from offset {next_offset} to {at} are missing")
            next_offset = identity.last_offset + 1
            there[at] = data
            if AFTER in data:
                continue
            written = known.get((at, data))
            require(written is not None, f"{identity.named} was never written at this offset")
            assert written is not None
            require(
                not 0 <= cut <= written.number, f"{identity.named} follows on a batch that had been truncated before it"
            )
            if written.cut_at >= 0:
                cut = written.cut_at if cut < 0 else min(cut, written.cut_at)
        require(not batches or next_offset == end, f"the log ends at {end}, and its last batch at {next_offset}")
        for at, data in owed.durable:
            if at >= start:
                identity, _ = next(batches_of(data))
                require(there.get(at) == data, f"{identity.named} was synced, and is lost")

    @staticmethod
    def _compare_cleaned(owed: OwedLog, batches: Sequence[bytes], start: int, end: int) -> None:  # noqa: ARG004
        """Every record is one of the script's, and the newest of each key among those that were synced is there."""
        known = {
            (record.offset, record.key, record.value) for written in owed.written for record in records_in(written.data)
        }
        there: dict[bytes | None, int] = {}
        last = -1
        for data in batches:
            identity, _ = next(batches_of(data))
            require(identity.base_offset > last, f"{identity.named} follows on offset {last}")
            last = identity.last_offset
            for record in records_in(data):
                there[record.key] = record.offset
                row = record.offset, record.key, record.value
                require(row in known or record.value == AFTER, f"{row} was never written")
        require(last < end, f"the log ends at {end}, and its last batch at {last + 1}")
        newest = {record.key: record.offset for _, data in owed.durable for record in records_in(data)}
        for key, offset in newest.items():
            require(
                there.get(key, -1) >= offset, f"the record of key {key!r} at offset {offset} was synced, and is lost"
            )

    @staticmethod
    def _compare_memory(log: UnifiedLog, replay: Replay, batches: Sequence[bytes]) -> None:
        log.check_invariants()
        in_memory = {
            producer_id: ProducerRow(
                producer_id,
                each.producer_epoch,
                each.last_sequence,
                each.batch_metadata[-1].last_offset if each.batch_metadata else -1,
                each.batch_metadata[-1].last_offset - each.batch_metadata[-1].first_offset
                if each.batch_metadata
                else 0,
                each.last_timestamp_ms,
                each.coordinator_epoch,
                each.current_txn_first_offset,
            )
            for producer_id, each in log.producers.by_id.items()
        }
        require(
            in_memory == replay.producers,
            f"the log knows {differing(in_memory, replay.producers)}",
        )
        start, end = log.local_log_start_offset, log.log_end_offset
        aborted = [
            (transaction.producer_id, transaction.first_offset) for transaction in log.aborted_transactions(start, end)
        ]
        expected = [(each.producer_id, each.first_offset) for each in replay.aborted if each.marker_offset >= start]
        require(
            sorted(aborted) == sorted(expected),
            f"the log has the aborted transactions {aborted}, and its batches give {expected}",
        )
        log.advance_high_watermark(end)
        still_open = min((producer.begun for producer in replay.producers.values() if producer.begun >= 0), default=end)
        require(
            log.last_stable_offset == max(still_open, start),
            f"the last stable offset is {log.last_stable_offset}, and the batches give {still_open}",
        )
        read, offset = b"", start
        while offset < end and (part := log.read(offset, 1 << 20, end)):
            read += part
            offset = [identity for identity, _ in batches_of(part)][-1].last_offset + 1
        stored = b"".join(data for data in batches if _end(data) > start)
        require(read == stored, f"a fetch returns {len(read)} bytes, and the files have {len(stored)}")


def _opened(disk: SimDisk, config: LogConfig) -> UnifiedLog:
    """Start as a node does: with the mark of a clean end, which must be durably gone before the log changes."""
    clean = read_mark(disk).clean
    if clean:
        disk.delete(CLEAN_SHUTDOWN_FILE)
        disk.make_durable(CLEAN_SHUTDOWN_FILE)
    return run_to_end(open_log(disk, DIRECTORY, config, NOW, clean))


def _end(data: bytes) -> int:
    identity, _ = next(batches_of(data))
    return identity.last_offset + 1


def _check_claims(folder: Mapping[str, bytes], owed: OwedLog) -> None:
    local = offset_in(folder, LOCAL_START)
    start = max(min(offset_in(folder, "log-start-offset-checkpoint"), owed.starts[1]), min(local, owed.tier_end))
    for claim in false_claims(folder, start):
        require(False, claim)


def _written_up_to(owed: OwedLog, end: int, batches: Sequence[bytes]) -> list[bytes]:
    """The batches below ``end`` as they were written, and those that a resumed log has taken."""
    later = [data for data in batches if AFTER in data]
    end = min((batch.base_offset for data in later for batch, _ in batches_of(data)), default=end)
    return [*(written.data for written in owed.written if written.offset < end and written.cut_at < 0), *later]


def _before(owed: OwedLog, base: int) -> list[bytes]:
    """The batches that were ahead of a log that begins at ``base``. Those were never truncated in any script."""
    return [
        written.data
        for written in owed.written
        if written.offset < base and written.void_from < 0 and written.cut_at < 0
    ]


# --- kinds ----------------------------------------------------------------------------------------------------------


class PlainLog(LogScript):
    name = "log"
    about = "appends, rolls, truncation, DeleteRecords, retention, a clean stop and a kill"
    config = LogConfig(segment_bytes=400, index_interval_bytes=80, retention_bytes=700)

    def play(self) -> None:
        for _ in range(3):
            self.append()
        self.sync()
        for _ in range(3):
            self.append()
        self.begin_sync()
        self.append(count=2)
        self.roll()
        self.append()
        self.end_sync()
        self.append()
        self.sync()
        self.append()
        self.sync()
        self.truncate(self.log.log_end_offset - 1)
        self.append()
        self.roll()
        self.append()
        self.sync()
        self.truncate(self.log.bases[-1] - 1)
        self.sync()
        self.append()
        self.roll()
        self.append()
        self.sync()
        self.roll()
        self.append()
        self.delete_records(3)
        self.append()
        self.sync()
        self.append()
        self.sync()
        self.stop_and_start()
        for _ in range(6):
            self.append()
        self.sync()
        self._retain()
        self.append()
        self.sync()
        self.kill_and_start()
        self.append()
        self.roll()
        self.append()
        self.sync()
        self.sync()
        self.empty(self.log.log_end_offset + 3)
        self.append()
        self.sync()
        self.append()

    def _retain(self) -> None:
        log = self.log
        excess = log.size_bytes - self.config.retention_bytes
        start = log.log_start_offset
        for at, segment in enumerate(log.segments):
            excess -= segment.size_bytes
            if excess < 0:
                break
            start = log.bases[at + 1]
        assert start > log.log_start_offset
        with self.moving_start(start):
            log.enforce_retention(NOW)


class ProducersOfALog(LogScript):
    name = "producers"
    about = "idempotent producers with their snapshots, and truncation behind rolls"
    config = LogConfig(segment_bytes=500, index_interval_bytes=80)

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.sequences: dict[tuple[int, int], int] = {}

    def send(self, producer: int, epoch: int = 0, count: int = 1) -> None:
        first = self.sequences.get((producer, epoch), 0)
        self.sequences[producer, epoch] = first + count
        self.append(count=count, producer_id=producer, producer_epoch=epoch, base_sequence=first)

    def take_back(self, offset: int) -> None:
        """Truncate, after which the producers go on where the log has them."""
        self.truncate(offset)
        self._go_on()

    def lose_and_start(self, outcome: str) -> None:
        super().lose_and_start(outcome)
        self._go_on()

    def _go_on(self) -> None:
        known = replayed(written.data for written in self.written if written.cut_at < 0).producers
        self.sequences = {(row.producer_id, row.epoch): row.last_sequence + 1 for row in known.values()}

    def play(self) -> None:
        for producer in (1, 2, 1, 3, 2):
            self.send(producer)
        self.sync()
        self.send(1, count=3)
        self.roll()
        self.send(2)
        self.send(3, epoch=1)
        self.sync()
        self.roll()
        self.send(4)
        self.begin_sync()
        self.send(1)
        self.roll()
        self.send(5)
        self.end_sync()
        self.take_back(9)
        self.send(6)
        self.sync()
        self.roll()
        self.send(1, epoch=2)
        self.roll()
        self.send(2)
        self.sync()
        self.take_back(self.log.bases[-1] - 1)
        for producer in (7, 7, 8, 2):
            self.send(producer)
        self.roll()
        self.sync()
        self.send(7)
        self.stop_and_start()
        self.send(8)
        self.roll()
        self.send(2, count=2)
        self.sync()
        self.delete_records(7)
        self.sync()
        self.kill_and_start()
        self.send(7)
        self.roll()
        self.send(8)
        self.sync()
        self.sync()
        self.send(7)
        self.roll()
        self.lose_and_start("new-files")  # The snapshot is there, and the batches before it are not.
        self.send(9)
        self.send(9)
        self.sync()


class TransactionsOfALog(LogScript):
    name = "transactions"
    about = "transactions with their index: aborts and commits across rolls, and a marker that is truncated"
    config = LogConfig(segment_bytes=600, index_interval_bytes=80)

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.sequences: dict[int, int] = {}

    def send(self, producer: int) -> None:
        first = self.sequences.get(producer, 0)
        self.sequences[producer] = first + 1
        self.append(producer_id=producer, producer_epoch=0, base_sequence=first, is_transactional=True)

    def end(self, producer: int, commit: bool = False) -> None:
        self.end_transaction(producer, 0, commit)

    def play(self) -> None:
        self.send(1)
        self.send(2)
        self.end(1)
        self.sync()
        self.send(1)
        self.roll()
        self.end(2, commit=True)
        self.send(3)
        self.end(1)
        self.sync()
        self.roll()
        self.send(1)
        self.begin_sync()
        self.end(1)
        self.roll()
        self.end(3)
        self.end_sync()
        self.send(2)
        self.sync()
        self.end(2)
        self.sync()
        self.truncate(self.log.log_end_offset - 1)
        self.end(2, commit=True)
        self.roll()
        self.send(4)
        self.sync()
        self.truncate(self.log.bases[-1] - 2)
        self.sequences.update({2: 1, 4: 0})
        self.sync()
        self.send(5)
        self.end(5)
        self.roll()
        self.sync()
        self.send(5)
        self.stop_and_start()
        self.end(5)
        self.roll()
        self.append()
        self.sync()
        self.kill_and_start()
        self.send(5)
        self.end(5)
        self.roll()
        self.sync()
        self.sync()


class CompactedLog(LogScript):
    name = "compaction"
    about = "passes of the cleaner, which swaps segments, with producers whose snapshots go"
    config = LogConfig(
        segment_bytes=350,
        index_interval_bytes=80,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.0,
        max_message_bytes=350,
    )

    def put(self, keys: str) -> None:
        for key in keys:
            self.append(key=key.encode())

    def clean(self, syncs: bool = True) -> None:
        """Run a pass. One that finds unsynced records makes durable what it needs (E-7)."""
        if syncs:
            self.sync()
        part = cleanable(self.log, NOW)
        assert part is not None
        for step in Cleaning(self.log, part, NOW, DEDUPE_BYTES).run():
            self.disk.finish_sync(self.disk.begin_sync(step.sync))

    def play(self) -> None:
        self.put("abcab")
        self.append(key=b"d", producer_id=1, producer_epoch=0, base_sequence=0)
        self.sync()
        self.put("ad")
        self.roll()
        self.clean(syncs=False)
        self.put("abba")
        self.append(key=b"c", producer_id=1, producer_epoch=0, base_sequence=1)
        self.roll()
        self.put("c")
        self.clean()
        self.put("ab")
        self.sync()
        self.roll()
        self.stop_and_start()
        self.put("dd")
        self.roll()
        self.clean()
        self.put("a")
        self.sync()
        self.kill_and_start()
        self.put("b")
        self.sync()


class TieredLog(LogScript):
    name = "tier"
    about = "segments that are listed in the remote tier and deleted here, and a replica that begins behind the tier"
    config = LogConfig(
        segment_bytes=300,
        index_interval_bytes=80,
        retention_ms=-1,
        remote_storage_enable=True,
        local_retention_bytes=0,
    )

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.sequences: dict[int, int] = {}

    def send(self, *producers: int) -> None:
        for producer in producers:
            first = self.sequences.get(producer, 0)
            self.sequences[producer] = first + 1
            self.append(producer_id=producer, producer_epoch=0, base_sequence=first)

    def list_up_to(self, segments: int) -> None:
        """The oldest local segments are copied, listed, and deleted here."""
        self.tier_end = self.log.bases[segments]
        self.durable = {at: data for at, data in self.durable.items() if at >= self.tier_end}
        self._owed = None
        self.log.note_copied(self.tier_end)
        self.log.enforce_retention(NOW)

    def begin_behind_tier(self) -> None:
        """Begin at the end of the tier, which has all of this replica's records by now, and where its leader's log goes
        on."""
        log = self.log
        self.tier_end = offset = log.log_end_offset
        self.durable.clear()
        self.least_start, self.most_start, self.may_be_empty = 0, offset, True
        self._owed = None
        epochs = list(zip(log.epochs.epochs, log.epochs.starts, strict=True))
        log.start_from_remote(NOW, offset, log.log_start_offset, epochs, encode_snapshot(log.producers), log.producers)
        self.least_start = self.most_start = log.log_start_offset
        self.may_be_empty = False
        self._owed = None

    def play(self) -> None:
        self.send(1, 2, 1, 3)
        self.sync()
        self.roll()
        self.send(2, 1, 2)
        self.sync()
        self.list_up_to(1)
        self.send(1)
        self.sync()
        self.epoch += 1
        self.send(4, 2, 4)
        self.sync()
        self.list_up_to(2)
        self.sync()
        self.delete_records(3)
        self.sync()
        self.kill_and_start()
        self.send(4, 1)
        self.sync()
        self.truncate(self.log.log_end_offset - 1)
        self.sequences[1] -= 1
        self.send(4, 4)
        self.sync()
        self.stop_and_start()
        self.send(2)
        self.sync()
        self.list_up_to(1)
        self.send(1)
        self.sync()
        self.begin_behind_tier()
        self.send(2, 4)
        self.sync()
        self.send(4)
