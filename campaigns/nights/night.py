"""The state of a night: its journal and clock, the plan of its hours, earlier nights, and how an interrupted night is
resumed.

``NightJournal`` holds the rows while the night is played, as JSON lines. A line is in the page cache before the night
goes on, so a SIGKILL loses none. At the end of each stage all rows are written as Parquet, and at the night's end the
journal is deleted. The functions that plan (seed, shares, turns, canary) are pure.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from campaigns.nights import processes
from campaigns.nights.choosing import Played
from chaos.live import identity
from chaos.seeds import random_for
from reports.columns import Row
from reports.night import (
    NIGHT_TABLES,
    FailureRow,
    Machine,
    Night,
    NightError,
    NightStage,
    PlayRow,
    night_folders,
    read_night,
    write_night,
    write_rows,
)
from reports.verdict import Outcome

NAME = "journal.jsonl"
KINDS = {table.name: kind for kind, table in NIGHT_TABLES.items()}

R = TypeVar("R", bound=Row)


class BusyError(Exception):
    """Somebody else plays this night at the moment."""


class NightJournal:
    """The rows of one night. Only one process may have it open."""

    def __init__(self, folder: Path) -> None:
        """Open the journal, or make a new one. Raise BusyError."""
        self._path = folder / NAME
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise BusyError(f"another process plays the night in {folder}: wait for it, or stop it") from None
        self.rows: defaultdict[type[Row], list[Row]] = defaultdict(list)
        for line in self._whole_lines():
            name, values = msgspec.json.decode(line)
            kind = KINDS[name]
            self.rows[kind].append(kind(*values))

    def _whole_lines(self) -> list[bytes]:
        """A power loss may have torn the last line. It goes, so that the next one does not continue it."""
        text = self._path.read_bytes()
        whole, mark, _torn = text.rpartition(b"\n")
        os.ftruncate(self._descriptor, len(whole) + len(mark))
        return whole.splitlines()

    def add(self, row: Row) -> None:
        self.rows[type(row)].append(row)
        line = msgspec.json.encode((NIGHT_TABLES[type(row)].name, row.values()))
        os.write(self._descriptor, line + b"\n")

    def of(self, kind: type[R]) -> list[R]:
        return [each for each in self.rows[kind] if isinstance(each, kind)]

    def write_tables(self, folder: Path) -> None:
        """Write all tables of the night, also those that have no rows."""
        for kind in NIGHT_TABLES:
            write_rows(folder, kind, self.rows[kind])

    def close(self, done: bool) -> None:
        """``done``: the night has ended and its tables are written, so nobody needs the journal."""
        if done:
            self._path.unlink()
        os.close(self._descriptor)


def is_left(folder: Path) -> bool:
    """Return whether the night was stopped before all of its rows were written as tables."""
    return (folder / NAME).exists()


MAX_NIGHTS = 30
"""Number of the newest nights that decide what is played. Older ones are shown, but count no more."""
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
    """The newest nights, the oldest of them first. One whose files are damaged is omitted."""
    return [found for folder in night_folders(nights)[-MAX_NIGHTS:] if (found := _kept(folder)) is not None]


def open_failures(nights: Path, night: str) -> set[OpenFailure]:
    """Each guarantee of a scenario with the seed with which it broke last in the simulator, in nights before ``night``,
    unless that seed has passed since. Damaged nights are omitted."""
    found: dict[tuple[str, str], int] = {}
    for folder in night_folders(nights):
        if folder.name >= night:
            break
        with suppress(OSError, ValueError):
            passed = _passed_in(folder, set(found.values()))
            found = {key: seed for key, seed in found.items() if (key[0], seed) not in passed}
            for row in _rows_in(folder, FailureRow):
                if row["world"] == "sim" and row["target"] == OURS:
                    found[row["scenario"], row["guarantee"]] = row["seed"]
    return {(*key, seed) for key, seed in found.items()}


def _passed_in(folder: Path, seeds: set[int]) -> set[tuple[str, int]]:
    """Return those of these seeds with which a control passed in the simulator, each with its scenario."""
    wanted = [
        ("seed", "in", seeds),
        ("world", "==", "sim"),
        ("mutant", "==", ""),
        ("target", "==", OURS),
        ("outcome", "==", Outcome.PASSED.name),
    ]
    return {(row["scenario"], row["seed"]) for row in _rows_in(folder, PlayRow, wanted)} if seeds else set()


def _rows_in(folder: Path, kind: type[Row], filters: Any = None) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    path = folder / NIGHT_TABLES[kind].path
    return pq.read_table(path, filters=filters).to_pylist() if path.is_file() else []


def settle(folder: Path) -> None:
    """Write the tables of a night that was stopped and that nobody will go on with. A night that is being played is
    left alone."""
    try:
        left = NightJournal(folder)
    except BusyError:
        return
    left.write_tables(folder)
    left.close(done=True)


def plays_of(folder: Path) -> list[PlayRow]:
    """The plays of a night as its table has them; none if it has no table yet."""
    return [PlayRow(**{**row, "is_replay": bool(row.get("is_replay"))}) for row in _rows_in(folder, PlayRow)]


def is_control(play: PlayRow) -> bool:
    """Return whether the play must pass: our own broker without a planted defect."""
    return not play.mutant and play.target == OURS


def sums_of(plays: Iterable[PlayRow]) -> list[Sum]:
    """Sum plays up by their kind. Replays are omitted, because their seeds were not drawn."""
    found: dict[tuple[str, str, str, str], Sum] = {}
    for play in plays:
        if play.is_replay:
            continue
        kind = play.scenario, play.world, play.target, play.mutant
        so_far = found.get(kind, Sum(*kind, 0, 0, 0, 0))
        red = play.outcome != Outcome.PASSED.name
        last_seed = max(so_far.last_seed, play.seed)
        found[kind] = Sum(*kind, so_far.seeds + 1, so_far.reds + red, so_far.wall_us + play.wall_us, last_seed)
    return list(found.values())


def played(sums: Iterable[Sum], nights_ago: int) -> list[Played]:
    """Return the sums of a night's controls in the simulator, by scenario."""
    controls = [each for each in sums if each.world == "sim" and each.is_control]
    return [
        Played(control.scenario, nights_ago, control.seeds, control.reds, control.wall_us / 1e6) for control in controls
    ]


def _sums_in(folder: Path) -> list[Sum]:
    """Return the same as ``sums_of`` for a night's plays, computed by Arrow without an object for each play."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = folder / NIGHT_TABLES[PlayRow].path
    if not path.is_file():
        return []
    kind = ["scenario", "world", "target", "mutant"]
    there = pq.read_schema(path).names
    columns = [*kind, "outcome", "wall_us", "seed", "is_replay"]
    plays = pq.read_table(path, columns=[column for column in columns if column in there])
    if "is_replay" in there:  # Older nights lack it.
        plays = plays.filter(pc.invert(pc.fill_null(plays["is_replay"], False)))
    red = pc.cast(pc.not_equal(plays["outcome"], Outcome.PASSED.name), "int64")
    wanted = [("seed", "count"), ("red", "sum"), ("wall_us", "sum"), ("seed", "max")]
    found = plays.append_column("red", red).group_by(kind).aggregate(wanted)
    columns = [*kind, *(f"{name}_{how}" for name, how in wanted)]
    return [Sum(*values) for values in zip(*(found[column].to_pylist() for column in columns), strict=True)]


def control_outcomes(plays: Iterable[PlayRow]) -> Counter[str]:
    return Counter(play.outcome for play in plays if is_control(play))


def _kept(folder: Path) -> Kept | None:
    try:
        return Kept(read_night(folder), _sums_in(folder))
    except (NightError, OSError, ValueError):  # Arrow refuses a damaged file with a ValueError.
        return None


SHARES: Mapping[str, int] = {
    "search": 30,
    "guided": 12,
    "live": 25,
    "brokers": 10,
    "clients": 8,
    "bench": 12,
    "checks": 5,
    "suites": 6,
}
"""Each stage's share of a night, in the order in which they are played. What one leaves over goes to the next ones."""
SEEDS_A_NIGHT = 100_003
"""Seeds that one night may use for a scenario. It is a prime, so that nights begin in different places of what goes
through the seeds in order: the alternatives and the swept ranges of a scenario (``scenarios.derived``)."""

Item = TypeVar("Item", bound=str)


def seed_of(day: date) -> int:
    """The first seed of the night that begins on this day (UTC). No seed of another day's night is the same."""
    return (day - date(1970, 1, 1)).days * SEEDS_A_NIGHT


def next_seed(first: int, played: Sequence[int]) -> int:
    """The next seed of a night that begins at ``first``. ``played`` are the last seeds that the same scenario has had
    in each night: a second night of one day goes on behind the first."""
    tonight = [each for each in played if first <= each < first + SEEDS_A_NIGHT]
    return max(tonight, default=first - 1) + 1


def share_s(stage: str, to_come: Sequence[str], left_s: float) -> float:
    """Return the time that the stage may take. ``to_come`` are the stages that are still to be played, with this
    one."""
    return left_s * SHARES[stage] / sum(SHARES[each] for each in to_come)


def in_turn(items: Sequence[Item], earlier: Sequence[Sequence[str]], turn: int) -> list[Item]:
    """Order ``items`` so that those come first that were tried longest ago, or never. ``earlier`` says what each night
    has tried, the oldest first. Among equals another one is first each ``turn``."""
    last = {each: number for number, tried in enumerate(earlier) for each in tried}
    start = turn % max(1, len(items))
    return sorted((*items[start:], *items[:start]), key=lambda item: last.get(item, -1))


def canary_of(killed_in: Mapping[str, Sequence[str]], earlier: Sequence[str], seed: int) -> tuple[str, str]:
    """Draw the mutant that a night plants, and the scenario that must kill it.

    ``killed_in`` has the scenarios that kill each mutant in the simulator. ``earlier`` are the mutants of earlier
    nights: none of them is drawn again before all others had their night.
    """
    planted = {mutant: number for number, mutant in enumerate(earlier)}
    longest_ago = min(planted.get(each, -1) for each in killed_in)
    fresh = sorted(each for each in killed_in if planted.get(each, -1) == longest_ago)
    draw = random_for(seed, "canary")
    mutant = draw.choice(fresh)
    return mutant, draw.choice(sorted(killed_in[mutant]))


def interleaved(some: Sequence[Item], others: Sequence[Item], of_some: int) -> list[Item]:
    """Return one of ``others`` after each ``of_some`` of ``some``, until both are used up."""
    waiting, mixed = list(others), list[Item]()
    for number, each in enumerate(some, 1):
        mixed.append(each)
        if waiting and number % of_some == 0:
            mixed.append(waiting.pop(0))
    return mixed + waiting


NIGHTS = processes.ROOT / "nights"
GOES_ON_WITHIN_S = 24 * 3600
"""The same command goes on with a night that is not older. What an older one has left is for --resume."""


class NightRefusal(Exception):  # noqa: N818  (one sentence for the person at the terminal)
    """The night cannot be played as requested."""


@dataclass(frozen=True, slots=True)
class NightOptions:
    """Options of the command line."""

    hours: float
    nights: Path = NIGHTS
    seed: int | None = None
    """None: that of the day."""
    only: tuple[str, ...] = ()
    """Stages; none means all."""
    resume: bool = False
    command: str = ""


def opened(options: NightOptions, now_s: float | None = None) -> tuple[Path, Night]:
    """The folder and the file of the night that is to be played. Raise NightRefusal."""
    now_s = time.time() if now_s is None else now_s
    night = _begun(options, now_s)
    found = _unfinished(options, night, now_s)
    if found is not None:
        return found
    if options.resume:
        raise NightRefusal(f"no night in {options.nights} was stopped: leave --resume out to begin one")
    folder = options.nights / night.night
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise NightRefusal(f"a night began in {folder} this second: try again") from None
    except OSError as failure:
        raise NightRefusal(
            f"cannot write to {options.nights} ({failure.strerror}): give --nights another folder"
        ) from None
    return folder, night


def _begun(options: NightOptions, now_s: float) -> Night:
    began = datetime.fromtimestamp(now_s, UTC)
    about = identity.of_code_and_machine()
    return Night(
        night=f"{began:%Y%m%d-%H%M%S}",
        started_us=int(now_s * 1e6),
        budget_s=options.hours * 3600,
        seed=seed_of(began.date()) if options.seed is None else options.seed,
        commit=about["commit"],
        commit_time_us=_commit_time_us(),
        dirty=about["dirty"],
        machine=_machine(about),
        stages=tuple(
            NightStage(name=share, planned_s=0.0) for share in SHARES if not options.only or share in options.only
        ),
        command=options.command,
    )


def _unfinished(options: NightOptions, night: Night, now_s: float) -> tuple[Path, Night] | None:
    """The newest night, if it was stopped and this one would be the same."""
    for folder in night_folders(options.nights)[-1:]:
        found = read_night(folder)
        if found.finished:
            return None
        if options.resume:
            if found.commit != night.commit:
                raise NightRefusal(
                    f"the night in {folder} played commit {found.commit[:12]}, and this is {night.commit[:12]}: "
                    "check that one out, or leave --resume out to begin a night"
                )
            return folder, found
        if _what(found) == _what(night) and options.seed in (None, found.seed):
            return (folder, found) if now_s - found.started_us / 1e6 < GOES_ON_WITHIN_S else None
    return None


def _what(night: Night) -> tuple[object, ...]:
    """Return what must be equal for an interrupted night to be continued."""
    return night.budget_s, night.commit, [stage.name for stage in night.stages]


def _machine(about: dict[str, dict[str, str]]) -> Machine:
    machine = about["machine"]
    return Machine(
        cpu=machine["cpu"],
        cores=int(machine["cores"]),
        memory_bytes=int(machine["memory_bytes"]),
        python=about["versions"]["python"],
        java=_java(),
    )


def _java() -> str:
    """The first line of what ``java -version`` says; nothing without Java."""
    if shutil.which("java") is None:
        return ""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    lines = [line for line in said.splitlines() if "version" in line]
    return lines[0].strip() if lines else ""


def _commit_time_us() -> int:
    """Return the time of the commit, 0 outside a repository."""
    words = ["git", "-C", str(processes.ROOT), "show", "--no-patch", "--format=%ct", "HEAD"]
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(result.stdout) * 1_000_000


WRITTEN_EACH_S = 5.0
REPORT_EACH_S = 30.0


class Skipped(Exception):  # noqa: N818  (nothing failed)
    """A stage cannot be played here. The message is one sentence that says why."""


@dataclass(slots=True)
class Work:
    """The context of stages. ``earlier`` are the nights before, the oldest first."""

    folder: Path
    night: Night
    journal: NightJournal
    earlier: Sequence[Kept]
    tell: Callable[[str], None]
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    _stage: str = ""
    _since_s: float = 0.0
    _written_s: float = 0.0
    _reported_s: float = 0.0

    @property
    def scratch(self) -> Path:
        """The folder of files that nobody needs tomorrow, such as the temporary files of commands that were killed."""
        return self.folder / "scratch"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all commands that the night runs."""
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
        """Remaining time of the budget."""
        return self.night.budget_s - sum(stage.spent_s for stage in self.night.stages)

    def stage(self, name: str) -> NightStage:
        return next(stage for stage in self.night.stages if stage.name == name)

    def tried_before(self, stage: str) -> list[Sequence[str]]:
        """Return the tries of this stage in each earlier night, and tonight so far."""
        nights = [*(kept.night for kept in self.earlier), self.night]
        return [one.tried for night in nights for one in night.stages if one.name == stage]

    def add(self, *rows: Row) -> None:
        """Keep what was found. It is durable at once."""
        for row in rows:
            self.journal.add(row)

    def begin(self, stage: str, planned_s: float) -> None:
        one = self.stage(stage)
        self._stage, self._since_s = stage, time.monotonic()
        self._change(planned_s=round(one.spent_s + planned_s, 1), outcome="")
        self.write()

    def try_(self, item: str) -> None:
        """Note that the stage has tried this, so that another night tries something else first."""
        tried = self.stage(self._stage).tried
        if item not in tried:
            self._change(tried=(*tried, item))
            self.write()

    def end(self, outcome: str, detail: str) -> None:
        self._change(outcome=outcome, detail=detail)
        self.write()
        self._stage = ""

    def change(self, **values: object) -> None:
        """Change the night's file."""
        self.night = msgspec.structs.replace(self.night, **values)
        self.write()

    def beat(self, line: str = "") -> None:
        """Record the time spent, and report ``line`` from time to time. Call this repeatedly."""
        now = time.monotonic()
        if now - self._written_s > WRITTEN_EACH_S:
            self.write()
        if line and now - self._reported_s > REPORT_EACH_S:
            self._reported_s = now
            self.tell(line)

    def write(self) -> None:
        """Write the night's file with the time that was spent up to now."""
        now = time.monotonic()
        if self._stage:
            self._change(spent_s=round(self.stage(self._stage).spent_s + now - self._since_s, 3))
            self._since_s = now
        self._written_s = now
        write_night(self.folder, self.night)

    def _change(self, **values: object) -> None:
        stages = tuple(
            msgspec.structs.replace(stage, **values) if stage.name == self._stage else stage
            for stage in self.night.stages
        )
        self.night = msgspec.structs.replace(self.night, stages=stages)
