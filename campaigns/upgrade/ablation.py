"""Cost and errors of producer snapshots: if all is replayed, the last segment only, or what P-9 names.

The broker's own replay reads logs that are made by hand, from different places. A full replay of the files judges each
snapshot (``full_replay``). There is no snapshot at first. What a way makes is there for its next snapshots, but for the
last segment alone, which would need none.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from campaigns.upgrade.full_replay import Differences, ReplayedSegment, differences, replayed
from campaigns.upgrade.kafka_files import snapshot_rows
from campaigns.upgrade.old_directory import HOUR_MS, TOPIC, WantedLog, make
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.producer_replay import RecreatedSnapshot, recreate, recreate_from
from reference_broker.log.producer_state import ProducerStateEntry
from reference_broker.log.segments import Segments
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.serve.disk import FileDisk

MIB = 1 << 20
BASE = WantedLog(size_bytes=64 * MIB, segment_bytes=2 * MIB, batch_bytes=16 << 10, producers_per_hour=8.0, snapshots=0)
"""Some 3 hours are in a segment."""
LENGTHS_MIB = (16, 32, 64, 128, 256)
EXPIRATIONS_HOURS = (1.0, 6.0, 24.0, 48.0, 96.0)
RATES_PER_HOUR = (1.0, 8.0, 64.0, 512.0)
REPEATS = 3
MAX_OPEN_FILES = 64

Making = Generator[None, None, RecreatedSnapshot]
Way = Callable[[Segments, int, int, int, Mapping[int, ProducerStateEntry]], Making]


def everything(
    segments: Segments, offset: int, now_ms: int, expiration_ms: int, live: Mapping[int, ProducerStateEntry]
) -> Making:
    """Recreate the snapshot from the newest one before it, or from the beginning of the log."""
    return recreate_from(segments, segments.bases[0], offset, now_ms, expiration_ms, live)


def last_segment(
    segments: Segments, offset: int, now_ms: int, expiration_ms: int, live: Mapping[int, ProducerStateEntry]
) -> Making:
    """Recreate the snapshot from the segment that is to be uploaded alone."""
    begin = segments.bases[segments.bases.index(offset) - 1]
    return recreate_from(segments, begin, offset, now_ms, expiration_ms, live)


WAYS: dict[str, tuple[Way, bool]] = {
    "everything": (everything, True),
    "last segment": (last_segment, False),
    "P-9": (recreate, True),
}
"""The ways by name, and whether a way keeps each snapshot that it makes for the next ones."""


class Figures(NamedTuple):
    """The costs and errors of one way on one log. The first four are of the newest closed segment, without any snapshot
    before it; the others are of all closed segments in turn."""

    read_bytes: int
    took_s: float  # the best of three
    missing: int  # producers that the snapshot lacks
    wrong: int  # producers that the snapshot has with wrong values
    all_bytes: int
    all_s: float
    all_missing: int
    all_wrong: int
    all_unequal: int  # snapshots that differ from the full replay


@dataclass(frozen=True, slots=True)
class AblationCase:
    """One log, measured in several ways."""

    wanted: WantedLog
    log_bytes: int
    segments: int
    known: int  # number of producers that are unexpired at the newest closed segment's end, or have an open transaction
    figures: dict[str, Figures]


def cases() -> dict[str, list[WantedLog]]:
    """The logs by what differs in them: their length, the expiration, and how many producers come in an hour. A longer
    log has more hours."""
    hours = BASE.hours * MIB / BASE.size_bytes
    return {
        "length": [replace(BASE, size_bytes=mib * MIB, hours=mib * hours) for mib in LENGTHS_MIB],
        "expiration": [replace(BASE, expiration_hours=hour) for hour in EXPIRATIONS_HOURS],
        "rate": [replace(BASE, producers_per_hour=rate) for rate in RATES_PER_HOUR],
    }


def measured(wanted: WantedLog, root: Path, now_ms: int) -> AblationCase:
    """Make the log below ``root``, and let each way work on it. ``now_ms`` is the time of its last record and of the
    uploads."""
    make(root, wanted, now_ms)
    replay = replayed(root / f"{TOPIC}-0")
    log = run_to_end(
        open_log(FileDisk(root, MAX_OPEN_FILES), f"{TOPIC}-0", LogConfig(retention_ms=-1), Now(0, now_ms), clean=True)
    )
    expiration_ms = int(wanted.expiration_hours * HOUR_MS)
    figures = {name: _figures(way, keeps, log, replay, now_ms, expiration_ms) for name, (way, keeps) in WAYS.items()}
    known = differences({}, replay[-2].known, now_ms, expiration_ms).missing
    return AblationCase(wanted, sum(each.size_bytes for each in replay), len(replay), known, figures)


def _figures(
    way: Way, keeps: bool, log: UnifiedLog, replay: Sequence[ReplayedSegment], now_ms: int, expiration_ms: int
) -> Figures:
    segments, live = log.segments, log.producers.by_id

    def made(each: ReplayedSegment) -> tuple[RecreatedSnapshot, float, Differences]:
        began = time.perf_counter()
        found = _to_end(way(segments, each.next_offset, now_ms, expiration_ms, live))
        took_s = time.perf_counter() - began
        return (
            found,
            took_s,
            differences(snapshot_rows(found.snapshot), each.known, now_ms, expiration_ms),
        )

    _forget(segments)
    newest = [made(replay[-2]) for _ in range(REPEATS)]
    in_turn = []
    for each in replay[:-1]:
        in_turn.append(made(each))
        if keeps:
            segments.snapshots.put(each.next_offset, in_turn[-1][0].snapshot)
    _forget(segments)
    found, _, differing = newest[0]
    return Figures(
        found.read_bytes,
        min(took_s for _, took_s, _ in newest),
        differing.missing,
        differing.wrong,
        sum(one.read_bytes for one, _, _ in in_turn),
        sum(took_s for _, took_s, _ in in_turn),
        sum(one.missing for _, _, one in in_turn),
        sum(one.wrong for _, _, one in in_turn),
        sum(not one.is_equal for _, _, one in in_turn),
    )


def _forget(segments: Segments) -> None:
    for offset in segments.snapshots.offsets[:]:
        segments.snapshots.delete(offset)


def _to_end(making: Making) -> RecreatedSnapshot:
    while True:
        try:
            next(making)
        except StopIteration as stop:
            made: RecreatedSnapshot = stop.value
            return made
