"""Children: started, stopped, continued, killed, and distinguished from those that end by themselves."""

import subprocess
import sys
import time
from math import inf
from pathlib import Path
from typing import Any

import psutil
import pytest

from chaos.live.cluster import LiveNode
from chaos.live.errors import EndedItself, NodeDied, NotBack, SetupError
from chaos.live.fault_scheduler import DueActions
from chaos.live.launchers import NodeUnderTest
from chaos.live.node_side.node_protocol import NodeSpec
from chaos.live.processes import MAX_WORDS, Child, EvidencePipe, TargetProcess

pytestmark = pytest.mark.live

SLEEPER = "import time; print('{\"ready\": 1}', flush=True); time.sleep(60)"


def child(tmp_path: Path, code: str, *words: str, pass_fds: tuple[int, ...] = ()) -> Child:
    return Child("node-7", [sys.executable, "-c", code, *words], tmp_path / "log", pass_fds=pass_fds)


def await_ready(started: Child) -> None:
    assert started.line_with("ready", 30) is not None


def test_killed_is_distinguished_from_died(tmp_path: Path) -> None:
    killed = child(tmp_path, SLEEPER)
    await_ready(killed)
    killed.check()
    assert killed.kill().endswith("ended by SIGKILL")
    killed.check()
    killed.close()

    by_itself = child(
        tmp_path, "import sys; print('{\"ready\": 1}', flush=True); print('boom', file=sys.stderr); sys.exit(3)"
    )
    await_ready(by_itself)
    assert by_itself.wait(30)
    with pytest.raises(NodeDied, match="node-7 exited with 3: boom"):
        by_itself.check()
    by_itself.close()


def test_paused_means_stopped_until_continued(tmp_path: Path) -> None:
    sleeper = child(tmp_path, SLEEPER)
    await_ready(sleeper)
    assert sleeper.pause() == "T"
    sleeper.resume()
    deadline = time.monotonic() + 30
    while sleeper.state() == "T" and time.monotonic() < deadline:
        time.sleep(0.005)
    assert sleeper.state() != "T"
    sleeper.pause()
    assert sleeper.terminate(10).endswith("ended by SIGTERM")
    sleeper.close()


def test_child_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path: Path) -> None:
    stubborn = child(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER)
    await_ready(stubborn)
    assert "was killed" in stubborn.terminate(0.3)
    stubborn.close()


@pytest.mark.parametrize("waits", [True, False])
def test_target_that_does_not_stop_is_killed_after_its_own_limit_which_fails_no_run(
    tmp_path: Path, waits: bool
) -> None:
    """As Apache Kafka, whose node waits for its remote tier or for a controller."""
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
    target = TargetProcess("node-0", [sys.executable, "-c", ignores], tmp_path / "log", {}, 0.3)
    deadline = time.monotonic() + 30
    while not (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    if waits:
        assert target.terminate().endswith("ignored SIGTERM for 0.3 s and was killed")
    else:
        target.request_end()
        assert target.wait(30)
    assert target.how_it_ended() == "ended by SIGKILL"
    target.check()
    target.close()


def test_child_gets_sigterm_only_once(tmp_path: Path) -> None:
    """A second SIGTERM would kill a process that has just removed its handlers."""
    once = child(
        tmp_path,
        "import signal, time; signals = []; signal.signal(signal.SIGTERM, lambda *_: signals.append(1));"
        "print('{\"ready\": 1}', flush=True)\nwhile not signals: time.sleep(0.01)\n"
        "time.sleep(0.3); raise SystemExit(len(signals) - 1)",
    )
    await_ready(once)
    once.request_end()
    time.sleep(0.1)
    assert once.terminate(10).endswith("exited with 0")
    once.close()


def test_endless_last_line_is_cut_in_messages(tmp_path: Path) -> None:
    spoken = child(tmp_path, f"import sys; print('x' * {10 * MAX_WORDS}, file=sys.stderr)")
    assert spoken.wait(30)
    assert len(spoken.last_words()) == MAX_WORDS
    spoken.close()


@pytest.mark.parametrize(("starts", "kind"), [(1, NodeDied), (2, NotBack)])
def test_node_that_does_not_get_ready_meets_its_deadline(
    tmp_path: Path, starts: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.live.cluster.READY_LIMIT_S", 0.2)
    node = under_test(tmp_path, "import time; time.sleep(60)", starts)
    with pytest.raises(kind, match="node-7 "):
        node.await_ready()
    node.end()


def test_evidence_survives_sigkill(tmp_path: Path) -> None:
    pipe = EvidencePipe()
    code = (
        'import os, signal, sys; os.write(int(sys.argv[1]), b\'{"hit": 1}\\n{"hit": 2}\\n\'); '
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    dying = child(tmp_path, code, str(pipe.write_end), pass_fds=(pipe.write_end,))
    pipe.close_write_end()
    dying.expected_end = True
    assert dying.wait(30)
    assert pipe.lines() == [{"hit": 1}, {"hit": 2}]
    assert pipe.lines() == []
    pipe.close()
    dying.close()


def test_orders_reach_running_child_but_not_dead_one(tmp_path: Path) -> None:
    echo = child(tmp_path, "import sys; print('{\"ready\": 1}', flush=True); print(sys.stdin.readline(), flush=True)")
    await_ready(echo)
    echo.send_command(load_from_us=5)
    assert echo.line_with("load_from_us", 30) == {"load_from_us": 5}
    assert echo.wait(30)
    echo.send_command(late=True)
    echo.send_command(late=True)
    echo.close()
    echo.send_command(after=True)


def test_due_actions_keep_the_order_of_equal_times() -> None:
    done: list[str] = []
    due = DueActions()
    due.add(20, lambda: done.append("c"))
    due.add(10, lambda: done.append("a"))
    due.add(10, lambda: done.append("b"))
    due.do_due(10)
    assert done == ["a", "b"]
    due.do_all()
    assert done == ["a", "b", "c"]


DAMAGED = "The metadata log is damaged in or after the batch that ends at offset 7 (no Begin): restore it from a copy."


@pytest.mark.parametrize(
    ("explanation", "kind"), [(DAMAGED, EndedItself), ("IndexError: pop from an empty deque", NodeDied)]
)
def test_node_that_ends_itself_over_its_metadata_is_distinguished_from_one_that_crashes(
    tmp_path: Path, explanation: str, kind: type[NodeDied]
) -> None:
    ending = child(tmp_path, f"import sys; print({explanation!r}, file=sys.stderr); sys.exit(4)")
    assert ending.wait(30)
    with pytest.raises(NodeDied) as death:
        ending.check()
    ending.close()
    assert type(death.value) is kind
    assert explanation in str(death.value)


def under_test(tmp_path: Path, code: str, starts: int) -> LiveNode:
    """A node in its first or a later incarnation, whose process runs ``code`` instead of a broker."""
    words: Any = dict.fromkeys(
        ("listen", "advertised", "metrics_listen", "data", "spools", "hit_counts", "scenario", "mutant"), ""
    )
    spec = NodeSpec(node_id=7, config={}, is_voter=True, seed=1, origin_us=0, **words)
    launcher = NodeUnderTest(spec, tmp_path)
    launcher.process = child(tmp_path, code)
    node = LiveNode(7, "127.0.0.1:9", launcher)
    node._starts, node._deadline = starts, inf
    return node


@pytest.mark.parametrize(("starts", "kind"), [(1, SetupError), (2, EndedItself)])
def test_only_a_first_start_that_is_refused_is_an_error_of_the_setup(
    tmp_path: Path, starts: int, kind: type[Exception]
) -> None:
    node = under_test(tmp_path, f"import sys; print({DAMAGED!r}, file=sys.stderr); sys.exit(2)", starts)
    with pytest.raises(kind, match="damaged"):
        node.await_ready()
    node.end()


PAUSES = """
import sys, time
from pathlib import Path
from chaos.live.processes import Child
child = Child("node-7", [sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]))
child.line_with("ready", 30)
print(child.pid, child.pause(), flush=True)
time.sleep(60)
"""


def test_stopped_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PAUSES, str(tmp_path / "log"), SLEEPER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        pid, state = runner.stdout.readline().split()
        assert state == "T"
        child = psutil.Process(int(pid))
        runner.kill()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
