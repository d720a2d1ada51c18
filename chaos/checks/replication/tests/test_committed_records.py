"""Replicas of a partition: equal, committed, acknowledged, and read from the leader."""

from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.final_reads import FinalReader, FinalReadPlan
from bench.fleet.behaviours.protocol import Address, ClientSettings, TopicPartition
from chaos.checks.reads_and_writes.reads import ResponsesAfterHeal
from chaos.checks.replication.committed_records import FetchesFromLogEnd, LoneHighWatermark, ReplicasConverge
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.replica_view import Replicated, remote_metadata_partition
from chaos.checks.replication.tests.partition_leaders import Leader
from chaos.checks.replication.tests.replicated import KEY, SECOND_US, TOPIC_ID, Cluster, batch, in_order
from chaos.checks.tests.stub_node import broker_image
from chaos.sim.world import SimWorld
from reference_broker.core.events import PeerDown, Reply, Request, Send
from reference_broker.log.config import LogConfig
from reference_broker.metadata.identifiers import LOST_DIRECTORY, REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import NO_LEADER
from reference_broker.ports.node_ports import Channel
from reference_broker.remote_log.metadata.topic import metadata_partition_of
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic
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


OWN = remote_metadata_partition(*KEY, 2)
OTHER = 1 - OWN
"""the partitions of ``__remote_log_metadata``: that of the tested partition, and another one"""


def loses_metadata(cluster: Cluster, lost: int | None) -> None:
    """``__remote_log_metadata`` has two partitions, of which one has lost committed records."""
    state = cluster.state
    for index in range(2):
        key = (b"m" * 16, index)
        name = f"{REMOTE_LOG_METADATA_TOPIC}-{index}"
        cluster.view.partitions[key] = Replicated(name, key, state, Eligible.of(state, 2))
    if lost is not None:
        cluster.view.excused[REMOTE_LOG_METADATA_TOPIC, lost] = None


def test_correct_history_violates_nothing(cluster: Cluster) -> None:
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
    cluster.commit(5, 1, 0, 2)
    cluster.change(isr=(1, 2, 0))
    cluster.acknowledge(4, by=1)
    assert cluster.broken() == []


def test_replica_with_other_bytes_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 2))
    cluster.append(batch(3, 0, b"other"), to=(1,))
    cluster.commit(4, 0)
    assert cluster.broken() == []
    cluster.commit(4, 1)
    assert cluster.broken() == ["replicas-equal"]


def test_leader_that_lacks_committed_records_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    cluster.lead(2, 1)
    cluster.change(leader=2, leader_epoch=1)
    cluster.observe(2)
    assert "replicas-equal" in cluster.broken()


def test_replicas_that_do_not_converge_are_a_violation(cluster: Cluster) -> None:
    (converge,) = (check for check in cluster.checks if isinstance(check, ReplicasConverge))
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
    (converge,) = (check for check in cluster.checks if isinstance(check, ReplicasConverge))
    homes = tuple(LOST_DIRECTORY if node in lost else bytes([node] * 16) for node in range(3))
    for node in damaged:
        cluster.view.partitions[KEY].eligible.came_back_damaged(node)
    cluster.change(isr=(), elr=elr, leader=NO_LEADER, leader_epoch=1, directories=homes)
    assert converge.reached() is reached


@pytest.mark.clause("E-7", "P-11")
@pytest.mark.parametrize(
    ("is_tiered", "lost", "local_start", "is_in_sync", "reached"),
    [
        (True, OWN, 3, False, True),
        (True, OTHER, 3, False, False),
        (True, None, 3, False, False),
        (False, OWN, 3, False, False),
        (True, OWN, 2, False, False),
        (True, OWN, 3, True, False),
    ],
    ids=["lost", "another partition's metadata", "nothing lost", "not tiered", "in the local log", "in sync"],
)
def test_only_a_replica_that_would_begin_behind_lost_remote_segments_may_stay_behind(
    cluster: Cluster, is_tiered: bool, lost: int | None, local_start: int, is_in_sync: bool, reached: bool
) -> None:
    (converge,) = (check for check in cluster.checks if isinstance(check, ReplicasConverge))
    loses_metadata(cluster, lost)
    for log in cluster.logs:
        log.config = LogConfig(remote_storage_enable=is_tiered)
    cluster.append(batch(3, 0), to=(0, 2))
    cluster.commit(4, 0, 2)
    cluster.logs[1].held.pop()
    cluster.logs[1].high_watermark = 2
    cluster.observe(1)
    copies = cluster.view.partitions[KEY].copies
    copies[0].held = copies[0].held._replace(start_offset=local_start)
    cluster.change(isr=(0, 1, 2) if is_in_sync else (0, 2))
    assert converge.reached() is reached


@pytest.mark.clause("E-7", "P-11")
@pytest.mark.parametrize(
    ("lost", "local_start", "unreadable"), [(OWN, 2, [(("t", 0), 2)]), (OTHER, 2, []), (OWN, 0, [])]
)
def test_only_what_is_in_lost_remote_segments_is_unreadable(
    cluster: Cluster, lost: int, local_start: int, unreadable: list[tuple[tuple[str, int], int]]
) -> None:
    loses_metadata(cluster, lost)
    leader = cluster.view.partitions[KEY].copies[0]
    leader.held = leader.held._replace(start_offset=local_start)
    assert list(ResponsesAfterHeal(cluster.context).unreadable()) == unreadable


@pytest.mark.clause("E-7", "P-11")
@pytest.mark.parametrize(
    ("moves", "reads", "missed"),
    [(0, [2], "t-0"), (1, [2, 3], "t-0"), (9, [2, 3, 4, 5], "t-0"), (0, [2], "")],
    ids=["it ends", "its start moves once", "its start moves all the time", "it can be read"],
)
def test_partition_whose_remote_segments_are_lost_is_read_from_its_local_start(
    cluster: Cluster, moves: int, reads: list[int], missed: str
) -> None:
    """Another partition that could not be read stays unread."""
    where, other = TopicPartition("t", 0), TopicPartition("u", 0)
    check = ResponsesAfterHeal(cluster.context)
    leader = cluster.view.partitions[KEY].copies[0]
    leader.held = leader.held._replace(start_offset=2)
    loses_metadata(cluster, OWN)
    first_offsets: list[int] = []

    def phase(_: str, behaviours: list[FinalReader], limit_us: int) -> None:  # noqa: ARG001
        (local,) = behaviours
        first_offsets.append(local.consumer.positions[where].offset)
        if not missed:
            local.unread.clear()
        if len(first_offsets) <= moves:
            leader.held = leader.held._replace(start_offset=leader.held.start_offset + 1)

    reader = FinalReader(
        FinalReadPlan("r", (where, other)), ClientSettings((Address("node-0", 9092),)), Random(1), BatchReader()
    )
    world = Mock(spec=SimWorld, _after_heal=check, _phase=phase)
    SimWorld._read_local_logs(world, reader)
    assert first_offsets == reads
    assert list(reader.unread) == ([where, other] if missed else [other])


def test_metadata_of_a_partition_is_where_nodes_write_it() -> None:
    for number in range(200):
        topic_id = (number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128).to_bytes(16, "big")
        wanted = metadata_partition_of(topic_id, number, 50)
        assert remote_metadata_partition(topic_id, number, 50) == wanted


def test_replica_that_was_only_killed_has_lost_no_directory(cluster: Cluster) -> None:
    (converge,) = (check for check in cluster.checks if isinstance(check, ReplicasConverge))
    cluster.view.partitions[KEY].eligible.came_back_uncleanly(1)
    homes = (bytes(16), LOST_DIRECTORY, bytes(16))
    cluster.change(isr=(), elr=(1,), leader=NO_LEADER, leader_epoch=1, directories=homes)
    assert not converge.reached()


def test_leader_that_restarts_without_committed_records_is_a_violation(cluster: Cluster) -> None:
    cluster.restart(0)
    del cluster.logs[0].held[2:]
    cluster.logs[0].high_watermark = 0
    cluster.observe(0)
    assert "replicas-equal" in cluster.broken()


def test_high_watermark_that_goes_back_is_a_violation(cluster: Cluster) -> None:
    cluster.commit(2, 1)
    assert cluster.broken() == ["high-watermark-monotonic"]


def test_new_process_may_have_a_smaller_high_watermark(cluster: Cluster) -> None:
    cluster.restart(1)
    cluster.commit(2, 1)
    assert cluster.broken() == []


def test_high_watermark_beyond_the_log_end_is_a_violation(cluster: Cluster) -> None:
    cluster.commit(4, 1)
    assert set(cluster.broken()) == {"high-watermark-monotonic"}


def test_two_partition_leaders_in_one_epoch_are_a_violation(cluster: Cluster) -> None:
    cluster.epochs[2] = 0
    cluster.observe(2)
    assert cluster.broken() == ["one-partition-leader-per-epoch"]


def test_acknowledgement_before_the_commit_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0,))
    cluster.acknowledge(3, acks=1)
    assert cluster.broken() == []
    cluster.acknowledge(3)
    assert cluster.broken() == ["no-acked-lost"]


def test_response_that_a_node_did_not_send_before_it_died_does_not_count(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0,))
    node, tag = cluster.node(0), Tag(0, 9, "p")
    response = ProduceResponse([ProduceTopicResponse("t", b"", [ProducePartitionResponse(0, 0, 3)])])
    request = Request(1, 7, 0, 9, "p", ProduceRequest(-1, 1000, []), tag)
    cluster.acked.acted(cluster.now_us, node, request, [Reply(1, 7, 0, 9, response, tag)])
    cluster.acked.acted(cluster.now_us, cluster.node(1), None, [])
    cluster.acked.viewed(cluster.now_us, cluster.node(1))
    assert cluster.broken() == []


def test_acknowledgement_that_fewer_than_min_isr_replicas_have_is_a_violation(cluster: Cluster) -> None:
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
def test_member_without_power_counts_only_for_what_it_had(cluster: Cluster, had_it: bool) -> None:
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


def test_in_sync_replica_without_a_log_holds_nothing(cluster: Cluster) -> None:
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


@pytest.mark.clause("E-2")
@pytest.mark.parametrize("isr_known", [(0,), (0, 1)])
def test_leader_with_late_metadata_counts_its_isr_by_the_minimum_that_holds_with_it(
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
    explanations = [violation.explanation for violation in cluster.acked.violations]
    assert bool(explanations) == (isr_known != (0,))
    assert all(
        "by its metadata (0, 1) are in sync, and at least 1 must hold it" in explanation for explanation in explanations
    )


@pytest.mark.clause("F-22")
def test_high_watermark_waits_for_the_requests_of_all_in_sync_replicas(cluster: Cluster) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    leader.fetch(2, 4, moves_to=4)
    assert leader.explanations() == []
    cluster.append(batch(4, 0))
    leader.fetch(1, 5, moves_to=5)
    assert leader.explanations() == [
        "t-0: leader 0 of epoch 0 moved its high watermark to 5, and replica 2 has requested only 4 (F-22)"
    ]


@pytest.mark.clause("F-22")
def test_refused_request_moves_no_high_watermark(cluster: Cluster) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    leader.fetch(2, 4, counted=False, error=ErrorCode.fenced_leader_epoch, moves_to=4)
    assert [explanation for explanation in leader.explanations() if "replica 2 has requested only 3" in explanation]


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(
    ("error", "offset", "right"),
    [
        (ErrorCode.kafka_storage_error, 4, True),
        (ErrorCode.corrupt_message, 4, True),
        (ErrorCode.kafka_storage_error, 3, False),
        (ErrorCode.not_leader_or_follower, 4, False),
    ],
)
@pytest.mark.parametrize("counted", [True, False])
def test_request_for_records_that_cannot_be_read_may_count(
    cluster: Cluster, error: ErrorCode, offset: int, right: bool, counted: bool
) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    leader.fetch(2, offset, counted=counted, error=error, moves_to=4 if counted else -1)
    assert (leader.explanations() == []) is (right or not counted)


@pytest.mark.clause("F-22")
def test_next_request_shows_what_a_follower_has_after_records_could_not_be_read(cluster: Cluster) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    leader.fetch(2, 4, counted=False, error=ErrorCode.kafka_storage_error)
    leader.fetch(2, 3, moves_to=4)
    assert [explanation for explanation in leader.explanations() if "replica 2 has requested only 3" in explanation]


@pytest.mark.clause("F-22")
def test_high_watermark_that_does_not_follow_the_last_request_is_a_violation(cluster: Cluster) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    assert leader.explanations() == []
    leader.fetch(2, 4)
    assert ["high watermark at 3" in explanation for explanation in leader.explanations()] == [True]


def test_leader_that_does_not_count_an_accepted_request_is_a_violation(cluster: Cluster) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4, counted=False)
    assert ["counts replica 1 as far as 3" in explanation for explanation in leader.explanations()] == [True]


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(("epoch", "knows"), [(1, True), (2, False)])
def test_leader_keeps_the_progress_of_followers_into_the_next_epoch_only(
    cluster: Cluster, epoch: int, knows: bool
) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    leader.states[2].log_end_offset = 4
    leader.check.acted(cluster.now_us, leader.node, PeerDown(1, Channel.REPLICA), [])
    leader.led.leader_epoch = epoch
    leader.moves(3)
    leader.fetch(2, 4, moves_to=4)
    assert bool(leader.explanations()) == (not knows)


@pytest.mark.clause("E-2")
def test_high_watermark_that_moves_below_the_minimum_is_a_violation(cluster: Cluster) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    cluster.change(isr=(0,))
    leader.node.broker.quorum_node.loader.image = cluster.image()
    leader.moves(4)
    assert ["only (0,) are in sync, of at least 2" in explanation for explanation in leader.explanations()] == [True]


def test_requests_from_before_a_registration_do_not_count(cluster: Cluster) -> None:
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    leader.brokers[1] = broker_image(1, broker_epoch=8)
    leader.fetch(2, 4, moves_to=4)
    assert ["registered in epoch 8" in explanation for explanation in leader.explanations()] == [True]


@pytest.mark.parametrize(
    ("fields", "explanation"),
    [
        ({}, ""),
        ({"fetch_offset": 2}, "fetches from 2"),
        ({"log_start_offset": 1}, "with log start 1"),
        ({"current_leader_epoch": 1}, "in leader epoch 1"),
        ({"last_fetched_epoch": -1}, "names last epoch -1"),
        ({"last_fetched_epoch": 1}, "names last epoch 1"),
    ],
)
def test_follower_fetches_from_its_logs_end(cluster: Cluster, fields: dict[str, Any], explanation: str) -> None:
    (check,) = (each for each in cluster.checks if isinstance(each, FetchesFromLogEnd))
    node = cluster.node(1)
    right = FetchPartition(0, 3, 1, current_leader_epoch=0, last_fetched_epoch=0, log_start_offset=0)
    topics = [FetchTopic("t", TOPIC_ID, [replace(right, **fields)])]
    body = FetchRequest(1, topics=topics)
    check.acted(0, node, None, [Send(0, Channel.REPLICA, 1, 1, 17, body, Tag(1, 17, "f"), 1000, "f")])
    assert [explanation in violation.explanation for violation in check.violations] == ([True] if explanation else [])


def test_follower_may_name_an_epoch_in_which_it_led_without_an_append(cluster: Cluster) -> None:
    (check,) = (each for each in cluster.checks if isinstance(each, FetchesFromLogEnd))
    node = cluster.node(1)
    cluster.view.leaders["t-0", 2].add(1)
    each = FetchPartition(0, 3, 1, current_leader_epoch=0, last_fetched_epoch=2, log_start_offset=0)
    body = FetchRequest(1, topics=[FetchTopic("t", TOPIC_ID, [each])])
    check.acted(0, node, None, [Send(0, Channel.REPLICA, 1, 1, 17, body, Tag(1, 17, "f"), 1000, "f")])
    assert not check.violations


def test_follower_has_no_greater_high_watermark_than_any_leader(cluster: Cluster) -> None:
    cluster.append(batch(3, 0))
    cluster.commit(4, 0, 1)
    assert cluster.broken() == []
    cluster.append(batch(4, 0))
    cluster.commit(5, 1)
    assert cluster.broken() == ["high-watermark-monotonic"]


@pytest.mark.parametrize(
    ("row", "known", "is_right"),
    [(b"t 0 3", 3, True), (b"t 0 3", 2, False), (b"t 0 4", 2, True), (b"t 1 3", 2, True), (b"t 0 3\0", 2, True)],
    ids=["equal", "less", "log ends below", "another partition", "torn"],
)
def test_new_process_starts_with_the_high_watermark_of_its_checkpoint(
    cluster: Cluster, row: bytes, known: int, *, is_right: bool
) -> None:
    cluster.checkpoint = b"0\n1\n" + row + b"\n"
    cluster.restart(1)
    cluster.commit(known, 1)
    assert bool(cluster.broken()) == (not is_right)


def test_batch_in_another_epoch_than_its_own_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0))
    cluster.logs[1].epochs.wrong[3] = 1
    cluster.commit(4, 0, 2)
    assert cluster.broken() == []
    cluster.commit(4, 1)
    assert cluster.broken() == ["replicas-equal"]


def test_restarted_log_has_the_epochs_of_all_its_batches(cluster: Cluster) -> None:
    cluster.restart(1)
    cluster.logs[1].epochs.wrong[1] = 1
    cluster.observe(1)
    assert cluster.broken() == ["replicas-equal"]


@pytest.mark.parametrize(("log_start", "broken"), [(4, []), (3, ["replicas-equal"])])
def test_epochs_of_a_log_begin_at_its_start(cluster: Cluster, log_start: int, broken: list[str]) -> None:
    """KIP-101: a follower's log start may pass its high watermark, as its leader's did in the remote tier."""
    cluster.append(batch(3, 0), batch(4, 0))
    cluster.commit(5, 0, 2)
    follower = cluster.logs[1]
    follower.epochs.wrong[3] = -1
    follower.log_start_offset = log_start
    cluster.commit(5, 1)
    assert cluster.broken() == broken


@pytest.mark.parametrize(("epoch", "beyond"), [(1, 0), (0, 0), (1, 1)])
def test_leader_has_its_epoch_before_its_first_append(cluster: Cluster, epoch: int, beyond: int) -> None:
    cluster.lead(1, 1)
    cluster.logs[1].epochs.empty, cluster.logs[1].epochs.beyond = [epoch], beyond
    cluster.change(leader=1, leader_epoch=1)
    cluster.observe(1)
    assert cluster.broken() == ([] if (epoch, beyond) == (1, 0) else ["replicas-equal"])


@pytest.mark.parametrize("high_watermark", [2, 3])
@pytest.mark.parametrize("is_lone", [True, False])
def test_lone_leader_has_committed_its_whole_log(cluster: Cluster, high_watermark: int, *, is_lone: bool) -> None:
    leader = Leader(cluster)
    (check,) = (each for each in cluster.checks if isinstance(each, LoneHighWatermark))
    leader.led.log.high_watermark = high_watermark
    if is_lone:
        leader.led.followers = None
    check.logs_touched(0, leader.node, [leader.led.log], thorough=False)
    assert bool(check.violations) == (is_lone and high_watermark < 3)


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(("counted", "right"), [(3, False), (-1, True)])
def test_new_leader_has_no_follower_progress(cluster: Cluster, counted: int, *, right: bool) -> None:
    leader = Leader(cluster)
    assert not leader.explanations()
    cluster.epochs[0] = leader.led.leader_epoch = 2  # Another node led in epoch 1.
    for state in leader.states.values():
        state.log_end_offset = counted
    leader.moves(0)
    assert (not leader.explanations()) is right
