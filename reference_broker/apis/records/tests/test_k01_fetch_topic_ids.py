"""Sessions by topic ID and by topic name, and topics that are created, deleted and recreated."""

import pytest

from reference_broker.apis.tests.fetch_world import LARGE, FetchWorld, id_of, names, partitions_of, two_topics
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

A0, A1, A2, B0 = ("a", 0), ("a", 1), ("a", 2), ("b", 0)


@pytest.fixture
def world() -> FetchWorld:
    return two_topics()


@pytest.mark.clause("F-13")
def test_session_by_topic_id_responds_by_topic_id(world: FetchWorld) -> None:
    world.append("a")
    response = world.fetch(0, 0, {A0: 0}, version=13).response
    assert [(topic.topic, topic.topic_id) for topic in response.responses] == [("", id_of(world, "a"))]
    world.append("a")
    response = world.fetch(response.session_id, 1, {A0: 1}, version=13).response
    assert partitions_of(response)[id_of(world, "a"), 0].high_watermark == 2


@pytest.mark.clause(
    "F-13",
    "FetchSessionTest.testIncrementalFetchSessionWithIdsWhenSessionDoesNotUseIds",
    "FetchSessionTest.testIncrementalFetchSessionWithoutIdsWhenSessionUsesIds",
)
@pytest.mark.parametrize(("opened", "used"), [(12, 13), (13, 12)])
def test_mixing_names_and_ids_in_session_is_rejected(world: FetchWorld, opened: int, used: int) -> None:
    session_id = world.open_session({A0: 0}, version=opened)
    response = world.fetch(session_id, 1, {A1: 0}, version=used).response
    assert (response.error_code, response.session_id) == (ErrorCode.fetch_session_topic_id_error, 0)
    assert world.fetch(session_id, 1, version=opened).response.session_id == session_id


@pytest.mark.clause("F-9", "F-10")
def test_checks_are_in_order_id_epoch_topic_ids(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0}, version=12)
    assert world.fetch(session_id + 1, 9, version=13).response.error_code == ErrorCode.fetch_session_id_not_found
    assert world.fetch(session_id, 9, version=13).response.error_code == ErrorCode.invalid_fetch_session_epoch


@pytest.mark.clause("FetchSessionTest.testFetchSessionWithUnknownIdOldRequestVersion")
def test_version_by_name_ignores_topic_ids(world: FetchWorld) -> None:
    topics = [FetchTopic("a", b"no such topic id", [FetchPartition(0, 0, LARGE)])]
    response = world.send(FetchRequest(session_epoch=0, max_wait_ms=0, topics=topics), version=12).response
    assert partitions_of(response)[A0].error_code == ErrorCode.none


@pytest.mark.clause("FetchSessionTest.testFetchSessionWithUnknownId", "FetchSessionTest.testResolveUnknownPartitions")
def test_unknown_topic_ids_resolve_one_by_one(world: FetchWorld) -> None:
    response = world.fetch(0, 0, {("x", 0): 0, ("y", 0): 0, ("z", 0): 0}, version=13).response
    assert [data.error_code for data in partitions_of(response).values()] == [ErrorCode.unknown_topic_id] * 3
    world.create("x")
    world.create("y")
    response = world.fetch(response.session_id, 1, version=13).response
    assert [data.error_code for data in partitions_of(response).values()] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
    ]
    world.create("z")
    response = world.fetch(response.session_id, 2, version=13).response
    assert list(partitions_of(response)) == [(id_of(world, "z"), 0)]
    assert world.fetch(response.session_id, 3, version=13).response.responses == []


@pytest.mark.parametrize("version", [12, 13])
def test_unknown_partition_has_empty_aborted_transactions(world: FetchWorld, version: int) -> None:
    """Other errors have none, as in Kafka."""
    wanted: dict[tuple[str, int], int | FetchPartition] = {("x", 0): 0, ("a", 99): 0, A0: 77}
    response = world.fetch(0, -1, wanted, version=version).response
    assert [data.aborted_transactions for data in partitions_of(response).values()] == [[], [], None]
    assert [bool(data.error_code) for data in partitions_of(response).values()] == [True] * 3


@pytest.mark.clause("FetchSessionTest.testToForgetPartitions")
def test_unresolved_partition_can_be_forgotten(world: FetchWorld) -> None:
    session_id = world.open_session({("x", 0): 0, ("a", 0): 0}, version=13)
    world.fetch(session_id, 1, forget=[("x", 0)], version=13, max_wait_ms=10)
    world.pass_ms(10)
    world.create("x")
    assert world.fetch(session_id, 2, version=13).response.responses == []
    assert not world.sessions.arrivals.keys


@pytest.mark.clause("FetchSessionTest.testToForgetPartitions")
def test_forgotten_unresolved_partition_may_empty_the_session(world: FetchWorld) -> None:
    session_id = world.open_session({("x", 0): 0}, version=13)
    assert world.fetch(session_id, 1, forget=[("x", 0)], version=13).response.session_id == 0


def test_unknown_topic_name_resolves_when_topic_is_created(world: FetchWorld) -> None:
    session_id = world.open_session({("x", 0): 0, A0: 0})
    for epoch in (1, 2):
        assert (
            partitions_of(world.fetch(session_id, epoch).response)[("x", 0)].error_code
            == ErrorCode.unknown_topic_or_partition
        )
    world.create("x")
    assert partitions_of(world.fetch(session_id, 3).response)[("x", 0)].error_code == ErrorCode.none
    assert names(world.fetch(session_id, 4).response) == []


@pytest.mark.clause(
    "FetchSessionTest.testUpdateAndGenerateResponseData",
    "KafkaApisTest.testFetchRequestErroneousPartitions",
)
def test_unknown_partition_has_same_error_in_each_kind_of_fetch(world: FetchWorld) -> None:
    for version, error in ((12, ErrorCode.unknown_topic_or_partition), (13, ErrorCode.unknown_topic_id)):
        sessionless = world.fetch(0, -1, {("x", 0): 0}, version=version).response
        full = world.fetch(0, 0, {("x", 0): 0}, version=version).response
        incremental = world.fetch(full.session_id, 1, version=version).response
        for response in (sessionless, full, incremental):
            (data,) = partitions_of(response).values()
            assert (data.error_code, data.high_watermark, data.records) == (error, -1, b"")


def test_session_by_name_follows_the_name_to_a_recreated_topic(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.append("a")
    world.fetch(session_id, 1, {A0: 1})
    world.delete("a")
    assert partitions_of(world.fetch(session_id, 2).response)[A0].error_code == ErrorCode.unknown_topic_or_partition
    world.create("a", topic_id=b"second".rjust(16))
    world.append("a")
    response = partitions_of(world.fetch(session_id, 3).response)
    assert (response[A0].error_code, response[A0].high_watermark) == (ErrorCode.none, 1)


@pytest.mark.clause(
    "FetchSessionTest.testFetchSessionUpdateTopicIdsBrokerSide",
    "ReplicaManagerTest.testFetchMessagesWithInconsistentTopicId",
)
def test_session_by_id_never_follows_the_name(world: FetchWorld) -> None:
    key = (id_of(world, "a"), 0)
    session_id = world.open_session({A0: 0}, version=13)
    world.delete("a")
    assert partitions_of(world.fetch(session_id, 1, version=13).response)[key].error_code == ErrorCode.unknown_topic_id
    world.create("a", topic_id=b"second".rjust(16))
    world.append("a")
    response = partitions_of(world.fetch(session_id, 2, version=13).response)
    assert response[key].error_code == ErrorCode.inconsistent_topic_id
    assert not response[key].records


def test_partition_missing_in_recreated_topic_is_unknown(world: FetchWorld) -> None:
    """Kafka checks whether its metadata has the partition before it compares topic IDs."""
    kept, gone = (id_of(world, "a"), 0), (id_of(world, "a"), 2)
    session_id = world.open_session({A0: 0, A2: 0}, version=13)
    world.delete("a")
    world.create("a", 2, topic_id=b"second".rjust(16))
    response = partitions_of(world.fetch(session_id, 1, version=13).response)
    assert response[kept].error_code == ErrorCode.inconsistent_topic_id
    assert response[gone].error_code == ErrorCode.unknown_topic_or_partition


def test_replaced_topic_id_is_forgotten_and_added_in_one_request(world: FetchWorld) -> None:
    old, new = id_of(world, "a"), b"second".rjust(16)
    session_id = world.open_session({A0: 0}, version=13)
    world.delete("a")
    world.create("a", topic_id=new)
    topics, forgotten = [FetchTopic("", new, [FetchPartition(0, 0, LARGE)])], [ForgottenTopic("", old, [0])]
    request = FetchRequest(session_id=session_id, session_epoch=1, max_wait_ms=0, topics=topics, forgotten=forgotten)
    response = world.send(request, version=13).response
    assert [(key, data.error_code) for key, data in partitions_of(response).items()] == [((new, 0), ErrorCode.none)]
    assert list(world.sessions.sessions[session_id].partitions) == [(new, 0)]
