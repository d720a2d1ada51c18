"""The contract of KIP-227's client side, case by case as Apache Kafka's own FetchSessionHandler keeps it."""

from typing import Any

import pytest

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import MAX_EPOCH, FetchPlan, FetchSessionHandler, Wanted, next_epoch
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)

FOO_ID, BAR_ID, OTHER_ID = bytes([1]) * 16, bytes([2]) * 16, bytes([3]) * 16
FOO0, FOO1, BAR0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)
IDS = {"foo": FOO_ID, "bar": BAR_ID}


def wanted(*partitions: TopicPartition, offset: int = 0, ids: dict[str, bytes] = IDS) -> dict[TopicPartition, Wanted]:
    return {partition: Wanted(ids.get(partition.topic, NO_TOPIC_ID), offset, 1000) for partition in partitions}


def response(
    session_id: int, *partitions: TopicPartition, error: int = 0, ids: dict[str, bytes] = IDS, throttle: int = 0
) -> FetchResponse:
    topics = [
        FetchTopicResponse(
            partition.topic, ids.get(partition.topic, NO_TOPIC_ID), [PartitionData(partition.partition, 0, 5)]
        )
        for partition in partitions
    ]
    return FetchResponse(error, session_id, topics, throttle)


def opened(*partitions: TopicPartition, session_id: int = 123, ids: dict[str, bytes] = IDS) -> FetchSessionHandler:
    """Return a handler whose session has these partitions; its next request is incremental with epoch 1."""
    handler = FetchSessionHandler()
    handler.build(wanted(*partitions, ids=ids))
    assert handler.handle_response(response(session_id, *partitions, ids=ids)).problem is None
    return handler


def forgotten(plan: FetchPlan) -> list[TopicPartition]:
    return [partition for partition, _ in plan.to_forget]


@pytest.mark.clause("F-5", "FetchSessionHandlerTest.testSessionless")
def test_requests_without_session_are_full() -> None:
    handler = FetchSessionHandler()
    for _ in range(3):
        plan = handler.build(wanted(FOO0, FOO1))
        assert plan.session_id == 0
        assert plan.session_epoch == 0
        assert list(plan.to_send) == [FOO0, FOO1]
        assert handler.handle_response(response(0, FOO0, FOO1)).problem is None


@pytest.mark.clause("FetchSessionHandlerTest.testDoubleBuild")
def test_second_build_without_response_raises() -> None:
    handler = FetchSessionHandler()
    handler.build(wanted(FOO0))
    with pytest.raises(AssertionError, match="in flight"):
        handler.build(wanted(FOO0))


@pytest.mark.clause("F-12", "FetchSessionHandlerTest.testIncrementals")
def test_incremental_request_names_only_changed_or_new_partitions() -> None:
    handler = opened(FOO0, FOO1)
    plan = handler.build({**wanted(FOO0), **wanted(FOO1, offset=10), **wanted(BAR0)})
    assert (plan.session_id, plan.session_epoch) == (123, 1)
    assert list(plan.to_send) == [FOO1, BAR0]
    assert not plan.to_forget
    assert handler.handle_response(response(123, FOO1)).problem is None
    nothing = handler.build({**wanted(FOO0), **wanted(FOO1, offset=10), **wanted(BAR0)})
    assert (nothing.session_epoch, list(nothing.to_send)) == (2, [])


@pytest.mark.clause("F-12")
@pytest.mark.parametrize(
    "field", ["fetch_offset", "max_bytes", "current_leader_epoch", "last_fetched_epoch", "log_start_offset"]
)
def test_changed_field_names_partition_again(field: str) -> None:
    handler = opened(FOO0, FOO1)
    changed = wanted(FOO0, FOO1)
    new: dict[str, Any] = {field: 77}
    changed[FOO0] = changed[FOO0]._replace(**new)
    plan = handler.build(changed)
    assert list(plan.to_send) == [FOO0]
    [topic] = plan.request(17, 500, 1, 1000).topics
    assert 77 in [
        getattr(topic.partitions[0], each)
        for each in (
            "fetch_offset",
            "partition_max_bytes",
            "current_leader_epoch",
            "last_fetched_epoch",
            "log_start_offset",
        )
    ]


@pytest.mark.clause(
    "F-12",
    "FetchSessionHandlerTest.testFindMissing",
    "FetchSessionHandlerTest.testIncrementalPartitionRemoval",
)
def test_removed_partition_is_forgotten_once() -> None:
    handler = opened(FOO0, FOO1, BAR0)
    plan = handler.build(wanted(FOO1))
    assert forgotten(plan) == [FOO0, BAR0]
    assert not plan.to_send
    request = plan.request(12, 1, 1, 1)
    assert [(each.topic, each.partitions) for each in request.forgotten] == [("foo", [0]), ("bar", [0])]
    handler.handle_response(response(123))
    assert not handler.build(wanted(FOO1)).to_forget


@pytest.mark.clause("F-9", "F-11", "FetchSessionHandlerTest.testIncrementalPartitionRemoval")
def test_session_id_not_found_makes_next_request_full_without_id() -> None:
    handler = opened(FOO0, FOO1)
    handler.build(wanted(FOO0))
    assert (
        handler.handle_response(response(0, error=ErrorCode.fetch_session_id_not_found)).problem == "top-level error 70"
    )
    plan = handler.build(wanted(FOO0))
    assert plan.session_id == 0
    assert plan.session_epoch == 0
    assert list(plan.to_send) == [FOO0]


@pytest.mark.clause(
    "F-10",
    "F-11",
    "F-6",
    "FetchSessionHandlerTest.testIncrementals",
    "FetchSessionHandlerTest.testTopLevelErrorResetsMetadata",
)
@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.unknown_server_error,
        ErrorCode.unknown_topic_or_partition,
    ],
)
def test_top_level_error_replaces_session(error: int) -> None:
    handler = opened(FOO0, FOO1)
    handler.build(wanted(FOO0, FOO1))
    assert handler.handle_response(response(0, error=error)).problem
    plan = handler.build(wanted(FOO0, FOO1))
    assert plan.session_id == 123
    assert plan.session_epoch == 0
    assert list(plan.to_send) == [FOO0, FOO1]


@pytest.mark.clause("F-6", "F-11", "FetchSessionHandler.afterALostResponse")
def test_lost_response_replaces_session() -> None:
    handler = opened(FOO0)
    handler.build(wanted(FOO0, offset=5))
    handler.handle_lost()
    plan = handler.build(wanted(FOO0, offset=5))
    assert plan.session_id == 123
    assert plan.session_epoch == 0
    assert list(plan.to_send) == [FOO0]


@pytest.mark.clause("F-3")
def test_epochs_increase_and_wrap_to_one() -> None:
    assert [next_epoch(each) for each in (0, 1, MAX_EPOCH - 1, MAX_EPOCH, -1)] == [1, 2, MAX_EPOCH, 1, -1]
    handler = opened(FOO0)
    handler.session_epoch = MAX_EPOCH
    for epoch in (MAX_EPOCH, 1, 2):
        assert handler.build(wanted(FOO0)).session_epoch == epoch
        handler.handle_response(response(123))


@pytest.mark.clause(
    "F-7",
    "FetchSessionHandlerTest.testIdUsageWithAllForgottenPartitions",
    "FetchSessionHandler.afterAnIncrementalResponseWithId0",
)
def test_session_without_partitions_ends_with_id_zero() -> None:
    handler = opened(FOO0)
    plan = handler.build({})
    assert forgotten(plan) == [FOO0]
    assert plan.uses_topic_ids, "the broker reads the forgotten list by ID"
    assert handler.handle_response(response(0)).problem is None
    assert (handler.session_id, handler.session_epoch) == (0, 0)


@pytest.mark.clause("F-8")
def test_close_session_request_names_no_partitions() -> None:
    handler = opened(FOO0)
    plan = handler.close()
    assert plan is not None
    assert plan.session_id == 123
    assert plan.session_epoch == -1
    assert list(plan.to_send) == []
    assert plan.to_forget == ()
    assert handler.handle_response(response(0)).problem is None
    assert handler.close() is None


@pytest.mark.clause("F-8")
def test_no_close_session_request_without_session_or_with_request_in_flight() -> None:
    assert FetchSessionHandler().close() is None
    assert FetchSessionHandler(sessionless=True).close() is None
    handler = opened(FOO0)
    handler.build(wanted(FOO0))
    assert handler.close() is None


@pytest.mark.clause("F-4")
def test_sessionless_fetcher_sends_final_epoch_and_all_partitions() -> None:
    handler = FetchSessionHandler(sessionless=True)
    for lost in (False, True, False):
        plan = handler.build(wanted(FOO0, FOO1))
        assert plan.session_id == 0
        assert plan.session_epoch == -1
        assert len(plan.to_send) == 2
        if lost:
            handler.handle_lost()
        else:
            assert handler.handle_response(response(0, FOO0, FOO1)).problem is None


@pytest.mark.clause("FetchSessionHandlerTest.testTopicIdReplaced")
def test_changed_topic_id_is_forgotten_and_added() -> None:
    handler = opened(FOO0, BAR0)
    plan = handler.build(wanted(FOO0, BAR0, ids={"foo": OTHER_ID, "bar": BAR_ID}))
    assert plan.to_forget == ((FOO0, FOO_ID),)
    assert plan.to_send[FOO0].topic_id == OTHER_ID
    assert handler.handle_response(response(123, FOO0, ids={"foo": OTHER_ID})).problem is None


@pytest.mark.clause("FetchSessionHandlerTest.testOkToAddNewIdAfterTopicRemovedFromSession")
def test_recreated_topic_after_removal_is_added() -> None:
    handler = opened(FOO0, BAR0)
    handler.build(wanted(BAR0))
    handler.handle_response(response(123))
    plan = handler.build(wanted(FOO0, BAR0, ids={"foo": OTHER_ID, "bar": BAR_ID}))
    assert plan.session_epoch == 2
    assert list(plan.to_send) == [FOO0]
    assert plan.to_forget == ()


@pytest.mark.clause(
    "FetchSessionHandlerTest.testTopicIdUsageGrantedOnIdUpgrade",
    "FetchSessionHandlerTest.testIdUsageRevokedOnIdDowngrade",
    "FetchSessionHandlerTest.testSessionEpochWhenMixedUsageOfTopicIDs",
)
def test_topic_ids_are_used_only_if_all_topics_have_ids() -> None:
    handler = FetchSessionHandler()
    mixed = handler.build(wanted(FOO0, BAR0, ids={"foo": FOO_ID}))
    assert (mixed.uses_topic_ids, mixed.version(17)) == (False, 12)
    handler.handle_response(response(1, FOO0, BAR0, ids={}))
    granted = handler.build(wanted(FOO0, BAR0))
    assert granted.session_id == 1
    assert granted.session_epoch == 1
    assert granted.uses_topic_ids is True
    assert granted.version(17) == 17
    assert list(granted.to_send) == [BAR0], "the partition whose ID became known is named again"
    assert not granted.to_forget
    handler.handle_response(response(1))
    revoked = handler.build(wanted(FOO0, BAR0, ids={}))
    assert (revoked.session_id, revoked.session_epoch, revoked.uses_topic_ids) == (1, 2, False)


def test_response_is_matched_by_topic_id() -> None:
    handler = FetchSessionHandler()
    handler.build(wanted(FOO0))
    handled = handler.handle_response(FetchResponse(0, 9, [FetchTopicResponse("", FOO_ID, [PartitionData(0, 0, 5)])]))
    assert [partition for partition, _ in handled.partitions] == [FOO0]


@pytest.mark.clause(
    "FetchSessionHandlerTest.testVerifyFullFetchResponsePartitions",
    "FetchSessionHandlerTest.testVerifyFullFetchResponsePartitionsWithTopicIds",
)
@pytest.mark.parametrize(
    ("returned", "problem"), [((FOO0,), "missing"), ((FOO0, FOO1, BAR0), "not requested"), ((), "missing")]
)
@pytest.mark.parametrize("ids", [IDS, {}], ids=["by topic ID", "by name"])
def test_full_response_must_have_exactly_requested_partitions(
    returned: tuple[TopicPartition, ...], problem: str, ids: dict[str, bytes]
) -> None:
    handler = FetchSessionHandler()
    handler.build(wanted(FOO0, FOO1, ids=ids))
    handled = handler.handle_response(response(55, *returned, ids=ids))
    assert problem in str(handled.problem)
    plan = handler.build(wanted(FOO0, FOO1, ids=ids))
    assert (plan.session_id, plan.session_epoch) == (55, 0), "the session that came with it is closed"


@pytest.mark.clause("F-20")
def test_incremental_response_may_omit_partitions_but_not_add() -> None:
    handler = opened(FOO0, FOO1)
    handler.build(wanted(FOO0, FOO1))
    assert handler.handle_response(response(123, FOO1)).problem is None
    handler.build(wanted(FOO0, FOO1))
    handled = handler.handle_response(response(123, BAR0))
    assert str(handled.problem).startswith("partitions outside the session: ")
    assert (handler.session_id, handler.session_epoch) == (123, 0)


def test_forgotten_partition_in_response_is_reported_as_unrequested() -> None:
    handler = opened(FOO0, FOO1)
    handler.build(wanted(FOO1))
    handled = handler.handle_response(response(123, FOO0))
    assert handled.problem == "partitions outside the session: foo-0"
    assert [partition for partition, _ in handled.partitions] == [FOO0]


def test_response_with_other_session_id_is_rejected() -> None:
    handler = opened(FOO0)
    handler.build(wanted(FOO0))
    assert "another one" in str(handler.handle_response(response(124, FOO0)).problem)
    assert (handler.session_id, handler.session_epoch) == (123, 0)


@pytest.mark.clause("FetchSessionHandler.afterAnEmptyThrottledFullResponse")
def test_empty_throttled_full_response_is_retried() -> None:
    handler = FetchSessionHandler()
    handler.build(wanted(FOO0))
    assert handler.handle_response(response(0, throttle=10)).problem is None
    assert (handler.session_id, handler.session_epoch) == (0, 0)


def test_presume_processed_uses_next_epoch_except_for_full_fetch() -> None:
    handler = FetchSessionHandler()
    handler.build(wanted(FOO0))
    assert not handler.presume_processed()
    handler.handle_response(response(123, FOO0))
    handler.build(wanted(FOO0, offset=9))
    assert handler.presume_processed()
    plan = handler.build(wanted(FOO0, offset=9))
    assert (plan.session_epoch, dict(plan.to_send)) == (2, {})


@pytest.mark.parametrize(("version", "topic"), [(12, ("foo", NO_TOPIC_ID)), (13, ("", FOO_ID))])
def test_request_has_topic_name_or_id_by_version(version: int, topic: tuple[str, bytes]) -> None:
    handler = opened(FOO0, FOO1)
    request = handler.build(wanted(FOO1, offset=5)).request(version, 1, 1, 1)
    topics: list[FetchTopic | ForgottenTopic] = [*request.topics, *request.forgotten]
    assert [(each.topic, each.topic_id) for each in topics] == [topic, topic]


def test_each_request_is_new_object() -> None:
    plan = FetchSessionHandler().build(wanted(FOO0))
    first, second = plan.request(17, 1, 1, 1), plan.request(17, 1, 1, 1)
    assert first == second
    partitions = first.topics[0].partitions
    assert isinstance(partitions, list)
    partitions.clear()
    assert second.topics[0].partitions


def test_response_without_topic_ids_is_matched_by_name() -> None:
    handler = FetchSessionHandler()
    plan = handler.build(wanted(FOO0))
    assert plan.version(11) == 11
    handled = handler.handle_response(response(9, FOO0, ids={}))
    assert [partition for partition, _ in handled.partitions] == [FOO0]


def test_topic_id_missing_in_session_is_unrequested() -> None:
    handler = opened(FOO0)
    handler.build(wanted(FOO0))
    handled = handler.handle_response(response(123, FOO0, ids={"foo": OTHER_ID}))
    assert str(handled.problem).endswith(f": {OTHER_ID.hex()}-0")
