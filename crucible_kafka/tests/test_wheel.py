"""What ``pip install`` brings: the broker with its command, and nothing of the other rooms."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that ``[tool.setuptools]`` names."""
    folder = tmp_path_factory.mktemp("site-packages")
    for package in ("crucible_kafka", "reference_broker"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    return folder


def command(installed: Path, *words: str) -> list[str]:
    """The command without a site, so that no other room of the clone is found."""
    libraries = sysconfig.get_paths()["purelib"]
    code = (
        f"import sys; sys.path[:0] = [{str(installed)!r}, {libraries!r}]; from crucible_kafka.cli import main; main()"
    )
    return [sys.executable, "-I", "-S", "-c", code, *words]


def called(installed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(installed, *words), capture_output=True, text=True, timeout=60, cwd=installed)


@pytest.mark.live
def test_installed_command_offers_only_available_commands(installed: Path) -> None:
    text = called(installed, "--help").stdout
    offered = [line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.strip()]
    assert offered == ["broker"]
    assert "demo" not in text
    assert "./crucible" not in called(installed, "broker", "--help").stdout
    for name in ("cluster", "demo", "proxy"):
        ended = called(installed, name, "--data", "x")
        assert ended.returncode == 2
        assert ended.stderr.strip().splitlines()[-1] == f"Error: No such command '{name}'."


@pytest.mark.live
def test_an_installed_broker_serves_and_ends(installed: Path, tmp_path: Path) -> None:
    words = command(installed, "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=installed) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert line, errors.decode()
    assert json.loads(line)["ready"] is True
    assert process.returncode == 0


def test_type_checkers_find_the_brokers_types() -> None:
    """setuptools takes what MANIFEST.in includes into the wheel."""
    assert "include reference_broker/py.typed" in (ROOT / "MANIFEST.in").read_text().splitlines()
    assert (ROOT / "reference_broker" / "py.typed").is_file()
