"""Shell commands kill, stop and pause a node, and query its state."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.targets.model import Chosen, Commands, TargetFile
from chaos.live.cluster import LiveCluster, LiveNode
from chaos.live.errors import SetupError, TargetDied
from chaos.live.launchers import CommandLauncher
from chaos.live.processes import ShellProcess

pytestmark = pytest.mark.live


def node(folder: Path, **commands: str) -> ShellProcess:
    """A node that runs while a file ``up`` exists."""
    up = folder / "up"
    usual = {
        "start": f"touch {up}; echo start {{id}} >> {folder}/calls",
        "alive": f"test -e {up}",
        "kill": f"rm {up}",
        "stop": f"rm {up}; echo stop {{address}} >> {folder}/calls",
        "pause": "true",
        "resume": f"echo resume >> {folder}/calls",
        "log": "echo last words",
    }
    made = ShellProcess(1, "127.0.0.1:9", Commands(**{**usual, **commands}))  # type: ignore[arg-type]
    made.start()
    return made


def test_it_is_killed_stopped_started_and_paused(tmp_path: Path) -> None:
    shell_node = node(tmp_path)
    assert shell_node.exit_status is None
    assert "SIGKILL" in shell_node.kill()
    assert shell_node.exit_status is not None
    assert shell_node.how_it_ended() == f"was ended: rm {tmp_path / 'up'}"
    shell_node.start()
    assert shell_node.terminate().endswith("calls")
    shell_node.start()
    assert shell_node.pause() == "T"
    shell_node.resume()
    assert (tmp_path / "calls").read_text().split("\n") == [
        "start 1", "start 1", "stop 127.0.0.1:9", "start 1", "resume", "",
    ]  # fmt: skip


def test_unrequested_process_end_is_reported_with_log(tmp_path: Path) -> None:
    shell_node = node(tmp_path)
    shell_node.check()
    (tmp_path / "up").unlink()
    shell_node._looked_s = 0.0
    with pytest.raises(TargetDied, match="node-1 ended, and no fault had hit it: last words"):
        shell_node.check()


def test_command_that_fails_is_one_sentence(tmp_path: Path) -> None:
    shell_node = node(tmp_path, kill="echo no permission; false")
    with pytest.raises(SetupError, match=r"node-1: commands\.kill failed with 1: no permission"):
        shell_node.kill()


def test_kill_that_does_nothing_is_reported(tmp_path: Path) -> None:
    shell_node = node(tmp_path, kill="true")
    shell_node.note_done_by_proxy("node_killed")
    with pytest.raises(SetupError, match=r"node-1 still runs after commands\.kill: true"):
        shell_node.wait(0.1)
    (tmp_path / "up").unlink()
    assert shell_node.wait(0.1)


def test_state_query_timeout_ends_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.live.processes.ALIVE_LIMIT_S", 0.1)
    monkeypatch.setattr("chaos.live.processes.COMMAND_LIMIT_S", 0.1)
    assert node(tmp_path, alive="sleep 5").exit_status is None


def test_node_is_started_again_once(tmp_path: Path) -> None:
    file = TargetFile(name="mine", title="Mine", addresses=("127.0.0.1:9",))
    commands = Commands(start=f"echo start >> {tmp_path}/calls", kill="true", ready="true")
    made = LiveNode(0, "127.0.0.1:9", CommandLauncher(0, Chosen("mine", file, "", 1), commands))
    made.launch()
    assert made.process is not None
    made.process.kill()
    made.launch()
    made.end()
    assert (tmp_path / "calls").read_text() == "start\n" * 2


def test_node_that_cannot_be_left_as_it_was_hinders_no_other(tmp_path: Path) -> None:
    cluster, processes = LiveCluster(2, 2), [node(tmp_path, resume="false"), node(tmp_path)]
    launchers: list[Any] = [
        SimpleNamespace(process=process, evidence=tuple, close=lambda: None) for process in processes
    ]
    cluster.nodes = [LiveNode(number, "127.0.0.1:9", each) for number, each in enumerate(launchers)]
    for each in processes:
        each.pause()
    with pytest.raises(SetupError, match=r"commands\.resume failed"):
        cluster.close()
    assert processes[1].state() == "S"


def test_killed_node_is_started_again_on_end(tmp_path: Path) -> None:
    shell_node = node(tmp_path)
    shell_node.kill()
    shell_node.end()
    assert (tmp_path / "up").exists()
