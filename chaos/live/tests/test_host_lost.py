"""The fault ``host_lost`` with real processes: nobody sees the connections of a killed node close."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest

from bench.ports import free_port
from chaos.live.external.tests.small_targets import elsewhere
from chaos.live.faults import host_lost
from chaos.live.faults.fault_context import Ended
from chaos.live.links import Link, Links, poison
from chaos.live.processes import Child
from chaos.live.runner import play_scenario
from chaos.live.targets import FaultTarget
from chaos.live.tests.small_scenario import faults_of, text_of, written
from chaos.live.toxiproxy_server import ToxiproxyServer
from reports.manifest import read_manifest
from scenarios.derived import for_external_target
from scenarios.loader import load
from scenarios.model import Fault

if TYPE_CHECKING:
    from chaos.live.faults.fault_context import LiveFaultContext

pytestmark = pytest.mark.live

TITLE = "The host of a partition's leader vanishes at a time, and that of the controller at a state"
LOAD = """
[cluster]
nodes = 3
config = { "broker.heartbeat.interval.ms" = 300, "broker.session.timeout.ms" = 2000 }

[load]
seconds = 12
request_timeout_ms = 1500

[[load.topics]]
name = "hot"
partitions = 4
replicas = 3
config = { "min.insync.replicas" = 2 }

[[load.fetchers]]
name = "incremental"
behaviour = "incremental"
count = 3
topic = "hot"
partitions = 4
max_wait_ms = 100
poll_interval_ms = 50

[[load.admins]]
name = "admins"
count = 1
sim_count = 1
rate_per_s = 5
partitions = 3
topics_per_request = 1
mix = { create = 1 }
"""
FAULTS = """
[[fault]]
name = "leader_host_lost"
kind = "host_lost"
node = "partition_leader"
at_s = 1
restart_after_s = 3

[[fault]]
name = "controller_host_lost"
kind = "host_lost"
on = "note"
match = { note = "metadata_committed" }
node = "leader"
after_s = 7
total = 1
restart_after_s = 3
"""


@pytest.mark.nightly
def test_hosts_vanish_at_a_time_and_at_a_state(tmp_path: Path) -> None:
    path = written(tmp_path, "hosts", text_of(TITLE, 1, LOAD, 50, FAULTS))
    folder = play_scenario(load(path), tmp_path / "run", seed=3, progress=print).path
    assert read_manifest(folder).crash == ""
    faults = {row["name"]: row for row in faults_of(folder)}
    assert sorted(faults) == ["controller_host_lost", "leader_host_lost"]
    assert "metadata_committed" in faults["controller_host_lost"]["detail"]
    for row in faults.values():
        assert row["until_us"] - row["at_us"] >= 2_900_000
        assert "SIGKILL" in row["detail"]
        assert "no byte and no FIN" in row["detail"]
        assert " from before and 3 from afterwards" in row["detail"]
        errors = errors_while(folder, row)
        assert errors.count("timeout") > 0
        assert not {"disconnected", "refused"} & set(errors)


def errors_while(folder: Path, row: dict[str, Any]) -> list[str]:
    """Return how the requests of clients to the lost node ended while it was away."""
    found = []
    for path in (folder / "history").glob("operations*.parquet"):
        for each in pq.read_table(path).to_pylist():
            is_away = row["at_us"] + 200_000 <= each["complete_us"] <= row["until_us"] - 200_000
            if is_away and row["target"] == f"node-{each['node']}" and each["error"]:
                found.append(each["error"])
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToxiproxyServer]:
    with ToxiproxyServer(tmp_path_factory.mktemp("toxiproxy") / "log") as running:
        yield running


class OneNode:
    """A broker behind one link, as far as the fault needs it."""

    def __init__(self, server: ToxiproxyServer, folder: Path) -> None:
        self.listen = f"127.0.0.1:{free_port()}"
        self.folder = folder
        self.restarts = 0
        words = ["--listen", self.listen, "--data", str(folder / "data")]
        self.node = Child("node-0", [sys.executable, "-m", "reference_broker.serve.main", *words], folder / "log")
        assert self.node.line_with("ready", 30) is not None
        links = Links(server.client)
        links.add("client", 0, self.listen)
        fault = Fault("lost", "host_lost", at_s=1, restart_after_s=0.5)
        self.target = FaultTarget(fault, tuple(links.by_name.values()), "node-0")
        self.context = cast(
            "LiveFaultContext",
            SimpleNamespace(
                child=lambda _: self.node,
                restart=self._restarted,
                addresses=lambda: (self.listen,),
                now_us=lambda: time.monotonic_ns() // 1000,
            ),
        )

    def _restarted(self, _: int) -> None:
        self.restarts += 1

    def play(self) -> Ended:
        end = host_lost.host_lost(self.context, self.target)
        time.sleep(0.5)
        ended = end()
        assert ended is not None
        return ended

    def close(self) -> None:
        self.node.terminate()
        self.node.close()
        for link in self.target.links:
            link.proxy.destroy()


@pytest.fixture
def one(server: ToxiproxyServer, tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(server, tmp_path)
    yield made
    made.close()


@pytest.mark.rotated(3, "runs")
def test_host_that_vanished_leaves_its_links_as_they_were(one: OneNode) -> None:
    ended = one.play()
    assert "1 connections from before and 1 from afterwards" in ended.evidence
    assert one.restarts == 1
    (link,) = one.target.links
    assert link.proxy.server.call("get", f"/proxies/{link.proxy.name}")["toxics"] == []


@pytest.mark.parametrize("toxic", ["", "timeout"])
@pytest.mark.rotated(3, "runs")
def test_death_that_connections_show_is_no_lost_host(one: OneNode, toxic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without toxics, and with ``timeout`` alone, Toxiproxy passes on that the node's connections were closed."""

    def silence(link: Link, name: str) -> None:
        if toxic:
            poison(link, name, toxic, "both", {"timeout": 0})

    monkeypatch.setattr(host_lost, "silence", silence)
    ended = one.play()
    assert ended.evidence == ""
    assert "client-node-0: it was closed" in ended.doubt


@pytest.mark.rotated(3, "runs")
def test_node_that_was_dead_before_is_no_lost_host(one: OneNode) -> None:
    one.node.terminate()
    ended = one.play()
    assert ended.evidence == ""


ALONE = """
[load]
seconds = 6
request_timeout_ms = 1000

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

[[external_fault]]
name = "lost"
kind = "host_lost"
at_s = 1
restart_after_s = 3
"""


@pytest.mark.rotated(3, "runs")
def test_host_of_a_node_that_shell_commands_reach_vanishes(tmp_path: Path) -> None:
    scenario = for_external_target(load(written(tmp_path, "alone", text_of("Vanishes", 10, ALONE, 50))))
    with elsewhere(tmp_path) as target:
        folder = play_scenario(scenario, tmp_path / "run", seed=1, target=target, progress=print).path
    manifest = read_manifest(folder)
    assert manifest.crash == ""
    assert manifest.expectations.faults == ("lost",)
    (row,) = faults_of(folder)
    assert "was ended: kill -9" in row["detail"]
    assert "no byte and no FIN" in row["detail"]
    assert "1 connections from before and 1 from afterwards" in row["detail"]
    errors = errors_while(folder, row)
    assert errors.count("timeout") > 0
    assert not {"disconnected", "refused"} & set(errors)
