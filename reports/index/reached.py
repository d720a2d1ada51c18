"""What nights reached in the simulator: decision points of the broker."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.index.nights import NightSummary
from reports.night import PointCounts


@dataclass(frozen=True, slots=True)
class ReachedPoints:
    """The decision points of the newest night that counted them, beside the night before it that did."""

    night: str
    counts: PointCounts
    newly: tuple[str, ...]
    """Outcomes that the night before did not reach."""
    lost: tuple[str, ...]
    """Outcomes that only the night before reached."""

    @property
    def excused(self) -> int:
        """The number of outcomes that were not reached for a known reason."""
        return self.counts.outcomes - self.counts.reached - len(self.counts.never)


def reached_points(nights: Sequence[NightSummary]) -> ReachedPoints | None:
    """Return None if no night counted. An outcome that only one of two nights knows is neither newly reached nor
    lost."""
    counted = [(one.night.night, one.night.points) for one in nights if one.night.points is not None]
    if not counted:
        return None
    night, counts = counted[-1]
    if len(counted) == 1 or counted[-2][1].outcomes != counts.outcomes:
        return ReachedPoints(night, counts, (), ())
    before = counted[-2][1].never
    newly = tuple(each for each in before if each not in counts.never)
    lost = tuple(each for each in counts.never if each not in before)
    return ReachedPoints(night, counts, newly, lost)
