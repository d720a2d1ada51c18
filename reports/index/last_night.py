"""Each night's verdict, and the last one's in one line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from reports.index.collected import Row
from reports.night import Night, outcome_of, why_red
from reports.verdict import Outcome


@dataclass(frozen=True, slots=True)
class NightTold:
    """``reasons`` say why the night is red. ``controls`` counts the plays that must pass. ``gap_hours`` is how long no
    night had begun before it, if too long."""

    night: Night
    started: datetime
    plays: int
    controls: int
    reasons: tuple[str, ...]
    outcome: Outcome
    gap_hours: int

    @property
    def is_red(self) -> bool:
        return bool(self.reasons)

    @property
    def line(self) -> str:
        """The night in one line."""
        if self.reasons:
            told = "; ".join(self.reasons)
            return f"{told[0].upper()}{told[1:]}."
        canary = self.night.canary
        found = (
            "" if canary is None else f", and the canary {canary.mutant} was found after {_seeds(canary.seeds_tried)}"
        )
        return f"{self.plays:,} plays{found}."


GAP_HOURS = 36


def told(nights: Sequence[Night], counts: Sequence[Row], now_us: int) -> list[NightTold]:
    """``nights`` are in order, the oldest first. ``now_us`` decides whether the newest is too old."""
    return list(_told(nights, counts, now_us))


def _told(nights: Sequence[Night], counts: Sequence[Row], now_us: int) -> Iterator[NightTold]:
    finished: list[int] = []
    before_us = 0
    for night in nights:
        rows = [row for row in counts if row["night"] == night.night]
        plays = sum(row["plays"] for row in rows)
        controls = {row["outcome"]: row["plays"] for row in rows if row["is_control"]}
        newest = night is nights[-1]
        reasons = why_red(night, plays, controls, finished, now_us if newest else 0)
        gap = int((night.started_us - before_us) / 3600e6) if before_us else 0
        yield NightTold(
            night=night,
            started=datetime.fromtimestamp(night.started_us / 1e6, UTC),
            plays=plays,
            controls=sum(controls.values()),
            reasons=tuple(each.text for each in reasons),
            outcome=outcome_of(reasons),
            gap_hours=gap if gap > GAP_HOURS else 0,
        )
        before_us = night.started_us
        if night.finished:
            finished.append(plays)


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"
