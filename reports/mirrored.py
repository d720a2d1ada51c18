"""The lag of a mirror, and rewinds. Plain arithmetic over the jobs' rows."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from reports.job_rows import Row, Rows
from reports.jobs.mirror import SLOT_US

if TYPE_CHECKING:
    from reports.collect import Findings

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Track:
    """One partition over time, in slots of SLOT_US from the first slot with a record in the source.

    Each slot has the source's end, the mirror's position, and the age of the oldest record that the mirror had not
    reached (microseconds; 0 if none waited).
    """

    first: int
    ends: tuple[int, ...]
    positions: tuple[int, ...]
    lags_us: tuple[int, ...]

    def lag_at(self, at_us: int) -> int:
        return self.lags_us[min(max(at_us // SLOT_US - self.first, 0), len(self.lags_us) - 1)]


@dataclass(frozen=True, slots=True)
class Rewind:
    """A step of a mirror back to an earlier offset."""

    topic: str
    partition: int
    at_us: int
    from_offset: int
    to_offset: int
    before_us: int
    worst_us: int
    took_us: int | None
    """The time until the mirror was back; None if it never was."""

    @property
    def added_us(self) -> int:
        """Return by how much the lag grew until the mirror was back."""
        return max(0, self.worst_us - self.before_us)


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The measures of one topic's copy."""

    topic: str
    partitions: int
    records: int
    again: int
    rewinds: int
    farthest: int
    median_lag_us: float
    worst_lag_us: int
    added_us: int
    """The most that one rewind added."""
    held: int | None
    """Records in the target at the end; None: nobody read it."""
    held_twice: int | None


def mirrored(findings: "Findings") -> list[Mirrored]:
    known, costs = tracks(findings), rewinds(findings)
    mirrors = sorted(findings.mirrors, key=lambda row: str(row["topic"]))
    return [_of_topic(row, findings, known, costs) for row in mirrors]


def _of_topic(row: "Row", findings: "Findings", known: dict[Place, Track], costs: Sequence[Rewind]) -> Mirrored:
    held = next((target for target in findings.mirror_targets if target["topic"] == row["topic"]), None)
    lags = [lag for (topic, _), track in known.items() if topic == row["topic"] for lag in track.lags_us]
    return Mirrored(
        row["topic"],
        row["partitions"],
        row["records"],
        row["again"],
        row["rewinds"],
        row["farthest"],
        median(lags) if lags else 0,
        max(lags, default=0),
        max((cost.added_us for cost in costs if cost.topic == row["topic"]), default=0),
        None if held is None else held["held"],
        None if held is None else held["twice"],
    )


def tracks(findings: "Findings") -> dict[Place, Track]:
    ends, positions = _by_slot(findings.mirror_source, "end"), _by_slot(findings.mirrored, "position")
    return {place: _track(ends[place], positions[place]) for place in sorted(positions) if place in ends}


def _by_slot(rows: "Rows", value: str) -> dict[Place, dict[int, int]]:
    by_slot: dict[Place, dict[int, int]] = {}
    for row in rows:
        by_slot.setdefault((row["topic"], row["partition"]), {})[row["slot"]] = row[value]
    return by_slot


def _track(ends: dict[int, int], positions: dict[int, int]) -> Track:
    first, last = min(ends), max(*ends, *positions)
    reached: list[int] = []
    copied: list[int] = []
    lags = []
    start = positions[min(positions)] if min(positions) < first else 0
    for slot in range(first, last + 1):
        reached.append(max(ends.get(slot, 0), reached[-1] if reached else 0))
        copied.append(positions.get(slot, copied[-1] if copied else start))
        oldest = bisect_right(reached, copied[-1])
        lags.append((len(reached) - 1 - oldest) * SLOT_US if oldest < len(reached) else 0)
    return Track(first, tuple(reached), tuple(copied), tuple(lags))


def rewinds(findings: "Findings") -> list[Rewind]:
    known = tracks(findings)
    rows = sorted(findings.mirror_rewinds, key=lambda row: (row["at_us"], row["topic"], row["partition"]))
    return [_rewind(row, known.get((row["topic"], row["partition"]))) for row in rows]


def _rewind(row: "Row", track: Track | None) -> Rewind:
    at_us, past = row["at_us"], row["from_offset"]
    place = (row["topic"], row["partition"], at_us, past, row["to_offset"])
    if track is None:
        return Rewind(*place, 0, 0, None)
    since = min(max(at_us // SLOT_US - track.first, 0), len(track.positions) - 1)
    back = next((n for n in range(since, len(track.positions)) if track.positions[n] >= past), None)
    until = len(track.lags_us) if back is None else back + 1
    took = None if back is None else max(0, (track.first + back + 1) * SLOT_US - at_us)
    return Rewind(*place, track.lag_at(at_us - SLOT_US), max(track.lags_us[since:until]), took)
