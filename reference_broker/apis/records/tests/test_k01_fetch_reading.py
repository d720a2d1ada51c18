"""One partition of a fetch response: offsets, epochs, isolation, and the leader."""

from typing import Any

import pytest

from reference_broker.apis.tests.fetch_world import FetchWorld, partitions_of
from reference_broker.ports.disk import DiskError
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import EpochEndOffset, FetchPartition, LeaderIdAndEpoch, NodeEndpoint, PartitionData

A0 = ("a", 0)
NEWS = PartitionData(0, 0, 0)
SESSIONLESS, SESSION = "sessionless", "session"


@pytest.fixture
def world() -> FetchWorld:
    """Epoch 0: offsets 0-1, epoch 2: offsets 2-4, and the leader is in epoch 3."""
    world = FetchWorld()
    (partition,) = world.create("a")
    for epoch, records in ((0, 2), (2, 3)):
        partition.leader_epoch = epoch
        world.append("a", records=records)
    partition.leader_epoch = 3
    return world


def wanted(offset: int = 0, current: int = -1, last: int = -1) -> dict[tuple[str, int], FetchPartition]:
    return {A0: FetchPartition(0, offset, 1 << 20, current_leader_epoch=current, last_fetched_epoch=last)}


def fetched(world: FetchWorld, offset: int = 0, current: int = -1, last: int = -1, **fields: Any) -> PartitionData:
    return partitions_of(world.fetch(0, -1, wanted(offset, current, last), **fields).response)[A0]


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        (-1, ErrorCode.offset_out_of_range),
        (1, ErrorCode.offset_out_of_range),
        (2, ErrorCode.none),
        (5, ErrorCode.none),
        (6, ErrorCode.offset_out_of_range),
    ],
)
def test_offset_outside_log_returns_out_of_range(world: FetchWorld, offset: int, error: int) -> None:
    world.partition("a").log.delete_records_before(2)
    data = fetched(world, offset)
    assert data.error_code == error
    if error:
        assert data.high_watermark == -1
        assert data.last_stable_offset == -1
        assert data.log_start_offset == -1
        assert data.records == b""


def test_consumers_read_to_the_high_watermark_and_followers_to_the_log_end(world: FetchWorld) -> None:
    log = world.partition("a").log
    log.high_watermark = 2
    assert len(fetched(world).records or b"") == 100
    assert len(fetched(world, replica_id=8).records or b"") == 200
    assert fetched(world, 3).records == b""
    assert fetched(world, 3).error_code == ErrorCode.none


@pytest.mark.parametrize(("offset", "last"), [(0, -1), (99, -1), (5, 9)])
@pytest.mark.parametrize(
    ("current", "error"),
    [
        (-1, ErrorCode.not_leader_or_follower),
        (3, ErrorCode.unknown_leader_epoch),
        (2, ErrorCode.fenced_leader_epoch),
        (4, ErrorCode.unknown_leader_epoch),
    ],
)
@pytest.mark.parametrize("replica_id", [0, 7, 11])
def test_follower_fetch_of_non_replica_is_rejected(
    world: FetchWorld, replica_id: int, current: int, error: int, offset: int, last: int
) -> None:
    """The leader itself is no follower. Where the leader epoch is right, nothing else is checked."""
    call = world.fetch(0, -1, wanted(offset, current, last), replica_id=replica_id, version=16)
    (data,) = partitions_of(call.response).values()
    assert (data.error_code, data.records, call.response.node_endpoints) == (error, b"", [])
    names_leader = error != ErrorCode.unknown_leader_epoch
    assert data.current_leader == (LeaderIdAndEpoch(7, 3) if names_leader else None)


@pytest.mark.clause("ReplicaManagerTest.testReadCommittedFetchLimitedAtLSO")
def test_read_committed_stops_at_the_last_stable_offset(world: FetchWorld) -> None:
    world.log("a").lso_hold = 2
    committed = fetched(world, isolation_level=1)
    assert len(committed.records or b"") == 100
    assert committed.last_stable_offset == 2
    assert committed.aborted_transactions == []
    uncommitted = fetched(world)
    assert (len(uncommitted.records or b""), uncommitted.aborted_transactions) == (200, None)


@pytest.mark.clause("FetchRequestTest.testCurrentEpochValidation", "FetchRequestTest.testCurrentEpochValidationV12")
@pytest.mark.parametrize(
    ("current", "error"),
    [
        (-2, ErrorCode.none),
        (-1, ErrorCode.none),
        (3, ErrorCode.none),
        (2, ErrorCode.fenced_leader_epoch),
        (4, ErrorCode.unknown_leader_epoch),
    ],
)
def test_current_leader_epoch_is_checked(world: FetchWorld, current: int, error: int) -> None:
    assert fetched(world, current=current).error_code == error


@pytest.mark.clause(
    "F-13",
    "FetchRequestTest.testEpochValidationWithinFetchSessionV12",
    "DelayedFetchTest.testFetchWithFencedEpoch",
)
def test_cached_leader_epoch_is_fenced_after_leader_change(world: FetchWorld) -> None:
    session_id = world.open_session(wanted(5, current=3))
    call = world.fetch(session_id, 1, max_wait_ms=500)
    world.partition("a").leader_epoch = 4
    world.partition("a").changed()
    assert partitions_of(call.response)[A0].error_code == ErrorCode.fenced_leader_epoch
    assert partitions_of(world.fetch(session_id, 2).response)[A0].error_code == ErrorCode.fenced_leader_epoch
    assert (
        partitions_of(world.fetch(session_id, 3, wanted(5, current=5)).response)[A0].error_code
        == ErrorCode.unknown_leader_epoch
    )
    assert partitions_of(world.fetch(session_id, 4, wanted(5, current=4)).response)[A0].error_code == ErrorCode.none
    assert world.fetch(session_id, 5).response.responses == []


@pytest.mark.clause("FetchRequestTest.testLastFetchedEpochValidationV12")
@pytest.mark.parametrize(
    ("offset", "last", "diverging"),
    [
        (5, 2, None),
        (2, 0, None),
        (5, 0, (0, 2)),  # the fetcher's epoch 0 ended earlier here
        (5, 1, (0, 2)),  # an epoch that this log never had
        (9, 2, (2, 5)),  # beyond the end, but a divergence takes precedence
    ],
)
def test_diverging_epoch_is_returned_instead_of_data(
    world: FetchWorld, offset: int, last: int, diverging: tuple[int, int] | None
) -> None:
    data = fetched(world, offset, last=last)
    assert data.error_code == ErrorCode.none
    assert data.diverging_epoch == (None if diverging is None else EpochEndOffset(*diverging))
    if diverging:
        assert (data.records, data.high_watermark) == (b"", 5)


def test_last_fetched_epoch_beyond_log_returns_out_of_range(world: FetchWorld) -> None:
    assert fetched(world, 5, last=9).error_code == ErrorCode.offset_out_of_range


def test_offset_below_log_start_returns_out_of_range_despite_divergence(world: FetchWorld) -> None:
    world.partition("a").log.delete_records_before(4)
    assert fetched(world, 1, last=1).error_code == ErrorCode.offset_out_of_range


@pytest.mark.clause("F-13", "F-14", "FetchSessionTest.testDivergingEpoch", "DelayedFetchTest.testDivergingEpoch")
def test_divergence_in_session_is_sent_until_resolved(world: FetchWorld) -> None:
    session_id = world.open_session(wanted(5, last=2))
    call = world.fetch(session_id, 1, max_wait_ms=500)
    log = world.log("a")
    log.truncate_to(2)
    log.append(3, 100, 3)
    world.partition("a").changed()
    assert partitions_of(call.response)[A0].diverging_epoch == EpochEndOffset(0, 2)
    assert partitions_of(world.fetch(session_id, 2).response)[A0].diverging_epoch == EpochEndOffset(0, 2)
    assert world.fetch(session_id, 3, wanted(2, last=0)).response.responses == []


@pytest.mark.clause("G-12", "F-14")
def test_first_revision_sends_divergence_until_resolved_and_resends_after_loss(
    world: FetchWorld,
) -> None:
    session_id = world.fetch_first(0, 0, wanted(5, 3, 2)).response.session_id
    call = world.fetch_first(session_id, 1, max_wait_ms=500)
    log = world.log("a")
    log.truncate_to(2)
    log.append(3, 100, 3)
    world.partition("a").changed()
    assert partitions_of(call.response)[A0].diverging_epoch == EpochEndOffset(0, 2)
    for number in (1, 2):
        assert partitions_of(world.fetch_first(session_id, number).response)[A0].diverging_epoch == EpochEndOffset(0, 2)
    log.high_watermark = 5
    data = partitions_of(world.fetch_first(session_id, 3, wanted(2, 3, 0)).response)[A0]
    assert (data.diverging_epoch, len(data.records or b"")) == (None, 100)


@pytest.mark.clause("G-12", "F-13")
def test_first_revision_caches_leader_epoch(world: FetchWorld) -> None:
    session_id = world.fetch_first(0, 0, wanted(5, 3, 2)).response.session_id
    assert world.fetch_first(session_id, 1, max_wait_ms=0).response.responses == []
    world.partition("a").leader_epoch = 4
    world.partition("a").changed()
    response = world.fetch_first(session_id, 2, max_wait_ms=0).response
    assert partitions_of(response)[A0].error_code == ErrorCode.fenced_leader_epoch
    assert (
        partitions_of(world.fetch_first(session_id, 3, wanted(5, 4, 2)).response).get(A0, NEWS).error_code
        == ErrorCode.none
    )


def test_lasting_divergence_does_not_complete_parked_fetch(world: FetchWorld) -> None:
    session_id = world.open_session(wanted(5, last=1))
    call = world.fetch(session_id, 1, max_wait_ms=500)
    assert call.waiting
    world.pass_ms(500)
    assert partitions_of(call.response)[A0].diverging_epoch == EpochEndOffset(0, 2)


@pytest.mark.clause(
    "FetchRequestTest.testFetchRequestToNonReplica",
    "KafkaApisTest.testFetchResponseContainsNewLeaderOnNotLeaderOrFollower",
)
def test_not_leader_returns_leader_endpoint_from_version_16(world: FetchWorld) -> None:
    world.create("b", led_here=False)
    for version in (12, 16):
        response = world.fetch(0, -1, {("b", 0): 0}, version=version).response
        (data,) = partitions_of(response).values()
        assert data.error_code == ErrorCode.not_leader_or_follower
        assert data.current_leader == (LeaderIdAndEpoch(8, 0) if version == 16 else None)
        assert response.node_endpoints == ([NodeEndpoint(8, "host-8", 9008)] if version == 16 else [])


@pytest.mark.clause(
    "FetchRequestTest.testCurrentEpochValidation",
    "FetchRequestTest.testCurrentEpochValidationV12",
    "FetchRequestTest.testEpochValidationWithinFetchSession",
    "FetchRequestTest.testEpochValidationWithinFetchSessionV12",
)
@pytest.mark.parametrize(
    ("current", "error"),
    [
        (-1, ErrorCode.not_leader_or_follower),
        (3, ErrorCode.not_leader_or_follower),
        (2, ErrorCode.fenced_leader_epoch),
        (4, ErrorCode.unknown_leader_epoch),
    ],
)
@pytest.mark.parametrize("session", [SESSIONLESS, SESSION])
@pytest.mark.parametrize("version", [12, 16])
def test_follower_checks_leader_epoch_before_not_leader(
    world: FetchWorld, current: int, error: int, session: str, version: int
) -> None:
    """A client that lags gets that error first, and one that is ahead does not take this node's old metadata for
    newer."""
    world.publish("b", 1, b"b".rjust(16, b"#"), leader=8, replicas=(7, 8), epoch=3)
    wanted_partitions = {("b", 0): FetchPartition(0, 0, 1 << 20, current_leader_epoch=current)}
    response = world.fetch(0, 0 if session == SESSION else -1, wanted_partitions, version=version).response
    if session == SESSION:
        response = world.fetch(response.session_id, 1, version=version).response
    (data,) = partitions_of(response).values()
    assert data.error_code == error
    known = error != ErrorCode.unknown_leader_epoch and version >= 16
    assert data.current_leader == (LeaderIdAndEpoch(8, 3) if known else None)


@pytest.mark.clause("FetchRequestTest.testFetchRequestToNonReplica")
@pytest.mark.parametrize("current", [-1, 2, 3, 4])
def test_non_replica_checks_no_leader_epoch(world: FetchWorld, current: int) -> None:
    world.publish("b", 1, b"b".rjust(16, b"#"), leader=8, epoch=3)
    wanted_partitions = {("b", 0): FetchPartition(0, 0, 1 << 20, current_leader_epoch=current)}
    (data,) = partitions_of(world.fetch(0, -1, wanted_partitions).response).values()
    assert data.error_code == ErrorCode.not_leader_or_follower


def test_fenced_leader_epoch_returns_current_leader(world: FetchWorld) -> None:
    response = world.fetch(0, -1, wanted(current=1), version=16).response
    (data,) = partitions_of(response).values()
    assert data.current_leader == LeaderIdAndEpoch(7, 3)
    assert [node_endpoint.node_id for node_endpoint in response.node_endpoints] == [7]


def test_partition_index_beyond_topic_is_unknown(world: FetchWorld) -> None:
    response = partitions_of(world.fetch(0, -1, {("a", 9): 0, ("a", -1): 0}).response)
    assert [data.error_code for data in response.values()] == [ErrorCode.unknown_topic_or_partition] * 2


def test_disk_read_error_fails_only_its_partition(world: FetchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("b")
    world.append("b")

    def broken(*_: object) -> bytes:
        raise DiskError("a-0: read failed")

    monkeypatch.setattr(world.partition("a").log, "read", broken)
    response = partitions_of(world.fetch(0, 0, {A0: 0, ("b", 0): 0}).response)
    assert response[A0].error_code == ErrorCode.kafka_storage_error
    assert response["b", 0].records
