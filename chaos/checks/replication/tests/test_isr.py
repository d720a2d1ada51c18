"""In-sync and eligible replicas: members, proposals of leaders, and minimum."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.quorum.quorum_view import Seen
from chaos.checks.replication.isr import (
    CHECKED_WITHIN_US,
    FEATURE,
    MIN_ISR,
    PROPOSAL_US,
    IsrHonest,
    LaggingLeave,
    MinIsrKept,
    OldProposalsRefused,
    ShrinksProposed,
    StableIsr,
)
from chaos.checks.replication.tests.partition_leaders import Leader, Proposer
from chaos.checks.replication.tests.replicated import IN_SYNC_US, KEY, SECOND_US, TOPIC_ID, Cluster, batch, in_order
from chaos.checks.tests.check_context import check_context, note_row
from chaos.checks.tests.kafka_messages import alter_partition_request, alter_partition_response
from chaos.checks.tests.stub_node import StubBroker, StubImages, StubNode, broker_image
from reference_broker.core.events import PeerDown, Reply, Request, TimerFired
from reference_broker.log.config import LogConfig
from reference_broker.metadata.delta import MetadataDelta, TopicChange
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import ForgottenTopic
from reference_broker.wire.tags import Tag

SLICES_US = 400_000


@pytest.fixture
def cluster() -> Cluster:
    return in_order()


def test_high_watermark_above_the_log_of_an_in_sync_replica_is_a_violation(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == ["isr-honest"]


@pytest.mark.thorough
def test_replica_that_joins_the_isr_without_committed_records_is_a_violation(cluster: Cluster) -> None:
    cluster.view.fault_times.node(2, cluster.now_us)
    cluster.change(isr=(0, 1))
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == []
    cluster.change(isr=(0, 1, 2))
    assert cluster.broken() == ["isr-honest"]


@pytest.mark.clause("F-22")
def test_replica_that_leaves_the_isr_without_a_fault_is_a_violation(cluster: Cluster) -> None:
    cluster.change(isr=(0, 1))
    assert cluster.broken() == ["stable-isr"]


@pytest.mark.thorough
@pytest.mark.parametrize("touched", ["member", "leader", "link", "another replica"])
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
def test_replica_may_leave_the_isr_soon_after_a_fault(cluster: Cluster, touched: str, too_long_ago_us: int) -> None:
    fault_times, until_us = cluster.view.fault_times, cluster.now_us - IN_SYNC_US - too_long_ago_us
    if touched == "link":
        fault_times.link(2, 0, until_us)
    else:
        fault_times.node({"member": 2, "leader": 0, "another replica": 1}[touched], until_us)
    cluster.change(isr=(0, 1))
    is_excused = touched != "another replica" and not too_long_ago_us
    assert cluster.broken() == ([] if is_excused else ["stable-isr"])


def test_starting_node_sends_stale_state_of_deleted_topic(cluster: Cluster) -> None:
    old, before = cluster.image(), cluster.state
    gone = MetadataDelta(old, topics=(TopicChange(old.topics["t"], None, ()),))
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
def test_new_controller_may_fence_a_broker_that_still_sent_to_the_one_before_it(
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


@pytest.mark.clause("E-4")
@pytest.mark.parametrize("skips", [True, False])
def test_eligible_replica_may_have_been_in_sync_between_two_published_states(cluster: Cluster, *, skips: bool) -> None:
    (check,) = (each for each in cluster.checks if isinstance(each, IsrHonest))
    cluster.change(2)
    cluster.change(isr=(0,))
    cluster.view.partitions[KEY].eligible.registered[1] = None
    if skips:
        cluster.state = replace(cluster.state, partition_epoch=cluster.state.partition_epoch + 1)
    cluster.change(elr=(1,))
    found = ["it registered after an unclean shutdown" in violation.explanation for violation in check.violations]
    assert found == ([] if skips else [True])


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


def test_replica_joins_when_it_has_requested_the_high_watermark(cluster: Cluster) -> None:
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2))
    assert proposer.explanations() == []
    proposer = Proposer(in_order())
    proposer.led.log.high_watermark = 4
    proposer.proposes((0, 1, 2))
    assert ["replica 2 has requested 3" in explanation for explanation in proposer.explanations()] == [True]


@pytest.mark.parametrize(("moves_to", "is_red"), [(4, False), (5, True)])
def test_high_watermark_may_move_before_its_event_appends(cluster: Cluster, moves_to: int, *, is_red: bool) -> None:
    """With flush.messages of 2 a leader counts one unsynced record, and not two."""
    log = cluster.logs[0]
    log.config = LogConfig(flush_messages=2)
    leader = Leader(cluster)
    cluster.append(batch(3, 0))
    log.unsynced = 1
    leader.fetch(1, 4)
    log.held.append(batch(4, 0))
    log.unsynced = 2
    leader.fetch(2, moves_to, moves_to=moves_to)
    assert any("synced up to 3" in explanation for explanation in leader.explanations()) is is_red


@pytest.mark.parametrize(("began_at", "is_red"), [(3, False), (4, True)])
def test_epoch_began_before_the_leader_appended_to_it(cluster: Cluster, began_at: int, *, is_red: bool) -> None:
    """The first look at the leader may come after that."""
    cluster.epochs[0] = 1
    log = cluster.logs[0]
    log.epochs.empty = [1]
    cluster.append(batch(3, 1), to=(0,))
    log.epochs.beyond = began_at - len(log.held)
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2))
    explanations = proposer.explanations()
    assert bool(explanations) is is_red
    assert all(f"its epoch began at {began_at}" in explanation for explanation in explanations)


@pytest.mark.parametrize(
    ("fields", "explanation"), [({"partition_epoch": 0}, "partition epoch 0"), ({"broker_epoch": 8}, "with epoch 8")]
)
def test_proposal_names_the_epochs_of_the_leaders_metadata(
    cluster: Cluster, fields: dict[str, int], explanation: str
) -> None:
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2), **fields)
    assert [explanation in each for each in proposer.explanations()] == [True]


@pytest.mark.clause("F-22")
@pytest.mark.parametrize("lags", [True, False])
def test_only_a_replica_that_lags_leaves(cluster: Cluster, *, lags: bool) -> None:
    proposer = Proposer(cluster)
    cluster.now_us += 1_000_001 if lags else 1_000_000 - 10
    proposer.proposes((0,))
    assert bool(proposer.explanations()) == (not lags)


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(
    ("in_sync", "fetched", "may_leave"),
    [((0, 1), 3, True), ((0, 1), 4, False), ((0, 1, 2), 3, False)],
    ids=["joined behind the end", "has reached the end", "in sync from the start"],
)
def test_replica_that_joins_behind_the_end_may_leave_at_once(
    cluster: Cluster, in_sync: tuple[int, ...], fetched: int, *, may_leave: bool
) -> None:
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.change(isr=in_sync)
    proposer = Proposer(cluster)
    proposer.fetch(2, fetched)
    proposer.commits((0, 1, 2))
    proposer.proposes((0, 1), partition_epoch=cluster.state.partition_epoch)
    explanations = proposer.explanations()
    assert bool(explanations) is not may_leave
    assert all("replica 2 has never been behind" in explanation for explanation in explanations)


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(("in_sync", "may_leave"), [((0, 1), True), ((0, 1, 2), False)])
def test_next_leader_epoch_begins_with_the_in_sync_replicas_caught_up(
    cluster: Cluster, in_sync: tuple[int, ...], *, may_leave: bool
) -> None:
    proposer = Proposer(cluster)
    proposer.commits(in_sync)
    cluster.append(batch(3, 0), to=(0, 1))
    proposer.led.leader_epoch = 1
    proposer.fetch(1, 4)
    proposer.fetch(2, 3)
    cluster.change(leader_epoch=1)
    proposer.commits((0, 1, 2))
    proposer.proposes((0, 1), partition_epoch=cluster.state.partition_epoch, leader_epoch=1)
    explanations = proposer.explanations()
    assert bool(explanations) is not may_leave
    assert all("replica 2 has never been behind" in explanation for explanation in explanations)


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(
    ("session", "was_there"),
    [
        ({"session_epoch": 3}, True),
        ({"session_epoch": 3, "forgotten": [ForgottenTopic("t", TOPIC_ID, [0])]}, False),
        ({"session_epoch": 0}, False),
    ],
    ids=["unnamed", "forgotten", "another session"],
)
def test_replica_at_rest_has_caught_up_with_each_request(
    cluster: Cluster, session: dict[str, Any], *, was_there: bool
) -> None:
    proposer = Proposer(cluster)
    proposer.fetch(1, 3, session_epoch=0)
    cluster.now_us += 5_000_000
    proposer.fetch(1, 3, topics=[], **session)
    cluster.append(batch(3, 0), to=(0,))
    proposer.proposes((0,))
    assert ["never been behind" in explanation for explanation in proposer.explanations()] == (
        [True] if was_there else []
    )


@pytest.mark.parametrize(
    ("error", "may_end"),
    [
        (ErrorCode.none, False),
        (ErrorCode.operation_not_attempted, True),
        (ErrorCode.ineligible_replica, True),
        (ErrorCode.invalid_update_version, False),
    ],
    ids=["none", "not", "ineligible", "update"],
)
def test_proposal_counts_until_it_is_settled(cluster: Cluster, error: int, *, may_end: bool) -> None:
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2))
    proposer.led.followers.isr = (0, 1)
    proposer.gets_response(error)
    assert bool(proposer.explanations()) == (not may_end)


@pytest.mark.parametrize(
    ("peer", "channel", "may_end"),
    [(2, Channel.CONTROLLER, True), (1, Channel.REPLICA, True), (1, Channel.CONTROLLER, False)],
    ids=["another node's", "another of the controller", "the request's"],
)
def test_refusal_settles_a_proposal_unless_its_channel_broke(
    cluster: Cluster, peer: int, channel: Channel, *, may_end: bool
) -> None:
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2))
    proposer.happens(PeerDown(peer, channel))
    proposer.led.followers.isr = (0, 1)
    proposer.gets_response(107)
    assert bool(proposer.explanations()) == (not may_end)


@pytest.mark.parametrize("elected", [0, 1])
def test_active_controller_settles_its_own_proposals_without_a_message(cluster: Cluster, elected: int) -> None:
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2))
    proposer.proposals.trace(note_row(cluster.now_us, elected, "leader_elected", epoch=3))
    proposer.led.followers.isr = (0, 1)
    proposer.happens(PeerDown(1, Channel.CONTROLLER))
    assert bool(proposer.explanations()) == (elected != 0)


@pytest.mark.parametrize(("partition_epoch", "may_accept"), [(0, False), (1, True), (2, True), (3, False)])
def test_proposal_is_accepted_in_the_partition_epoch_that_it_names(
    cluster: Cluster, partition_epoch: int, *, may_accept: bool
) -> None:
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2))
    proposer.gets_response(0, partition_epoch)
    explanations = proposer.explanations()
    assert bool(explanations) is not may_accept
    assert all("the controller accepted" in explanation for explanation in explanations)


def test_greater_partition_epoch_settles_a_proposal(cluster: Cluster) -> None:
    proposer = Proposer(cluster)
    proposer.proposes((0, 1, 2))
    proposer.commits((0, 1))
    proposer.led.followers.isr = (0, 1)
    proposer.happens(PeerDown(1, Channel.CONTROLLER))
    assert proposer.explanations() == []


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(
    ("after_us", "catches_up", "disturbed", "leaves"),
    [
        (2_000_000 + PROPOSAL_US + 1, False, -1, True),
        (2_000_000 + PROPOSAL_US, False, -1, False),
        (2_000_000 + PROPOSAL_US + 1, True, -1, False),
        (2_000_000 + PROPOSAL_US + 1, False, 0, False),
        (2_000_000 + PROPOSAL_US + 1, False, 2, True),
    ],
    ids=["too long", "in time", "catches up", "leader disturbed", "replica disturbed"],
)
def test_replica_that_stays_behind_leaves_the_isr(
    cluster: Cluster, after_us: int, disturbed: int, *, catches_up: bool, leaves: bool
) -> None:
    leader = Leader(cluster)
    (check,) = (each for each in cluster.checks if isinstance(each, LaggingLeave))
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    check.inspect(cluster.now_us, 0, leader.node, None, thorough=True)
    cluster.now_us += after_us
    if catches_up:
        leader.fetch(2, 4, moves_to=4)
    if disturbed >= 0:
        cluster.view.fault_times.node(disturbed, cluster.now_us)
    check.inspect(cluster.now_us, 0, leader.node, None, thorough=True)
    assert bool(check.violations) == leaves


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(
    ("after_us", "excuse", "right"),
    [
        (1_500_000 + CHECKED_WITHIN_US + 1, "", False),
        (1_500_000 + CHECKED_WITHIN_US, "", True),
        (1_500_000 + CHECKED_WITHIN_US + 1, "another node disturbed", False),
        (1_500_000 + CHECKED_WITHIN_US + 1, "leader disturbed", True),
        (1_500_000 + CHECKED_WITHIN_US + 1, "catches up", True),
        (1_500_000 + CHECKED_WITHIN_US + 1, "proposes", True),
        (1_500_000 + CHECKED_WITHIN_US + 1, "another controller", True),
        (1_500_000 + CHECKED_WITHIN_US + 1, "is the controller", True),
        (1_500_000 + CHECKED_WITHIN_US + SLICES_US + 1, "short slices", False),
        (1_500_000 + CHECKED_WITHIN_US + SLICES_US, "short slices", True),
    ],
)
def test_leader_proposes_to_remove_a_replica_that_stays_behind(
    cluster: Cluster, after_us: int, excuse: str, *, right: bool
) -> None:
    leader = Proposer(cluster)
    leader.commits((0, 1, 2))
    (check,) = (each for each in cluster.checks if isinstance(each, ShrinksProposed))
    seen = cluster.context.quorum.nodes[0]
    seen.seen = Seen(epoch=1, leader_id=1)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    check.inspect(cluster.now_us, 0, leader.node, None, thorough=True)
    cluster.now_us += after_us
    if excuse.endswith("disturbed"):
        cluster.view.fault_times.node(0 if excuse.startswith("leader") else 1, cluster.now_us)
    elif excuse == "catches up":
        leader.fetch(2, 4)
    elif excuse == "proposes":
        leader.proposes((0, 1), partition_epoch=cluster.state.partition_epoch)
    elif excuse == "short slices":
        check.context = replace(check.context, settings=replace(check.context.settings, slices_us=SLICES_US))
    elif excuse:
        seen.seen = Seen(epoch=2, leader_id=0, leads=True) if excuse.startswith("is") else Seen(epoch=2, leader_id=1)
    check.inspect(cluster.now_us, 0, leader.node, None, thorough=True)
    assert (not check.violations) is right


DUE_US = 1_500_000


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(
    ("sent_us", "index", "ended_us", "by", "held_us"),
    [
        (DUE_US, 1, DUE_US + 90, "reply", DUE_US + 90),
        (DUE_US, 1, DUE_US + 90, "channel", DUE_US + 90),
        (DUE_US, 1, DUE_US + 90, "another channel", None),
        (DUE_US, 1, DUE_US + 90, "another peer", None),
        (DUE_US, 1, DUE_US - 10, "reply", DUE_US),
        (DUE_US + 1, 1, DUE_US + 90, "reply", DUE_US),
        (DUE_US + 1, 1, DUE_US + 90, "another channel", DUE_US),
        (DUE_US + 1, 0, DUE_US + 90, "reply", DUE_US + 90),
        (DUE_US + 1, 0, DUE_US + 90, "another channel", None),
    ],
)
def test_request_holds_back_proposals_that_were_due_when_it_was_sent_or_that_it_names(
    cluster: Cluster, sent_us: int, index: int, ended_us: int, by: str, held_us: int | None
) -> None:
    leader = Proposer(cluster)
    cluster.now_us = min(sent_us, ended_us)
    leader.proposes((0, 1), index=index)
    cluster.now_us = ended_us
    if by == "reply":
        leader.gets_response(0)
    elif by == "another peer":
        leader.happens(PeerDown(2, Channel.CONTROLLER))
    else:
        leader.happens(PeerDown(1, Channel.CONTROLLER if by == "channel" else Channel.RAFT))
    assert cluster.context.progress.held_until(0, (TOPIC_ID, 0), DUE_US) == held_us


@pytest.mark.clause("F-22")
def test_proposals_of_other_partitions_are_no_excuse(cluster: Cluster) -> None:
    """The leader sends requests all the time, and none of them names the partition."""
    leader = Proposer(cluster)
    leader.commits((0, 1, 2))
    (check,) = (each for each in cluster.checks if isinstance(each, ShrinksProposed))
    cluster.context.quorum.nodes[0].seen = Seen(epoch=1, leader_id=1)
    cluster.append(batch(3, 0))
    leader.fetch(1, 4)
    for _ in range(6):
        assert not check.violations
        check.inspect(cluster.now_us, 0, leader.node, None, thorough=True)
        cluster.now_us += 500_000
        leader.proposes((0, 1), index=1)
        leader.gets_response(0)
    check.inspect(cluster.now_us, 0, leader.node, None, thorough=True)
    assert check.violations


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "broker_epoch", "error", "right"),
    [
        (0, 0, 7, ErrorCode.none, True),
        (0, -1, 7, ErrorCode.none, False),
        (-1, 0, 7, ErrorCode.none, False),
        (0, 0, 6, ErrorCode.none, False),
        (0, -1, 7, ErrorCode.invalid_update_version, True),
        (-1, 0, 7, ErrorCode.fenced_leader_epoch, True),
        (0, 1, 8, ErrorCode.none, True),  # The controller may have written what its image does not show yet.
    ],
)
def test_controller_refuses_old_proposals(
    cluster: Cluster, leader_epoch: int, partition_epoch: int, broker_epoch: int, error: int, *, right: bool
) -> None:
    node = cluster.node(0)
    node.broker.quorum_node.loader.image = replace(
        cluster.image(),
        brokers={1: broker_image(1, broker_epoch=7)},
    )
    check = OldProposalsRefused(cluster.context)
    body = alter_partition_request(
        TOPIC_ID, partition_epoch=partition_epoch, leader_epoch=leader_epoch, broker_epoch=broker_epoch
    )
    tag = Tag(56, 3, "f", role="peer")
    check.acted(0, node, Request(1, 2, 56, 3, "f", body, tag), [])
    response = alter_partition_response(TOPIC_ID, error=error)
    check.acted(1, node, TimerFired(1), [Reply(1, 2, 56, 3, response, tag)])
    assert (not check.violations) is right
    is_old = leader_epoch < 0 or partition_epoch < 0 or broker_epoch < 7
    assert bool(check.evidence) is is_old, "a fresh proposal proves nothing"


CLUSTER, BROKER, TOPIC = (4, ""), (4, "1"), (2, "t")
Configs = Mapping[tuple[int, str], Mapping[str, str]]


def image(configs: Configs, *, level: int = 1, **partition: Any) -> MetadataImage:
    known: dict[str, Any] = {"replicas": (0, 1), "isr": (0,), "leader": 0, "leader_epoch": 1, "partition_epoch": 1}
    topic = TopicImage("t", b"t" * 16, (PartitionImage(**{**known, **partition}),))
    return MetadataImage(features={FEATURE: level}, topics={"t": topic}, configs=configs)


def explanations(*images: MetadataImage) -> list[str]:
    check = MinIsrKept(check_context())
    for number, each in enumerate(images):
        node = StubNode(StubBroker(controller=StubImages(each))).as_node()
        event = None if number == 0 else TimerFired(1)
        check.inspect(number, 0, node, event, False)
    return [violation.explanation for violation in check.violations]


def of_cluster(value: str = "2", **own: str) -> Configs:
    return {CLUSTER: {MIN_ISR: value}, TOPIC: own}


@pytest.mark.clause("E-8")
def test_cluster_must_have_a_minimum_and_no_broker_its_own() -> None:
    assert explanations(image(of_cluster())) == []
    assert explanations(image({}, level=0)) == []
    assert explanations(image({})) == [f"node-0 published metadata in which the cluster has no {MIN_ISR}"]
    own = {**of_cluster(), BROKER: {MIN_ISR: "1"}}
    assert explanations(image(own)) == [f"node-0 published metadata in which broker 1 has its own {MIN_ISR}"]


@pytest.mark.clause("E-8")
@pytest.mark.parametrize("after", [of_cluster("1"), {CLUSTER: {MIN_ISR: "2"}, TOPIC: {MIN_ISR: "1"}}])
def test_change_clears_the_eligible_replicas(after: Configs) -> None:
    before = image(of_cluster(), elr=(1,))
    (explanation,) = explanations(before, image(after, elr=(1,)))
    assert "t-0 kept the eligible leader replicas (1,)" in explanation
    assert explanations(before, image(after, partition_epoch=2)) == []
    assert explanations(before, image(after, elr=(1,), partition_epoch=3)) == [], "it changed again since"
    assert explanations(image(of_cluster(), elr=(1,), isr=()), image(after, elr=(1,), isr=())) == []
    assert explanations(before, image(dict(of_cluster()), elr=(1,))) == [], "the value is the same"
