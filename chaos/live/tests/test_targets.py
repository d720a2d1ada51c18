"""Roles become nodes and links become proxies at the moment when a fault begins. No process is started."""

from random import Random
from typing import Any

import pytest

from chaos.interceptor.roles import described
from chaos.live.links import Links
from chaos.live.quorum import introductions
from chaos.live.targets import Roles
from chaos.live.toxiproxy import LinkProxy, Toxiproxy
from scenarios.model import Fault, Link


class FakeToxiproxy:
    def create(self, upstream: str, name: str, listen: str) -> LinkProxy:  # noqa: ARG002
        return LinkProxy(Toxiproxy("none", 0), name, f"proxy-of-{name}:1", upstream)


class Cluster:
    """Voters 0, 1, 2 and observers 3, 4; ``dead`` nodes do not run."""

    def __init__(self) -> None:
        self.dead: list[int] = []
        client: Any = FakeToxiproxy()
        self.links = Links(client)
        listen = [f"node-{node}:1" for node in range(5)]
        introductions("id", listen, 3, self.links)
        for node in range(5):
            self.links.add("client", node, listen[node])
        self.roles = Roles(3, 5, Random(1), lambda node: node not in self.dead)

    def hit(self, link: str, **more: Any) -> list[str]:
        source, _, target = link.partition(">")
        ends = [int(end) if end.isdigit() else end for end in (source, target)]
        found = self.roles.aim(Fault("f", "link_cut", link=Link(*ends), **more), self.links)
        assert found is not None
        return [each.name for each in found.links]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.roles.note(1, "leader")
    return made


@pytest.mark.parametrize(
    ("fault", "role"),
    [
        (Fault("f", "node_killed", node="leader"), "leader"),
        (Fault("f", "node_killed", node="any"), ""),
        (Fault("f", "node_killed", node=1), ""),
        (Fault("f", "link_cut", link=Link("client", "follower")), "follower"),
        (Fault("f", "link_cut", link=Link(0, "all")), ""),
    ],
)
def test_target_remembers_the_role_that_the_fault_was_for(cluster: Cluster, fault: Fault, role: str) -> None:
    target = cluster.roles.aim(fault, cluster.links)
    assert target is not None
    assert target.role == role


def test_roles_are_described_in_words() -> None:
    assert [described(role, "hot") for role in ("leader", "partition_leader", "any", "")] == [
        "the controller",
        "the leader of hot-0",
        "",
        "",
    ]


def test_latest_to_lead_is_the_leader(cluster: Cluster) -> None:
    """One that is stopped or cut off still believes that it leads."""
    assert cluster.roles.node("leader") == 1
    cluster.roles.note(2, "leader")
    assert cluster.roles.node("leader") == 2
    cluster.roles.note(2, "follower")
    assert cluster.roles.node("leader") == 1


def test_dead_leader_is_none(cluster: Cluster) -> None:
    cluster.dead.append(1)
    assert cluster.roles.node("leader") is None
    assert cluster.roles.node("leader") is None
    assert cluster.roles.node("follower") is None
    cluster.dead.clear()
    cluster.roles.note(1, "follower")
    assert cluster.roles.node("leader") is None


def test_each_role_is_played_by_those_who_have_it(cluster: Cluster) -> None:
    assert {cluster.roles.node("follower") for _ in range(50)} == {0, 2}
    assert {cluster.roles.node("observer") for _ in range(50)} == {3, 4}
    assert {cluster.roles.node("any") for _ in range(100)} == {0, 1, 2, 3, 4}
    assert cluster.roles.node(4) == 4
    cluster.dead += [0, 3]
    assert {cluster.roles.node("follower") for _ in range(20)} == {2}
    assert {cluster.roles.node("observer") for _ in range(20)} == {4}


def test_node_alone_leads() -> None:
    roles = Roles(1, 1, Random(1), lambda _: True)
    assert roles.node("leader") == 0


def test_both_directions_of_a_partition(cluster: Cluster) -> None:
    assert cluster.hit("leader>all") == ["node-1-node-0", "node-1-node-2", "node-1-node-3", "node-1-node-4"]
    assert cluster.hit("all>leader") == ["node-0-node-1", "node-2-node-1", "node-3-node-1", "node-4-node-1"]
    assert cluster.hit("client>all") == [f"client-node-{node}" for node in range(5)]
    assert len(cluster.hit("all>all")) == 5 * 4
    assert cluster.hit("2>0") == ["node-2-node-0"]


def test_two_drawn_ends_differ(cluster: Cluster) -> None:
    for _ in range(50):
        (name,) = cluster.hit("follower>leader")
        assert name in ("node-0-node-1", "node-2-node-1")
        (name,) = cluster.hit("observer>follower")
        assert name[:6] in ("node-3", "node-4")
        assert name[-1] in "02"
        for name in cluster.hit("any>leader"):
            assert name != "node-1-node-1"


def test_observer_is_dialled_for_its_partitions(cluster: Cluster) -> None:
    assert cluster.hit("leader>observer")[0] in ("node-1-node-3", "node-1-node-4")


def test_parts_in_a_partition_are_described_beside_the_others(cluster: Cluster) -> None:
    roles = cluster.roles
    assert roles.node("partition_leader") is None
    assert roles.node("partition_follower") is None
    for node, role in (
        (1, "leader partition_follower"),
        (0, "follower partition_leader"),
        (2, "follower"),
        (4, "observer partition_follower"),
    ):
        roles.note(node, role)
    assert roles.node("leader") == 1
    assert roles.node("partition_leader") == 0
    assert {roles.node("partition_follower") for _ in range(50)} == {1, 4}
    assert {cluster.hit("partition_follower>partition_leader")[0] for _ in range(50)} == {
        "node-1-node-0",
        "node-4-node-0",
    }


def test_partition_s_new_leader_is_known_although_the_old_one_reports_nothing(cluster: Cluster) -> None:
    roles = cluster.roles
    roles.note(0, "follower partition_leader")
    roles.note(1, "leader partition_follower")
    cluster.dead.append(0)
    assert roles.node("partition_leader") is None
    roles.note(1, "leader partition_leader")
    assert roles.node("partition_leader") == 1
    cluster.dead.clear()
    assert roles.node("partition_leader") == 1
    assert roles.node("partition_follower") == 0
    roles.note(0, "leader partition_leader")  # Another office changed: no new election.
    assert roles.node("partition_leader") == 1


def test_isolated_node_keeps_its_clients_unless_the_fault_has_clients(cluster: Cluster) -> None:
    for clients in (False, True):
        target = cluster.roles.aim(Fault("f", "node_isolated", node="leader", clients=clients), cluster.links)
        assert target is not None
        assert target.fault.node == 1
        names = {link.name for link in target.links}
        assert names == {
            *(f"node-1-node-{other}" for other in (0, 2, 3, 4)),
            *(f"node-{other}-node-1" for other in (0, 2, 3, 4)),
            *(["client-node-1"] if clients else []),
        }


def test_clients_link_of_a_role(cluster: Cluster) -> None:
    assert cluster.hit("client>leader") == ["client-node-1"]


def test_fault_waits_for_holder_of_role() -> None:
    cluster = Cluster()
    assert cluster.roles.aim(Fault("f", "node_killed", node="leader"), cluster.links) is None
    assert cluster.roles.aim(Fault("f", "link_cut", link=Link("leader", "all")), cluster.links) is None
    target = cluster.roles.aim(Fault("f", "node_killed", node=2), cluster.links)
    assert target is not None
    assert target.label == "node-2"


@pytest.mark.parametrize(("node", "others"), [(3, (0, 1, 2)), (1, (0, 2))])
def test_cut_from_the_controller_only_its_links_with_the_voters_are_hit(
    cluster: Cluster, node: int, others: tuple[int, ...]
) -> None:
    """Whichever voter leads the quorum now; clients and observers still reach it."""
    target = cluster.roles.aim(Fault("f", "node_cut_from_controller", node=node), cluster.links)
    assert target is not None
    assert target.label == f"node-{node}"
    wanted = {name for other in others for name in (f"node-{node}-node-{other}", f"node-{other}-node-{node}")}
    assert {link.name for link in target.links} == wanted
