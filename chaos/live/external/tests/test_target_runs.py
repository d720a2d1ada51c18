"""Runs against targets that we start: faults hit their processes, and whatever goes wrong with them is reported."""

import os
from pathlib import Path

import psutil
import pytest

from chaos.live.errors import SetupError
from chaos.live.external.cluster import standing
from chaos.live.external.target import nodes_of
from chaos.live.external.tests.small_targets import SERVE, target_file
from chaos.live.runner import play_scenario
from chaos.live.tests.small_scenario import faults_of, text_of, written
from reports.manifest import read_manifest
from scenarios.loader import load
from scenarios.model import Scenario

pytestmark = pytest.mark.live

LOAD = """
[load]
seconds = 3

[[load.topics]]
name = "hot"
partitions = 2

[[load.fetchers]]
name = "incremental"
behaviour = "incremental"
count = 2
topic = "hot"
partitions = 2
max_wait_ms = 100
poll_interval_ms = 50
"""
FAULTS = """
[[external_fault]]
name = "killed_at_commit_of_nothing"
kind = "node_killed"
on = "response"
match = { api = "fetch", session = true }
nth = 2
total = 1
restart_after_s = 0.2

[[external_fault]]
name = "paused"
kind = "node_paused"
at_s = 1.8
duration_s = 0.4

[[external_fault]]
name = "never_possible"
kind = "disk_full"
at_s = 1
optional = true
"""
CLOSES = "import socket; s = socket.create_server(('127.0.0.1', {port})); [s.accept()[0].close() for _ in iter(int, 1)]"


THREE = """
[cluster]
nodes = 3

[load]
seconds = 18

[[load.topics]]
name = "hot"
partitions = 2
replicas = 3
"""
BETWEEN = """
[[fault]]
name = "fetch_lost"
kind = "response_dropped"
on = "response"
link = "all>partition_leader"
match = { api = "fetch", session = true }
total = 2

[[fault]]
name = "response_late"
kind = "response_delayed"
on = "response"
node = "partition_leader"
match = { api = "produce" }
nth = 3
total = 1
delay_ms = 100

[[fault]]
name = "bounced"
kind = "rolling_bounce"
at_s = 3
restart_after_s = 0.1
config = { "num.partitions" = 2 }

[[fault]]
name = "not_mounted"
kind = "directory_missing"
at_s = 0.5
restart_after_s = 0.1
duration_s = 2
node = 2
"""


def scenario(folder: Path, *more: str) -> Scenario:
    return load(written(folder, "small", text_of("A small run", 10, LOAD, 50, *more)))


EARLIER: set[int] = set()
"""Processes from before the test: the Java process of a Spark session that an earlier test of this worker has left."""


@pytest.fixture(autouse=True)
def _earlier() -> None:
    EARLIER.clear()
    EARLIER.update(children())


def children() -> set[int]:
    return {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)} - EARLIER


@pytest.mark.rotated(3, "runs")
def test_started_target_is_killed_at_a_state_restarted_and_paused(tmp_path: Path) -> None:
    target = target_file(tmp_path, SERVE)
    folder = play_scenario(scenario(tmp_path, FAULTS), tmp_path / "run", seed=1, target=target).path
    manifest = read_manifest(folder)
    assert (manifest.crash, manifest.target) == ("", target)
    assert manifest.expectations.faults == ("killed_at_commit_of_nothing", "paused")
    assert [(check.guarantee, check.holds) for check in manifest.checks] == [
        ("target-stays-up", True),
        ("responses-after-heal", True),
    ]
    assert "A small broker" in manifest.notes[0]
    details = {row["name"]: row["detail"] for row in faults_of(folder)}
    assert "ended by SIGKILL" in details["killed_at_commit_of_nothing"]
    assert "was stopped (state T, T at the end)" in details["paused"]
    assert not children()


@pytest.mark.nightly
def test_rules_between_nodes_a_bounce_and_an_empty_directory(tmp_path: Path) -> None:
    text = text_of("Between nodes", 10, THREE, 50, BETWEEN)
    prepared = 'prepare = ["sh", "-c", "echo made >> {folder}/made"]\nsetting = ["--config", "{key}={value}"]\n'
    serve = f'set -- "$@"; echo "$@" >> {{folder}}/settings; {SERVE}'
    target = target_file(tmp_path, serve, nodes=3, more=prepared, words=("it", "{settings...}"))
    folder = play_scenario(load(written(tmp_path, "small", text)), tmp_path / "run", seed=1, target=target).path
    manifest = read_manifest(folder)
    assert [(check.guarantee, check.holds, check.detail) for check in manifest.checks] == [
        ("target-stays-up", True, ""),
        ("responses-after-heal", True, ""),
    ]
    hits = [(row["name"], row["target"]) for row in faults_of(folder)]
    assert {name for name, _ in hits} == {"fetch_lost", "response_late", "bounced", "not_mounted"}
    assert [target for name, target in hits if name == "bounced"] == ["node-0", "node-1", "node-2"]
    data = folder / "data"
    assert (data / "node-2" / "made").read_text() == "made\n" * 2
    assert (data / "node-0" / "made").read_text() == "made\n"
    assert "num.partitions=2" not in (data / "node-0" / "settings").read_text().splitlines()[0]
    assert "num.partitions=2" in (data / "node-0" / "settings").read_text().splitlines()[1]
    assert not children()


@pytest.mark.nightly
def test_target_that_exits_violates_guarantee_with_its_last_output(tmp_path: Path) -> None:
    appended = "ls '{data}'/*hot-0/*.log > /dev/null 2>&1"
    then = f" & until {appended}; do sleep 0.2; done; kill -9 $!; echo 'no memory is left'; exit 9"
    dies = SERVE.removeprefix("exec ") + then
    folder = play_scenario(scenario(tmp_path), tmp_path / "run", seed=1, target=target_file(tmp_path, dies)).path
    manifest = read_manifest(folder)
    assert manifest.crash == ""
    (check,) = manifest.checks
    assert (check.guarantee, check.holds) == ("target-stays-up", False)
    assert "node-0 exited with 9, and no fault had hit it" in check.detail
    assert "no memory is left" in check.detail
    assert not children()


def test_target_without_run_stays_up_until_released(tmp_path: Path) -> None:
    with standing(target_file(tmp_path, SERVE), tmp_path) as target:
        assert [node.node_id for node in nodes_of(target.bootstrap)] == [0]
        assert len(target.processes()) == 1
    assert not children()
    dies = target_file(tmp_path, "echo 'no such option'; exit 3")
    with pytest.raises(SetupError, match="node-0 exited with 3 before it was ready"), standing(dies, tmp_path):
        pass
    assert not children()


@pytest.mark.parametrize(
    ("script", "limit_s", "complaint"),
    [
        ("echo 'no such option' >&2; exit 3", 30, "node-0 exited with 3 before it was ready: no such option"),
        ("echo waiting; sleep 60", 3, "node-0 was not ready within 3 s: waiting"),
        (f'exec "{{python}}" -c "{CLOSES}"', 3, "node-0 was not ready within 3 s: it said nothing"),
    ],
)
def test_target_that_does_not_get_ready_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, script: str, limit_s: float, complaint: str
) -> None:
    target = target_file(tmp_path, script, limit_s=limit_s)
    with pytest.raises(SetupError, match=complaint):
        play_scenario(scenario(tmp_path), tmp_path / "run", seed=1, target=target)
    assert not (tmp_path / "run").exists()
    assert not children()
