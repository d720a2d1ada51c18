"""A leader sends consumers to a follower in their rack (KIP-392), as Kafka's RackAwareReplicaSelector chooses it."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import NO_ID, ReplicatedWorld, fetch_partition, partitions_of
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
    """Make followers ``two`` and ``three`` fetch from these offsets."""
    for name, offset in offsets.items():
        world.follow({"two": 2, "three": 3}[name], 0, -1, [fetch_partition(offset)], max_wait_ms=0)


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
def test_follower_in_rack_is_returned_at_once_without_records() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, data = consume(world, 3, max_wait_ms=500)
    assert not call.waiting
    assert data is not None
    assert (data.error_code, data.preferred_read_replica, data.records) == (ErrorCode.none, 3, b"")
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (3, 3, 0)
    assert data.aborted_transactions is None


@pytest.mark.clause("ReplicaSelectorTest.testSameRackSelector", "ReplicaManagerTest.testPreferredReplicaAsLeader")
@pytest.mark.parametrize(("rack", "version"), [("", 12), ("near", 12), ("nowhere", 12), ("far", 10)])
def test_leader_serves_consumer_without_other_rack(rack: str, version: int) -> None:
    world = make()
    copied(world, two=3, three=3)
    assert preferred(world, 0, rack, version) == -1


def test_leader_serves_all_consumers_without_replica_selector() -> None:
    world = make(settings={})
    copied(world, two=3, three=3)
    assert preferred(world) == -1


@pytest.mark.clause("ReplicaSelectorTest.testSameRackSelector")
def test_replica_with_longest_log_is_preferred() -> None:
    world = make()
    copied(world, two=3, three=2)
    assert preferred(world) == 2
    assert preferred(world, 2) == 2
    copied(world, three=3)
    assert preferred(world, 2) == 3


def test_most_recently_caught_up_replica_is_preferred_among_equal_logs() -> None:
    world = make()
    copied(world, two=3, three=3)
    world.pass_ms(5)
    copied(world, two=3)
    assert preferred(world) == 2


def test_follower_with_idle_session_is_caught_up_by_last_fetch() -> None:
    world = make()
    session_id = world.open_follower_session(2, 3)
    world.pass_ms(5)
    copied(world, three=3)
    world.follow(2, session_id, 1, max_wait_ms=0)  # It gets the high watermark. Then nothing changes any more.
    assert preferred(world) == 3
    world.pass_ms(5)
    world.follow(2, session_id, 2, max_wait_ms=0)
    assert preferred(world) == 2


def test_replica_not_known_to_have_offset_is_not_preferred() -> None:
    world = make()
    assert preferred(world) == -1  # Nothing is known of the followers of a new leader.
    copied(world, two=1, three=1)
    assert preferred(world, 1) == 3
    assert preferred(world, 2) == -1


def test_replica_with_later_log_start_is_not_preferred() -> None:
    world = make()
    for follower in (2, 3):
        world.follow(follower, 0, -1, [fetch_partition(3, log_start=2)], max_wait_ms=0)
    assert preferred(world, 1) == -1
    assert preferred(world, 2) == 3


@pytest.mark.clause("ReplicaManagerTest.testPreferredReplicaAsLeaderWhenSameRackFollowerIsOutOfIsr")
def test_replica_out_of_sync_is_not_preferred() -> None:
    world = make(isr=(1, 2))
    copied(world, two=3, three=3)
    assert preferred(world) == 2


def test_fenced_broker_is_not_preferred() -> None:
    world = make()
    copied(world, two=3, three=3)
    world.show_broker(replace(registered(3), rack="far", fenced=True))
    assert preferred(world) == 2


def test_follower_fetch_gets_no_preferred_read_replica() -> None:
    world = make()
    copied(world, two=3, three=3)
    request = FetchRequest(
        replica_id=2, replica_epoch=102, rack_id="far", topics=[FetchTopic("events", NO_ID, [fetch_partition(0)])]
    )
    assert partitions_of(world.send(request, "follower-2").response)[0].preferred_read_replica == -1


def test_leader_epoch_is_checked_before_preferred_read_replica() -> None:
    world = make(leader_epoch=5)
    copied(world, two=3, three=3)
    _, data = consume(world, leader_epoch=4)
    assert data is not None
    assert (data.error_code, data.preferred_read_replica) == (ErrorCode.fenced_leader_epoch, -1)


def test_session_returns_preferred_replica_while_it_stays_preferred() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, data = consume(world, session_epoch=0)
    assert data is not None
    preferred_before = data.preferred_read_replica
    session_id = call.response.session_id
    for epoch in (1, 2):
        _, data = consume(world, session_id=session_id, session_epoch=epoch)
        assert data is not None
        assert data.preferred_read_replica == preferred_before
    world.state(world.partition, (1,), partition_epoch=1)
    _, data = consume(world, session_id=session_id, session_epoch=3)
    assert data is not None
    assert (data.preferred_read_replica, bool(data.records)) == (-1, True)


def test_parked_fetch_prefers_no_broker_fenced_meanwhile() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, _ = consume(world, 3, session_epoch=0)
    waiting, _ = consume(world, session_id=call.response.session_id, session_epoch=1, max_wait_ms=500)
    assert waiting.waiting
    world.show_broker(replace(registered(3), rack="far", fenced=True))
    world.pass_ms(500)
    assert partitions_of(waiting.response)[0].preferred_read_replica == 2


@pytest.mark.parametrize("how", ["the follower fetches for the first time", "the follower joins the ISR"])
def test_parked_fetch_of_idle_session_completes_when_replica_becomes_preferred(how: str) -> None:
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
        world.respond()
    assert partitions_of(waiting.response)[0].preferred_read_replica == 3


def test_changed_rack_of_session_selects_replica_again() -> None:
    world = make()
    copied(world, two=3, three=3)
    call, _ = consume(world, 3, rack="", session_epoch=0)
    session_id = call.response.session_id
    assert consume(world, rack="", session_id=session_id, session_epoch=1)[1] is None
    _, data = consume(world, rack="far", session_id=session_id, session_epoch=2)
    assert data is not None
    assert data.preferred_read_replica == 3
