"""Each check of replicated partitions is silent on a right history and speaks on one that breaks its guarantee."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.isr import StableIsr
from chaos.checks.replication import ReplicasConverge
from chaos.tests.check_context import note_row
from chaos.tests.replicated import IN_SYNC_US, KEY, SECOND_US, Cluster, batch, in_order
from reference_broker.core.events import Reply, Request
from reference_broker.metadata.delta import TopicChange
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.image import NO_LEADER, MetadataImage
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from reference_broker.wire.tags import Tag


@pytest.fixture
def cluster() -> Cluster:
    return in_order()


def test_a_correct_history_violates_nothing(cluster: Cluster) -> None:
    cluster.acknowledge(2)
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.view.fault_times.node(0, cluster.now_us)
    cluster.restart(0)
    cluster.change(isr=(1, 2), leader=1, leader_epoch=1)
    cluster.lead(1, 1)
    cluster.observe(1)
    cluster.logs[0].held = cluster.logs[1].held[:]
    cluster.observe(0)
    cluster.append(batch(3, 0), to=(2,))
    cluster.append(batch(4, 1))
    cluster.commit(5)
    cluster.change(isr=(1, 2, 0))
    cluster.acknowledge(4, by=1)
    assert cluster.broken() == []


def test_a_replica_with_other_bytes_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 2))
    cluster.append(batch(3, 0, b"other"), to=(1,))
    cluster.commit(4, 0)
    assert cluster.broken() == []
    cluster.commit(4, 1)
    assert cluster.broken() == ["replicas-equal"]


def test_a_leader_that_lacks_committed_records_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    cluster.lead(2, 1)
    cluster.change(leader=2, leader_epoch=1)
    cluster.observe(2)
    assert "replicas-equal" in cluster.broken()


def test_replicas_that_do_not_converge_are_a_violation(cluster: Cluster) -> None:
    (converge,) = (each for each in cluster.checks if isinstance(each, ReplicasConverge))
    assert converge.reached()
    cluster.append(batch(3, 0), to=(0,))
    assert not converge.reached()
    converge.overdue(cluster.now_us, SECOND_US)
    assert cluster.broken() == ["replicas-converge"]
    cluster.append(batch(3, 0), to=(1, 2))
    cluster.commit(4)
    assert converge.reached()
    cluster.view.fault_times.node(1, cluster.now_us)
    cluster.change(isr=(0, 2))
    assert not converge.reached()


@pytest.mark.thorough
@pytest.mark.clause("E-3", "E-5", "E-6")
@pytest.mark.parametrize(
    ("elr", "lost", "damaged", "reached"),
    [
        ((1,), (1,), (1,), True),
        ((1, 2), (1, 2), (1, 2), True),
        ((1,), (), (1,), False),
        ((1,), (1,), (), False),
        ((1, 2), (1,), (1, 2), False),
        ((), (1,), (1,), False),
    ],
    ids=["lost", "both lost", "not reported", "not damaged", "one is whole", "nobody is eligible"],
)
def test_only_a_partition_whose_eligible_replicas_have_all_lost_their_directories_may_wait(
    cluster: Cluster, elr: tuple[int, ...], lost: tuple[int, ...], damaged: tuple[int, ...], reached: bool
) -> None:
    (converge,) = (each for each in cluster.checks if isinstance(each, ReplicasConverge))
    homes = tuple(LOST_DIRECTORY if node in lost else bytes([node] * 16) for node in range(3))
    for node in damaged:
        cluster.view.partitions[KEY].eligible.came_back_damaged(node)
    cluster.change(isr=(), elr=elr, leader=NO_LEADER, leader_epoch=1, directories=homes)
    assert converge.reached() is reached


def test_a_replica_that_was_only_killed_has_lost_no_directory(cluster: Cluster) -> None:
    (converge,) = (each for each in cluster.checks if isinstance(each, ReplicasConverge))
    cluster.view.partitions[KEY].eligible.came_back_uncleanly(1)
    homes = (bytes(16), LOST_DIRECTORY, bytes(16))
    cluster.change(isr=(), elr=(1,), leader=NO_LEADER, leader_epoch=1, directories=homes)
    assert not converge.reached()


def test_a_leader_that_restarts_without_committed_records_is_a_violation(cluster: Cluster) -> None:
    cluster.restart(0)
    del cluster.logs[0].held[2:]
    cluster.logs[0].high_watermark = 0
    cluster.observe(0)
    assert "replicas-equal" in cluster.broken()


def test_a_high_watermark_that_goes_back_is_a_violation(cluster: Cluster) -> None:
    cluster.commit(2, 1)
    assert cluster.broken() == ["high-watermark-monotonic"]


def test_a_new_process_may_have_a_smaller_high_watermark(cluster: Cluster) -> None:
    cluster.restart(1)
    cluster.commit(2, 1)
    assert cluster.broken() == []


def test_a_high_watermark_beyond_the_log_end_is_a_violation(cluster: Cluster) -> None:
    cluster.commit(4, 1)
    assert cluster.broken() == ["high-watermark-monotonic"]


def test_two_partition_leaders_in_one_epoch_are_a_violation(cluster: Cluster) -> None:
    cluster.epochs[2] = 0
    cluster.observe(2)
    assert cluster.broken() == ["one-partition-leader-per-epoch"]


def test_a_high_watermark_above_the_log_of_an_in_sync_replica_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == ["isr-honest"]


@pytest.mark.thorough
def test_a_replica_that_joins_the_isr_without_committed_records_is_a_violation(cluster: Cluster) -> None:
    cluster.view.fault_times.node(2, cluster.now_us)
    cluster.change(isr=(0, 1))
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == []
    cluster.change(isr=(0, 1, 2))
    assert cluster.broken() == ["isr-honest"]


@pytest.mark.clause("F-22")
def test_a_replica_that_leaves_the_isr_without_a_fault_is_a_violation(cluster: Cluster) -> None:
    cluster.change(isr=(0, 1))
    assert cluster.broken() == ["stable-isr"]


@pytest.mark.thorough
@pytest.mark.parametrize("touched", ["member", "leader", "link", "another replica"])
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
def test_a_replica_may_leave_the_isr_soon_after_a_fault(cluster: Cluster, touched: str, too_long_ago_us: int) -> None:
    fault_times, until_us = cluster.view.fault_times, cluster.now_us - IN_SYNC_US - too_long_ago_us
    if touched == "link":
        fault_times.link(2, 0, until_us)
    else:
        fault_times.node({"member": 2, "leader": 0, "another replica": 1}[touched], until_us)
    cluster.change(isr=(0, 1))
    is_excused = touched != "another replica" and not too_long_ago_us
    assert cluster.broken() == ([] if is_excused else ["stable-isr"])


def test_an_acknowledgement_before_the_commit_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0,))
    cluster.acknowledge(3, acks=1)
    assert cluster.broken() == []
    cluster.acknowledge(3)
    assert cluster.broken() == ["no-acked-lost"]


def test_a_response_that_a_node_did_not_send_before_it_died_does_not_count(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0,))
    node, tag = cluster.node(0), Tag(0, 9, "p")
    response = ProduceResponse([ProduceTopicResponse("t", b"", [ProducePartitionResponse(0, 0, 3)])])
    request = Request(1, 7, 0, 9, "p", ProduceRequest(-1, 1000, []), tag)
    cluster.acked.acted(cluster.now_us, node, request, [Reply(1, 7, 0, 9, response, tag)])
    cluster.acked.acted(cluster.now_us, cluster.node(1), None, [])
    cluster.acked.viewed(cluster.now_us, cluster.node(1))
    assert cluster.broken() == []


def test_an_acknowledgement_that_fewer_than_min_isr_replicas_have_is_a_violation(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.view.fault_times.node(number, cluster.now_us)
    cluster.change(isr=(0,))
    cluster.append(batch(3, 0), to=(0,))
    cluster.commit(4, 0)
    cluster.acknowledge(3)
    assert cluster.broken() == ["no-acked-lost"]


def test_only_partitions_whose_records_were_lost_with_a_failed_sync_are_excused(cluster: Cluster) -> None:
    cluster.append(batch(3, 0))
    (partition,) = cluster.view.partitions.values()
    cluster.view.bytes_lost(1, ["t-1/00000000000000000000.log", "t-0/00000000000000000000.index"])
    assert not partition.eligible.tainted
    cluster.view.bytes_lost(1, ["t-0/00000000000000000000.log"])
    assert partition.eligible.tainted == {1: 4}


def test_only_partitions_whose_files_were_damaged_keep_their_records_no_more(cluster: Cluster) -> None:
    (partition,) = cluster.view.partitions.values()
    cluster.view.started(1, ["t-1/00000000000000000000.log"])
    assert not partition.eligible.unclean
    cluster.view.started(1, ["t-0/partition.metadata"])
    assert list(partition.eligible.unclean) == [1]


@pytest.mark.parametrize("had_it", [True, False])
def test_a_member_without_power_counts_only_for_what_it_had(cluster: Cluster, had_it: bool) -> None:
    for number in (1, 2):
        cluster.view.fault_times.node(number, cluster.now_us)
    cluster.change(isr=(0, 1))
    cluster.append(batch(3, 0), to=(0, 1) if had_it else (0,))
    cluster.restart(1)
    cluster.view.power_lost(1)
    del cluster.logs[1].held[1:]
    cluster.logs[1].high_watermark = 0
    cluster.observe(1)
    cluster.commit(4, 0)
    cluster.acknowledge(3)
    assert cluster.broken() == ([] if had_it else ["no-acked-lost", "isr-honest"])


def test_an_in_sync_replica_without_a_log_holds_nothing(cluster: Cluster) -> None:
    partition = cluster.view.partitions[KEY]
    del partition.copies[2]
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == ["isr-honest"]


def test_acknowledged_batches_that_the_last_leader_lacks_are_a_violation(cluster: Cluster) -> None:
    cluster.acknowledge(2)
    for log in cluster.logs:
        del log.held[2:]
        log.high_watermark = 2
    cluster.lead(1, 1)
    cluster.observe(1)
    assert "no-acked-lost" in cluster.broken()


def test_a_node_that_starts_tells_old_news_of_a_deleted_topic(cluster: Cluster) -> None:
    old, before = cluster.image(), cluster.state
    gone: Any = SimpleNamespace(topics=[TopicChange(old.topics["t"], None, ())], brokers={})
    cluster.view.image(cluster.now_us, 0, gone, MetadataImage())
    cluster.view.image(cluster.now_us, 0, None, old)
    cluster.change(isr=(0, 1))
    assert before.isr == (0, 1, 2)
    assert not cluster.view.partitions
    assert cluster.broken() == []


@pytest.mark.parametrize(
    ("controller_paused", "led_us", "excused"),
    [(True, 12 * SECOND_US, True), (True, 12 * SECOND_US + 1, False), (False, 1, False)],
)
def test_a_new_controller_may_fence_a_broker_that_still_sent_to_the_one_before_it(
    cluster: Cluster, controller_paused: bool, led_us: int, excused: bool
) -> None:
    (check,) = (each for each in cluster.checks if isinstance(each, StableIsr))
    if controller_paused:
        cluster.view.fault_times.node(7, cluster.now_us)
    for node, at_us, what in ((7, 0, "leader_elected"), (8, cluster.now_us - led_us, "leader_elected")):
        check.trace(note_row(at_us, node, what))
    cluster.change(isr=(0, 1))
    check.trace(note_row(cluster.now_us, 8, "broker_fenced", broker=2))
    assert cluster.broken() == ([] if excused else ["stable-isr"])


@pytest.mark.clause("E-2")
@pytest.mark.parametrize("isr_known", [(0,), (0, 1)])
def test_a_leader_with_late_metadata_counts_its_isr_by_the_minimum_that_holds_with_it(
    isr_known: tuple[int, ...],
) -> None:
    """The minimum is 2 by now. A leader that has the metadata from before may commit what its ISR of then holds. It may
    not take the smaller ISR of now together with the minimum of then."""
    cluster = in_order()
    cluster.change(1)
    cluster.change(isr=isr_known)
    cluster.known[0] = cluster.image()
    cluster.change(2)
    if isr_known != (0,):
        cluster.change(isr=(0,), elr=(1,))
    cluster.append(batch(3, 0), to=(0,))
    cluster.commit(4, 0)
    cluster.acknowledge(3)
    stories = [each.story for each in cluster.acked.violations]
    assert bool(stories) == (isr_known != (0,))
    assert all("by its metadata (0, 1) are in sync, and at least 1 must hold it" in each for each in stories)


@pytest.mark.clause("E-8")
def test_eligible_leaders_that_a_change_of_the_minimum_cleared_are_judged_no_more() -> None:
    cluster = in_order()
    cluster.change(isr=(0,), elr=(1, 2))
    cluster.state = replace(cluster.state, elr=())
    cluster.change(1)
    cluster.view.image(cluster.now_us, 1, None, cluster.image())
    cluster.append(batch(3, 0), to=(0,))
    cluster.commit(4, 0)
    assert not any(check.violations for check in cluster.checks if check.guarantee == "isr-honest")
