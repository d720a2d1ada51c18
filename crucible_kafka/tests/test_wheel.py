"""What ``pip install`` of the built wheel brings into an environment with its dependencies and nothing else."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from crucible_kafka import installed
from tools.wheel_rooms import FOLDER, ROOMS, packed_files

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 4_000_000
LIMIT_S = 60

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the clone as pip builds it. setuptools writes into the folder that it builds."""
    copy, built = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in (*ROOMS, "crucible_kafka", "reference_broker", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    pip("wheel", "--no-deps", "--wheel-dir", built, copy)
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel. Its dependencies, and theirs, are links to those of this environment, which
    saves a minute; nothing else is there."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    pip("--python", folder / "bin" / "python", "install", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for link in required_files():
        (packages / link.name).symlink_to(link)
    return folder


def pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def required_files() -> set[Path]:
    """The files and folders that the wheel's dependencies have in site-packages."""
    found, names = dict[str, set[Path]](), {"crucible-kafka"}
    while names:
        name = names.pop()
        try:
            installed_one = distribution(name)
        except PackageNotFoundError:  # For another system or Python.
            continue
        needs = [each for each in installed_one.requires or () if "extra ==" not in each]
        tops = {file.parts[0] for file in installed_one.files or () if file.parts[0] not in ("..", "__pycache__")}
        found[name] = {Path(str(installed_one.locate_file(each))) for each in tops}
        names |= {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in needs} - set(found)
    del found["crucible-kafka"]
    return {each for files in found.values() for each in files if each.suffix not in (".md", ".in")}


def command(environment: Path, *words: str | Path) -> list[str]:
    return [str(environment / "bin" / "crucible"), *map(str, words)]


def called(words: Sequence[str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd, env=strict_variables())


def strict_variables() -> dict[str, str]:
    """Variables with which each warning is an error, and nothing of the clone is found."""
    return {**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, "PYTHONWARNINGS": "error"}


@contextmanager
def serving(words: Sequence[str], cwd: Path) -> Iterator[dict[str, Any]]:
    """The ready line of a command, which must end cleanly at SIGTERM after the block."""
    with subprocess.Popen(
        words, cwd=cwd, env=strict_variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line, process.communicate(timeout=LIMIT_S)[1]
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 0
    assert not re.search("Traceback|Warning", errors), errors


def read_back(bootstrap: str, value: bytes) -> object:
    """Send a record with kafka-python, and return the first one that it reads."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    producer.send("orders", value).get(timeout=LIMIT_S)
    producer.close()
    consumer = KafkaConsumer("orders", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    try:
        return next(consumer).value
    finally:
        consumer.close()


def test_names_and_size_leave_other_peoples_folders_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "crucible_kafka",
        "reference_broker",
    }
    assert {f"{FOLDER}/{name}" for name in packed_files(ROOT)} == {name for name in names if name.startswith(FOLDER)}
    assert not [name for name in names if "/tests/" in name]
    assert {"crucible_kafka/py.typed", "reference_broker/py.typed"} <= set(names)
    assert wheel.stat().st_size < MOST_BYTES


def test_packed_modules_import_only_what_is_packed(environment: Path, tmp_path: Path) -> None:
    """The rooms are found only once a command enters them, and the library needs none. Then each of their modules can
    be imported."""
    modules = [name[:-3].replace("/", ".").removesuffix(".__init__") for name in packed_files(ROOT) if ".py" in name]
    code = f"""
import importlib, importlib.util
import crucible_kafka.installed, crucible_kafka.cli, reference_broker.serve.main
with crucible_kafka.Cluster() as kafka:
    assert kafka.bootstrap_servers
assert not [name for name in {ROOMS} if importlib.util.find_spec(name)]
crucible_kafka.installed.enter_rooms()
for name in {modules}:
    importlib.import_module(name)
"""
    done = called([str(environment / "bin" / "python"), "-c", code], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(modules) > 100


def test_help_tells_the_installed_commands_from_those_of_a_clone(environment: Path, tmp_path: Path) -> None:
    text = called(command(environment, "--help"), tmp_path).stdout
    ours, _, others = text.partition("\nCommands:\n")[2].partition("\nCommands of a clone (not installed):\n")
    assert tuple(line.split()[0] for line in ours.splitlines() if line.strip()) == installed.COMMANDS
    assert {"bench", "run", "sim", "nightly"} <= {line.split()[0] for line in others.splitlines() if line.strip()}
    for name in installed.COMMANDS:
        shown = called(command(environment, name, "--help"), tmp_path).stdout
        assert f"crucible {name}" in shown
        assert "./crucible" not in shown
        assert "kafka@" not in shown


@pytest.mark.parametrize(
    "words",
    [
        ("run", "1"),
        ("run", "--help"),
        ("power-losses", "--no-such-option"),
        ("cluster", "--data", "x", "--toxiproxy"),
        ("cluster", "--data", "x", "kill", "controller"),
        ("proxy", "--target", "kafka/1"),
        ("probe", "kafka"),
    ],
)
def test_what_was_not_installed_is_said_in_one_sentence(
    environment: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = called(command(environment, *words), tmp_path)
    (sentence,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search("needs a clone: .*git clone|pip install 'crucible-kafka|no target: give HOST:PORT", sentence)


def test_an_installed_broker_serves_a_client(environment: Path, tmp_path: Path) -> None:
    words = command(environment, "broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "data")
    with serving(words, tmp_path) as ready:
        assert read_back(ready["listen"], b"one") == b"one"


def test_an_installed_cluster_is_probed_and_proxied_beside_folders_of_the_same_names(
    environment: Path, tmp_path: Path
) -> None:
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise AssertionError('somebody else imported this')\n")
    words = command(environment, "cluster", "--nodes", "3", "--data", tmp_path / "data")
    with serving(words, tmp_path) as cluster:
        first = cluster["bootstrap_servers"].partition(",")[0]
        with serving(command(environment, "proxy", "--target", first), tmp_path) as proxy:
            assert proxy["bootstrap_servers"] != cluster["bootstrap_servers"]
            assert read_back(proxy["bootstrap_servers"], b"two") == b"two"
        page = tmp_path / "page.html"
        probed = called(command(environment, "probe", first, "--section", "handshake", "--page", page), tmp_path)
    assert (probed.returncode, probed.stderr) == (0, "")
    assert re.search(r"[1-9]\d* cases", probed.stdout.splitlines()[-1])
    assert "<style>" in page.read_text()


def test_an_installed_probe_starts_the_reference_broker(environment: Path, tmp_path: Path) -> None:
    probed = called(command(environment, "probe", "reference", "--section", "metadata"), tmp_path)
    assert (probed.returncode, probed.stderr) == (0, "")
