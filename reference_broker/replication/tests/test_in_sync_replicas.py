"""Who is in sync, who is proposed, and what becomes of proposals (KIP-497, KIP-903; scenario 31)."""

from dataclasses import replace

import pytest

from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import EMPTY_IMAGE
from reference_broker.replication.leader.isr import PARTITIONS_PER_REQUEST
from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.leader_world import LAG_MS, World, broker_epoch_of, registered
from reference_broker.wire.errors import ErrorCode


def caught_up(world: World, partition: Partition, *followers: int) -> None:
    for follower in followers:
        world.fetch(follower, partition, partition.log.log_end_offset)


def at_rest() -> tuple[World, Partition]:
    """Three records that both followers have, while lag is looked at."""
    world = World()
    partition = world.lead()
    world.leaders.start()
    world.append(partition, 3)
    caught_up(world, partition, 2, 3)
    return world, partition


@pytest.mark.clause("F-22")
def test_followers_of_an_idle_partition_stay_in_sync_however_long_nothing_is_named() -> None:
    world, _ = at_rest()
    world.pass_ms(10 * LAG_MS)
    assert not world.alter_requests


@pytest.mark.clause("F-22")
def test_an_append_after_a_long_rest_finds_its_followers_in_sync() -> None:
    """The last contact before the append counts, though no request named the partition since it was last appended."""
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
def test_a_partition_that_left_its_session_is_not_kept_in_sync_by_it() -> None:
    world, partition = at_rest()
    world.cached[2, partition].live = False
    world.pass_ms(2 * LAG_MS)
    world.contact(2)
    world.contact(3)
    world.append(partition)
    world.pass_ms(LAG_MS // 2)
    assert world.proposals() == [(0, (1, 3), 0)]


@pytest.mark.clause("F-22")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_late_full_fetch_does_not_hide_the_session_that_goes_on(restarted: bool) -> None:
    """It came over a connection that the follower had given up. That of a later incarnation is no late one."""
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
def test_a_session_that_requests_what_was_refused_keeps_nobody_in_sync() -> None:
    """It was counted at the leader's end once; what it has fetched since then is out of range or diverges."""
    world, partition = at_rest()
    world.cached[2, partition].fetch_offset = 9
    world.pass_ms(2 * LAG_MS)
    world.contact(2)
    world.contact(3)
    world.append(partition)
    world.pass_ms(LAG_MS // 2)
    assert world.proposals() == [(0, (1, 3), 0)]


def test_a_broker_that_comes_back_while_a_round_is_on_its_way_is_not_missed() -> None:
    world = World()
    brokers = {1: registered(1), 2: registered(2)}
    world.controller.image = replace(world.controller.image, brokers=brokers)
    partitions = [world.lead(index, isr=(1, 2)) for index in range(300)]
    for partition in partitions:
        caught_up(world, partition, 3)
    world.leaders.image_changed(MetadataDelta(world.controller.image, brokers={2: registered(2)}), EMPTY_IMAGE)
    world.show_broker(registered(3))
    assert all(world.followers(partition).proposal for partition in partitions)


def test_a_follower_that_lags_leaves_once_the_controller_says_so() -> None:
    world = World()
    partition = world.lead()
    world.leaders.start()
    world.append(partition, 3)
    caught_up(world, partition, 2)
    world.pass_ms(2 * LAG_MS)
    assert world.proposals() == [(0, (1, 2), 0)]
    assert partition.log.high_watermark == 0, "the committed set counts until then"
    body = world.alter_requests[0][0]
    epochs = [(one.broker_id, one.broker_epoch) for one in body.topics[0].partitions[0].new_isr_with_epochs]
    assert (body.broker_id, body.broker_epoch, epochs) == (1, 101, [(1, 101), (2, 102)])
    world.respond()
    assert (world.followers(partition).isr, partition.partition_epoch) == ((1, 2), 1)
    assert partition.log.high_watermark == 3
    assert world.noted("isr_changed")[-1] == {"partition": "events-0", "isr": "1,2", "partition_epoch": 1}


def test_one_that_has_caught_up_joins_and_counts_from_the_proposal_on() -> None:
    world = World()
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


def test_who_has_not_reached_the_high_watermark_or_the_epochs_start_does_not_join() -> None:
    world = World()
    partition = world.lead(isr=(1, 2), records=5, leader_epoch=3)
    world.fetch(3, partition, 4)
    assert not world.alter_requests
    world.fetch(3, partition, 5)
    assert world.proposals() == [(0, (1, 2, 3), 0)]


@pytest.mark.parametrize("state", ["fenced", "leaving", "gone", "another incarnation"])
def test_who_may_not_join_is_looked_at_again_when_its_broker_is_back(state: str) -> None:
    world = World()
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


def test_one_that_has_been_silent_does_not_join_because_its_broker_is_back() -> None:
    world = World(min_isr=2)
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


def test_proposals_of_one_moment_go_together_and_later_ones_wait_for_the_response() -> None:
    world = World()
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


def test_newer_metadata_settles_a_proposal_whatever_the_response() -> None:
    world = World()
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
def test_a_shrunk_isr_that_only_the_response_has_moves_no_high_watermark() -> None:
    """The controller knows that the minimum is 2, and keeps 2 eligible. What 1 commits alone would be lost with it."""
    world = World(min_isr=1)
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
def test_who_joins_by_a_response_holds_the_high_watermark_back_and_does_not_count_for_the_minimum() -> None:
    world = World(min_isr=2)
    partition = world.lead(isr=(1,), replicas=(1, 2))
    world.append(partition, 3)
    caught_up(world, partition, 2)
    world.respond(published=False)
    assert partition.log.high_watermark == 0
    world.state(partition, (1, 2), replicas=(1, 2), partition_epoch=1)
    assert partition.log.high_watermark == 3


def test_metadata_older_than_the_response_changes_nothing() -> None:
    world = World()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.respond(published=False)
    world.state(partition, (1, 2), partition_epoch=0)
    followers = world.followers(partition)
    assert (followers.isr, followers.maximal_isr, partition.partition_epoch) == ((1, 2), (1, 2, 3), 0)


def test_a_response_of_an_earlier_epoch_is_not_taken() -> None:
    world = World()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.pass_ms(0)
    world.state(partition, (1, 2), leader_epoch=1, partition_epoch=5)
    world.respond(published=False)
    followers = world.followers(partition)
    assert (followers.isr, followers.maximal_isr, partition.partition_epoch) == ((1, 2), (1, 2), 5)


@pytest.mark.parametrize("error", [ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted])
def test_a_refusal_leaves_what_was_committed_and_the_next_fetch_tries_again(error: ErrorCode) -> None:
    world = World()
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
def test_a_leader_with_old_metadata_keeps_the_stricter_set_until_newer_comes(error: ErrorCode) -> None:
    world = World()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    world.respond(error)
    world.pass_ms(1000)
    assert (world.followers(partition).maximal_isr, world.alter_requests) == ((1, 2, 3), [])
    world.state(partition, (1, 2), partition_epoch=1)
    assert world.followers(partition).maximal_isr == (1, 2)


def test_a_lost_request_and_a_controller_that_is_none_are_retried() -> None:
    world = World()
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


def test_the_same_leader_in_a_new_epoch_keeps_what_its_followers_have() -> None:
    world = World()
    partition = world.lead()
    world.append(partition, 2)
    caught_up(world, partition, 2, 3)
    world.append(partition, 2)
    world.fetch(2, partition, 4)
    world.state(partition, (1, 2), leader_epoch=1, partition_epoch=1)
    assert partition.log.high_watermark == 4


def test_an_epoch_left_out_may_have_had_another_leader_so_nothing_is_known() -> None:
    world = World()
    partition = world.lead()
    world.append(partition, 2)
    world.fetch(2, partition, 2)
    world.state(partition, (1, 2), leader_epoch=2, partition_epoch=2)
    assert partition.log.high_watermark == 0
    world.fetch(2, partition, 2)
    assert partition.log.high_watermark == 2


def test_a_partition_at_rest_is_not_looked_at() -> None:
    world = World()
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


def test_a_follower_that_went_back_on_a_partition_at_rest_leaves() -> None:
    """It was at the end and lost its records since: nothing is appended that would have the partition looked at."""
    world = World()
    partition = world.lead()
    world.leaders.start()
    world.append(partition, 4)
    caught_up(world, partition, 2, 3)
    world.pass_ms(LAG_MS)
    assert not world.leaders._lag_check.watched
    world.fetch(3, partition, 1)
    world.pass_ms(2 * LAG_MS)
    assert world.proposals() == [(0, (1, 2), 0)]


def test_who_was_ready_while_another_joined_is_next_though_it_names_nothing_more() -> None:
    world = World()
    partition = world.lead(isr=(1,), records=3)
    caught_up(world, partition, 2, 3)
    assert world.proposals() == [(0, (1, 2), 0)]
    world.respond()
    assert world.proposals() == [(0, (1, 2, 3), 1)]
    world.state(partition, (1, 2, 3), partition_epoch=2)
    assert world.followers(partition).proposal is None


def test_metadata_that_is_before_the_response_lets_the_next_one_join_too() -> None:
    world = World()
    partition = world.lead(isr=(1,), records=3)
    caught_up(world, partition, 2, 3)
    world.pass_ms(0)
    world.state(partition, (1, 2), partition_epoch=1)
    world.respond(ErrorCode.invalid_update_version)
    assert world.proposals() == [(0, (1, 2, 3), 1)]


def test_a_late_fetch_of_the_incarnation_that_was_known_counts_nothing_once_there_is_a_newer_one() -> None:
    world = World()
    partition = world.lead()
    world.append(partition, 2)
    world.fetch(2, partition, 2)
    world.fetch(3, partition, 1)
    world.show_broker(replace(registered(3), broker_epoch=200))
    assert world.fetch(3, partition, 2) is ErrorCode.not_leader_or_follower
    assert partition.log.high_watermark == 1
    assert world.fetch(3, partition, 0, epoch=200) is ErrorCode.none


@pytest.mark.parametrize("broker_epoch", [103, -1])
def test_what_a_follower_had_before_its_restart_does_not_bring_it_back(broker_epoch: int) -> None:
    """It lost its power and what it had not synced, is registered anew, and its link to this leader is cut: its session
    of before was in contact a moment ago. Those fetches have ``broker_epoch``."""
    world = World(min_isr=2)
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


def test_a_follower_that_does_not_report_its_broker_epoch_does_not_join() -> None:
    world = World()
    partition = world.lead(isr=(1, 2))
    world.append(partition)
    world.fetch(3, partition, 1, epoch=-1)
    world.pass_ms(0)
    assert not world.alter_requests
    world.fetch(3, partition, 1)
    assert world.proposals() == [(0, (1, 2, 3), 0)]


def test_a_deletion_waits_for_the_restarted_follower_which_may_have_its_old_log_start() -> None:
    world = World()
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


def test_a_proposal_that_is_requested_again_means_the_incarnation_that_it_was_made_for() -> None:
    """What became of the first request is not known, and who was to join has restarted and fetches anew meanwhile."""
    world = World()
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


def test_a_proposal_names_the_incarnation_also_of_who_has_not_fetched_yet() -> None:
    """The leader is new. An epoch of -1 would be one that the controller does not compare."""
    world = World()
    partition = world.lead(isr=(1, 2))
    caught_up(world, partition, 3)
    assert joined_epochs(world) == {1: 101, 2: 102, 3: 103}


def joined_epochs(world: World) -> dict[int, int]:
    """Broker epochs by ID, in the latest request."""
    world.pass_ms(0)
    (topic,) = world.alter_requests[-1][0].topics
    return {int(one.broker_id): int(one.broker_epoch) for one in topic.partitions[0].new_isr_with_epochs}


def test_a_refused_joiner_lets_the_high_watermark_go_on_at_once() -> None:
    world = World()
    partition = world.lead(isr=(1, 2))
    world.append(partition, 3)
    caught_up(world, partition, 2, 3)
    world.append(partition)
    world.pass_ms(LAG_MS + 1)
    world.fetch(2, partition, 4)
    assert partition.log.high_watermark == 3
    world.respond(ErrorCode.ineligible_replica)
    assert partition.log.high_watermark == 4


def test_one_out_of_sync_that_rests_at_the_end_is_waited_for_after_an_append() -> None:
    """It may join with its next fetch, and would not find the high watermark any more if that went on."""
    world = World()
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


def test_many_proposals_go_in_requests_of_bounded_size() -> None:
    world = World()
    for index in range(PARTITIONS_PER_REQUEST + 2):
        world.fetch(3, world.lead(index, isr=(1, 2)), 0)
    assert len(world.proposals()) == PARTITIONS_PER_REQUEST
    world.respond()
    assert [index for index, _, _ in world.proposals()] == [PARTITIONS_PER_REQUEST, PARTITIONS_PER_REQUEST + 1]
