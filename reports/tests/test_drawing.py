"""Two processes draw a page's figures. If one is killed, the other draws them all."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from reports.plots.catalogue import Drawing, drawing_process, drawn_by_two

pytestmark = pytest.mark.live


def figure() -> Figure:
    made = Figure(figsize=(2, 1))
    made.subplots().plot([0, 1], [0, 1])
    return made


def drawn_only_by(process: int) -> Figure:
    if os.getpid() != process:
        os.kill(os.getpid(), signal.SIGKILL)
    return figure()


def test_page_is_drawn_though_the_second_process_is_killed(tmp_path: Path) -> None:
    makers = {name: partial(drawn_only_by, os.getpid()) for name in ("one", "two", "three")}
    assert _is_whole(drawn_by_two(makers, dict.fromkeys(makers, "a line"), tmp_path), list(makers))
    again = dict.fromkeys(("four", "five"), figure)
    assert _is_whole(drawn_by_two(again, dict.fromkeys(again, "a line"), tmp_path), list(again))
    assert {path.stem for path in tmp_path.glob("*.png")} == {*makers, *again}


def test_page_is_drawn_though_the_helper_has_died_before(tmp_path: Path) -> None:
    drawing_process()._process.kill()
    drawing_process()._process.wait()
    makers = dict.fromkeys(("ten", "eleven"), figure)
    for _ in range(2):
        assert _is_whole(drawn_by_two(makers, dict.fromkeys(makers, "a line"), tmp_path), list(makers))
    assert drawing_process()._process.poll() is None


def test_helper_is_kept_for_the_next_page(tmp_path: Path) -> None:
    pids = [drawing_process().call(os.getpid) for _ in range(2)]
    assert drawn_by_two({"six": figure}, {"six": "a line"}, tmp_path)
    assert {*pids, drawing_process().call(os.getpid)} == {pids[0]}
    assert pids[0] != os.getpid()


def test_error_of_figure_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        drawing_process().call(partial(divmod, 1, 0))
    assert drawing_process().call(partial(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        drawn_by_two({"nine": partial(divmod, 1, 0)}, {"nine": ""}, tmp_path)


SCRIPT = """
from functools import partial
from reports.plots.catalogue import drawing_process
print("begins")
assert drawing_process().call(partial(divmod, 7, 2)) == (3, 1)
print("ends")
"""


def test_script_without_a_main_guard_is_not_run_twice_nor_are_modules_of_the_users_folder(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "pickle.py").write_text("raise SystemExit('The folder of the user has a module of this name.')")
    root = str(Path(__file__).parents[2])
    words = [sys.executable, "-P", str(script)]
    done = subprocess.run(
        words, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("begins\nends\n", "", 0)


def _is_whole(drawings: dict[str, Drawing], names: list[str]) -> bool:
    return list(drawings) == names and all("<svg" in drawing.svg for drawing in drawings.values())
