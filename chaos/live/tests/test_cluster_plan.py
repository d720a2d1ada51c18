"""Listeners of the nodes, links between them, and what a data folder records of its cluster. No process is started."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chaos.live.cluster import LiveNode
from chaos.live.cluster_command import ClusterPlan, check_plan, claim, planned_nodes, run_cluster, write_running
from chaos.live.errors import SetupError
from chaos.live.kill import kill_controller, kill_coordinator, kill_leader
from chaos.live.launchers import BrokerLauncher
from chaos.live.links import Links
from chaos.live.quorum import introductions, new_cluster_id
from chaos.live.toxiproxy import LinkProxy, Toxiproxy
from reference_broker.configuration.broker_config import BrokerConfig


class FakeToxiproxy:
    def __init__(self) -> None:
        self.upstream: dict[str, str] = {}
        self._last_port = 40_000

    def create(self, upstream: str, name: str, listen: str) -> LinkProxy:
        assert name not in self.upstream
        self.upstream[name] = upstream
        if listen.endswith(":0"):
            self._last_port += 1
            listen = f"127.0.0.1:{self._last_port}"
        return LinkProxy(Toxiproxy("none", 0), name, listen, upstream)


def fake_links() -> tuple[Links, FakeToxiproxy]:
    fake: Any = FakeToxiproxy()
    return Links(fake), fake


def config_of(node: LiveNode) -> Mapping[str, str]:
    assert isinstance(node.launcher, BrokerLauncher)
    return node.launcher.config


def dial_map(text: str) -> dict[int, str]:
    return {int(node): address for node, _, address in (each.partition("@") for each in text.split(","))}


def test_nodes_dial_each_other_straight_where_no_proxy_is_wanted(tmp_path: Path) -> None:
    nodes = planned_nodes(ClusterPlan(tmp_path, 3, port=20_000, config={"num.partitions": "4"}), "id", None)
    assert [node.listen for node in nodes] == ["127.0.0.1:20000", "127.0.0.1:20001", "127.0.0.1:20002"]
    assert [node.advertised for node in nodes] == [node.listen for node in nodes]
    plans = [BrokerConfig.parse(config_of(node)).listener_plan() for node in nodes]
    addresses = [{listener.name: f"{listener.host}:{listener.port}" for listener in plan.listeners} for plan in plans]
    for node, plan, address in zip(nodes, plans, addresses, strict=True):
        assert address["PLAINTEXT"] == node.listen
        assert (plan.controllers, plan.inter_broker) == (("CONTROLLER",), "REPLICATION")
        assert dial_map(config_of(node)["controller.quorum.voters"]) == {
            node: each["CONTROLLER"] for node, each in enumerate(addresses)
        }
        assert config_of(node)["crucible.cluster.id"] == "id"
        assert config_of(node)["num.partitions"] == "4"
    assert len({each for address in addresses for each in address.values()}) == 9


def test_listeners_cannot_be_the_same_on_all_nodes(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="listeners"):
        check_plan(ClusterPlan(tmp_path, 3, config={"listeners": "PLAINTEXT://127.0.0.1:0"}))


def test_with_toxiproxy_each_directed_link_has_a_proxy_of_its_own(tmp_path: Path) -> None:
    links, fake = fake_links()
    nodes = planned_nodes(ClusterPlan(tmp_path, 3, toxiproxy=True), "id", links)
    assert sorted(fake.upstream) == [
        "client-node-0",
        "client-node-1",
        "client-node-2",
        "node-0-node-1",
        "node-0-node-2",
        "node-1-node-0",
        "node-1-node-2",
        "node-2-node-0",
        "node-2-node-1",
    ]
    dialled: list[str] = []
    for node in nodes:
        for voter, address in dial_map(config_of(node)["controller.quorum.voters"]).items():
            if voter == node.number:
                assert address == node.listen
            else:
                link = links.between(node.number, voter)
                assert link is not None
                assert (link.listen, link.proxy.upstream) == (address, nodes[voter].listen)
                dialled.append(address)
        client = links.by_name[f"client-node-{node.number}"]
        assert (client.listen, client.proxy.upstream) == (node.advertised, node.listen)
        dialled.append(node.advertised)
    assert len(set(dialled)) == 9
    assert not set(dialled) & {node.listen for node in nodes}


def test_port_is_the_clients_one_with_proxies_too(tmp_path: Path) -> None:
    links, _ = fake_links()
    nodes = planned_nodes(ClusterPlan(tmp_path, 3, port=20_000, toxiproxy=True), "id", links)
    assert [node.advertised for node in nodes] == ["127.0.0.1:20000", "127.0.0.1:20001", "127.0.0.1:20002"]


def test_single_node_gets_no_quorum_settings(tmp_path: Path) -> None:
    (node,) = planned_nodes(ClusterPlan(tmp_path, 1), "id", None)
    assert config_of(node) == {}


def test_each_node_gets_an_address_to_fetch_from_every_other_and_the_voters() -> None:
    links, fake = fake_links()
    listen = ["a:1", "b:2", "c:3", "d:4", "e:5"]
    configs = introductions("id", listen, 3, links)
    assert len(fake.upstream) == 5 * 4
    assert links.between(3, 3) is None
    for node in range(5):
        config = configs[node]
        voters, peers = dial_map(config["controller.quorum.voters"]), dial_map(config["crucible.peers"])
        assert sorted(voters) == [0, 1, 2]
        assert sorted(peers) == [other for other in (3, 4) if other != node]
        for other, address in {**voters, **peers}.items():
            link = links.between(node, other)
            assert (address, listen[other]) == (
                (listen[node], listen[node]) if link is None else (link.listen, link.proxy.upstream)
            )


def test_without_observers_the_voters_are_all_there_are() -> None:
    assert "crucible.peers" not in introductions("id", ["a:1", "b:2", "c:3"], 3, None)[0]


def test_node_settings_are_valid_broker_settings() -> None:
    given = introductions("id", ["a:1", "b:2", "c:3", "d:4", "e:5"], 3, None)[1]
    config = BrokerConfig.parse(given)
    addresses = [(voter.node_id, voter.host, voter.port) for voter in config.voters(1)]
    assert addresses == [(0, "a", 1), (1, "b", 2), (2, "c", 3)]
    assert config.crucible_peers == "3@d:4,4@e:5"


def test_second_start_finds_its_cluster(tmp_path: Path) -> None:
    first = claim(tmp_path / "c", 3)
    assert claim(tmp_path / "c", 3) == first
    assert claim(tmp_path / "other", 3).cluster_id != first.cluster_id
    assert claim(tmp_path / "named", 3, "my-id").cluster_id == "my-id"


@pytest.mark.parametrize(
    ("wanted", "nodes", "said"),
    [("", 5, "a cluster of 3"), ("", 1, "a cluster of 3"), ("another", 3, "not another")],
)
def test_folder_of_another_cluster_is_refused(tmp_path: Path, wanted: str, nodes: int, said: str) -> None:
    claim(tmp_path, 3)
    with pytest.raises(SetupError, match=said):
        claim(tmp_path, nodes, wanted)


def test_single_node_s_data_does_not_become_a_quorum(tmp_path: Path) -> None:
    (tmp_path / "node-0").mkdir()
    with pytest.raises(SetupError, match="single node"):
        claim(tmp_path, 3)
    assert claim(tmp_path, 1).nodes == 1


@pytest.mark.parametrize("nodes", [1, 3])
def test_nodes_without_their_cluster_s_identity_are_no_new_cluster(tmp_path: Path, nodes: int) -> None:
    for node in range(3):
        (tmp_path / f"node-{node}").mkdir()
    with pytest.raises(SetupError, match="is gone: restore it"):
        claim(tmp_path, nodes)


def test_damaged_identity_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"nodes": 3}))
    with pytest.raises(SetupError, match="damaged"):
        claim(tmp_path, 3)


def test_cluster_ids_are_uuids_in_kafka_s_spelling() -> None:
    ids = [new_cluster_id() for _ in range(200)]
    assert len(set(ids)) == 200
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"nodes": 2}, "--nodes is 2"),
        ({"nodes": 0}, "--nodes is 0"),
        ({"nodes": 3, "config": {"controller.quorum.voters": "0@a:1"}}, "controller.quorum.voters"),
        ({"nodes": 3, "port": 65_534}, "--port is 65534"),
    ],
)
def test_invalid_cluster_plan_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: dict[str, Any], said: str
) -> None:
    assert run_cluster(ClusterPlan(tmp_path / "c", **plan)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "c").exists()


def test_nodes_with_a_remote_tier_share_one_object_store(tmp_path: Path) -> None:
    tiered = {"remote.log.storage.system.enable": "true"}
    stores = {
        config_of(node).get("crucible.remote.store.url")
        for links in (None, fake_links()[0])
        for node in planned_nodes(ClusterPlan(tmp_path, 3, config=tiered), "id", links)
    }
    assert stores == {str(tmp_path / "remote")}
    named = ClusterPlan(tmp_path, 3, config={**tiered, "crucible.remote.store.url": "s3://bucket"})
    assert {config_of(node)["crucible.remote.store.url"] for node in planned_nodes(named, "id", None)} == {
        "s3://bucket"
    }
    without = planned_nodes(ClusterPlan(tmp_path, 3), "id", None)
    assert not any("crucible.remote.store.url" in config_of(node) for node in without)


def test_kill_commands_without_running_node_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """The process that has a dead node's ID now, here this one, is left alone."""
    for data, refusal in ((tmp_path / "none", "is no cluster's folder"), (tmp_path / "c", "No node of")):
        if refusal == "No node of":
            claim(data, 3)
            write_running(data, {0: os.getpid(), 1: 2**22 - 1}, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"])
        for kill in (lambda at: kill_leader(at, "hot/0"), kill_controller, lambda at: kill_coordinator(at, "g")):
            with pytest.raises(SetupError, match=refusal) as refused:
                kill(data)
            assert "start" in str(refused.value)
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["hot", "/0", "hot/", "hot/first", "hot/-1"])
def test_invalid_partition_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SetupError, match="give TOPIC/PARTITION"):
        kill_leader(tmp_path, name)
