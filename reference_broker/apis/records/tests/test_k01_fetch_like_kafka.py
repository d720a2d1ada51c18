"""Assertions of Apache Kafka's own tests of fetches that no other test here makes (see ``conformance``)."""

import pytest

from reference_broker.apis.tests.fetch_world import LARGE, FetchWorld, id_of, names, partitions_of, real_log
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_all
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import EpochEndOffset, FetchPartition, FetchRequest, FetchTopic

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
BY_NAME_AND_BY_ID = pytest.mark.parametrize("version", [12, 13])


@pytest.fixture
def world() -> FetchWorld:
    """Topic a: epoch 0 has offsets 0-1, epoch 1 offsets 2-3."""
    world = FetchWorld()
    world.create("a", 3)
    world.create("b")
    for epoch in (0, 1):
        world.partition("a").leader_epoch = epoch
        world.append("a", records=2)
    return world


def at(offset: int, current: int = -1, last: int = -1, index: int = 0) -> FetchPartition:
    return FetchPartition(index, offset, LARGE, current_leader_epoch=current, last_fetched_epoch=last)


@pytest.mark.clause("F-13", "FetchSessionTest.testCachedLeaderEpoch", "FetchSessionTest.testLastFetchedEpoch")
@BY_NAME_AND_BY_ID
def test_cached_epochs_are_kept_until_partition_is_named(world: FetchWorld, version: int) -> None:
    session_id = world.open_session({A0: at(4, 1, 1), A1: 0}, version=version)
    (cached, _) = world.sessions.sessions[session_id].partitions.values()
    seen = []
    requests: list[dict[tuple[str, int], int | FetchPartition]] = [{}, {A1: 0}, {A0: at(4, 2, 0)}, {}, {A0: at(4)}]
    for epoch, request in enumerate(requests, 1):
        world.fetch(session_id, epoch, request, version=version)
        seen.append((cached.current_leader_epoch, cached.last_fetched_epoch))
    assert seen == [(1, 1), (1, 1), (2, 0), (2, 0), (-1, -1)]


@pytest.mark.clause(
    "FetchRequestTest.testEpochValidationWithinFetchSession",
    "FetchRequestTest.testEpochValidationWithinFetchSessionV12",
)
@BY_NAME_AND_BY_ID
@pytest.mark.parametrize(
    ("current", "errors"),
    [(-1, []), (1, []), (0, [ErrorCode.fenced_leader_epoch]), (2, [ErrorCode.unknown_leader_epoch])],
)
def test_cached_leader_epoch_is_checked_in_empty_fetch(
    world: FetchWorld, version: int, current: int, errors: list[ErrorCode]
) -> None:
    session_id = world.open_session({A0: at(4, current)}, version=version)
    for epoch in (1, 2):
        response = partitions_of(world.fetch(session_id, epoch, version=version).response)
        assert [data.error_code for data in response.values()] == errors


@pytest.mark.clause(
    "FetchRequestTest.testLastFetchedEpochValidation",
    "FetchRequestTest.testLastFetchedEpochValidationV12",
    "FetchSessionTest.testDivergingEpoch",
)
@BY_NAME_AND_BY_ID
def test_diverging_partition_is_in_each_response(world: FetchWorld, version: int) -> None:
    response = world.fetch(0, 0, {A0: at(3, 1, 0), A1: at(0, index=1)}, version=version).response
    session_id, diverging = response.session_id, EpochEndOffset(0, 2)
    assert [data.diverging_epoch for data in partitions_of(response).values()] == [diverging, None]
    for epoch in (1, 2):
        (data,) = partitions_of(world.fetch(session_id, epoch, version=version).response).values()
        assert (data.diverging_epoch, data.error_code, data.records) == (diverging, ErrorCode.none, b"")
    world.append("a", 1)
    assert len(partitions_of(world.fetch(session_id, 3, version=version).response)) == 2


@pytest.mark.clause("F-12", "FetchSessionTest.testIncrementalFetchSession")
@BY_NAME_AND_BY_ID
def test_request_forgets_and_adds_partitions(world: FetchWorld, version: int) -> None:
    session_id = world.open_session({A0: 4, A1: 0}, version=version)
    response = world.fetch(session_id, 1, {B0: 0}, forget=[A0], version=version).response
    assert (response.session_id, list(partitions_of(response))) == (
        session_id,
        [("b" if version < 13 else id_of(world, "b"), 0)],
    )
    assert [cached.index for cached in world.sessions.sessions[session_id].partitions.values()] == [1, 0]


@pytest.mark.clause("FetchSessionTest.testMaybeResolveUnknownName", "FetchSessionTest.testResolveUnknownPartitions")
def test_unknown_topic_names_are_resolved_and_keep_order(world: FetchWorld) -> None:
    wanted = {("x", 0): 0, ("y", 0): 0, ("z", 0): 0}
    session_id = world.open_session(wanted, version=13)
    cached = list(world.sessions.sessions[session_id].partitions.values())
    assert [each.topic for each in cached] == [""] * 3
    for epoch, name in enumerate("zxy", 1):
        world.create(name)
        world.fetch(session_id, epoch, version=13)
        assert [each.topic for each in cached if each.topic][-1] in "xyz"
    assert [each.topic for each in cached] == ["x", "y", "z"]
    assert sorted(cached, key=lambda one: one.order) == cached
    world.delete("x")
    world.fetch(session_id, 4, version=13)
    assert [each.topic for each in cached] == ["x", "y", "z"]


@pytest.mark.clause("FetchSessionTest.testCachedPartitionEqualsAndHashCode", "F-13")
def test_cached_partition_identity_by_id_or_name(world: FetchWorld) -> None:
    """One topic under two IDs is two partitions in a session by ID; a session by name ignores the ID."""
    ids = [id_of(world, "a"), id_of(world, "a"), b"another of a".rjust(16)]
    for version, count in ((12, 1), (13, 2)):
        topics = [FetchTopic("a", topic_id, [FetchPartition(0, 4, LARGE)]) for topic_id in ids]
        response = world.send(FetchRequest(session_epoch=0, max_wait_ms=0, topics=topics), version).response
        assert len(world.sessions.sessions[response.session_id].partitions) == count


@pytest.mark.clause("F-15", "F-16", "FetchRequestTest.testBrokerRespectsPartitionsOrderAndSizeLimits")
@pytest.mark.parametrize(
    ("order", "offset", "sizes"),
    [
        ([1, 2, 0, 3, 4], 0, [190, 190, 190, 0, 0]),  # the large messages come last, and nothing of them fits
        ([3, 4, 0, 1, 2], 0, [191, 0, 190, 190, 190]),  # larger than a partition's limit, as the first one
        ([4, 3, 0, 1, 2], 0, [801, 0, 0, 0, 0]),  # larger than the response limit, as the first one
    ],
)
def test_response_respects_partition_order_and_both_limits(order: list[int], offset: int, sizes: list[int]) -> None:
    world = FetchWorld()
    world.create("t", 5)
    for index in (0, 1, 2):
        for _ in range(9):
            world.append("t", index, size_bytes=95)
    world.append("t", 3, size_bytes=191)
    world.append("t", 4, size_bytes=801)
    wanted = {("t", index): FetchPartition(index, offset, 190) for index in order}
    response = world.fetch(0, -1, wanted, max_bytes=800).response
    assert names(response) == list(wanted)
    assert [len(data.records or b"") for data in partitions_of(response).values()] == sizes


@pytest.mark.clause("FetchRequestTest.testFetchRequestV4WithReadCommitted", "F-4")
def test_read_committed_from_version_4(world: FetchWorld) -> None:
    (data,) = partitions_of(world.fetch(0, -1, {A0: 0}, version=4, isolation_level=1).response).values()
    assert data.error_code == ErrorCode.none
    assert data.last_stable_offset == 4
    assert len(data.records or b"") == 200


@pytest.mark.clause(
    "FetchRequestTest.testFetchWithPartitionsWithIdError", "KafkaApisTest.testFetchRequestErroneousPartitions"
)
@pytest.mark.parametrize("epoch", [-1, 0])
def test_unknown_topic_id_leaves_other_partitions_served(world: FetchWorld, epoch: int) -> None:
    response = partitions_of(world.fetch(0, epoch, {("x", 0): 0, A0: 0, B0: 0}, version=13).response)
    unknown, *healthy = response.values()
    assert (unknown.error_code, unknown.high_watermark, unknown.records) == (ErrorCode.unknown_topic_id, -1, b"")
    assert [(data.error_code, data.high_watermark, len(data.records or b"")) for data in healthy] == [
        (ErrorCode.none, 4, 200),
        (ErrorCode.none, 0, 0),
    ]


@pytest.mark.clause("FetchRequestTest.testCreateIncrementalFetchWithPartitionsInErrorV12", "F-14")
def test_unknown_topic_error_is_sent_until_topic_exists(world: FetchWorld) -> None:
    response = world.fetch(0, 0, {A0: 4, ("later", 0): 0, ("later", 1): 0}).response
    assert [data.error_code for data in partitions_of(response).values()] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
    ]
    seen = []
    for epoch in range(1, 6):
        if epoch == 3:
            world.create("later", 2)
        sent_now = partitions_of(world.fetch(response.session_id, epoch).response)
        seen.append([(key, data.error_code) for key, data in sent_now.items()])
    there, gone = ([(("later", index), error) for index in (0, 1)] for error in (0, 3))
    assert seen == [gone, gone, there, [], []]


@pytest.mark.clause("FetchRequestTest.testZStdCompressedTopic", "FetchRequestTest.testZStdCompressedRecords")
@pytest.mark.parametrize("version", [4, 9, 10, 12])
def test_zstd_batch_is_served_to_every_version(version: int) -> None:
    world = FetchWorld(log_of=real_log)
    (partition,) = world.create("a")
    sent = [Record(number, 1_000, b"key%d" % number, b"value" * 50) for number in range(3)]
    partition.log.append(world.broker.now, build(sent, compression=Compression.ZSTD), 0)
    partition.log.advance_high_watermark(3)
    (data,) = partitions_of(world.fetch(0, -1, {A0: 0}, version=version).response).values()
    assert data.error_code == ErrorCode.none
    assert [record.key for _, record in read_all(data.records or b"")] == [b"key0", b"key1", b"key2"]


@pytest.mark.clause("DelayedFetchTest.testDelayedFetchWithMessageOnlyHighWatermark")
def test_truncation_below_offset_completes_parked_fetch(world: FetchWorld) -> None:
    world.append("a", commit=False)
    world.append("a", commit=False)
    call = world.fetch(0, -1, {A0: at(5)}, max_wait_ms=500)
    world.append("a", commit=False)
    assert call.waiting
    world.partition("a").log.truncate_to(5)
    world.partition("a").changed()
    assert call.waiting
    world.partition("a").log.truncate_to(4)
    world.partition("a").changed()
    assert partitions_of(call.response)[A0].error_code == ErrorCode.offset_out_of_range


@pytest.mark.clause("DelayedFetchTest.testNotLeaderOrFollower")
@pytest.mark.parametrize("in_session", [True, False])
def test_lost_leadership_completes_parked_fetch(world: FetchWorld, in_session: bool) -> None:
    wanted: dict[tuple[str, int], int | FetchPartition] = {A0: at(4), A1: 0}
    session_id, epoch = (world.open_session(wanted), 1) if in_session else (0, -1)
    call = world.fetch(session_id, epoch, {} if in_session else wanted, max_wait_ms=500)
    partition = world.partition("a")
    world.publish("a", 3, id_of(world, "a"), leader=8, replicas=(7, 8), epoch=2)
    world.partitions.remove(partition)
    assert partitions_of(call.response)[A0].error_code == ErrorCode.not_leader_or_follower


@pytest.mark.clause("F-6", "FetchSessionTest.testFetchRequests")
def test_id_and_epoch_select_kind_of_fetch(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 4, A1: 0})
    seen = [
        world.fetch(*pair, wanted).response
        for pair, wanted in (
            ((0, -1), {A0: 4}),
            ((session_id, 2), {}),
            ((session_id + 1, 1), {}),
            ((session_id, 1), {}),
            ((session_id, -1), {A1: 0}),
            ((session_id, 2), {}),
        )
    ]
    assert [(each.error_code, each.session_id, names(each)) for each in seen] == [
        (ErrorCode.none, 0, [A0]),
        (ErrorCode.invalid_fetch_session_epoch, 0, []),
        (ErrorCode.fetch_session_id_not_found, 0, []),
        (ErrorCode.none, session_id, []),
        (ErrorCode.none, 0, [A1]),
        (ErrorCode.fetch_session_id_not_found, 0, []),
    ]
    assert not world.sessions.sessions
