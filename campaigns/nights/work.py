"""The night that is being played: its folder, its rows, and its clock."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from campaigns.nights.journal import Journal
from campaigns.nights.kept import Kept
from reports.columns import Row
from reports.night import FailureRow, Night, PlayRow, Stage, write_night

WRITTEN_EACH_S = 5.0
TOLD_EACH_S = 30.0


class Skipped(Exception):  # noqa: N818  (nothing failed)
    """A stage cannot be played here. The message is one sentence that says why."""


@dataclass(slots=True)
class Work:
    """What stages play with. ``earlier`` are the nights before, the oldest first."""

    folder: Path
    night: Night
    journal: Journal
    earlier: Sequence[Kept]
    tell: Callable[[str], None]
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    _stage: str = ""
    _since_s: float = 0.0
    _written_s: float = 0.0
    _told_s: float = 0.0

    @property
    def scratch(self) -> Path:
        """For what nobody needs tomorrow. Commands keep their temporary files here, also those that are killed."""
        return self.folder / "scratch"

    @property
    def environment(self) -> dict[str, str]:
        """Of all commands that the night runs."""
        return {**os.environ, "TMPDIR": str(self.scratch.resolve())}

    @property
    def turn(self) -> int:
        """A number that is another one each night, for what takes turns."""
        return len(self.earlier) + self.night.seed

    @property
    def plays(self) -> list[PlayRow]:
        return self.journal.of(PlayRow)

    @property
    def failures(self) -> list[FailureRow]:
        return self.journal.of(FailureRow)

    @property
    def left_s(self) -> float:
        """What is left of the budget."""
        return self.night.budget_s - sum(each.spent_s for each in self.night.stages)

    def stage(self, name: str) -> Stage:
        return next(each for each in self.night.stages if each.name == name)

    def tried_before(self, stage: str) -> list[Sequence[str]]:
        """What this stage tried in each earlier night, and tonight so far."""
        nights = [*(each.night for each in self.earlier), self.night]
        return [one.tried for night in nights for one in night.stages if one.name == stage]

    def add(self, *rows: Row) -> None:
        """Keeps what was found. It is durable at once."""
        for each in rows:
            self.journal.add(each)

    def begin(self, stage: str, planned_s: float) -> None:
        one = self.stage(stage)
        self._stage, self._since_s = stage, time.monotonic()
        self._change(planned_s=round(one.spent_s + planned_s, 1), outcome="")
        self.write()

    def try_(self, item: str) -> None:
        """Notes that the stage has tried this, so that another night tries something else first."""
        tried = self.stage(self._stage).tried
        if item not in tried:
            self._change(tried=(*tried, item))
            self.write()

    def end(self, outcome: str, detail: str) -> None:
        self._change(outcome=outcome, detail=detail)
        self.write()
        self._stage = ""

    def change(self, **values: object) -> None:
        """Changes the night's file."""
        self.night = msgspec.structs.replace(self.night, **values)
        self.write()

    def beat(self, line: str = "") -> None:
        """To be called again and again: it keeps what was spent, and from time to time it tells ``line``."""
        now = time.monotonic()
        if now - self._written_s > WRITTEN_EACH_S:
            self.write()
        if line and now - self._told_s > TOLD_EACH_S:
            self._told_s = now
            self.tell(line)

    def write(self) -> None:
        """Writes the night's file with the time that was spent up to now."""
        now = time.monotonic()
        if self._stage:
            self._change(spent_s=round(self.stage(self._stage).spent_s + now - self._since_s, 3))
            self._since_s = now
        self._written_s = now
        write_night(self.folder, self.night)

    def _change(self, **values: object) -> None:
        stages = tuple(
            msgspec.structs.replace(each, **values) if each.name == self._stage else each for each in self.night.stages
        )
        self.night = msgspec.structs.replace(self.night, stages=stages)
