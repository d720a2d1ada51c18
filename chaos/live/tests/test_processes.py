"""Children: started, stopped, continued, killed, and told apart when they end by themselves."""

import sys
import time
from pathlib import Path

import pytest

from chaos.live.agenda import Agenda
from chaos.live.errors import NodeDied, SetupError
from chaos.live.processes import Child, EvidencePipe

pytestmark = pytest.mark.live

SLEEPER = "import time; print('{\"ready\": 1}', flush=True); time.sleep(60)"


def child(tmp_path: Path, code: str, *words: str, pass_fds: tuple[int, ...] = ()) -> Child:
    return Child("node-7", [sys.executable, "-c", code, *words], tmp_path / "log", pass_fds=pass_fds)


def test_killed_is_told_from_died(tmp_path: Path) -> None:
    asked = child(tmp_path, SLEEPER)
    asked.await_line("ready")
    asked.check()
    assert asked.kill().endswith("ended by SIGKILL")
    asked.check()
    asked.close()

    by_itself = child(
        tmp_path, "import sys; print('{\"ready\": 1}', flush=True); print('boom', file=sys.stderr); sys.exit(3)"
    )
    by_itself.await_line("ready")
    assert by_itself.wait(10)
    with pytest.raises(NodeDied, match="node-7 exited with 3: boom"):
        by_itself.check()
    by_itself.close()


def test_paused_means_stopped_until_continued(tmp_path: Path) -> None:
    sleeper = child(tmp_path, SLEEPER)
    sleeper.await_line("ready")
    assert sleeper.pause() == "T"
    sleeper.resume()
    deadline = time.monotonic() + 5
    while sleeper.state() == "T" and time.monotonic() < deadline:
        time.sleep(0.005)
    assert sleeper.state() != "T"
    sleeper.pause()
    assert sleeper.terminate(10).endswith("ended by SIGTERM")
    sleeper.close()


def test_a_child_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path: Path) -> None:
    stubborn = child(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER)
    stubborn.await_line("ready")
    assert "was killed" in stubborn.terminate(0.3)
    stubborn.close()


def test_a_set_up_error_carries_the_child_s_own_sentence(tmp_path: Path) -> None:
    refusing = child(tmp_path, "import sys; print('the port is in use', file=sys.stderr); sys.exit(2)")
    with pytest.raises(SetupError, match="the port is in use"):
        refusing.await_line("ready")
    refusing.close()


def test_a_child_that_never_gets_ready_meets_its_deadline(tmp_path: Path) -> None:
    slow = child(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(NodeDied, match="not ready within"):
        slow.await_line("ready", 0.2)
    slow.kill()
    slow.close()


def test_evidence_survives_sigkill(tmp_path: Path) -> None:
    pipe = EvidencePipe()
    code = (
        'import os, signal, sys; os.write(int(sys.argv[1]), b\'{"hit": 1}\\n{"hit": 2}\\n\'); '
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    dying = child(tmp_path, code, str(pipe.write_end), pass_fds=(pipe.write_end,))
    pipe.close_write_end()
    dying.expect_end()
    assert dying.wait(10)
    assert pipe.lines() == [{"hit": 1}, {"hit": 2}]
    assert pipe.lines() == []
    pipe.close()
    dying.close()


def test_orders_reach_the_child_and_a_dead_one_takes_none(tmp_path: Path) -> None:
    echo = child(tmp_path, "import sys; print('{\"ready\": 1}', flush=True); print(sys.stdin.readline(), flush=True)")
    echo.await_line("ready")
    echo.order(load_from_us=5)
    assert echo.await_line("load_from_us") == {"load_from_us": 5}
    assert echo.wait(10)
    echo.order(late=True)
    echo.order(late=True)
    echo.close()


def test_agenda_keeps_the_order_of_equal_times() -> None:
    done: list[str] = []
    agenda = Agenda()
    agenda.add(20, lambda: done.append("c"))
    agenda.add(10, lambda: done.append("a"))
    agenda.add(10, lambda: done.append("b"))
    agenda.do_due(10)
    assert done == ["a", "b"]
    agenda.do_all()
    assert done == ["a", "b", "c"]
