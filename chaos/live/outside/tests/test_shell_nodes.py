"""A node that shell commands reach is struck by these, and its state is asked for by them."""

from pathlib import Path

import pytest

from bench.targets.model import Commands
from chaos.live.errors import SetupError, TargetDied
from chaos.live.outside.shell import ShellNode

pytestmark = pytest.mark.live


def node(folder: Path, **commands: str) -> ShellNode:
    """A node that runs while a file ``up`` exists."""
    up = folder / "up"
    usual = {
        "start": f"touch {up}; echo start {{id}} >> {folder}/told",
        "alive": f"test -e {up}",
        "kill": f"rm {up}",
        "stop": f"rm {up}; echo stop {{address}} >> {folder}/told",
        "pause": "true",
        "resume": f"echo resume >> {folder}/told",
        "log": "echo last words",
    }
    made = ShellNode("node-1", 1, "127.0.0.1:9", Commands(**{**usual, **commands}), folder / "log")  # type: ignore[arg-type]
    made.start()
    return made


def test_it_is_killed_stopped_started_and_paused(tmp_path: Path) -> None:
    struck = node(tmp_path)
    assert struck.exit_status is None
    assert "SIGKILL" in struck.kill()
    assert struck.exit_status is not None
    assert struck.how_it_ended() == f"was ended: rm {tmp_path / 'up'}"
    struck.start()
    assert struck.terminate().endswith("told")
    struck.start()
    assert struck.pause() == "T"
    struck.resume()
    assert (tmp_path / "told").read_text().split("\n") == [
        "start 1", "start 1", "stop 127.0.0.1:9", "start 1", "resume", "",
    ]  # fmt: skip


def test_an_end_that_nobody_asked_for_is_told_with_its_log(tmp_path: Path) -> None:
    struck = node(tmp_path)
    struck.check()
    (tmp_path / "up").unlink()
    struck._looked_s = 0.0
    with pytest.raises(TargetDied, match="node-1 ended, and no fault had struck it: last words"):
        struck.check()


def test_a_command_that_fails_is_one_sentence(tmp_path: Path) -> None:
    struck = node(tmp_path, kill="echo no permission; false")
    with pytest.raises(SetupError, match=r"node-1: commands\.kill failed with 1: no permission"):
        struck.kill()


def test_what_we_ended_runs_again_when_we_leave(tmp_path: Path) -> None:
    struck = node(tmp_path)
    struck.kill()
    struck.close()
    assert (tmp_path / "up").exists()
