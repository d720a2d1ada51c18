"""A leader sends consumers to a follower in their rack (KIP-392), as Kafka's RackAwareReplicaSelector chooses it."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import NO_ID, ReplicatedWorld, partitions_of, wanted
from reference_broker.replication.tests.leader_world import registered
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData

RACKS = {1: "near", 2: "far", 3: "far"}
SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


def make(records: int = 3, settings: dict[str, str] = SELECTOR, **state: Any) -> ReplicatedWorld:
    """Node 1 leads with ``records`` in its log, which no follower has fetched yet."""
    world = ReplicatedWorld(1, settings=settings, records=records, **state)
    for node, rack in RACKS.items():
        world.show_broker(replace(registered(node), rack=rack))
    return world


def copied(world: ReplicatedWorld, **offsets: int) -> None:
    """Followers ask from these offsets on: ``two``, ``three``."""
    for name, offset in offsets.items():
        world.follow({"two": 2, "three": 3}[name], 0, -1, [wanted(offset)], max_wait_ms=0)


def consume(
    world: ReplicatedWorld, offset: int = 0, rack: str = "far", version: int = 12, **fields: Any
) -> tuple[FakeCall, PartitionData | None]:
    one = FetchPartition(0, offset, 1 << 20, fields.pop("leader_epoch", -1))
    topics = [] if fields.get("session_epoch", -1) > 0 else [FetchTopic("events", NO_ID, [one])]
    call = world.send(FetchRequest(rack_id=rack, topics=topics, **{"max_wait_ms": 0, **fields}), "c", version)
    return call, partitions_of(call.response).get(0) if call.responses else None


def preferred(world: ReplicatedWorld, offset: int = 0, rack: str = "far", version: int = 12) -> int:
    _, data = consume(world, offset, rack, version)
    assert data is not None
    assert bool(data.records) == (data.preferred_read_replica == -1 and offset < data.high_watermark)
    return data.preferred_read_replica


@pytest.mark.clause("ReplicaManagerTest.testFetchShouldReturnImmediatelyWhenPreferredReadReplicaIsDefined")
def test_the_follower_in_the_rack_is_told_at_once_and_no_records() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, data = consume(world, 3, max_wait_ms=500)
    assert not call.waiting
    assert data is not None
    assert (data.error_code, data.preferred_read_replica, data.records) == (0, 3, b"")
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (3, 3, 0)
    assert data.aborted_transactions is None


@pytest.mark.clause("ReplicaSelectorTest.testSameRackSelector", "ReplicaManagerTest.testPreferredReplicaAsLeader")
@pytest.mark.parametrize(("rack", "version"), [("", 12), ("near", 12), ("nowhere", 12), ("far", 10)])
def test_the_leader_serves_who_names_no_other_rack(rack: str, version: int) -> None:
    world = make()
    copied(world, two=3, three=3)
    assert preferred(world, 0, rack, version) == -1


def test_the_leader_serves_all_without_a_selector() -> None:
    world = make(settings={})
    copied(world, two=3, three=3)
    assert preferred(world) == -1


@pytest.mark.clause("ReplicaSelectorTest.testSameRackSelector")
def test_the_longest_log_is_preferred() -> None:
    world = make()
    copied(world, two=3, three=2)
    assert preferred(world) == 2
    assert preferred(world, 2) == 2
    copied(world, three=3)
    assert preferred(world, 2) == 3


def test_of_equal_logs_the_one_that_caught_up_last_is_preferred() -> None:
    world = make()
    copied(world, two=3, three=3)
    world.pass_ms(5)
    copied(world, two=3)
    assert preferred(world) == 2


def test_a_follower_whose_session_does_not_name_the_partition_is_caught_up_by_its_last_fetch() -> None:
    world = make()
    session_id = world.joined(2, 3)
    world.pass_ms(5)
    copied(world, three=3)
    world.follow(2, session_id, 1, max_wait_ms=0)  # It gets the high watermark. Then there is no more news.
    assert preferred(world) == 3
    world.pass_ms(5)
    world.follow(2, session_id, 2, max_wait_ms=0)
    assert preferred(world) == 2


def test_nobody_is_sent_to_a_replica_that_is_not_known_to_hold_the_offset() -> None:
    world = make()
    assert preferred(world) == -1  # Nothing is known of the followers of a new leader.
    copied(world, two=1, three=1)
    assert preferred(world, 1) == 3
    assert preferred(world, 2) == -1


def test_nobody_is_sent_to_a_replica_whose_log_begins_later() -> None:
    world = make()
    for follower in (2, 3):
        world.follow(follower, 0, -1, [wanted(3, log_start=2)], max_wait_ms=0)
    assert preferred(world, 1) == -1
    assert preferred(world, 2) == 3


@pytest.mark.clause("ReplicaManagerTest.testPreferredReplicaAsLeaderWhenSameRackFollowerIsOutOfIsr")
def test_nobody_is_sent_to_a_replica_out_of_sync() -> None:
    world = make(isr=(1, 2))
    copied(world, two=3, three=3)
    assert preferred(world) == 2


def test_nobody_is_sent_to_a_fenced_broker() -> None:
    world = make()
    copied(world, two=3, three=3)
    world.show_broker(replace(registered(3), rack="far", fenced=True))
    assert preferred(world) == 2


def test_another_replica_is_not_sent_away() -> None:
    world = make()
    copied(world, two=3, three=3)
    request = FetchRequest(
        replica_id=2, replica_epoch=102, rack_id="far", topics=[FetchTopic("events", NO_ID, [wanted(0)])]
    )
    assert partitions_of(world.send(request, "follower-2").response)[0].preferred_read_replica == -1


def test_a_wrong_leader_epoch_is_told_first() -> None:
    world = make(leader_epoch=5)
    copied(world, two=3, three=3)
    _, data = consume(world, leader_epoch=4)
    assert data is not None
    assert (data.error_code, data.preferred_read_replica) == (ErrorCode.fenced_leader_epoch, -1)


def test_a_session_is_told_for_as_long_as_a_replica_is_preferred() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, data = consume(world, session_epoch=0)
    assert data is not None
    told_before = data.preferred_read_replica
    session_id = call.response.session_id
    for epoch in (1, 2):
        _, data = consume(world, session_id=session_id, session_epoch=epoch)
        assert data is not None
        assert data.preferred_read_replica == told_before
    world.state(world.partition, (1,), partition_epoch=1)
    _, data = consume(world, session_id=session_id, session_epoch=3)
    assert data is not None
    assert (data.preferred_read_replica, bool(data.records)) == (-1, True)


def test_a_fetch_that_waits_is_not_sent_to_a_broker_that_was_fenced_meanwhile() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, _ = consume(world, 3, session_epoch=0)
    waiting, _ = consume(world, session_id=call.response.session_id, session_epoch=1, max_wait_ms=500)
    assert waiting.waiting
    world.show_broker(replace(registered(3), rack="far", fenced=True))
    world.pass_ms(500)
    assert partitions_of(waiting.response)[0].preferred_read_replica == 2


@pytest.mark.parametrize("how", ["the follower asks for the first time", "the follower joins the ISR"])
def test_a_session_at_rest_is_told_once_a_replica_may_be_read(how: str) -> None:
    joins = how == "the follower joins the ISR"
    world = make(isr=(1, 2) if joins else (1, 2, 3))
    world.partition.log.advance_high_watermark(3)  # It was known before this leader was elected.
    if joins:
        world.show_broker(registered(2))
        copied(world, two=3)
    call, data = consume(world, 3, session_epoch=0)
    assert data is not None
    session_id = call.response.session_id
    waiting, _ = consume(world, session_id=session_id, session_epoch=1, max_wait_ms=500)
    assert waiting.waiting
    copied(world, three=3)
    if joins:
        assert waiting.waiting
        world.answer()
    assert partitions_of(waiting.response)[0].preferred_read_replica == 3


def test_one_session_is_looked_at_anew_when_its_client_names_another_rack() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, _ = consume(world, 3, rack="", session_epoch=0)
    session_id = call.response.session_id
    assert consume(world, rack="", session_id=session_id, session_epoch=1)[1] is None
    _, data = consume(world, rack="far", session_id=session_id, session_epoch=2)
    assert data is not None
    assert data.preferred_read_replica == 3
