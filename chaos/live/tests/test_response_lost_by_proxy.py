"""The fault ``response_lost_by_proxy`` with real processes: Toxiproxy swallows the response that the node held."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chaos.live.external.tests.small_targets import elsewhere
from chaos.live.faults import proxied_losses
from chaos.live.runner import play_scenario
from chaos.live.tests.small_scenario import faults_of, text_of, written
from reports.manifest import read_manifest
from scenarios.derived import for_external_target
from scenarios.loader import load

pytestmark = pytest.mark.live

LOAD = """
[load]
seconds = 6
request_timeout_ms = 5000

[[load.topics]]
name = "hot"
partitions = 2

[[load.fetchers]]
name = "incremental"
behaviour = "incremental"
count = 4
topic = "hot"
partitions = 2
max_wait_ms = 100
poll_interval_ms = 50
"""
FAULT = """
[[fault]]
name = "lost"
kind = "response_lost_by_proxy"
on = "response"
match = { api = "fetch", client_id = "fetcher-*", session = true, error = 0 }
nth = 2
every = 4
times = 3
"""


def played(folder: Path) -> Path:
    path = written(folder, "lost", text_of("Toxiproxy loses responses", 10, LOAD, 50, FAULT))
    return play_scenario(load(path), folder / "run", seed=1, progress=print).path


@pytest.mark.rotated(3, "runs")
def test_in_front_of_a_broker_elsewhere_the_frame_proxy_holds_them(tmp_path: Path) -> None:
    scenario = for_external_target(
        load(written(tmp_path, "lost", text_of("Toxiproxy loses responses", 10, LOAD, 50, FAULT)))
    )
    with elsewhere(tmp_path) as target:
        folder = play_scenario(scenario, tmp_path / "run", seed=1, target=target, progress=print).path
    assert read_manifest(folder).crash == ""
    assert_lost(folder, "front-client-node-0")


def operations(folder: Path) -> list[dict[str, Any]]:
    files = (folder / "history").glob("operations*.parquet")
    return [row for path in files for row in pq.read_table(path).to_pylist()]


@pytest.mark.rotated(3, "runs")
def test_toxiproxy_swallows_the_held_responses_and_no_others(tmp_path: Path) -> None:
    folder = played(tmp_path)
    assert read_manifest(folder).crash == ""
    assert_lost(folder, "client-node-0")


def assert_lost(folder: Path, link: str) -> None:
    rows = faults_of(folder)
    assert len(rows) == 12
    for row in rows:
        assert "toxic swallow (limit_data 0)" in row["detail"]
        assert f"until {link} had" in row["detail"]
    lost = [operation for operation in operations(folder) if operation["error"] == "disconnected"]
    for row in rows:
        assert any(
            operation["process"] == row["client_id"]
            and operation["session_epoch"] == row["session_epoch"]
            and operation["invoke_us"] <= row["at_us"] <= operation["complete_us"] <= row["until_us"] + 2_000_000
            for operation in lost
        )
    assert len(lost) <= len(rows) + 2, "hardly any other response was lost"


@pytest.mark.rotated(3, "runs")
def test_without_a_toxic_the_responses_pass_and_nothing_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_losses, "poison", lambda *_: None)
    folder = played(tmp_path)
    assert read_manifest(folder).crash == ""
    assert faults_of(folder) == []
