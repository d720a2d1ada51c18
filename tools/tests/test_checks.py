"""Order of the checks, and their combined exit code."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import conftest
from crucible_kafka import cli
from scenarios import ledger
from tools import checks

Commands = list[tuple[str, ...]]
PLANTED = """
import subprocess, sys
import pytest

def test_unmarked():
    subprocess.run([sys.executable, "-c", ""])

@pytest.mark.live
def test_marked():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_question():
    subprocess.run(["git", "--version"], check=True)

@pytest.mark.simulated
def test_simulated():
    pass

@pytest.mark.thorough
def test_thorough():
    pass

@pytest.mark.live
@pytest.mark.spark
def test_played_and_judged():
    pass

@pytest.mark.spark
def test_judged():
    pass
"""


@pytest.fixture
def commands_run(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands that would have been started; ``types`` fail, and only live ones find tests ``-k absent``."""
    commands: Commands = []

    @contextmanager
    def started(command: list[str], *_: Any, **__: Any) -> Iterator[SimpleNamespace]:
        commands.append(tuple(command))
        status = (
            1 if "mypy" in command or "types" in command else 5 if "absent" in command and "live" not in command else 0
        )
        yield SimpleNamespace(wait=lambda: status, pid=0)

    monkeypatch.setattr(checks, "_started", started)
    return commands


@pytest.mark.parametrize(
    ("only", "fast", "names"),
    [
        ((), False, "lint format contracts types pure live spark"),
        ((), True, "lint format contracts quick"),
        (("tests", "lint"), False, "lint pure live spark"),
        (("live", "types"), False, "types live"),
    ],
)
def test_selected_checks(only: tuple[str, ...], fast: bool, names: str) -> None:
    assert " ".join(checks.wanted(only, fast)) == names


def test_spark_runs_beside_live_tests_and_computing_checks_behind_both(commands_run: Commands) -> None:
    assert checks.run(["lint", "contracts", "types", "pure", "live", "spark"], ["-k", "some"]) == 1
    lint, spark, behind, live = commands_run
    assert "ruff" in lint
    assert live[-4:] == ("--part", "live", "-k", "some")
    assert behind[:3] == ("nice", "-n", "19")
    assert behind[-10:-3] == ("test", "--only", "contracts", "--only", "types", "--only", "pure")
    assert spark[-6:] == ("test", "--only", "spark", "--", "-k", "some")


def test_import_contracts_run_behind_quick_tests(commands_run: Commands) -> None:
    assert checks.run(["lint", "contracts", "quick"], ["-x"]) == 0
    lint, behind, *shares = commands_run
    assert "ruff" in lint
    assert behind[-4:] == ("--only", "contracts", "--", "-x")
    assert {words[-5:] for words in shares} == {(*words[-4:], "-x") for words in checks.QUICK}


def test_files_of_quick_tests_are_shared_out_to_processes_side_by_side(commands_run: Commands) -> None:
    assert checks.run(["pure"], []) == 0
    assert {*commands_run[:-1]} == {*checks.QUICK}
    assert [*commands_run[-1:]] == [*checks.LONG]
    shares = [conftest.share_named(words[-1]) for words in checks.QUICK]
    files = [f"bench/tests/test_{number}.py" for number in range(1_000)]
    for file in files:
        assert sum(conftest.in_share(file, share) for share in shares) == 1
    for share in shares:
        assert sum(conftest.in_share(file, share) for file in files) > 0.8 * len(files) / len(shares)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b"])
def test_share_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        conftest.share_named(text)


def test_without_live_tests_the_computing_checks_run_behind_spark(commands_run: Commands) -> None:
    assert checks.run(["pure", "spark"], []) == 0
    behind, spark = commands_run
    assert behind[-4:] == ("test", "--only", "pure", "--")
    assert spark[-2:] == ("--part", "spark")


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a class for processes that nobody waits for")
def test_background_checks_get_only_idle_time() -> None:
    code = "import os, sys; sys.exit(0 if os.sched_getscheduler(0) == os.SCHED_IDLE else 9)"
    with checks._started([sys.executable, "-c", code], prepared=checks._when_idle) as child:
        assert child.wait(30) == 0


@pytest.mark.live
def test_checks_keep_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with checks._started([sys.executable, "-c", "import sys; sys.exit(sys.dont_write_bytecode)"]) as child:
        assert child.wait(100) == 0


def test_without_live_tests_and_spark_all_run_one_after_the_other(commands_run: Commands) -> None:
    assert checks.run(["lint", "quick"], ["-x"]) == 0
    assert [command[-1] for command in commands_run] == [".", *["-x"] * len(checks.QUICK)]


def test_exit_codes(commands_run: Commands) -> None:
    assert checks.run(["lint", "pure"], ["-k", "absent"]) == 5
    assert checks.run(["pure", "live"], ["-k", "absent"]) == 0
    assert checks.run(["types", "pure"], ["-k", "absent"]) == 1
    assert commands_run


def test_each_commit_plays_its_share_of_rotated_cases_and_a_round_of_commits_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [str(case) for case in range(21)]
    due = []
    for commit in range(8):
        monkeypatch.setattr(conftest, "turn", lambda commit=commit: 2_600 + commit)
        due.append(conftest.due_cases(cases, 4))
    assert {len(each) for each in due} == {5, 6}
    assert set().union(*due[:4]) == {*cases}
    assert due[:4] == due[4:]
    assert conftest.due_cases(["alone"], 4) == {"alone"}


def test_tests_of_a_group_take_turns_and_others_with_their_own_cases() -> None:
    one, other = "bench/test_a.py::test_x[1]", "bench/test_b.py::test_y"
    assert conftest.rotation_of(one, 3, "load") == conftest.rotation_of(other, 3, "load")
    assert conftest.rotation_of(one, 3) == conftest.rotation_of("bench/test_a.py::test_x[2]", 3)
    assert conftest.rotation_of(one, 3) != conftest.rotation_of(other, 3)


def test_thorough_tests_take_turns_in_their_folder_and_others_in_their_file() -> None:
    nodeid, folder, file = "chaos/tests/test_a.py::test_x[1]", "chaos/tests", "chaos/tests/test_a.py"
    assert conftest.turns_of(nodeid, [], "thorough", by_parts=True) == [(conftest.TURNS["thorough"], folder)]
    assert conftest.turns_of(nodeid, [], "simulated", by_parts=True) == [(conftest.TURNS["simulated"], file)]
    assert conftest.turns_of(nodeid, [], "live", by_parts=True) == [(conftest.TURNS["live"], file)]
    assert conftest.turns_of(nodeid, [], "spark", by_parts=True) == [(conftest.TURNS["spark"], file)]
    assert conftest.turns_of(nodeid, [(8,)], "simulated", by_parts=True) == [(8,)]
    assert conftest.turns_of(nodeid, [], "thorough", by_parts=False) == []
    assert conftest.turns_of(nodeid, [], "quick", by_parts=True) == []


def test_only_spark_checks_need_java(commands_run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for words, code in ((["--fast"], 0), (["--only", "lint"], 0), (["--only", "tests"], 2), ([], 2)):
        assert CliRunner().invoke(cli.main, ["test", *words]).exit_code == code
    assert len(commands_run) == 4 + len(checks.QUICK)


@pytest.mark.live
@pytest.mark.parametrize(
    ("words", "failed", "passed"),
    [
        ([], 1, 6),
        (["--part", "quick"], 1, 1),
        (["--part", "quick", "--part", "simulated"], 1, 2),
        (["--part", "thorough"], 0, 1),
        (["--part", "live"], 0, 2),
        (["--part", "spark"], 0, 1),
    ],
)
def test_each_test_is_in_one_part_and_starts_a_process_only_if_marked(
    words: list[str], failed: int, passed: int, tmp_path: Path
) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    settings = ["-c", str(checks.ROOT / "pyproject.toml"), "-p", "conftest", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-q", *settings, str(tmp_path), *words]
    night = {**os.environ, "HYPOTHESIS_PROFILE": "nightly"}  # In which no test waits for its turn.
    output = subprocess.run(command, cwd=checks.ROOT, capture_output=True, text=True, check=False, env=night).stdout
    assert f"{passed} passed" in output, output
    assert f"{failed} failed" in output if failed else "failed" not in output
    assert ("it must be marked live" in output) == bool(failed)


@pytest.mark.parametrize(("shallow", "drawn"), [("false", 2_606), ("true", 0x8FAF14C0), ("", 0x8FAF14C0)])
def test_turn_is_the_number_of_commits_or_else_drawn_by_hash(
    shallow: str, drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"--is-shallow-repository": shallow, "--count": "2606", "HEAD": "8faf14c0" + "0" * 32}
    monkeypatch.setattr(ledger, "_git", lambda *words: outputs[words[1]])
    assert ledger.turn() == drawn
