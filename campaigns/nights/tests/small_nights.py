"""Nights of a few seconds that only search, and their parts."""

from collections.abc import Callable, Sequence
from pathlib import Path

from campaigns.nights.night import Kept, NightJournal, NightOptions, Work
from campaigns.nights.nights_command import run
from reports.night import FailureRow, Night, PlayRow, read_night


def search_for(nights: Path, seconds: float, say: Callable[[str], None] = lambda _: None, **options: object) -> int:
    """Play a night of this many seconds that only searches. Return its exit code."""
    return run(NightOptions(seconds / 3600, nights, only=("search",), **options), say)  # type: ignore[arg-type]


def work_of(folder: Path, earlier: Sequence[Kept] = (), **night: object) -> Work:
    """Return a started night that has played nothing yet."""
    values_of_night = {"night": folder.name, "started_us": 1, "budget_s": 60.0, "seed": 1_000, **night}
    folder.mkdir(parents=True, exist_ok=True)
    work = Work(folder, Night(**values_of_night), NightJournal(folder), earlier, lambda _: None)  # type: ignore[arg-type]
    work.scratch.mkdir(exist_ok=True)
    return work


def the_night(nights: Path) -> tuple[Path, Night]:
    (folder,) = [each for each in nights.iterdir() if each.is_dir()]
    return folder, read_night(folder)


def a_play(**values: object) -> PlayRow:
    defaults: dict[str, object] = {"scenario": "01-x", "world": "sim", "target": "reference", "mutant": "", "seed": 1}
    defaults |= {"outcome": "PASSED", "guarantee": "", "detail": "", "wall_us": 1_000, "at_us": 1, "run_dir": ""}
    return PlayRow(**{**defaults, "command": "./crucible sim 1", **values})  # type: ignore[arg-type]


def a_failure(**values: object) -> FailureRow:
    defaults: dict[str, object] = {"scenario": "01-x", "world": "sim", "target": "reference", "guarantee": "lost-write"}
    defaults |= {"seed": 1, "faults": "", "regression": "regressions/x.toml", "command": "", "live_plays": 0}
    return FailureRow(**{**defaults, "live_reds": 0, "first_bad_commit": "", "detail": "", **values})  # type: ignore[arg-type]
