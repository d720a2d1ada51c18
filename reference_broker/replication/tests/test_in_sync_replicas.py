"""The ISR, proposals to change it, and their outcomes (KIP-497, KIP-903; scenario 31)."""

from dataclasses import replace

import pytest

from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import EMPTY_IMAGE
from reference_broker.replication.leader.isr import PARTITIONS_PER_REQUEST
from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.leader_world import LAG_MS, LeaderWorld, broker_epoch_of, registered
from reference_broker.wire.errors import ErrorCode


def caught_up(world: LeaderWorld, partition: Partition, *followers: int) -> None:
    for follower in followers:
        world.fetch(follower, partition, partition.log.log_end_offset)


def at_rest() -> tuple[LeaderWorld, Partition]:
    """Return a partition with three records that both followers have, while lag is checked."""
    world = LeaderWorld()
    partition = world.lead()
    world.leaders.start()
    world.append(partition, 3)
    caught_up(world, partition, 2, 3)
    return world, partition


@pytest.mark.clause("F-22")
def test_followers_of_idle_partition_stay_in_sync() -> None:
    world, _ = at_rest()
    world.pass_ms(10 * LAG_MS)
    assert not world.alter_requests


@pytest.mark.clause("F-22")
def test_followers_are_in_sync_at_first_append_after_idle_time() -> None:
    """The last contact before the append is used, though no request named the partition since the previous append."""
    world, partition = at_rest()
    for _ in range(10):
        world.pass_ms(LAG_MS)
        world.contact(2)
        world.contact(3)
    world.append(partition)
    world.pass_ms(LAG_MS - 1)
    assert not world.alter_requests
    world.contact(2)  # Contact alone is no progress: the partition is cached at the offset before the append.
    world.contact(3)
    world.pass_ms(LAG_MS // 2 + 2)
    assert world.proposals() == [(0, (1,), 0)]


@pytest.mark.clause("F-22")
def test_session_contact_does_not_keep_forgotten_partition_in_sync() -> None:
    world, partition = at_rest()
    world.cached[2, partition].is_fetched_unnamed = False
    world.pass_ms(2 * LAG_MS)
    world.contact(2)
    world.contact(3)
    world.append(partition)
    world.pass_ms(LAG_MS // 2)
    assert world.proposals() == [(0, (1, 3), 0)]


@pytest.mark.clause("F-22")
@pytest.mark.parametrize("restarted", [False, True])
def test_late_full_fetch_does_not_replace_session_in_use(restarted: bool) -> None:
    """The late fetch arrived over an abandoned connection of the follower. A full fetch of a later incarnation is not
    late."""
    world, partition = at_rest()
    used = world.sessions.pop(2)
    world.cached.pop((2, partition))
    world.fetch(2, partition, 0, epoch=broker_epoch_of(2) + 1 if restarted else None)
    for _ in range(4):
        world.pass_ms(LAG_MS // 2)
        used.contact_us = world.mono_us
        world.contact(3)
    state = world.followers(partition).states[2]
    assert state.log_end_offset == (0 if restarted else 3)
    assert bool(world.alter_requests) is restarted


@pytest.mark.clause("F-22")
def test_session_with_rejected_offset_does_not_keep_follower_in_sync() -> None:
    """The follower was recorded at the leader's end once. Its fetches since then are out of range or diverge."""
    world, partition = at_rest()
    world.cached[2, partition].fetch_offset = 9
    world.pass_ms(2 * LAG_MS)
    world.contact(2)
    world.contact(3)
    world.append(partition)
    world.pass_ms(LAG_MS // 2)
    assert world.proposals() == [(0, (1, 3), 0)]


def test_broker_returning_during_lag_check_is_not_missed() -> None:
    world = LeaderWorld()
    brokers = {1: registered(1), 2: registered(2)}
    world.controller.image = replace(world.controller.image, brokers=brokers)
    partitions = [world.lead(index, isr=(1, 2)) for index in range(300)]
    for partition in partitions:
        caught_up(world, partition, 3)
    world.leaders.image_changed(MetadataDelta(world.controller.image, brokers={2: registered(2)}), EMPTY_IMAGE)
    world.show_broker(registered(3))
    assert all(world.followers(partition).proposal for partition in partitions)


def test_lagging_follower_leaves_isr_once_controller_accepts() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.leaders.start()
    world.append(partition, 3)
    caught_up(world, partition, 2)
    world.pass_ms(2 * LAG_MS)
    assert world.proposals() == [(0, (1, 2), 0)]
    assert partition.log.high_watermark == 0, "the committed set applies until then"
    body = world.alter_requests[0][0]
    epochs = [(epoch.broker_id, epoch.broker_epoch) for epoch in body.topics[0].partitions[0].new_isr_with_epochs]
    assert (body.broker_id, body.broker_epoch, epochs) == (1, 101, [(1, 101), (2, 102)])
    world.respond()
    assert (world.followers(partition).isr, partition.partition_epoch) == ((1, 2), 1)
    assert partition.log.high_watermark == 3
    assert world.noted("isr_changed")[-1] == {"partition": "events-0", "isr": "1,2", "partition_epoch": 1}


def test_caught_up_follower_joins_and_holds_high_watermark_from_proposal() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.append(partition, 3)
    caught_up(world, partition, 2, 3)
    assert world.proposals() == [(0, (1, 2, 3), 0)]
    assert (world.followers(partition).isr, world.followers(partition).maximal_isr) == ((1, 2), (1, 2, 3))
    world.append(partition)
    world.pass_ms(2 * LAG_MS)
    world.fetch(2, partition, 4)
    assert partition.log.high_watermark == 3
    world.respond()
    assert world.followers(partition).isr == (1, 2, 3)
    world.fetch(3, partition, 4)
    assert partition.log.high_watermark == 4


def test_follower_below_high_watermark_or_epoch_start_does_not_join() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2), records=5, leader_epoch=3)
    world.fetch(3, partition, 4)
    assert not world.alter_requests
    world.fetch(3, partition, 5)
    assert world.proposals() == [(0, (1, 2, 3), 0)]


@pytest.mark.parametrize("state", ["fenced", "leaving", "gone", "another incarnation"])
def test_ineligible_follower_is_checked_again_when_broker_returns(state: str) -> None:
    world = LeaderWorld()
    one = registered(3)
    away = {
        "fenced": replace(one, fenced=True),
        "leaving": replace(one, in_controlled_shutdown=True),
        "gone": None,
        "another incarnation": replace(one, broker_epoch=90),
    }[state]
    brokers = {1: registered(1), 2: registered(2)} | ({} if away is None else {3: away})
    world.controller.image = replace(world.controller.image, brokers=brokers)
    partition = world.lead(isr=(1, 2))
    world.append(partition)
    caught_up(world, partition, 2, 3)
    world.pass_ms(0)
    assert not world.alter_requests
    world.show_broker(one)
    assert world.proposals() == [(0, (1, 2, 3), 0)]


def test_silent_follower_does_not_join_when_broker_returns() -> None:
    world = LeaderWorld(min_isr=2)
    partition = world.lead(isr=(1,))
    world.append(partition)
    world.controller.image = replace(world.controller.image, brokers={1: registered(1)})
    world.fetch(3, partition, 1)
    world.pass_ms(LAG_MS + 1)
    world.show_broker(registered(3))
    assert not world.alter_requests
    world.contact(3)
    world.show_broker(registered(3))
    assert world.proposals() == [(0, (1, 3), 0)]


def test_simultaneous_proposals_share_request_and_later_ones_wait() -> None:
    world = LeaderWorld()
    partitions = [world.lead(index, isr=(1, 2)) for index in range(3)]
    caught_up(world, partitions[0], 3)
    caught_up(world, partitions[1], 3)
    world.pass_ms(0)
    caught_up(world, partitions[2], 3)
    world.pass_ms(1000)
    assert [index for index, _, _ in world.proposals()] == [0, 1]
    assert len(world.alter_requests) == 1
    world.respond()
    assert world.proposals() == [(2, (1, 2, 3), 0)]


def test_newer_metadata_overrides_alter_partition_response() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.pass_ms(0)
    world.state(partition, (1, 2, 3), partition_epoch=1)
    world.respond(ErrorCode.invalid_update_version)
    world.pass_ms(1000)
    assert (world.followers(partition).isr, world.followers(partition).proposal, world.alter_requests) == (
        (1, 2, 3),
        None,
        [],
    )


@pytest.mark.clause("E-2")
def test_shrunk_isr_moves_high_watermark_only_once_published() -> None:
    """The controller knows that the minimum is 2, and keeps 2 eligible. What 1 commits alone would be lost with it."""
    world = LeaderWorld(min_isr=1)
    partition = world.lead(isr=(1, 2), replicas=(1, 2))
    world.leaders.start()
    world.append(partition, 3)
    caught_up(world, partition, 2)
    world.produce("late", partition, timeout_ms=10 * LAG_MS)
    world.pass_ms(2 * LAG_MS)
    assert world.proposals() == [(0, (1,), 0)]
    world.respond(published=False)
    world.pass_ms(2 * LAG_MS)
    assert (world.followers(partition).isr, partition.partition_epoch) == ((1, 2), 0)
    assert (partition.log.high_watermark, world.acked, world.alter_requests) == (3, {}, []), "nor is it proposed again"
    partition.log.config = replace(partition.log.config, min_insync_replicas=2)
    world.state(partition, (1,), replicas=(1, 2), partition_epoch=1)
    assert (world.followers(partition).isr, partition.log.high_watermark, world.acked) == ((1,), 3, {})


@pytest.mark.clause("E-2")
def test_joined_replica_holds_high_watermark_and_counts_for_minimum_once_published() -> None:
    world = LeaderWorld(min_isr=2)
    partition = world.lead(isr=(1,), replicas=(1, 2))
    world.append(partition, 3)
    caught_up(world, partition, 2)
    world.respond(published=False)
    assert partition.log.high_watermark == 0
    world.state(partition, (1, 2), replicas=(1, 2), partition_epoch=1)
    assert partition.log.high_watermark == 3


def test_metadata_older_than_response_is_ignored() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.respond(published=False)
    world.state(partition, (1, 2), partition_epoch=0)
    followers = world.followers(partition)
    assert (followers.isr, followers.maximal_isr, partition.partition_epoch) == ((1, 2), (1, 2, 3), 0)


def test_response_for_earlier_leader_epoch_is_ignored() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.pass_ms(0)
    world.state(partition, (1, 2), leader_epoch=1, partition_epoch=5)
    world.respond(published=False)
    followers = world.followers(partition)
    assert (followers.isr, followers.maximal_isr, partition.partition_epoch) == ((1, 2), (1, 2), 5)


@pytest.mark.parametrize("error", [ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted])
def test_rejected_proposal_keeps_isr_and_next_fetch_retries(error: ErrorCode) -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.respond(error)
    assert (world.followers(partition).maximal_isr, world.alter_requests) == ((1, 2), [])
    world.fetch(3, partition, 0)
    assert world.proposals() == [(0, (1, 2, 3), 0)]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.invalid_update_version,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.new_leader_elected,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
    ],
)
def test_leader_with_stale_metadata_keeps_stricter_isr_until_updated(error: ErrorCode) -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.respond(error)
    world.pass_ms(1000)
    assert (world.followers(partition).maximal_isr, world.alter_requests) == ((1, 2, 3), [])
    world.state(partition, (1, 2), partition_epoch=1)
    assert world.followers(partition).maximal_isr == (1, 2)


def test_lost_request_and_not_controller_are_retried() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.lose_request()
    world.pass_ms(49)
    assert not world.alter_requests
    world.pass_ms(1)
    world.respond(top=ErrorCode.not_controller)
    world.pass_ms(50)
    world.respond(ErrorCode.unknown_server_error)
    world.pass_ms(50)
    world.respond()
    assert world.followers(partition).isr == (1, 2, 3)


def test_same_leader_in_next_epoch_keeps_follower_offsets() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.append(partition, 2)
    caught_up(world, partition, 2, 3)
    world.append(partition, 2)
    world.fetch(2, partition, 4)
    world.state(partition, (1, 2), leader_epoch=1, partition_epoch=1)
    assert partition.log.high_watermark == 4


def test_skipped_epoch_resets_follower_offsets() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.append(partition, 2)
    world.fetch(2, partition, 2)
    world.state(partition, (1, 2), leader_epoch=2, partition_epoch=2)
    assert partition.log.high_watermark == 0
    world.fetch(2, partition, 2)
    assert partition.log.high_watermark == 2


def test_idle_partition_is_not_checked() -> None:
    world = LeaderWorld()
    partitions = [world.lead(index) for index in range(20)]
    world.leaders.start()
    for partition in partitions:
        caught_up(world, partition, 2, 3)
    world.pass_ms(LAG_MS)
    assert not world.leaders._lag_check.watched
    world.contact(2)
    world.contact(3)
    world.append(partitions[0])
    world.pass_ms(LAG_MS - 1)
    assert list(world.leaders._lag_check.watched) == [partitions[0]]
    caught_up(world, partitions[0], 2, 3)
    world.pass_ms(LAG_MS)
    assert not world.leaders._lag_check.watched


def test_follower_going_back_on_idle_partition_leaves_isr() -> None:
    """The follower was at the end and lost its records since: no append would cause a check of the partition."""
    world = LeaderWorld()
    partition = world.lead()
    world.leaders.start()
    world.append(partition, 4)
    caught_up(world, partition, 2, 3)
    world.pass_ms(LAG_MS)
    assert not world.leaders._lag_check.watched
    world.fetch(3, partition, 1)
    world.pass_ms(2 * LAG_MS)
    assert world.proposals() == [(0, (1, 2), 0)]


def test_follower_ready_during_proposal_joins_next_without_fetch() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1,), records=3)
    caught_up(world, partition, 2, 3)
    assert world.proposals() == [(0, (1, 2), 0)]
    world.respond()
    assert world.proposals() == [(0, (1, 2, 3), 1)]
    world.state(partition, (1, 2, 3), partition_epoch=2)
    assert world.followers(partition).proposal is None


def test_metadata_before_response_lets_next_follower_join() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1,), records=3)
    caught_up(world, partition, 2, 3)
    world.pass_ms(0)
    world.state(partition, (1, 2), partition_epoch=1)
    world.respond(ErrorCode.invalid_update_version)
    assert world.proposals() == [(0, (1, 2, 3), 1)]


def test_late_fetch_of_previous_incarnation_is_ignored() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.append(partition, 2)
    world.fetch(2, partition, 2)
    world.fetch(3, partition, 1)
    world.show_broker(replace(registered(3), broker_epoch=200))
    assert world.fetch(3, partition, 2) is ErrorCode.not_leader_or_follower
    assert partition.log.high_watermark == 1
    assert world.fetch(3, partition, 0, epoch=200) is ErrorCode.none


@pytest.mark.parametrize("broker_epoch", [103, -1])
def test_offset_before_restart_does_not_rejoin_follower(broker_epoch: int) -> None:
    """The follower lost its unsynced records in a power loss, is registered again, and its link to this leader is cut:
    its previous session was in contact a moment ago. Those fetches have ``broker_epoch``."""
    world = LeaderWorld(min_isr=2)
    partition = world.lead()
    world.leaders.start()
    world.append(partition, 100)
    world.fetch(2, partition, 100)
    world.fetch(3, partition, 100, epoch=broker_epoch)
    assert partition.log.high_watermark == 100
    world.state(partition, (1, 2), partition_epoch=1)
    world.show_broker(replace(registered(3), broker_epoch=200, fenced=True))
    world.show_broker(replace(registered(3), broker_epoch=200))
    world.pass_ms(LAG_MS // 2)
    assert not world.alter_requests
    assert world.fetch(3, partition, 90, epoch=200) is ErrorCode.none
    world.pass_ms(0)
    assert not world.alter_requests
    world.fetch(3, partition, 100, epoch=200)
    assert world.proposals() == [(0, (1, 2, 3), 1)]


def test_follower_without_broker_epoch_does_not_join() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.append(partition)
    world.fetch(3, partition, 1, epoch=-1)
    world.pass_ms(0)
    assert not world.alter_requests
    world.fetch(3, partition, 1)
    assert world.proposals() == [(0, (1, 2, 3), 0)]


def test_delete_records_waits_for_restarted_follower() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.append(partition, 3)
    world.fetch(2, partition, 3, log_start=2)
    world.fetch(3, partition, 1, log_start=2)
    partition.log.delete_records_before(2)
    assert world.leaders.low_watermark(partition) == 2
    world.show_broker(replace(registered(3), broker_epoch=200))
    assert world.leaders.low_watermark(partition) == -1
    world.fetch(3, partition, 1, log_start=0, epoch=200)
    assert world.leaders.low_watermark(partition) == 0


def test_retried_proposal_keeps_broker_epoch() -> None:
    """The outcome of the first request is unknown, and the joining replica has restarted and fetches again
    meanwhile."""
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.append(partition, 3)
    caught_up(world, partition, 2, 3)
    assert joined_epochs(world) == {1: 101, 2: 102, 3: 103}
    world.lose_request()
    world.show_broker(replace(registered(3), broker_epoch=200))
    world.fetch(3, partition, 0, epoch=200)
    world.pass_ms(50)
    assert joined_epochs(world) == {1: 101, 2: 102, 3: 103}
    world.respond(ErrorCode.ineligible_replica)
    assert world.followers(partition).maximal_isr == (1, 2)


def test_proposal_has_broker_epoch_of_replica_without_fetch() -> None:
    """The leader is new. The controller would not compare an epoch of -1."""
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    assert joined_epochs(world) == {1: 101, 2: 102, 3: 103}


def joined_epochs(world: LeaderWorld) -> dict[int, int]:
    """Return the broker epochs by ID, from the latest request."""
    world.pass_ms(0)
    (topic,) = world.alter_requests[-1][0].topics
    return {int(epoch.broker_id): int(epoch.broker_epoch) for epoch in topic.partitions[0].new_isr_with_epochs}


def test_rejected_join_releases_high_watermark_at_once() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.append(partition, 3)
    caught_up(world, partition, 2, 3)
    world.append(partition)
    world.pass_ms(LAG_MS + 1)
    world.fetch(2, partition, 4)
    assert partition.log.high_watermark == 3
    world.respond(ErrorCode.ineligible_replica)
    assert partition.log.high_watermark == 4


def test_out_of_sync_replica_at_log_end_holds_high_watermark_after_append() -> None:
    """The replica may join with its next fetch, and would not reach the high watermark any more if that moved on."""
    world = LeaderWorld()
    image = world.controller.image
    fenced = replace(registered(3), fenced=True)
    world.controller.image = replace(image, brokers={**image.brokers, 3: fenced})
    partition = world.lead(isr=(1, 2))
    world.append(partition, 3)
    caught_up(world, partition, 2, 3)
    world.pass_ms(10 * LAG_MS)
    world.contact(3)
    world.controller.image = image
    world.append(partition)
    world.fetch(2, partition, 4)
    assert (partition.log.high_watermark, world.alter_requests) == (3, [])


def test_many_proposals_are_split_into_bounded_requests() -> None:
    world = LeaderWorld()
    for index in range(PARTITIONS_PER_REQUEST + 2):
        world.fetch(3, world.lead(index, isr=(1, 2)), 0)
    assert len(world.proposals()) == PARTITIONS_PER_REQUEST
    world.respond()
    assert [index for index, _, _ in world.proposals()] == [PARTITIONS_PER_REQUEST, PARTITIONS_PER_REQUEST + 1]
