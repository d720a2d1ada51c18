"""Begins a night, or finds the one to go on with."""

import shutil
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from campaigns.nights import children
from campaigns.nights.planning import SHARES, seed_of
from chaos.live import identity
from reports.night import Machine, Night, Stage, night_folders, read_night

NIGHTS = children.ROOT / "nights"
GOES_ON_WITHIN_S = 24 * 3600
"""The same command goes on with a night that is not older. What an older one has left is for --resume."""


class NightRefusal(Exception):  # noqa: N818  (one sentence for the person at the terminal)
    """The night cannot be played as it was asked for."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for. ``seed`` is None for that of the day. ``only`` are stages; none means all."""

    hours: float
    nights: Path = NIGHTS
    seed: int | None = None
    only: tuple[str, ...] = ()
    resume: bool = False
    command: str = ""


def opened(wish: Wish, now_s: float | None = None) -> tuple[Path, Night]:
    """The folder and the file of the night that is to be played. Raises NightRefusal."""
    now_s = time.time() if now_s is None else now_s
    night = _begun(wish, now_s)
    found = _unfinished(wish, night, now_s)
    if found is not None:
        return found
    if wish.resume:
        raise NightRefusal(f"no night in {wish.nights} was stopped: leave --resume out to begin one")
    folder = wish.nights / night.night
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise NightRefusal(f"a night began in {folder} this second: try again") from None
    except OSError as failure:
        raise NightRefusal(
            f"cannot write to {wish.nights} ({failure.strerror}): give --nights another folder"
        ) from None
    return folder, night


def _begun(wish: Wish, now_s: float) -> Night:
    began = datetime.fromtimestamp(now_s, UTC)
    about = identity.of_code_and_machine()
    return Night(
        night=f"{began:%Y%m%d-%H%M%S}",
        started_us=int(now_s * 1e6),
        budget_s=wish.hours * 3600,
        seed=seed_of(began.date()) if wish.seed is None else wish.seed,
        commit=about["commit"],
        commit_time_us=_commit_time_us(),
        dirty=about["dirty"],
        machine=_machine(about),
        stages=tuple(Stage(name=each, planned_s=0.0) for each in SHARES if not wish.only or each in wish.only),
        command=wish.command,
    )


def _unfinished(wish: Wish, night: Night, now_s: float) -> tuple[Path, Night] | None:
    """The newest night, if it was stopped and this one would be the same."""
    for folder in night_folders(wish.nights)[-1:]:
        found = read_night(folder)
        if found.finished:
            return None
        if wish.resume:
            if found.commit != night.commit:
                raise NightRefusal(
                    f"the night in {folder} played commit {found.commit[:12]}, and this is {night.commit[:12]}: "
                    "check that one out, or leave --resume out to begin a night"
                )
            return folder, found
        if _what(found) == _what(night) and wish.seed in (None, found.seed):
            return (folder, found) if now_s - found.started_us / 1e6 < GOES_ON_WITHIN_S else None
    return None


def _what(night: Night) -> tuple[object, ...]:
    """What makes two nights the same."""
    return night.budget_s, night.commit, [each.name for each in night.stages]


def _machine(about: dict[str, dict[str, str]]) -> Machine:
    told = about["machine"]
    return Machine(
        cpu=told["cpu"],
        cores=int(told["cores"]),
        memory_bytes=int(told["memory_bytes"]),
        python=about["versions"]["python"],
        java=_java(),
    )


def _java() -> str:
    """The first line of what ``java -version`` says; nothing without Java."""
    if shutil.which("java") is None:
        return ""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    lines = [each for each in said.splitlines() if "version" in each]
    return lines[0].strip() if lines else ""


def _commit_time_us() -> int:
    """When the commit was made; 0 outside a repository."""
    words = ["git", "-C", str(children.ROOT), "show", "--no-patch", "--format=%ct", "HEAD"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(told.stdout) * 1_000_000
