"""The launcher takes the interpreter that runs it, unless another one that can make environments is faster. What takes
minutes to fetch is not in the environment that it makes."""

import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from chaos.live import s3_server
from reports import s3

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "crucible"


@pytest.fixture
def launcher() -> Any:
    loader = SourceFileLoader("crucible_launcher", str(LAUNCHER))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    found = module_from_spec(spec)
    loader.exec_module(found)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH. Nothing in it but ``this`` is found at first, which runs the launcher."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CRUCIBLE_PYTHON", raising=False)
    monkeypatch.setattr(sys, "executable", _python(tmp_path / "this", 0.1))
    return tmp_path


def _python(path: Path, seconds: float, version: str = "3 11", status: int = 0) -> str:
    path.write_text(f"#!/bin/sh\necho {seconds} {version} {path}\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_running_interpreter_is_used_unless_another_is_faster(launcher: Any, folder: Path) -> None:
    _python(folder / "python3.11", 0.095)
    assert launcher.suitable_python() == (str(folder / "this"), (3, 11))


def test_faster_build_is_preferred(launcher: Any, folder: Path) -> None:
    fast = _python(folder / "python3.12", 0.08, "3 12")
    assert launcher.suitable_python() == (fast, (3, 12))


def test_interpreter_without_venv_is_skipped(launcher: Any, folder: Path) -> None:
    _python(folder / "python3.12", 0.05, "3 12", status=1)
    slower = _python(folder / "python3.11", 0.08)
    assert launcher.suitable_python() == (slower, (3, 11))


def test_interpreter_without_lock_file_is_skipped(
    launcher: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", _python(folder / "this", 0.01, "3 10"))
    with pytest.raises(SystemExit) as ended:
        launcher.suitable_python()
    assert ended.value.code == 2
    assert "it runs on Python 3.11, 3.12, 3.13 with its venv module" in capsys.readouterr().err
    other = _python(folder / "python3.13", 0.1, "3 13")
    assert launcher.suitable_python() == (other, (3, 13))


def test_named_interpreter_is_used_or_rejected(
    launcher: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = _python(folder / "python3.13", 0.9, "3 13")
    monkeypatch.setenv("CRUCIBLE_PYTHON", "python3.13")
    assert launcher.suitable_python() == (slow, (3, 13))
    for unusable in ("python3.99", _python(folder / "older", 0.1, "3 10")):
        monkeypatch.setenv("CRUCIBLE_PYTHON", unusable)
        with pytest.raises(SystemExit) as ended:
            launcher.suitable_python()
        assert ended.value.code == 2
    assert "CRUCIBLE_PYTHON is python3.99, which makes no environment" in capsys.readouterr().err


def test_it_measures_a_real_interpreter(launcher: Any) -> None:
    seconds, path, version = launcher.measured(sys.executable)
    assert 0 < seconds < 10
    assert Path(path).resolve() == Path(sys.executable).resolve()
    assert version == sys.version_info[:2]


def test_two_calls_at_once_set_up_once(launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up: list[str] = []

    def slowly(python: str, lock: str, wanted: str) -> None:  # noqa: ARG001
        time.sleep(0.2)
        set_up.append(wanted)

    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    monkeypatch.setattr(launcher, "is_set_up", lambda: bool(set_up))
    monkeypatch.setattr(launcher, "suitable_python", lambda: ("python", (3, 11)))
    monkeypatch.setattr(launcher, "fingerprint", str)
    monkeypatch.setattr(launcher, "set_up", slowly)
    calls = [Thread(target=launcher.set_up_once) for _ in range(2)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert len(set_up) == 1


def test_steps_beside_others_all_run_and_one_that_fails_ends_the_set_up_with_its_output(
    launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    monkeypatch.setattr(launcher, "VENV", tmp_path / ".venv")
    launcher.VENV.mkdir()
    steps = {"compiling": ["sh", "-c", "echo no compiler; exit 3"], "archiving": ["touch", str(tmp_path / "archive")]}
    with pytest.raises(SystemExit) as ended, launcher.beside(steps):
        launcher.run("installing", ["touch", str(tmp_path / "installed")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "  no compiler\ncrucible: compiling failed (whole output: .venv/setup-0.log)." in said
    assert (tmp_path / "archive").exists()
    assert (tmp_path / "installed").exists()


def test_toxiproxy_server_is_built_before_there_are_packages() -> None:
    without_packages = [sys.executable, "-S", "-c", "import chaos.live.toxiproxy_server"]
    subprocess.run(without_packages, cwd=ROOT, check=True)


@pytest.mark.live
def test_slow_downloads_survive_new_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(s3_server.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    built: list[Path] = []
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("bench.golang.build", lambda _, __, product, ___: built.append(product))
    s3_server.build()
    for place in (*built, s3._jar_folder()):
        assert place.is_relative_to(ROOT / ".cache")
        assert subprocess.run(["git", "check-ignore", "-q", place], cwd=ROOT, check=False).returncode == 0
    assert len(built) == 1
