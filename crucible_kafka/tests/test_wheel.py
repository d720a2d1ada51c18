"""The built wheel after ``pip install`` into an environment with its dependencies and nothing else."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from kafka import KafkaConsumer, KafkaProducer

from bench.ports import free_port, free_ports
from crucible_kafka import installed
from tools.wheel_rooms import FOLDER, ROOMS, packed_files

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 4_000_000
LIMIT_S = 60

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the clone as pip builds it. setuptools writes into the folder that it builds."""
    copy, built = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("built")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        path = ROOT / line[1:]
        if line.startswith("!") and path.is_dir():
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
        elif line.startswith("!"):
            shutil.copy(path, copy)
    build, _ = pips()
    pip(*(str({"/wheels": built, "/clone": copy}.get(word, word)) for word in build))
    (found,) = built.glob("*.whl")
    return found


def pips() -> list[list[str]]:
    """The words after ``pip`` of the Containerfile's lines that call it."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("RUN pip ")]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel. Its dependencies, and theirs, are links to those of this environment, which
    saves a minute; nothing else is there."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    _, install = pips()
    assert install[-1] == "/wheels/*.whl"
    pip("--python", folder / "bin" / "python", *install[:-1], "--no-deps", wheel)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for link in required_files("crucible-kafka"):
        (packages / link.name).symlink_to(link)
    return folder


def pip(*words: str | Path) -> None:
    """Call pip. With PYTHONPATH, which ``./crucible`` sets, it would find the clone installed already."""
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", *map(str, words)]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr


def required_files(*packages: str) -> set[Path]:
    """The files and folders that these packages, and all that they depend on, have in site-packages."""
    found, names = dict[str, set[Path]](), set(packages)
    while names:
        name = names.pop()
        try:
            installed_one = distribution(name)
        except PackageNotFoundError:  # For another system or Python.
            continue
        needs = [requirement for requirement in installed_one.requires or () if "extra ==" not in requirement]
        tops = {file.parts[0] for file in installed_one.files or () if file.parts[0] not in ("..", "__pycache__")}
        found[name] = {Path(str(installed_one.locate_file(each))) for each in tops}
        names |= {re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs} - set(found)
    found.pop("crucible-kafka", None)
    return {file for files in found.values() for file in files if file.suffix not in (".md", ".in")}


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
    assert wheel.stat().st_size < MAX_BYTES


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


def test_installed_broker_serves_a_client(environment: Path, tmp_path: Path) -> None:
    words = command(environment, "broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "data")
    with serving(words, tmp_path) as ready:
        assert read_back(ready["listen"], b"one") == b"one"


@pytest.mark.nightly
def test_installed_cluster_is_probed_and_proxied_beside_folders_of_the_same_names(
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
        probed = called(
            command(environment, "probe", first, "--section", "handshake/pipelining", "--page", page), tmp_path
        )
    assert (probed.returncode, probed.stderr) == (0, "")
    assert re.search(r"[1-9]\d* cases", probed.stdout.splitlines()[-1])
    assert "<style>" in page.read_text()


@pytest.mark.nightly
def test_installed_probe_starts_the_reference_broker(environment: Path, tmp_path: Path) -> None:
    probed = called(command(environment, "probe", "reference", "--section", "handshake/pipelining"), tmp_path)
    assert (probed.returncode, probed.stderr) == (0, "")


def test_installed_serve_delays_a_response_by_a_rule(environment: Path, tmp_path: Path) -> None:
    with serving(command(environment, "serve"), tmp_path) as ready:
        headers = {"Authorization": f"Bearer {ready['token']}"}
        rule = b'{"api": "Produce", "act": "delay_response", "seconds": 0.1, "times": 1}'
        with urlopen(Request(ready["control"] + "/v1/rules", rule, headers), timeout=LIMIT_S) as added:
            assert json.loads(added.read())["fired"] == 0
        assert read_back(ready["bootstrap_servers"], b"served") == b"served"
        with urlopen(Request(ready["control"] + "/v1/rules/1", None, headers), timeout=LIMIT_S) as found:
            assert json.loads(found.read())["fired"] == 1


@pytest.mark.nightly
def test_containers_command_serves_a_client(environment: Path, tmp_path: Path) -> None:
    found = re.findall(r"^(ENTRYPOINT|CMD) (.*)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    words = [word for _, text in found for word in json.loads(text)]
    assert words[0] == "crucible"
    port = free_port()
    own = {"0.0.0.0:9092": f"127.0.0.1:{port}", "localhost:9092": f"localhost:{port}", "/data": str(tmp_path / "data")}
    with serving(command(environment, *(own.get(word, word) for word in words[1:])), tmp_path):
        assert read_back(f"localhost:{port}", b"three") == b"three"


@pytest.mark.nightly
def test_service_with_the_control_api_needs_no_port_but_those_of_the_machine(environment: Path, tmp_path: Path) -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["serve"]
    assert service["network_mode"] == "host"
    assert service["profiles"] == ["serve"]
    with serving(command(environment, *service["command"]), tmp_path) as ready:
        assert ready["bootstrap_servers"].count(",") == 2
        headers = {"Authorization": f"Bearer {ready['token']}"}
        with urlopen(Request(ready["control"] + "/v1/nodes", None, headers), timeout=LIMIT_S) as found:
            assert [each["serving"] for each in json.loads(found.read())] == [True] * 3


@pytest.mark.nightly
@pytest.mark.parametrize("profile", [None, "cluster"])
def test_services_of_compose_serve_a_client(environment: Path, tmp_path: Path, profile: str | None) -> None:
    """Each has two ports: that of other services, and the published one. Its name is this machine."""
    services = {
        name: service
        for name, service in yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].items()
        if service.get("profiles") == (profile and [profile])
    }
    for name, service in services.items():
        assert service["ports"] == [f"127.0.0.1:{(port := published(service))}:{port}"]
        assert f"HOST://localhost:{port}" in " ".join(service["command"]), name
    inside, outside = (dict(zip(services, free_ports(len(services)), strict=True)) for _ in range(2))
    with ExitStack() as started, ThreadPoolExecutor() as several:
        nodes = []
        for name, service in services.items():
            text = "\n".join(service["command"]).replace("0.0.0.0:19092", f"127.0.0.1:{inside[name]}")
            for other, port in inside.items():
                text = text.replace(f"{other}:19092", f"127.0.0.1:{port}")
            text = re.sub(rf"(localhost|0\.0\.0\.0):{published(service)}", f"127.0.0.1:{outside[name]}", text)
            words = command(environment, *text.replace("=/data", f"={tmp_path / name}").split("\n"))
            nodes.append(several.submit(started.enter_context, serving(words, tmp_path)))
        assert all(node.result()["ready"] for node in nodes)
        assert read_back(f"127.0.0.1:{outside[next(iter(services))]}", b"four") == b"four"


def published(service: dict[str, Any]) -> int:
    return int(service["ports"][0].rpartition(":")[2])


@pytest.mark.nightly
def test_steps_of_the_workflow_in_the_docs_can_be_run(environment: Path, tmp_path: Path) -> None:
    """But for pip, which installs what is here already. ``tests.py`` is an example of a user's tests."""
    text = (ROOT / "docs" / "ci.md").read_text()
    job = yaml.safe_load(re.findall(r"```yaml\n(name: .*?)```", text, re.DOTALL)[0])["jobs"]["kafka"]
    pip_step, *steps = [step["run"] for step in job["steps"] if "run" in step]
    assert pip_step.startswith("pip install ")
    first = free_port()
    lines = "\n".join(["set -e", "trap 'kill %1; wait' EXIT", *steps]).replace("9092", str(first))
    (tmp_path / "tests.py").write_text("import pathlib, sys; pathlib.Path('seen').write_text(sys.argv[1])")
    variables = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "KAFKA": job["env"]["KAFKA"]}
    variables = {**strict_variables(), **variables, "GITHUB_ACTIONS": "true"}
    done = subprocess.run(
        ["bash", "-c", lines], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, env=variables
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    ready = json.loads((tmp_path / "ready.json").read_text())
    assert ready["bootstrap_servers"] == ",".join(f"127.0.0.1:{first + node}" for node in range(3))
    assert (tmp_path / "seen").read_text() == job["env"]["KAFKA"]
    assert "<testsuite " in (tmp_path / "probe.xml").read_text()


def test_pytest_finds_the_plugin_and_a_sample_project_passes(environment: Path, tmp_path: Path) -> None:
    """pytest and the client are links in a folder of their own, since no other test of the wheel may need them."""
    packages, project = tmp_path / "packages", tmp_path / "project"
    packages.mkdir()
    for link in required_files("pytest", "confluent-kafka"):
        (packages / link.name).symlink_to(link)
    shutil.copytree(ROOT / "docs" / "examples" / "pytest-confluent", project)
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=project,
        env={**strict_variables(), "PYTHONPATH": str(packages)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
