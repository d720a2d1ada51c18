"""The first revision names topics by name, and a follower sends the ID of the topic of that name it means."""

import pytest

from reference_broker.apis.tests.fetch_world import LARGE, FakeCall, FetchWorld, id_of, partitions_of
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)

A0 = ("a", 0)
NEWER = b"the newer topic "


def fetch_with_id(
    world: FetchWorld, session_id: int, number: int, topic_id: bytes | None, max_wait_ms: int = 0
) -> FakeCall:
    """Fetch with the topic ID. ``topic_id`` None: no partition is named."""
    topics = [] if topic_id is None else [FetchTopic("a", topic_id, [FetchPartition(0, 0, LARGE, 0)])]
    kind = FULL_FETCH if number == 0 else INCREMENTAL_FETCH
    request = FetchRequest(
        session_id=session_id, session_epoch=number, topics=topics, max_wait_ms=max_wait_ms, fetch_type=kind
    )
    return world.send(request, 1000)


@pytest.mark.clause("G-12")
def test_leader_without_newer_topic_sends_no_records_of_older() -> None:
    """Both topics start with leader epoch 0, so nothing else distinguishes them."""
    world = FetchWorld()
    world.create("a")
    world.append("a")
    call = fetch_with_id(world, 0, 0, NEWER)
    assert (partitions_of(call.response)[A0].error_code, partitions_of(call.response)[A0].records) == (
        ErrorCode.inconsistent_topic_id,
        b"",
    )
    session_id = call.response.session_id
    waiting = fetch_with_id(world, session_id, 1, None, max_wait_ms=500)
    assert waiting.waiting
    world.delete("a")
    world.create("a", topic_id=NEWER)
    world.append("a")
    assert partitions_of(waiting.response)[A0].records, "the arrival of the newer one completes the fetch"


@pytest.mark.clause("G-12")
def test_follower_sends_newer_topic_id_in_session() -> None:
    world = FetchWorld()
    world.create("a")
    older = id_of(world, "a")
    session_id = fetch_with_id(world, 0, 0, older).response.session_id
    assert world.partition("a").watchers
    world.append("a")
    assert (
        partitions_of(fetch_with_id(world, session_id, 1, NEWER).response)[A0].error_code
        == ErrorCode.inconsistent_topic_id
    )
    assert not world.partition("a").watchers
    world.append("a")
    assert not partitions_of(fetch_with_id(world, session_id, 2, NEWER).response)[A0].records
    assert partitions_of(fetch_with_id(world, session_id, 3, older).response)[A0].records


@pytest.mark.clause("G-12")
def test_fetch_without_topic_id_matches_any_topic_of_name() -> None:
    world = FetchWorld()
    world.create("a")
    session_id = fetch_with_id(world, 0, 0, NO_TOPIC_ID).response.session_id
    world.delete("a")
    world.create("a", topic_id=NEWER)
    world.append("a")
    assert partitions_of(fetch_with_id(world, session_id, 1, NO_TOPIC_ID).response)[A0].records
