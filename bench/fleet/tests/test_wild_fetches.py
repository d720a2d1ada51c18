"""Wild fetches: sessions of all sizes and revisions go on, with wrong epochs and changed partitions between."""

from collections import Counter
from random import Random

from bench.fleet.behaviours.wild_fetches import (
    FIRST_WITH_LAST_EPOCH,
    FIRST_WITH_LEADER_EPOCH,
    FIRST_WITH_RACK,
    FIRST_WITH_TOPIC_IDS,
    MAX_SESSIONS,
    NO_PARTITIONS,
    RACKS,
    VERSIONS,
    WildFetch,
    WildFetches,
)
from reference_broker.wire.apis import FETCH_FIRST_REVISION
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)

TOPIC_ID = bytes(15) + b"\x07"


def played(count: int) -> list[WildFetch]:
    """Return the requests of one client. Each session is accepted, and every fifth request is lost."""
    fetches, requests = WildFetches("hot", 3, Random(1)), []
    for number in range(count):
        request = fetches.next_request(number % 2, TOPIC_ID, (4, 5, 6))
        requests.append(request)
        data = [PartitionData(index, 0, 50) for index in range(3)]
        session_id = request.body.session_id or number + 1
        response = FetchResponse(0, session_id, [FetchTopicResponse("hot", TOPIC_ID, data)])
        fetches.responded(request, None if number % 5 == 0 else response)
        assert len(fetches.sessions) <= MAX_SESSIONS
    return requests


def partitions(request: WildFetch) -> list[FetchPartition]:
    return [partition for topic in request.body.topics for partition in topic.partitions]


def test_each_version_opens_and_continues_sessions() -> None:
    requests = played(2000)
    full = Counter(request.version for request in requests if request.session is None)
    incremental = Counter(request.version for request in requests if request.session is not None)
    assert all(full[version] > 20 and incremental[version] > 20 for version in VERSIONS)
    assert {len(partitions(request)) for request in requests if request.session is None} == set(
        range(3 + NO_PARTITIONS + 1)
    )


def test_most_epochs_follow_and_some_do_not() -> None:
    fetches = WildFetches("hot", 3, Random(1))
    wrong = right = 0
    for number in range(1000):
        request = fetches.next_request(0, TOPIC_ID, (4, 5, 6))
        known = None if request.session is None else request.session.number
        if known is not None:
            follows = (known, known + 1) if request.version == FETCH_FIRST_REVISION else (known,)
            wrong, right = (
                wrong + (request.body.session_epoch not in follows),
                right + (request.body.session_epoch in follows),
            )
        fetches.responded(request, FetchResponse(0, request.body.session_id or number + 1, []))
    assert right > 10 * wrong > 0


def test_partition_is_named_again_with_other_values_and_forgotten() -> None:
    requests = [fetch for fetch in played(2000) if fetch.session is not None]
    named = [partition for request in requests for partition in partitions(request)]
    for what in ("fetch_offset", "partition_max_bytes", "current_leader_epoch", "last_fetched_epoch"):
        assert len({getattr(partition, what) for partition in named}) > 2, what
    assert {partition.log_start_offset for partition in named} == {-1, 0, 50}
    assert any(request.body.forgotten for request in requests)
    assert not any(request.body.forgotten for request in requests if request.version == FETCH_FIRST_REVISION)


def test_request_has_only_the_fields_of_its_version() -> None:
    for request in played(2000):
        is_first = request.version == FETCH_FIRST_REVISION
        with_id = request.version >= FIRST_WITH_TOPIC_IDS and not is_first
        topics: list[FetchTopic | ForgottenTopic] = [*request.body.topics, *request.body.forgotten]
        for topic in topics:
            assert (topic.topic, topic.topic_id) == (("", TOPIC_ID) if with_id else ("hot", bytes(16)))
        for partition in partitions(request):
            assert partition.current_leader_epoch < 0 or (request.version >= FIRST_WITH_LEADER_EPOCH and not is_first)
            assert partition.last_fetched_epoch < 0 or (request.version >= FIRST_WITH_LAST_EPOCH and not is_first)


def test_racks_are_named_by_versions_that_have_them() -> None:
    requests = played(2000)
    racks = {
        version: {request.body.rack_id for request in requests if request.version == version} for version in VERSIONS
    }
    with_racks = [version for version in VERSIONS if FIRST_WITH_RACK <= version < FETCH_FIRST_REVISION]
    assert all(racks[rack] == set(RACKS) for rack in with_racks)
    assert all(racks[version] == {""} for version in VERSIONS if version not in with_racks)
