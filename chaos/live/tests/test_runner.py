"""A whole small run: node, Toxiproxy, fleet, faults at a state and at a time, and what it leaves."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chaos.live.errors import SetupError
from chaos.live.runner import check_playable, play_scenario
from chaos.live.tests.small_scenario import faults_of, text_of, written
from reports.manifest import read_manifest
from scenarios.loader import load

pytestmark = pytest.mark.live

LOAD = """
[load]
seconds = 6

[[load.topics]]
name = "hot"
partitions = 4

[[load.fetchers]]
name = "incremental"
behaviour = "incremental"
count = 2
sim_count = 1
topic = "hot"
partitions = 2
poll_interval_ms = 20

"""

FAULTS = """
[[fault]]
name = "lost"
kind = "response_dropped"
on = "response"
match = { api = "fetch", session = true }
nth = 3
times = 1

[[fault]]
name = "killed"
kind = "node_killed"
on = "response"
match = { api = "produce" }
nth = 10
after_s = 1.5
total = 1
restart_after_s = 0.2

[[fault]]
name = "delayed"
kind = "link_delayed"
at_s = 0.2
duration_s = 1
delay_ms = 30
"""
TITLE = "A response is lost, responses are late, then the node is killed while it responds, and restarted"


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    return written(tmp_path, "small", text_of(TITLE, 10, LOAD, 100, FAULTS))


def test_run_leaves_history_trace_faults_and_manifest(scenario_file: Path, tmp_path: Path) -> None:
    folder = play_scenario(load(scenario_file), tmp_path / "run", seed=3).path
    manifest = read_manifest(folder)
    assert manifest.crash == ""
    assert manifest.expectations.faults == ("lost", "killed", "delayed")
    faults = faults_of(folder)
    assert {row["name"] for row in faults} == {"lost", "killed", "delayed"}
    (killed,) = (row for row in faults if row["name"] == "killed")
    assert killed["until_us"] - killed["at_us"] >= 200_000
    assert "SIGKILL" in killed["detail"]
    assert sorted(path.name for path in (folder / "trace").glob("node*")) == ["node-0-0.parquet", "node-0-1.parquet"]
    lost = [row for row in faults if row["name"] == "lost"]
    assert all(row["session_epoch"] > 0 and row["client_id"].startswith("fetcher-") for row in lost)
    operations = [pq.read_table(each) for each in (folder / "history").glob("operations*.parquet")]
    fetches = sum(row["f"] == "fetch" and row["type"] == "ok" for table in operations for row in table.to_pylist())
    assert fetches > 10
    samples = pq.read_table(folder / "trace" / "broker.parquet").column("metric").to_pylist()
    assert "process_rss_bytes" in samples


DISK_FAULTS = """
[[fault]]
name = "slow"
kind = "disk_slowed"
at_s = 0.5
duration_s = 0.5
delay_ms = 100

[[fault]]
name = "full"
kind = "disk_full"
at_s = 1.5
duration_s = 0.5

[[fault]]
name = "ended"
kind = "node_terminated"
at_s = 2.2
restart_after_s = 0.1
"""


@pytest.mark.nightly
def test_disk_faults_and_sigterm_under_load_lose_nothing(tmp_path: Path) -> None:
    flushing = LOAD.replace("[load]", '[cluster.config]\n"log.flush.interval.messages" = 1\n\n[load]')
    text = text_of(TITLE, 10, flushing, 100, DISK_FAULTS).replace('"proxy"]', '"proxy", "disk"]')
    folder = play_scenario(load(written(tmp_path, "disk", text)), tmp_path / "run", seed=3).path
    assert read_manifest(folder).crash == ""
    faults = {row["name"]: row for row in faults_of(folder)}
    assert faults["slow"]["detail"] == "syncs take 100 ms longer"
    assert faults["full"]["detail"].startswith("no space for")
    assert faults["full"]["target"] == "node-0"
    assert faults["ended"]["detail"].endswith("exited with 0")
    acknowledged, read = offsets_of(folder, "send"), offsets_of(folder, "read")
    assert len(acknowledged) > 50
    assert acknowledged <= read


def offsets_of(folder: Path, kind: str) -> set[tuple[int, int]]:
    """Partition and offset of each record that was acknowledged (``send``) or read."""
    tables = [pq.read_table(each) for each in (folder / "history").glob("runs*.parquet")]
    runs = [run for table in tables for run in table.to_pylist() if run["kind"] == kind and run["first_offset"] >= 0]
    return {(run["partition"], run["first_offset"] + each) for run in runs for each in range(run["count"])}


def test_ability_that_target_lacks_is_named(scenario_file: Path) -> None:
    with pytest.raises(SetupError, match=r"127\.0\.0\.1:1 lacks what small needs"):
        check_playable(load(scenario_file), "127.0.0.1:1")


def test_unknown_mutant_is_refused(scenario_file: Path) -> None:
    with pytest.raises(SetupError, match="no mutant 'nonsense'"):
        check_playable(load(scenario_file), mutant="nonsense")
