"""The verdict on an uploaded partition: each snapshot equals a full replay, and each segment is whole"""

from dataclasses import dataclass
from pathlib import Path

from campaigns.upgrade.full_replay import Differences, ReplayedSegment, differences, first_needed
from campaigns.upgrade.journey import Journey
from campaigns.upgrade.kafka_files import EPOCH_AT, MAGIC_AT, UnknownFormat, batches, file_name, snapshot_rows


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """The verdict on one partition. Counts are of segments where nothing else is named."""

    partition: str
    segments: int
    eligible: int
    missing_before: int
    """Closed segments that had no snapshot at their end."""
    uploaded: int
    whole: int
    recreated: int
    equal: int
    """Snapshots that equal the full replay."""
    producers: int
    """Producers that any snapshot lacks or has with wrong values."""
    too_early: int
    """Replays of the broker that read more than P-9 allows."""
    untimely: int
    """Replays whose time, by which producers expire, is outside of the run."""
    replayed_bytes: int
    log_bytes: int
    """Size of the log."""

    @property
    def is_good(self) -> bool:
        is_all_right = self.eligible == self.uploaded == self.whole == self.equal
        return is_all_right and not self.too_early and not self.untimely

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row, in the order of ``HEADINGS``."""
        share = self.replayed_bytes / self.log_bytes if self.log_bytes else 0.0
        return (
            self.partition,
            f"{self.segments} ({self.eligible})",
            str(self.missing_before),
            str(self.uploaded),
            str(self.recreated),
            f"{mib(self.replayed_bytes)} of {mib(self.log_bytes)} MiB ({share:.0%})",
            ("yes" if self.eligible else "nothing to compare") if self.is_good else self._fault(),
        )

    def _fault(self) -> str:
        faults = [
            (self.eligible - self.uploaded, "not uploaded"),
            (self.uploaded - self.whole, "not whole"),
            (self.uploaded - self.equal, f"differ ({self.producers} producers)"),
            (self.too_early, "read too early"),
            (self.untimely, "made at no time of this run"),
        ]
        return "NO: " + ", ".join(f"{count} {words}" for count, words in faults if count)


HEADINGS = (
    "partition",
    "segments (eligible)",
    "lacked a snapshot",
    "uploaded",
    "snapshots made",
    "replayed of the log",
    "equal",
)


def mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f}"


def compute_verdict(journey: Journey) -> PartitionVerdict:
    """Compare the objects in the store's folder with the old files."""
    ends = {each.next_offset for each in journey.replay[:-1]}
    uploaded = {each.base_offset: _object(journey, each, ".log") for each in journey.eligible}
    there = [each for each in journey.eligible if uploaded[each.base_offset] is not None]
    found = {each.next_offset: _compared(journey, each) for each in there}
    return PartitionVerdict(
        journey.old.name,
        len(journey.replay),
        len(journey.eligible),
        len(ends - journey.old.snapshots),
        len(there),
        sum(_is_whole(journey, each) for each in there),
        len(journey.recreated),
        sum(each.is_equal for each in found.values()),
        sum(each.missing + each.wrong + each.unknown for each in found.values()),
        sum(_is_too_early(journey, offset) for offset in journey.recreated),
        sum(not journey.began_ms <= each.now_ms <= journey.ended_ms for each in journey.recreated.values()),
        sum(each.read_bytes for each in journey.recreated.values()),
        sum(each.size_bytes for each in journey.replay),
    )


def _object(journey: Journey, segment: ReplayedSegment, suffix: str) -> Path | None:
    """The segment's object of this kind, whose name begins as a segment's file does."""
    return next(iter(sorted(journey.uploads.glob(f"{segment.base_offset:020d}-*{suffix}"))), None)


def _compared(journey: Journey, segment: ReplayedSegment) -> Differences:
    """A snapshot that was there before is as old as its segment. It counts for producers that are unexpired at the
    upload's end."""
    made = journey.recreated.get(segment.next_offset)
    path = _object(journey, segment, ".snapshot")
    try:
        rows = snapshot_rows(path.read_bytes()) if path is not None else {}
    except UnknownFormat:
        rows = {}
    now_ms = made.now_ms if made else journey.ended_ms
    return differences(rows, segment.known, now_ms, journey.expiration_ms)


def _is_too_early(journey: Journey, offset: int) -> bool:
    made = journey.recreated[offset]
    snapshots = journey.there | {each for each in journey.recreated if each < offset}
    return made.from_offset < first_needed(journey.replay, snapshots, offset, made.now_ms, journey.expiration_ms)


def _is_whole(journey: Journey, segment: ReplayedSegment) -> bool:
    """Return whether the object equals the old file byte for byte, but for leader epochs that were changed to 0."""
    old, copy = journey.old.folder / file_name(segment.base_offset, ".log"), _object(journey, segment, ".log")
    assert copy is not None, "it was uploaded"
    wanted = bytearray(old.read_bytes())
    if journey.epochs_changed:
        for batch in batches(old):
            wanted[batch.position + EPOCH_AT : batch.position + MAGIC_AT] = bytes(MAGIC_AT - EPOCH_AT)
    return wanted == copy.read_bytes()
