"""A month of nights whose truth is known, as the files that nights leave.

Planted are a regression, a scenario that is red now and then, a failure that was mended, a night that was stopped, one
whose canary lives, a night that is missing, a figure with a step, and probes that changed.

``python -m reports.tests.planted_nights DIR`` plants them for ``./crucible index --nights DIR``, to look at its page.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reports.night import (
    ANNOTATIONS_NAME,
    CLIENT,
    Canary,
    CellRow,
    FailureRow,
    FigureRow,
    Machine,
    Night,
    NightStage,
    PlayRow,
    write_night,
    write_rows,
)

NIGHTS = 30
FIRST = datetime(2026, 10, 28, 22, 0, tzinfo=UTC)
MISSING, STOPPED, CANARY_LIVES = 6, 9, 12
"""These nights were omitted, stopped after few plays, and did not find their canary."""
REGRESSION_FROM, BAD_COMMIT, REGRESSION_SEED = 24, "4be1d0c5a7e3", 90_024
MENDED = (14, 17)
"""The first night in which this failure was seen, and the one in which its seed passed again."""
STEP_AT, STEP_TO = 19, 1.12
ANNOTATED = 20
WALL_US = 2_400_000
FLAKY = "group-churn"
REGRESSED = "14-controller-killed"
HEALED = "36-upload-crashed"
SIMULATED = (
    "01-lost-response@final",
    "01-lost-response@first",
    "06-session-evicted@final",
    REGRESSED,
    "22-tier-upload",
    HEALED,
    "44-transactions",
    "swarm",
)
LIVE = {"plain-load": ("reference",), "kill-under-load": ("reference", "kafka@4.1.1"), FLAKY: ("reference",)}
FIGURES = {
    ("produce", "1 KiB, one producer", "higher"): (2.10, "MB/s"),
    ("produce", "acks=all, p99", "lower"): (1.45, "ms"),
    ("fetch", "tail reads, p99", "lower"): (1.30, "ms"),
    ("fetch", "catch-up", "higher"): (0.86, "MB/s"),
    ("failover", "without a controller", "lower"): (3.2, "ms"),
}
SECTIONS = {"fetch/session": 14, "groups/join": 9, "produce/batches": 12, "transactions": 11}


@dataclass(slots=True)
class Planted:
    """``folders`` are those of the nights that there are, the oldest first."""

    root: Path
    folders: list[Path]
    started: list[datetime]

    @property
    def soon_us(self) -> int:
        """The morning after the last night."""
        return _us(self.started[-1] + timedelta(hours=9))

    @property
    def late_us(self) -> int:
        return _us(self.started[-1] + timedelta(hours=37))


def plant(root: Path, nights: int = NIGHTS, seed: int = 7) -> Planted:
    planted = Planted(root, [], [])
    for number in range(nights):
        if number != MISSING:
            folder, started = _plant_night(root, number, random.Random(seed * 1_000 + number))
            planted.folders.append(folder)
            planted.started.append(started)
    noted = FIRST + timedelta(days=ANNOTATED)
    (root / ANNOTATIONS_NAME).write_text(
        f'[[note]]\nat = {noted:%Y-%m-%d}\ntext = "The machine got a new <kernel>."\n\n'
        f'[[note]]\nat = {noted - timedelta(days=8):%Y-%m-%d}\ntext = "Batches are checked twice."\nrow = "produce"\n',
        encoding="utf-8",
    )
    return planted


def _plant_night(root: Path, number: int, chance: random.Random) -> tuple[Path, datetime]:
    started = FIRST + timedelta(days=number, minutes=chance.randrange(9))
    folder = root / f"{started:%Y%m%d-%H%M%S}"
    plays = list(_plays(number, folder, started, chance))
    night = Night(
        night=folder.name,
        started_us=_us(started),
        ended_us=_us(started + timedelta(hours=1 if number == STOPPED else 8)),
        budget_s=8 * 3600.0,
        seed=90_000 + number,
        commit=f"{number:02d}c0ffee{number:04d}",
        machine=Machine(cpu="planted", cores=2),
        finished=number != STOPPED,
        stages=(NightStage(name="search", planned_s=20_000, spent_s=19_000, outcome="PASSED"),),
        canary=Canary(
            mutant="no_abort",
            scenario=REGRESSED,
            seeds_tried=40 if number == CANARY_LIVES else 3,
            found=number != CANARY_LIVES,
            guarantee="" if number == CANARY_LIVES else "torn-metadata",
        ),
        command="./crucible nightly --hours 8",
    )
    write_night(folder, night)
    write_rows(folder, PlayRow, plays[: len(plays) // 4] if number == STOPPED else plays)
    if number != STOPPED:
        write_rows(folder, FailureRow, list(_failures(number)))
        write_rows(folder, FigureRow, list(_figures(number, chance)))
        write_rows(folder, CellRow, list(_cells(number)))
    return folder, started


def _plays(number: int, folder: Path, started: datetime, chance: random.Random) -> Iterator[PlayRow]:
    passed = PlayRow("", "sim", "reference", "", 0, "PASSED", "", "", WALL_US, _us(started), "", "")
    for place, scenario in enumerate(SIMULATED):
        for seed in range(90_000 + number * 100, 90_000 + number * 100 + 12):
            command = f"./crucible sim {scenario} --seed {seed}"
            yield replace(passed, scenario=scenario, seed=seed, at_us=_us(started) + place, command=command)
    for scenario, targets in LIVE.items():
        for target in targets:
            for seed in range(3):
                command = f"./crucible run {scenario} --target {target} --seed {seed}"
                one = replace(passed, scenario=scenario, world="live", target=target, seed=seed, command=command)
                yield _flaky(one, folder, chance) if scenario == FLAKY else one
    yield replace(passed, scenario=REGRESSED, mutant="no_abort", outcome="FAILED", guarantee="torn-metadata", seed=1)
    for failure in _failures(number):
        yield replace(
            passed,
            scenario=failure.scenario,
            outcome="FAILED",
            guarantee=failure.guarantee,
            detail=failure.detail,
            seed=failure.seed,
            command=failure.command,
        )
    if number == MENDED[1]:
        yield replace(passed, scenario=HEALED, seed=80_000 + MENDED[0], command="replayed", is_replay=True)
    if number == NIGHTS - 1:  # The seed of the open failure is played again, too.
        again = replace(passed, scenario=REGRESSED, seed=REGRESSION_SEED + 4, is_replay=True, command="replayed")
        yield replace(again, outcome="FAILED", guarantee="torn-metadata")


def _flaky(play_row: PlayRow, folder: Path, chance: random.Random) -> PlayRow:
    """Red in a third of the plays. One of three leaves its run, which has a page."""
    if chance.random() > 1 / 3:
        return play_row
    run_dir = f"runs/{play_row.scenario}-{play_row.seed}"
    page = folder / run_dir / "report" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("<title>a run</title>", encoding="utf-8")
    return replace(play_row, outcome="FAILED", guarantee="redelivery", detail="offset 7 came again", run_dir=run_dir)


def _failures(number: int) -> Iterator[FailureRow]:
    detail = "node 2 lacks topic <orders> of a committed set"
    if number >= REGRESSION_FROM and number % 2 == 0:
        seed = 90_000 + number
        yield FailureRow(
            scenario=REGRESSED,
            world="sim",
            target="reference",
            guarantee="torn-metadata",
            seed=seed,
            faults="node_killed controller at 2.1 s\nlink_cut 1>2 from 2.3 s for 400 ms",
            regression=f"regressions/{REGRESSED}-{seed}.toml",
            command=f"./crucible sim {REGRESSED} --seed {seed}",
            live_plays=3,
            live_reds=1,
            first_bad_commit=BAD_COMMIT if number > REGRESSION_FROM else "",
            detail=detail,
        )
    if number == MENDED[0]:
        yield FailureRow(
            scenario=HEALED,
            world="sim",
            target="reference",
            guarantee="newer-upload-counts",
            seed=80_000 + number,
            faults="",
            regression="",
            command=f"./crucible sim {HEALED} --seed {80_000 + number}",
            live_plays=0,
            live_reds=0,
            first_bad_commit="",
            detail=detail,
        )


def _figures(number: int, chance: random.Random) -> Iterator[FigureRow]:
    for (row, what, better), (level, unit) in FIGURES.items():
        now = STEP_TO if number >= STEP_AT and (row, better) == ("produce", "lower") else level
        ratio = now * chance.gauss(1.0, 0.03)
        peer = 20.0 * chance.gauss(1.0, 0.2)  # The machine is faster in one night than in another.
        reference = peer / ratio if better == "lower" else peer * ratio
        yield FigureRow(
            row, what, 3, unit, better, reference, peer, ratio, ratio * 0.95, ratio * 1.06, 5, "kafka@4.1.1"
        )
    yield FigureRow("memory", "idle", 1, "MB", "lower", 60.0, None, None, None, None, 3, "")


def _cells(number: int) -> Iterator[CellRow]:
    """On the last night one target got a case wrong that it had right, and has a case more."""
    last = number == NIGHTS - 1
    for target in ("reference", "kafka@4.1.1", "kfake"):
        for section, cases in SECTIONS.items():
            for case in range(cases + (last and section == "groups/join")):
                outcome = "pass"
                if target == "kfake":
                    outcome = "not advertised" if section == "transactions" else "fail" if case % 5 == 0 else "pass"
                if last and (target, section, case) == ("kafka@4.1.1", "fetch/session", 3):
                    outcome = "differs"
                level = "SHOULD" if case == 3 else "MUST"
                yield CellRow(target, f"{section}/case-{case:02d}", section, level, outcome)
    for name in ("own", "kafka-python"):
        yield CellRow(f"{CLIENT}{name}", "sessions/declined", "sessions", "MUST", "pass")
        outcome = "fail" if last and name == "kafka-python" else "pass"
        yield CellRow(f"{CLIENT}{name}", "sessions/response-lost", "sessions", "MUST", outcome)
        yield CellRow(f"{CLIENT}{name}", "sessions/topic-ids", "sessions", "SHOULD", "not supported")


def _us(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


if __name__ == "__main__":
    plant(Path(sys.argv[1]))
