"""Ledger of what killed each mutant: what killed each one when it was last played, as JSON lines.

Every play with mutants adds to ``runs/mutants.jsonl`` of its clone: tests, nights, ``--with-mutants`` in both worlds.
The files of ``KEPT`` are in the repository, with one line for each mutant: the seed that kills it fastest in the
simulator, and what plays with real processes saw, which take long (``python -m tools.mutants_live``). ``crucible
mutants`` and ``crucible clauses`` read all of them. A mutant proves something only if it was killed lately.
``python -m scenarios.ledger`` keeps what this clone's plays in the simulator killed.
"""

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
World = Literal["sim", "live"]
KEPT: dict[str, Path] = {world: ROOT / "chaos" / "mutants" / f"seen_{world}.jsonl" for world in ("sim", "live")}
RULES = ROOT / "chaos" / "mutants" / "seen_rules.jsonl"
"""The guarantees that killed the mutants of ``chaos/mutants/rules.py``, which only regressions name.
``test_rule_mutants.py`` plays them."""
FILE = ROOT / "runs" / "mutants.jsonl"
STALE_DAYS = 30
STALE_COMMITS = 300
"""Limits of a kill's age: days, and commits to the room whose function the mutant replaces. Beyond one it is stale."""


@dataclass(frozen=True, slots=True)
class MutantSearch:
    """One search for a mutant."""

    mutant: str
    scenario: str
    world: World
    seeds: int
    """Number of seeds that were played."""
    guarantees: tuple[str, ...]
    """Those that the mutant broke. There are none if no seed killed it."""
    commit: str = ""
    """The code that was played. Empty: nobody noted it."""
    seed: int = -1
    """The last seed: the one that killed the mutant."""
    day: str = ""
    """When it was played (ISO 8601). Empty: nobody noted it."""
    room: str = ""
    """The folder of the function that the mutant replaces."""

    def __str__(self) -> str:
        seeds = f"{self.seeds} seed{'s' * (self.seeds != 1)}"
        if not self.guarantees:
            return f"{self.world}: NOT killed in {seeds} of {self.scenario}"
        at = f" at {self.commit[:8]}" if self.commit else ""
        return f"{self.world}: {', '.join(self.guarantees)} after {seeds} of {self.scenario}{at}"


def ended_search(
    mutant: str, target: str, scenario: str, world: World, seeds: int, guarantees: tuple[str, ...], seed: int
) -> MutantSearch:
    """Return a search that ends now, with this clone's commit. ``target`` is the mutant's."""
    room = "/".join(target.partition(":")[0].split(".")[:-1])
    return MutantSearch(
        mutant, scenario, world, seeds, guarantees, head(), seed, datetime.now(UTC).date().isoformat(), room
    )


def remember(search: MutantSearch) -> None:
    """Add the search. Raise OSError if the file cannot be written."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("a") as lines:
        lines.write(json.dumps(asdict(search)) + "\n")


def keep(search: MutantSearch) -> None:
    """Remember the search, and put it into the repository in place of an older one of that mutant there."""
    remember(search)
    _keep(search.world, (search,))


def _keep(world: World, searches: Iterable[MutantSearch]) -> None:
    search_by_mutant = {search.mutant: search for search in (*searches_in(KEPT[world]), *searches)}
    KEPT[world].write_text(
        "".join(json.dumps(asdict(search_by_mutant[name])) + "\n" for name in sorted(search_by_mutant))
    )


def last() -> dict[tuple[str, World], MutantSearch]:
    """Return the last search for each mutant in each world: of those remembered here, and otherwise of those kept in
    the repository. Lines that cannot be read are omitted."""
    return {(search.mutant, search.world): search for file in (*KEPT.values(), FILE) for search in searches_in(file)}


def searches_in(file: Path) -> Iterator[MutantSearch]:
    """Yield the searches that a file remembers. There are none if there is no such file."""
    if not file.is_file():
        return
    for line in file.read_text(errors="replace").splitlines():
        try:
            values = json.loads(line)
            yield MutantSearch(**{**values, "guarantees": tuple(values["guarantees"])})
        except (ValueError, TypeError, KeyError):
            continue


def proof(searches: Iterable[MutantSearch], today: date) -> str:
    """Return what the searches for mutants are worth: ``proven`` if one was killed lately, else ``stale`` if one ever
    was, else ``not played``."""
    killed = [search for search in searches if search.guarantees]
    if not killed:
        return "not played"
    return "stale" if all(is_stale(search, today) for search in killed) else "proven"


def is_stale(search: MutantSearch, today: date) -> bool:
    day = search.day or _git("log", "-1", "--format=%cs", search.commit)
    if not day or (today - date.fromisoformat(day)).days > STALE_DAYS:
        return True
    since = _git("rev-list", "--count", f"{search.commit}..HEAD", "--", search.room or "reference_broker")
    return int(since or 0) > STALE_COMMITS  # Without a history of commits the day alone counts.


def head() -> str:
    """Return this clone's commit, or nothing outside a repository."""
    return _git("rev-parse", "HEAD")


def turn() -> int:
    """Return this clone's number of commits, which says whose turn it is among tests that a commit plays in part.

    Commits in a row play one share after the other, and a rebase onto as many commits draws the same. A clone without
    its older commits does not know their number: there the commit's hash draws a turn.
    """
    if _git("rev-parse", "--is-shallow-repository") == "false":
        return int(_git("rev-list", "--count", "HEAD") or 0)
    return int(head()[:8] or "0", 16)


@cache
def _git(*words: str) -> str:
    try:
        process = subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


if __name__ == "__main__":  # Keeps what this clone's plays in the simulator killed.
    _keep(
        "sim",
        (search for search in searches_in(FILE) if search.world == "sim" and search.guarantees and search.seed >= 0),
    )
