"""What earlier nights left, as far as a night needs it: their files, and what they played."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.night import Night, NightError, night_folders, read_night
from reports.night_rows import NIGHT_TABLES, PlayRow
from reports.verdict import Outcome
from tools.nights import journal
from tools.nights.choosing import Played

MOST_NIGHTS = 30
"""So many of the newest nights decide what is played. Older ones are shown, but count no more."""
OURS = "reference"


@dataclass(frozen=True, slots=True)
class Kept:
    """A night that has ended or was stopped, with its plays."""

    night: Night
    plays: Sequence[PlayRow]


def kept_nights(nights: Path) -> list[Kept]:
    """The newest nights, the oldest of them first. One whose files are damaged is left out."""
    return [found for each in night_folders(nights)[-MOST_NIGHTS:] if (found := _kept(each)) is not None]


def settle(folder: Path) -> None:
    """Writes the tables of a night that was stopped and that nobody will go on with. A night that is being played is
    left alone."""
    try:
        left = journal.Journal(folder)
    except journal.BusyError:
        return
    left.write_tables(folder)
    left.close(done=True)


def plays_of(folder: Path) -> list[PlayRow]:
    """The plays of a night as its table has them; none if it has no table yet."""
    import pyarrow.parquet as pq

    path = folder / NIGHT_TABLES[PlayRow].path
    return [PlayRow(**each) for each in pq.read_table(path).to_pylist()] if path.is_file() else []


def is_control(play: PlayRow) -> bool:
    """Whether the play must pass: our own broker without a planted defect."""
    return not play.mutant and play.target == OURS


def played(plays: Iterable[PlayRow], nights_ago: int) -> list[Played]:
    """What a night's controls in the simulator come to, scenario by scenario."""
    seeds, reds, wall_us = Counter[str](), Counter[str](), Counter[str]()
    for each in plays:
        if each.world == "sim" and is_control(each):
            seeds[each.scenario] += 1
            reds[each.scenario] += each.outcome != Outcome.PASSED.name
            wall_us[each.scenario] += each.wall_us
    return [Played(name, nights_ago, seeds[name], reds[name], wall_us[name] / 1e6) for name in seeds]


def control_outcomes(plays: Iterable[PlayRow]) -> Counter[str]:
    return Counter(each.outcome for each in plays if is_control(each))


def _kept(folder: Path) -> Kept | None:
    try:
        return Kept(read_night(folder), plays_of(folder))
    except (NightError, OSError, ValueError):  # Arrow refuses a damaged file with a ValueError.
        return None
