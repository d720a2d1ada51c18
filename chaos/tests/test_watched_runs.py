"""The watcher of a run (``--watch``) ends with the run, however that ends."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from crucible_kafka import live_run
from crucible_kafka.run_folder import ROOT


@pytest.mark.live
@pytest.mark.timeout(120)
@pytest.mark.rotated(3, "watchers")
def test_watcher_of_a_run_ends_with_it_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher is killed while its Java starts, and again once Java runs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for seconds in (0.5, 8.0):
        with live_run.watched(tmp_path / "run", wanted=True):
            time.sleep(seconds)
            (watcher,) = (child for child in psutil.Process().children() if "--beside-run" in child.cmdline())
            family = [watcher, *watcher.children(recursive=True)]
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        assert [each.name for each in tmp_path.iterdir()] == ["run"]


WATCHED_ALONE = """
import pathlib, sys, time
from crucible_kafka import live_run
with live_run.watched(pathlib.Path(sys.argv[1]), wanted=True):
    print("watched", flush=True)
    time.sleep(60)
"""


@pytest.mark.live
@pytest.mark.timeout(60)
@pytest.mark.rotated(3, "watchers")
@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_watcher_of_a_run_ends_when_the_player_is_killed(seconds: float, tmp_path: Path) -> None:
    words = [sys.executable, "-uc", WATCHED_ALONE, str(tmp_path / "run")]
    settings = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=settings) as player:
        assert player.stdout is not None
        assert player.stdout.readline() == "watched\n"
        time.sleep(seconds)
        family = psutil.Process(player.pid).children(recursive=True)
        assert family
        player.kill()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
