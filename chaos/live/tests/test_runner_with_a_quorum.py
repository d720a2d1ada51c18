"""A run with three voters and an observer, all with replicas: roles, links between nodes, and the traces of all."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chaos.live.errors import SetupError
from chaos.live.runner import check_playable, play_scenario
from chaos.live.tests.small_scenario import faults_of, text_of, written
from reports.manifest import read_manifest
from scenarios.loader import load

pytestmark = pytest.mark.live

TITLE = "The leader is killed, the next one is cut off from the others, followers of nodes and partitions are late"
LOAD = """
[cluster]
nodes = 3
observers = 1
config = { "broker.heartbeat.interval.ms" = 300, "broker.session.timeout.ms" = 2000 }

[load]
seconds = 6

[[load.topics]]
name = "hot"
partitions = 4
replicas = 4
config = { "min.insync.replicas" = 2 }

"""

OTHERS = """
[[load.admins]]
name = "admins"
count = 1
sim_count = 1
rate_per_s = 5
partitions = 3
topics_per_request = 1
mix = { create = 1 }

[[load.metadata_readers]]
name = "readers"
count = 1
sim_count = 1
"""

FAULTS = """
[[fault]]
name = "late"
kind = "response_delayed"
on = "peer_response"
match = { api = "fetch" }
node = "follower"
total = 1
delay_ms = 20

[[fault]]
name = "slow_follower"
kind = "link_delayed"
at_s = 0.5
duration_s = 0.5
delay_ms = 20
link = "partition_follower>partition_leader"

[[fault]]
name = "killed"
kind = "node_killed"
on = "note"
match = { note = "metadata_committed", role = "leader" }
after_s = 1.5
node = "leader"
total = 1
restart_after_s = 0.3

[[fault]]
name = "isolated"
kind = "node_isolated"
at_s = 3
duration_s = 1
node = "leader"

[[fault]]
name = "observer"
kind = "link_cut"
at_s = 4.5
duration_s = 0.5
link = "observer>leader"
"""


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    return written(tmp_path, "quorum", text_of(TITLE, 1, LOAD, 50, OTHERS, FAULTS))


@pytest.mark.nightly
def test_faults_find_their_roles_and_all_nodes_agree_on_the_metadata(scenario_file: Path, tmp_path: Path) -> None:
    folder = play_scenario(load(scenario_file), tmp_path / "run", seed=3).path
    assert read_manifest(folder).crash == ""
    faults = {row["name"]: row for row in faults_of(folder)}
    assert sorted(faults) == ["isolated", "killed", "late", "observer", "slow_follower"]
    trace = {path.stem: pq.read_table(path).to_pylist() for path in (folder / "trace").glob("node*.parquet")}

    killed = faults["killed"]["target"]
    assert faults["killed"]["detail"].startswith("leader ")
    assert "metadata_committed" in faults["killed"]["detail"]
    assert "SIGKILL" in faults["killed"]["detail"]
    assert sorted(trace) == sorted([*(f"node-{node}-0" for node in range(4)), f"{killed}-1"])

    assert faults["isolated"]["target"] == leader_at(trace, faults["isolated"]["at_us"])
    assert faults["observer"]["target"].startswith("link node-3-node-")

    follower, _, leader = faults["slow_follower"]["target"].removeprefix("link ").rpartition("-node-")
    assert leads_at(trace, "hot-0", faults["slow_follower"]["at_us"]) == f"node-{leader}" != follower
    assert followers_fetches(folder) == {"node-0", "node-1", "node-2", "node-3"}

    digests: dict[int, set[str]] = {}
    for rows in trace.values():
        for row in rows:
            if row["what"] == "metadata_image":
                image = json.loads(row["detail"])
                digests.setdefault(image["offset"], set()).add(image["digest"])
    assert len(digests) > 10
    assert all(len(digest) == 1 for digest in digests.values())
    assert not (folder / "trace" / "hit-counts").exists()


def leader_at(trace: dict[str, list[dict[str, Any]]], at_us: int) -> str:
    """The last node elected before that."""
    elected = [
        (row["at_us"], name.rpartition("-")[0])
        for name, rows in trace.items()
        for row in rows
        if row["what"] == "leader_elected" and row["at_us"] <= at_us
    ]
    return max(elected)[1]


def leads_at(trace: dict[str, list[dict[str, Any]]], partition: str, at_us: int) -> str:
    """The last node that led it before that."""
    led = [
        (json.loads(row["detail"])["leader_epoch"], name.rpartition("-")[0])
        for name, rows in trace.items()
        for row in rows
        if row["what"] == "leads" and json.loads(row["detail"])["partition"] == partition and row["at_us"] <= at_us
    ]
    return max(led)[1]


def followers_fetches(folder: Path) -> set[str]:
    """The nodes whose fetches of data, in sessions, others have served."""
    rows = [row for path in (folder / "trace").glob("fetch_costs*") for row in pq.read_table(path).to_pylist()]
    return {row["client_id"] for row in rows if row["client_id"].startswith("node-") and row["revision"] == "final"}


def test_external_broker_s_nodes_have_no_links_of_ours_between_them(tmp_path: Path) -> None:
    isolated = FAULTS[FAULTS.index('[[fault]]\nname = "isolated"') :]
    text = text_of(TITLE, 1, LOAD, 50, OTHERS, isolated).replace('["interceptor", "signals", "proxy"]', '["proxy"]')
    with pytest.raises(SetupError, match="links between nodes"):
        check_playable(load(written(tmp_path, "isolated", text)), "127.0.0.1:1")
