"""Replicated partitions after a loss (E-7): excused violations, and guarantees that hold again."""

from typing import Any

import pytest

from chaos.checks.log.partition_logs import LogConsistent
from chaos.checks.replication.isr import IsrHonest
from chaos.checks.replication.tests.replicated import KEY, Cluster, batch, in_order
from chaos.checks.tests.stub_node import StubBroker, StubNode, node_partitions
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import BrokerImage
from reference_broker.replication.partitions import Partition

MONOTONIC = "high-watermark-monotonic"


@pytest.fixture
def cluster() -> Cluster:
    return in_order()


def lost_by_all(cluster: Cluster, start_offset: int = 0, isr: tuple[int, ...] = (1, 0, 2)) -> None:
    """All that were in sync lose their power and all but one batch, and node 1 is elected, whose log begins at
    ``start_offset`` then. Node 0 follows it, and ``isr`` are in sync in the end."""
    cluster.view.fault_times.node(2, cluster.now_us)
    cluster.change(isr=(0, 1))
    for number in (0, 1):
        cluster.view.fault_times.node(number, cluster.now_us)
        cluster.restart(number)
        cluster.view.power_lost(number)
        cluster.view.started(number)
        del cluster.logs[number].held[1:]
        cluster.logs[number].high_watermark = 0
    cluster.change(isr=(), leader=-1, leader_epoch=1)
    assert list(cluster.view.excused) == []
    cluster.change(isr=(1,), leader=1, leader_epoch=2)
    cluster.lead(1, 2)
    cluster.logs[1].log_start_offset = cluster.logs[1].high_watermark = start_offset
    cluster.observe(1)
    del cluster.logs[2].held[1:]
    cluster.logs[2].high_watermark = 1
    cluster.observe(0, 2)
    cluster.append(batch(1, 2))
    cluster.change(isr=isr)
    cluster.commit(2)


def test_records_lost_on_all_replicas_are_excused_once_one_leads(cluster: Cluster) -> None:
    cluster.acknowledge(2)
    lost_by_all(cluster)
    assert list(cluster.view.excused) == [("t", 0)]
    assert cluster.broken() == []


@pytest.mark.clause("E-7")
def test_records_after_excused_loss_are_judged_again(cluster: Cluster) -> None:
    lost_by_all(cluster)
    cluster.acknowledge(1, by=1)
    assert cluster.broken() == []
    cluster.append(batch(2, 2), to=(1,))
    cluster.acknowledge(2, by=1)
    assert cluster.broken() == ["no-acked-lost"]


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(
    ("isr", "node", "broken"), [((1, 2), 0, []), ((1, 0, 2), 0, [MONOTONIC]), ((1, 2), 1, [MONOTONIC])]
)
def test_after_an_excused_loss_only_a_follower_goes_back_until_it_is_in_sync(
    cluster: Cluster, isr: tuple[int, ...], node: int, broken: list[str]
) -> None:
    lost_by_all(cluster, isr=isr)
    cluster.commit(1, node)
    assert cluster.broken() == broken


@pytest.mark.clause("E-7")
def test_log_consistent_forgives_an_excused_loss_until_the_replica_is_in_sync(cluster: Cluster) -> None:
    check = LogConsistent(cluster.context)

    def looked(high_watermark: int) -> list[str]:
        cluster.logs[0].high_watermark = high_watermark
        log: Any = cluster.logs[0]
        node = StubNode(StubBroker(partitions=node_partitions(Partition("t", KEY[0], 0, 0, log)))).as_node()
        check.inspect(cluster.now_us, 5, node, None, thorough=True)
        return [violation.explanation for violation in check.violations]

    lost_by_all(cluster, isr=(1, 2))
    assert looked(2) == looked(1) == looked(2) == []
    cluster.change(isr=(1, 0, 2))
    assert looked(1) == looked(2) == [], "it was in sync since an unknown time after the last look"
    assert looked(1)


@pytest.mark.thorough
@pytest.mark.clause("E-7")
def test_after_an_excused_loss_all_replicas_are_alike_in_the_end(cluster: Cluster) -> None:
    lost_by_all(cluster)
    cluster.restart(2)
    cluster.logs[2].held[1] = batch(1, 2, b"other")
    cluster.observe(2)
    assert cluster.broken() == ["replicas-equal"]


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(("start_offset", "broken"), [(1, []), (0, ["replicas-equal"])])
def test_records_below_the_leaders_log_after_an_excused_loss_are_not_judged(
    cluster: Cluster, start_offset: int, broken: list[str]
) -> None:
    """The leader's first segment was damaged. Another replica still has what was in it."""
    lost_by_all(cluster, start_offset)
    cluster.restart(0)
    cluster.logs[0].held[0] = batch(0, 1, b"older")
    cluster.observe(0)
    assert cluster.broken() == broken


@pytest.mark.clause("E-7")
def test_acknowledged_batches_are_gone_after_an_excused_loss(cluster: Cluster) -> None:
    lost_by_all(cluster)
    cluster.acknowledge(1, by=1)
    del cluster.logs[1].held[1:]
    cluster.logs[1].high_watermark = 1
    cluster.observe(1)
    assert "no-acked-lost" in cluster.broken()


@pytest.mark.clause("E-7")
def test_loss_that_a_holder_out_of_sync_survives_is_not_excused(cluster: Cluster) -> None:
    """The history of the finding: in sync are 0 and 1, then 1 is away, 0 loses its power and leads again."""
    cluster.view.fault_times.node(2, cluster.now_us)
    cluster.change(isr=(0, 1))
    cluster.acknowledge(2)
    cluster.view.fault_times.node(1, cluster.now_us)
    cluster.change(isr=(0,))
    cluster.restart(0)
    cluster.view.power_lost(0)
    cluster.view.started(0)
    del cluster.logs[0].held[2:]
    cluster.logs[0].high_watermark = 2
    cluster.change(leader=0, leader_epoch=1)
    cluster.lead(0, 1)
    cluster.observe(0)
    assert list(cluster.view.excused) == []
    assert {"replicas-equal", "no-acked-lost"} <= {*cluster.broken()}


@pytest.mark.clause("E-2")
@pytest.mark.clause("E-4")
def test_eligible_leader_that_lacks_records_or_registered_uncleanly(cluster: Cluster) -> None:
    cluster.view.fault_times.node(1, cluster.now_us)
    cluster.view.fault_times.node(2, cluster.now_us)
    cluster.change(isr=(0,), elr=(1, 2))
    assert cluster.broken() == []
    cluster.append(batch(3, 0), to=(0,))
    cluster.commit(4, 0)
    (check,) = (each for each in cluster.checks if isinstance(each, IsrHonest))
    assert [violation.explanation.split(" ends")[0] for violation in check.violations] == ["t-0: 1", "t-0: 2"]
    check.violations.clear()
    cluster.restart(1)
    cluster.view.started(1)
    news = MetadataDelta(cluster.image(), brokers={1: BrokerImage(1, 9, bytes(16), "h", 1, True)})
    cluster.view.image(cluster.now_us, 0, news, cluster.image())
    cluster.change()
    assert "registered after an unclean shutdown" in check.violations[0].explanation
