"""What a log shows: offsets, leader epochs, transactions, records. Nothing here changes the log."""

from collections.abc import Generator, Sequence
from operator import attrgetter

from reference_broker.log import invariants, reading
from reference_broker.log.lookup import FoundOffset, LookUp, Search, Work, in_one_go
from reference_broker.log.reading import MovedToRemote, OffsetOutOfRange
from reference_broker.log.recovery import Recovered
from reference_broker.log.recreating import Recreated, recreated
from reference_broker.log.tierable import TierableSegment, tierable
from reference_broker.ports.now import Now
from reference_broker.records.batch import Buffer, end_of
from reference_broker.wire.fetch import AbortedTransaction, EpochEndOffset

_begin = attrgetter("first_offset")


class LogView:
    """The state of a log, and what can be read from it. ``PartitionLog`` extends it with the methods that change it.

    ``cleaned_offset``: as in its file; of the records below it, only the newest of each key are left. ``topic_id``:
    written beside the first records; empty where the directory's name says all. ``quarantine``: why the log must not be
    led, or None. ``horizon``: below which offset tombstones may be gone.

    ``log_start_offset``: where the log begins. ``local_log_start_offset``: where its records on this disk begin. Those
    between them are in the remote tier only. Without such records both are the same. ``copied_end_offset``: below it
    every record is listed in the remote tier. The tier tells it; a start does not know it.
    """

    __slots__ = (
        "_checkpoints",
        "cleaned_offset",
        "copied_end_offset",
        "directory",
        "disk",
        "durability",
        "epochs",
        "high_watermark",
        "horizon",
        "local_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "quarantine",
        "recovered",
        "segments",
        "topic_id",
    )

    def __init__(self, recovered: Recovered) -> None:
        self.segments = segments = recovered.segments
        self.disk = segments.disk
        self.directory = segments.directory
        self.durability = segments.durability
        self.epochs = recovered.epochs
        self.producers = recovered.producers
        self.recovered = recovered.report
        self.quarantine = recovered.quarantine
        self.topic_id = b""
        self._checkpoints = recovered.checkpoints
        self.log_end_offset = segments[-1].next_offset if segments else recovered.local_start_offset
        self.log_start_offset = min(recovered.log_start_offset, self.log_end_offset)
        self.local_log_start_offset = self.high_watermark = min(recovered.local_start_offset, self.log_end_offset)
        self.copied_end_offset = 0
        self.cleaned_offset = recovered.cleaned_offset
        self.horizon = recovered.horizon

    # --- offsets and epochs -----------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest undecided transaction below the high watermark, or the high watermark if
        there is none. It is never below the log start offset, where the transaction may have begun."""
        unstable = self.producers.first_unstable_offset(self.high_watermark)
        if unstable is None:
            return self.high_watermark
        return max(self.log_start_offset, min(self.high_watermark, unstable))

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions with records in [offset, end_offset), by first offset. A reader of committed
        records must skip their records. Raises DiskError."""
        found = self.segments.aborted_between(offset, end_offset)
        return [AbortedTransaction(each.producer_id, each.first_offset) for each in sorted(found, key=_begin)]

    def aborted_among(self, offset: int, records: Buffer) -> list[AbortedTransaction]:
        """Does the same for the batches that a read from ``offset`` gave. Mostly there are none. Only where there may
        be some, it is looked up where the records end. Raises DiskError."""
        segments = self.segments
        if not records or not any(each.aborted.count for each in segments.items[segments.index_of(offset) :]):
            return []
        first_offset = int.from_bytes(memoryview(records)[:8])
        return self.aborted_transactions(max(offset, first_offset), end_of(records))

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch that the log knows of, or -1 if there is none."""
        return self.epochs.latest

    @property
    def bases(self) -> Sequence[int]:
        """The base offsets of the segments."""
        return self.segments.bases

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def is_offline(self) -> bool:
        """Whether a failed append could not be undone, so that the log is not used before a restart."""
        return self.segments.is_offline

    @property
    def recovery_point(self) -> int:
        """The recovery point: segments that end at or before it need no full scan after a crash."""
        return self._checkpoints.recovery_point

    @property
    def durable_end(self) -> int:
        """The offset below which a start takes nothing for a torn end. What is written down may lag behind what is
        synced."""
        return self._checkpoints.durable_end

    @property
    def synced_offset(self) -> int:
        """The offset below which every record is durable."""
        return self.durability.synced_offset

    @property
    def appended_since_sync(self) -> int:
        """The number of offsets whose records are not known to be durable."""
        return self.log_end_offset - max(self.durability.synced_offset, self.local_log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Returns the largest known epoch <= ``epoch`` and its end offset, one past its last offset (KIP-320). The
        result is (-1, -1) for an epoch above the latest, or if no epoch is known."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Returns the leader epoch of the record at ``offset``, or -1 if it is unknown."""
        return self.epochs.epoch_at(offset)

    # --- records ----------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int | None = None,
        at_least_one: bool = True,
        skips_empty: bool = False,
    ) -> bytes:
        """Returns whole batches, from the one that holds ``offset`` up to ``end_offset``. Without ``end_offset`` that
        is the high watermark. With ``skips_empty`` each has records, unless none with records follow.

        At most ``max_bytes``, except that the first batch comes whatever its size if ``at_least_one``. May return
        less than would fit (the rest of a segment, up to an index entry). Raises OffsetOutOfRange, MovedToRemote and
        DiskError.
        """
        log_end_offset = self.log_end_offset
        if not self.local_log_start_offset <= offset <= log_end_offset:
            if self.log_start_offset <= offset < log_end_offset:
                raise MovedToRemote(offset, self.local_log_start_offset)
            raise OffsetOutOfRange(offset, self.log_start_offset, log_end_offset)
        end_offset = min(self.high_watermark if end_offset is None else end_offset, log_end_offset)
        segments = self.segments
        if offset >= end_offset or (max_bytes <= 0 and not at_least_one) or not segments.items:
            return b""
        if segments.is_offline:
            segments.check_online()
        if not skips_empty:
            return reading.read(segments, offset, max_bytes, end_offset, at_least_one)
        first = reading.first_with_records(segments, offset, end_offset)
        records = reading.read(segments, first, max_bytes, end_offset, at_least_one)
        if not records and at_least_one and first != offset:  # What follows lies beyond the end.
            return reading.read(segments, offset, max_bytes, end_offset, at_least_one)
        return reading.without_empty(segments, first, records)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Returns how many bytes the batches have, from the one that holds ``offset`` up to ``end_offset``. It is 0
        outside the log, and of records that are in the remote tier only."""
        offset, end_offset = max(offset, self.local_log_start_offset), min(end_offset, self.log_end_offset)
        if offset >= end_offset or not self.segments.items:
            return 0
        return reading.bytes_between(self.segments, offset, end_offset)

    def tierable(self, last_stable_offset: int, high_watermark: int, from_offset: int) -> tuple[TierableSegment, ...]:
        """Returns the closed segments with offsets from ``from_offset`` on that may be copied to the remote tier: those
        that lie wholly below the last stable offset and the high watermark, the oldest first."""
        return tierable(self.segments, min(last_stable_offset, high_watermark), from_offset)

    def recreated(self, now: Now, offset: int) -> Generator[None, None, Recreated]:
        """Makes the snapshot of producers at ``offset``, where a segment begins, as P-9 says. In slices. Raises
        Overtaken and DiskError. ``PartitionLog.recreate_snapshot`` keeps it, too."""
        return recreated(self.segments, offset, now.wall_ms, self.producers.expiration_ms, self.producers.by_id)

    def search_timestamp(self, timestamp_ms: int, work: Work) -> Search[FoundOffset | None]:
        """The first record here whose timestamp is >= ``timestamp_ms``, in slices. Raises Overtaken between two
        slices."""
        return LookUp(self.segments, self.local_log_start_offset, work).first_at(timestamp_ms)

    def search_max_timestamp(self, work: Work) -> Search[FoundOffset]:
        """The first record here with the largest timestamp (KIP-734), in slices; (-1, -1, -1) if there is none. Raises
        Overtaken between two slices."""
        return LookUp(self.segments, self.local_log_start_offset, work).largest()

    def offset_for_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        """``search_timestamp`` in one go."""
        return in_one_go(self.search_timestamp(timestamp_ms, Work()))

    def offset_of_max_timestamp(self) -> FoundOffset:
        """``search_max_timestamp`` in one go."""
        return in_one_go(self.search_max_timestamp(Work()))

    # --- assertions -------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises AssertionError if the parts of the log contradict each other. It walks over all that is in memory, so
        the simulator and tests call it and production does not."""
        invariants.check_offsets(
            self.log_start_offset, self.local_log_start_offset, self.high_watermark, self.log_end_offset
        )
        invariants.check_segments(self.segments, self.local_log_start_offset, self.log_end_offset)
        invariants.check_durability(self.durability, self.durable_end, self.cleaned_offset, self.log_end_offset)
        invariants.check_epochs(self.epochs, self.log_start_offset, self.log_end_offset)
        invariants.check_producers(self.producers, self.log_end_offset)
