"""Roles as they are seen from outside, and proxies between the nodes of a target."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.targets.layout import ClusterLayout
from bench.targets.loader import find
from chaos.frame_proxy.proxy import LinkPair
from chaos.live.external.cluster import via_proxies
from chaos.live.external.roles import Office, RolesSeen, led_partition, led_quorum, names_a_role, newer, roles_of
from chaos.live.links import Links
from chaos.live.targets import Roles
from scenarios.loader import find as scenario


class Proxies:
    """Stands in for Toxiproxy: each proxy listens at the given address."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, str]] = []

    def create(self, upstream: str, name: str, listen: str) -> Any:
        self.made.append((name, listen, upstream))
        return SimpleNamespace(listen=f"proxy-of-{name}" if listen.endswith(":0") else listen)


def test_nodes_that_get_their_peers_addresses_get_those_of_the_proxies(tmp_path: Path) -> None:
    proxies = Proxies()
    via = via_proxies(ClusterLayout(find("reference.toml"), tmp_path), Links(cast(Any, proxies)))
    assert via[0, 2] == "proxy-of-node-0-node-2"
    assert len(proxies.made) == len(via) == 6


def test_proxies_of_nodes_resolving_names_keep_own_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.targets.providers.kafka.provide", lambda _: {"classpath": "jars"})
    proxies, plan = Proxies(), ClusterLayout(find("kafka"), tmp_path)
    via = via_proxies(plan, Links(cast(Any, proxies)))
    controller = plan.ports[2]["controller"]
    assert ("node-0-node-2-controller", f"{via[0, 2]}:{controller}", f"127.0.0.1:{controller}") in proxies.made
    assert len(set(via.values())) == 6
    assert len(proxies.made) == 12
    hosts = plan.lay_out(via)[0].files[tmp_path / "node-0" / "hosts"]
    assert f"{via[0, 2]} node-2\n" in hosts
    assert "127.0.0.1 node-0\n" in hosts


def test_more_may_stand_before_the_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.targets.providers.kafka.provide", lambda _: {"classpath": "jars"})
    led: list[LinkPair] = []

    def lead(pairs: Sequence[LinkPair]) -> list[str]:
        led.extend(pairs)
        return [f"front-of-{pair.source}-{pair.target}" for pair in pairs]

    proxies = Proxies()
    fronts = via_proxies(ClusterLayout(find("reference.toml"), tmp_path), Links(cast(Any, proxies)), lead)
    assert fronts[1, 2] == "front-of-1-2"
    assert LinkPair(1, 2, "proxy-of-node-1-node-2", "127.0.0.1:0") in led

    led.clear()
    plan = ClusterLayout(find("kafka"), tmp_path)
    named = via_proxies(plan, Links(cast(Any, proxies)), lead)
    port = plan.ports[2]["controller"]
    assert LinkPair(0, 2, "proxy-of-node-0-node-2-controller", f"{named[0, 2]}:{port}") in led
    assert len(led) == 12


def metadata(epoch: int, leader: int, replicas: list[int]) -> Any:
    partition = SimpleNamespace(partition_index=0, leader_epoch=epoch, leader_id=leader, replica_nodes=replicas)
    return SimpleNamespace(topics=[SimpleNamespace(partitions=[partition])])


def test_roles_are_those_of_metadata_and_of_the_quorum() -> None:
    partition = led_partition(metadata(4, 11, [11, 13]))
    quorum = led_quorum(metadata(9, 12, []))
    roles = roles_of({10: 0, 11: 1, 12: 2, 13: 3}, 3, quorum, partition)
    assert roles == {0: "follower", 1: "follower partition_leader", 2: "leader", 3: "observer partition_follower"}
    assert roles_of({10: 0}, 1, Office(), Office()) == {0: "follower"}


def test_isolated_node_does_not_change_roles_of_others() -> None:
    known = led_partition(metadata(4, 11, [11, 13]))
    assert newer(known, led_partition(metadata(3, 13, [11, 13]))) == known
    assert newer(known, led_partition(SimpleNamespace(topics=[]))) == known
    assert newer(known, led_partition(metadata(5, 13, [11, 13]))).leader == 13


def test_fault_targets_last_known_leader() -> None:
    roles = Roles(3, 3, Random(1), lambda _: True)
    seen = RolesSeen.__new__(RolesSeen)
    seen._numbers, seen._voters, seen._quorum = {0: 0, 1: 1, 2: 2}, 3, Office(1, 0)
    for leader in (1, 2):
        seen._partition = Office(leader, leader, frozenset((0, 1, 2)))
        for number, role in seen.now().items():
            roles.note(number, role)
        assert roles.node("partition_leader") == leader
    assert roles.node("leader") == 0


def test_only_faults_that_name_a_role_need_roles() -> None:
    assert names_a_role(scenario("link-faults"))
    assert names_a_role(scenario("leader-killed-under-acks-all"))
    assert not names_a_role(scenario("kill-under-load"))
    assert not names_a_role(scenario("1"))
