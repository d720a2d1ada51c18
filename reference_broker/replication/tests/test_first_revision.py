"""A follower that uses the first revision of fetch sessions: enabled by configuration, announced by the leader."""

from datetime import timedelta

from kio.schema.api_versions.v4.response import ApiVersionsResponse, SupportedFeatureKey
from kio.static.primitive import i16, i32Timedelta

from reference_broker.replication.tests.follower_world import TOPIC_ID, FollowerWorld, named, one_record
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    EpochEndOffset,
    FetchResponse,
    FetchTopicResponse,
    PartitionData,
)

NO_THROTTLE = i32Timedelta.parse(timedelta(0))


def first() -> FollowerWorld:
    return FollowerWorld({"fetch.session.revision": "first"})


def versions(*features: str) -> ApiVersionsResponse:
    supported = tuple(SupportedFeatureKey(name=name, min_version=i16(1), max_version=i16(1)) for name in features)
    return ApiVersionsResponse(
        error_code=ErrorCode.none, api_keys=(), throttle_time=NO_THROTTLE, supported_features=supported
    )


def granted(world: FollowerWorld) -> None:
    world.only_request(ApiKey.API_VERSIONS).replied(versions("crucible.Fetch.1002"))


def response(data: PartitionData, flags: int) -> FetchResponse:
    return FetchResponse(0, 7, [FetchTopicResponse("t", bytes(16), [data])], response_flags=flags)


def test_first_revision_is_used_only_if_leader_announces_it() -> None:
    world = first()
    world.follow(0)
    granted(world)
    sent, request = world.fetch()
    assert (sent.api_version, [(topic.topic, topic.topic_id) for topic in request.topics]) == (1002, [("t", TOPIC_ID)])
    assert not world.notes_of("fetch_draft_not_served")


def test_other_leader_is_followed_in_final_revision_with_note() -> None:
    world = first()
    world.follow(0)
    world.only_request(ApiKey.API_VERSIONS).replied(versions("metadata.version"))
    sent, _ = world.fetch()
    assert sent.api_version == 18
    assert world.notes_of("fetch_draft_not_served") == [{"leader": 1, "version": 1002}]


def test_leader_is_retried_after_connection_failure() -> None:
    world = first()
    world.follow(0)
    granted(world)
    world.fetch()[0].failed()
    world.pass_ms(30)
    world.only_request(ApiKey.API_VERSIONS)


def test_divergence_is_resolved_by_epochs_of_fetch() -> None:
    """The leader has 0-1 of epoch 0 and 2-3 of epoch 1. This log continued alone in epoch 0, then led epoch 2."""
    world = first()
    log = world.follow(0, epoch=3, records=6, epochs=(0, 0, 0, 0, 2, 2))
    granted(world)
    seen = []
    for number, end in enumerate((EpochEndOffset(1, 4), EpochEndOffset(0, 2))):
        sent, request = world.fetch()
        seen += [(each.current_leader_epoch, each.fetch_offset, each.last_fetched_epoch) for each in named(request)]
        flags = INCREMENTAL_FETCH_OK | (INCREMENTAL_FETCH_RESPONSE if number else 0)
        sent.replied(response(PartitionData(0, 0, 4, log_start_offset=0, diverging_epoch=end), flags))
        assert log.log_end_offset == end.end_offset
    _, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [2]
    assert seen == [(3, 6, 2), (3, 4, 0)]


def test_lost_response_is_retransmitted_with_same_number() -> None:
    world = first()
    log = world.follow(0)
    granted(world)
    sent, _ = world.fetch()
    data = PartitionData(0, 0, 1, log_start_offset=0, records=one_record(0))
    sent.replied(response(data, INCREMENTAL_FETCH_OK))
    sent, request = world.fetch()
    assert (request.session_epoch, [each.fetch_offset for each in named(request)]) == (1, [1])
    sent.failed()
    world.pass_ms(30)
    granted(world)
    sent, request = world.fetch()
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert [each.fetch_offset for each in named(request)] == [1]
    data = PartitionData(0, 0, 2, log_start_offset=0, records=one_record(1))
    sent.replied(response(data, INCREMENTAL_FETCH_OK | INCREMENTAL_FETCH_RESPONSE))
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
