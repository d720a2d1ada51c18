"""What earlier nights left, as far as a night needs it: their files, and what they played."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from campaigns.nights import journal
from campaigns.nights.choosing import Played
from reports.columns import Row
from reports.night import NIGHT_TABLES, FailureRow, Night, NightError, PlayRow, night_folders, read_night
from reports.verdict import Outcome

MOST_NIGHTS = 30
"""So many of the newest nights decide what is played. Older ones are shown, but count no more."""
OURS = "reference"


OpenFailure: TypeAlias = tuple[str, str, int]
"""Scenario, guarantee and seed."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The plays of one kind in one night. A night has tens of thousands of plays, and some hundred kinds."""

    scenario: str
    world: str
    target: str
    mutant: str
    seeds: int
    reds: int
    wall_us: int
    last_seed: int

    @property
    def is_control(self) -> bool:
        return not self.mutant and self.target == OURS


@dataclass(frozen=True, slots=True)
class Kept:
    """A night that has ended or was stopped, with what it played."""

    night: Night
    sums: Sequence[Sum]

    @property
    def plays(self) -> int:
        return sum(each.seeds for each in self.sums)


def kept_nights(nights: Path) -> list[Kept]:
    """The newest nights, the oldest of them first. One whose files are damaged is left out."""
    return [found for each in night_folders(nights)[-MOST_NIGHTS:] if (found := _kept(each)) is not None]


def open_failures(nights: Path, night: str) -> set[OpenFailure]:
    """Each guarantee of a scenario with the seed with which it broke last in the simulator, in nights before ``night``,
    unless that seed has passed since. Damaged nights are left out."""
    found: dict[tuple[str, str], int] = {}
    for folder in night_folders(nights):
        if folder.name >= night:
            break
        with suppress(OSError, ValueError):
            passed = _passed_in(folder, set(found.values()))
            found = {key: seed for key, seed in found.items() if (key[0], seed) not in passed}
            for each in _rows_in(folder, FailureRow):
                if each["world"] == "sim" and each["target"] == OURS:
                    found[each["scenario"], each["guarantee"]] = each["seed"]
    return {(*key, seed) for key, seed in found.items()}


def _passed_in(folder: Path, seeds: set[int]) -> set[tuple[str, int]]:
    """Of these seeds those with which a control passed in the simulator, each with its scenario."""
    wanted = [
        ("seed", "in", seeds),
        ("world", "==", "sim"),
        ("mutant", "==", ""),
        ("target", "==", OURS),
        ("outcome", "==", Outcome.PASSED.name),
    ]
    return {(each["scenario"], each["seed"]) for each in _rows_in(folder, PlayRow, wanted)} if seeds else set()


def _rows_in(folder: Path, kind: type[Row], filters: Any = None) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    path = folder / NIGHT_TABLES[kind].path
    return pq.read_table(path, filters=filters).to_pylist() if path.is_file() else []


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
    return [PlayRow(**{**each, "is_replay": bool(each.get("is_replay"))}) for each in _rows_in(folder, PlayRow)]


def is_control(play: PlayRow) -> bool:
    """Whether the play must pass: our own broker without a planted defect."""
    return not play.mutant and play.target == OURS


def sums_of(plays: Iterable[PlayRow]) -> list[Sum]:
    """Sums plays up by their kind. Replays are left out, because their seeds were not drawn."""
    found: dict[tuple[str, str, str, str], Sum] = {}
    for each in plays:
        if each.is_replay:
            continue
        kind = each.scenario, each.world, each.target, each.mutant
        so_far = found.get(kind, Sum(*kind, 0, 0, 0, 0))
        red = each.outcome != Outcome.PASSED.name
        last_seed = max(so_far.last_seed, each.seed)
        found[kind] = Sum(*kind, so_far.seeds + 1, so_far.reds + red, so_far.wall_us + each.wall_us, last_seed)
    return list(found.values())


def played(sums: Iterable[Sum], nights_ago: int) -> list[Played]:
    """What a night's controls in the simulator come to, scenario by scenario."""
    controls = [each for each in sums if each.world == "sim" and each.is_control]
    return [Played(each.scenario, nights_ago, each.seeds, each.reds, each.wall_us / 1e6) for each in controls]


def _sums_in(folder: Path) -> list[Sum]:
    """What ``sums_of`` says of a night's plays, by Arrow: none of them becomes an object."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = folder / NIGHT_TABLES[PlayRow].path
    if not path.is_file():
        return []
    kind = ["scenario", "world", "target", "mutant"]
    there = pq.read_schema(path).names
    columns = [*kind, "outcome", "wall_us", "seed", "is_replay"]
    plays = pq.read_table(path, columns=[each for each in columns if each in there])
    if "is_replay" in there:  # Older nights lack it.
        plays = plays.filter(pc.invert(pc.fill_null(plays["is_replay"], False)))
    red = pc.cast(pc.not_equal(plays["outcome"], Outcome.PASSED.name), "int64")
    wanted = [("seed", "count"), ("red", "sum"), ("wall_us", "sum"), ("seed", "max")]
    found = plays.append_column("red", red).group_by(kind).aggregate(wanted)
    columns = [*kind, *(f"{name}_{how}" for name, how in wanted)]
    return [Sum(*values) for values in zip(*(found[each].to_pylist() for each in columns), strict=True)]


def control_outcomes(plays: Iterable[PlayRow]) -> Counter[str]:
    return Counter(each.outcome for each in plays if is_control(each))


def _kept(folder: Path) -> Kept | None:
    try:
        return Kept(read_night(folder), _sums_in(folder))
    except (NightError, OSError, ValueError):  # Arrow refuses a damaged file with a ValueError.
        return None
