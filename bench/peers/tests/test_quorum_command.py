"""Apache Kafka's kafka-metadata-quorum and dump tool on a cluster of three voters."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from bench.peers.kafka import ToolError
from bench.peers.node import end
from bench.peers.reference import ReferenceNode
from bench.peers.systems import REFERENCE
from bench.peers.tests.java_tools import DescribedReplica, JavaTools
from bench.peers.tests.metadata_dump import dump_metadata

pytestmark = pytest.mark.peer

NODES = (0, 1, 2)
METADATA_FOLDER = "__cluster_metadata-0"
Cluster: TypeAlias = Sequence[ReferenceNode]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with REFERENCE.launched(tmp_path, len(NODES), {}) as nodes:
        yield [node for node in nodes.members if isinstance(node, ReferenceNode)]


def status(cluster: Cluster, node: int) -> dict[str, str]:
    return JavaTools(cluster[node].bootstrap).quorum_status()


def leadership(cluster: Cluster, node: int) -> tuple[int, int]:
    shown = status(cluster, node)
    return int(shown["LeaderId"]), int(shown["LeaderEpoch"])


def all_caught_up(cluster: Cluster) -> bool:
    rows = JavaTools(",".join(node.bootstrap for node in cluster)).quorum_replication()
    return len(rows) == len(NODES) and all(row.lag == 0 for row in rows)


def test_every_node_describes_the_quorum(cluster: Cluster) -> None:
    """On any node: one that does not lead forwards the request to the leader."""
    shown = [status(cluster, node) for node in NODES]
    assert len({(each["ClusterId"], each["LeaderId"], each["LeaderEpoch"]) for each in shown}) == 1
    for each in shown:
        assert int(each["LeaderId"]) in NODES
        assert int(each["LeaderEpoch"]) >= 1
        assert int(each["HighWatermark"]) > 0
        assert int(each["MaxFollowerLag"]) >= 0
        voters = json.loads(each["CurrentVoters"])
        assert sorted(voter["id"] for voter in voters) == list(NODES)
        ports = {voter["id"]: voter["endpoints"][0].rpartition(":")[2] for voter in voters}
        assert [ports[node] for node in NODES] == [str(node.port) for node in cluster]
        assert json.loads(each["CurrentObservers"]) == []
    assert shown[0]["ClusterId"] == JavaTools(cluster[0].bootstrap).cluster_id()


def test_replication_is_described(cluster: Cluster, eventually: Callable[[Callable[[], bool]], bool]) -> None:
    assert eventually(lambda: all_caught_up(cluster))
    leader_id = leadership(cluster, 0)[0]
    queried_ms = time.time_ns() // 1_000_000
    leader, *followers = JavaTools(cluster[1].bootstrap).quorum_replication()
    assert (leader.node_id, leader.status, leader.lag) == (leader_id, "Leader", 0)
    assert sorted(follower.node_id for follower in followers) == [node for node in NODES if node != leader_id]
    for follower in followers:
        assert follower.status == "Follower"
        check_times(follower, queried_ms)


def check_times(follower: DescribedReplica, queried_ms: int) -> None:
    """A follower that has everything fetches again within its fetch's wait."""
    assert follower.last_fetch_ms > queried_ms - 5_000
    assert follower.last_caught_up_ms > queried_ms - 5_000


def test_another_leads_after_a_kill_and_the_logs_agree(
    cluster: Cluster, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    leader, epoch = leadership(cluster, 0)
    cluster[leader].send_signal(signal.SIGKILL)
    cluster[leader].reap()
    others = [node for node in NODES if node != leader]
    tools = JavaTools(cluster[others[0]].bootstrap)
    tools.create_topic("after", "--partitions", "10")
    leaders = [leadership(cluster, node) for node in others]
    assert leaders[0] == leaders[1]
    assert leaders[0][1] > epoch
    cluster[leader].launch()
    cluster[leader].await_ready()
    assert eventually(lambda: came_back(cluster, leader))
    end(cluster)
    logs = [dump_metadata(sorted((node.data / METADATA_FOLDER).glob("*.log"))) for node in cluster]
    assert len(logs) == len(NODES)
    assert not any(dump.complaints for dump in logs)
    common = min(len(dump.batches) for dump in logs)
    assert len({dump.batches[:common] for dump in logs}) == 1
    kinds = [record.kind for record in logs[0].records if record.offset <= logs[0].batches[common - 1].last_offset]
    assert kinds.count("PARTITION_RECORD") == 10


def came_back(cluster: Cluster, node: int) -> bool:
    try:
        return all_caught_up(cluster) and leadership(cluster, node)[0] in NODES
    except ToolError:
        return False  # It is not up yet.


def test_config_is_altered_through_any_node(cluster: Cluster) -> None:
    """kafka-configs sends it to any broker, and stays with the one that it has found."""
    JavaTools(cluster[0].bootstrap).create_topic("set", "--partitions", "3")
    for node in cluster:
        tools = JavaTools(node.bootstrap)
        tools.set_config("set", "retention.ms", str(70_000 + node.node_id))
        assert tools.configs("topics", "set")["retention.ms"] == str(70_000 + node.node_id)
