"""Processes of a night end by its deadline, and with the night, also if that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from campaigns.nights import night as nights
from campaigns.nights import processes
from campaigns.nights.night import plays_of
from campaigns.nights.processes import OVER, Ended, Players, Tell, crucible
from campaigns.nights.tests.small_nights import the_night
from reports.night import read_night

pytestmark = pytest.mark.live

STARTS_ANOTHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_command_ends_by_its_deadline_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    done = processes.run([sys.executable, "-c", STARTS_ANOTHER], began + 2.0, tmp_path / "log")
    assert done.code == OVER
    assert time.monotonic() - began < 20.0
    pid = int(done.said.split()[0])
    until = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_ended_command_reports_code_and_last_lines(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('first'); print('crucible: last'); raise SystemExit(3)"]
    done = processes.run(words, time.monotonic() + 60.0, tmp_path / "logs" / "log")
    assert (done.code, done.last_line) == (3, "last")


def test_players_report_at_once_and_hanging_or_dead_ones_are_reported() -> None:
    def work(tell: Tell, how: str) -> None:
        tell(how)
        if how == "hangs":
            time.sleep(60)
        elif how == "dies":
            os._exit(7)

    messages: list[tuple[str, object]] = []
    with Players[str](3) as players:
        for how in ("ends", "hangs", "dies"):
            players.start(how, lambda tell, how=how: work(tell, how), 1.0)  # type: ignore[misc]
        assert not players.are_free
        while players.jobs:
            messages += players.receive(0.2)
    assert {message for message in messages if isinstance(message[1], str)} == {
        (how, how) for how in ("ends", "hangs", "dies")
    }
    assert len(messages) == 6
    assert ("ends", Ended()) in messages
    assert ("dies", Ended("its process ended with exit code 7")) in messages
    assert ("hangs", Ended("it did not end within 1 s")) in messages


@pytest.mark.nightly
def test_killed_night_leaves_no_processes_and_resumes(tmp_path: Path) -> None:
    command = crucible("nightly", "--hours", "0.02", "--only", "search", "--nights", str(tmp_path))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as night:
        while not list(tmp_path.glob(f"*/{nights.NAME}")) or not next(tmp_path.glob(f"*/{nights.NAME}")).stat().st_size:
            time.sleep(0.1)
        players = psutil.Process(night.pid).children(recursive=True)
        night.send_signal(signal.SIGKILL)
    assert players
    assert psutil.wait_procs(players, timeout=30)[1] == []
    folder, killed = the_night(tmp_path)
    before = [line.partition('"plays"')[1] for line in (folder / nights.NAME).read_text().splitlines()]
    assert not killed.finished
    again = subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
    assert again.returncode in (0, 1)  # New seeds may find something.
    night_now, plays = read_night(folder), plays_of(folder)
    assert night_now.finished
    assert night_now.stages[0].spent_s == pytest.approx(72.0, abs=15.0)
    assert len(plays) > len(before) > 0
    assert len({(play.scenario, play.mutant, play.seed) for play in plays}) == len(plays)
