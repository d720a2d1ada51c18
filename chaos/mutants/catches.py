"""Remembers when each mutant was last played, and what caught it: lines of JSON in ``runs/mutants.jsonl``.

``seen_live.jsonl`` beside this module has such lines too, one for each mutant. They are what plays with real processes
saw when they were last made for this repository, since such plays take long: ``python -m tools.mutants_live``.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

KEPT = Path(__file__).with_name("seen_live.jsonl")
FILE = Path(__file__).resolve().parents[2] / "runs" / "mutants.jsonl"
World = Literal["sim", "live"]


@dataclass(frozen=True, slots=True)
class Catch:
    """One search for a mutant, in ``seeds`` seeds up to the one that caught it.

    ``guarantees`` are those that the mutant broke there. There are none if no seed caught it. ``commit`` is the code
    that was played, empty if nobody noted it.
    """

    mutant: str
    scenario: str
    world: World
    seeds: int
    guarantees: tuple[str, ...]
    commit: str = ""

    def __str__(self) -> str:
        seeds = f"{self.seeds} seed{'s' * (self.seeds != 1)}"
        if not self.guarantees:
            return f"{self.world}: NOT caught in {seeds} of {self.scenario}"
        return f"{self.world}: {', '.join(self.guarantees)} after {seeds} of {self.scenario}"


def remember(catch: Catch) -> None:
    """Adds the catch. Raises OSError if the file cannot be written."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("a") as lines:
        lines.write(json.dumps(asdict(catch)) + "\n")


def keep(catch: Catch) -> None:
    """Remembers the catch, and puts it into the repository in place of an older one of that mutant there."""
    remember(catch)
    kept = {each.mutant: each for each in catches_in(KEPT)} | {catch.mutant: catch}
    KEPT.write_text("".join(json.dumps(asdict(kept[name])) + "\n" for name in sorted(kept)))


def last() -> dict[tuple[str, World], Catch]:
    """Returns the last search for each mutant in each world: of those remembered here, and otherwise of those kept in
    the repository. Lines that cannot be read are left out."""
    return {(catch.mutant, catch.world): catch for file in (KEPT, FILE) for catch in catches_in(file)}


def catches_in(file: Path) -> Iterator[Catch]:
    """Yields the searches that a file remembers. There are none if there is no such file."""
    if not file.is_file():
        return
    for line in file.read_text(errors="replace").splitlines():
        try:
            values = json.loads(line)
            yield Catch(**{**values, "guarantees": tuple(values["guarantees"])})
        except (ValueError, TypeError, KeyError):
            continue
