"""The whole consumer without a network: what it sends on which lane, and what answers do."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.list_offsets.v10.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.client.consumer_observer import ConsumerObserver, FetchResult, PositionReset
from reference_broker.client.group_consumer import ConsumerConfig, GroupConsumer
from reference_broker.client.group_membership import Assigned, GroupConfig, GroupEvent
from reference_broker.client.group_requests import DRAFT_VERSION
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import MetadataUpdate, NodeAddress
from reference_broker.client.offset_commits import Committed, CommittedOffset, Fetched, OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import FetchPlan, Wanted
from reference_broker.client.tests.group_world import due, found, join_answer
from reference_broker.client.tests.test_offset_commits import committed
from reference_broker.client.tests.test_offset_commits import fetched as fetched_offsets
from reference_broker.records.record import Record, build
from reference_broker.wire.drafts import (
    MetadataBroker1000,
    MetadataPartition1001,
    MetadataResponse1001,
    MetadataTopic1001,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import EpochEndOffset, FetchResponse, FetchTopicResponse, PartitionData

SEED = NodeAddress(-1, "seed", 9)
T0 = TopicPartition("t", 0)


def metadata(leader: int = 0, epoch: int = -1, known: bool = True) -> MetadataResponse1001:
    partition = MetadataPartition1001(partition_index=0, leader_id=leader)
    topic = (
        MetadataTopic1001(name="t", partitions=(partition,))
        if known
        else MetadataTopic1001(name="t", error_code=3, partitions=())
    )
    brokers = tuple(MetadataBroker1000(node_id=each, host=f"n{each}", port=1) for each in (0, 1))
    return MetadataResponse1001(brokers=brokers, metadata_epoch=epoch, topics=(topic,))


def listed(offset: int, error: int = 0) -> ListOffsetsResponse:
    row = ListOffsetsPartitionResponse(partition_index=i32(0), error_code=ErrorCode(error), offset=i64(offset))
    topic = ListOffsetsTopicResponse(name=TopicName("t"), partitions=(row,))
    return ListOffsetsResponse(throttle_time=i32Timedelta.parse(timedelta(0)), topics=(topic,))


def fetched(*values: bytes, first: int = 0, error: int = 0, **more: Any) -> FetchResponse:
    data = build([Record(timestamp_ms=1, value=each) for each in values], base_offset=first) if values else b""
    row = PartitionData(0, error, 100, log_start_offset=0, records=data, **more)
    return FetchResponse(responses=[FetchTopicResponse("t", bytes(16), [row])])


class Driver:
    """``sent``: what is in flight, by lane."""

    def __init__(self, observer: ConsumerObserver | None = None, **fetch: Any) -> None:
        settings = FetchSettings(**{"leader_epochs": False, **fetch})
        config = ConsumerConfig((SEED,), fetch=settings, backoff_us=100)
        self.consumer = GroupConsumer(config, observer or ConsumerObserver())
        self.sent: dict[str, Any] = {}
        self.now = 0

    def go(self, later_us: int = 0) -> dict[str, Any]:
        self.now += later_us
        for lane, request in self.consumer.next_requests(self.now):
            assert lane not in self.sent
            self.sent[lane] = request
        return self.sent

    def answer(self, lane: str, body: object) -> dict[str, Any]:
        self.sent.pop(lane)
        self.consumer.responded(lane, self.now, body)
        return self.go()

    def position(self) -> int:
        [topic] = self.sent["node-0"].body.topics
        return int(topic.partitions[0].fetch_offset)


@pytest.fixture
def reading() -> Driver:
    """It reads T0 of node 0 from offset 5."""
    driver = Driver()
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.answer("metadata", metadata())
    assert driver.position() == 5
    return driver


@pytest.mark.clause("F-8")
def test_who_ends_its_fetches_closes_the_session_once_the_fetch_under_way_is_completed(reading: Driver) -> None:
    opened = fetched(b"x", first=5)
    opened.session_id = 7  # type: ignore[misc]  # Only mypy takes the fields as frozen.
    reading.consumer.end_fetches()
    assert not reading.consumer.has_ended_fetches
    request = reading.answer("node-0", opened)["node-0"]
    assert (request.body.session_id, request.body.session_epoch, request.body.topics) == (7, -1, [])
    assert "node-0" not in reading.answer("node-0", FetchResponse())
    assert reading.consumer.has_ended_fetches


def test_who_has_no_session_ends_its_fetches_without_a_request() -> None:
    driver = Driver()
    driver.consumer.assign([T0])
    driver.go()
    driver.consumer.end_fetches()
    driver.answer("metadata", metadata())
    assert driver.sent == {}
    assert driver.consumer.has_ended_fetches


def test_without_a_position_the_reset_policy_decides() -> None:
    driver = Driver(reset="latest")
    driver.consumer.assign([T0])
    driver.go()
    driver.answer("metadata", metadata())
    assert driver.sent["node-0"].body.topics[0].partitions[0].timestamp == -1
    driver.answer("node-0", listed(8))
    assert driver.position() == 8
    assert driver.consumer.take_resets() == [PositionReset(T0, -1, 8, "no_offset", -1)]


def test_a_topic_that_is_not_there_yet_is_requested_again() -> None:
    driver = Driver()
    driver.consumer.assign([T0])
    driver.go()
    assert driver.answer("metadata", metadata(known=False)) == {}
    assert driver.consumer.wake_at_us == 100
    assert "metadata" in driver.go(100)
    driver.answer("metadata", metadata())
    assert list(driver.sent) == ["node-0"]


def test_a_subscribed_topic_that_is_not_there_yet_is_requested_again() -> None:
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ()), backoff_us=100))
    consumer.subscribe(("t",))
    consumer.next_requests(0)
    consumer.responded("metadata", 0, metadata(known=False))
    assert "metadata" in [lane for lane, _ in consumer.next_requests(100)]
    consumer.responded("metadata", 100, metadata())
    assert "metadata" not in [lane for lane, _ in consumer.next_requests(10_000)]


def test_records_are_given_out_before_more_are_fetched(reading: Driver) -> None:
    assert reading.answer("node-0", fetched(b"a", b"b", first=5)) == {}
    assert [each.offset for each in reading.consumer.take_records(1)] == [5]
    assert (reading.consumer.position(T0), reading.go()) == (6, {})
    assert [each.value for each in reading.consumer.take_records(9)] == [b"b"]
    reading.go()
    assert reading.position() == 7


def test_out_of_range_resets_and_says_where_from(reading: Driver) -> None:
    reading.answer("node-0", fetched(error=1))
    assert reading.sent["node-0"].body.topics[0].partitions[0].timestamp == -2
    reading.answer("node-0", listed(2))
    assert reading.position() == 2
    assert reading.consumer.take_resets() == [PositionReset(T0, 5, 2, "out_of_range", -1)]


def test_without_a_reset_policy_out_of_range_is_the_applications() -> None:
    driver = Driver(reset="none")
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.answer("metadata", metadata())
    driver.answer("node-0", fetched(error=1))
    assert driver.consumer.take_failures() == [ErrorCode.offset_out_of_range]


@pytest.mark.parametrize("error", [6, 3, 74, 76, 56])
def test_a_leader_that_moved_is_looked_for_and_requested(reading: Driver, error: int) -> None:
    assert list(reading.answer("node-0", fetched(error=error))) == ["metadata"]
    reading.answer("metadata", metadata(leader=1))
    assert list(reading.sent) == ["node-1"]


def test_a_leader_that_does_not_response_is_left_for_the_next(reading: Driver) -> None:
    reading.sent.pop("node-0")
    reading.consumer.failed("node-0", reading.now)
    assert list(reading.go()) == ["metadata"]
    reading.answer("metadata", metadata(leader=1))
    assert list(reading.sent) == ["node-1"]


@pytest.mark.clause("M-5")
def test_a_stale_broker_cannot_lead_it_back_to_the_old_leader(reading: Driver) -> None:
    reading.answer("node-0", fetched(error=6))
    reading.answer("metadata", metadata(leader=1, epoch=9))
    reading.answer("node-1", fetched(error=6))
    assert reading.answer("metadata", metadata(leader=0, epoch=8)) == {}
    assert reading.consumer.metadata.refused == 1
    assert reading.go(100)["metadata"].to is not None
    assert "node-0" not in reading.sent
    reading.answer("metadata", metadata(leader=1, epoch=9))
    assert "node-1" in reading.sent


@pytest.mark.parametrize("sought", [2, 50])
def test_a_response_that_is_late_for_a_seek_is_not_used(reading: Driver, sought: int) -> None:
    reading.consumer.seek(T0, sought)
    reading.answer("node-0", fetched(b"a", first=5))
    assert reading.consumer.take_records(9) == []
    assert reading.position() == sought


def test_a_response_for_a_partition_that_was_dropped_is_not_used(reading: Driver) -> None:
    reading.consumer.assign([])
    reading.answer("node-0", fetched(b"a", first=5))
    assert reading.consumer.take_records(9) == []


def test_a_divergence_goes_back_to_where_the_logs_agree(reading: Driver) -> None:
    reading.answer("node-0", fetched(diverging_epoch=EpochEndOffset(2, 3)))
    assert reading.position() == 3
    assert reading.consumer.take_resets() == [PositionReset(T0, 5, 3, "truncated", -1)]


def test_errors_that_nothing_cures_are_the_applications(reading: Driver) -> None:
    reading.answer("node-0", fetched(error=29))
    assert reading.consumer.take_failures() == [ErrorCode.topic_authorization_failed]


@pytest.mark.clause("M-12")
def test_a_wanted_epoch_is_requested_at_once_until_it_is_there(reading: Driver) -> None:
    reading.consumer.want_epoch(4)
    assert "metadata" in reading.go()
    reading.answer("metadata", metadata(epoch=3))
    assert "metadata" not in reading.go(99)
    assert "metadata" in reading.go(1)
    reading.answer("metadata", metadata(epoch=4))
    assert "metadata" not in reading.go(1000)


@pytest.mark.clause("M-14")
def test_a_coordinator_without_the_drafts_is_committed_to_as_ever() -> None:
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ())))
    consumer.assign([T0])
    consumer.partitions.place(T0, 3)
    assert consumer.commit(0)
    [(lane, request)] = [each for each in consumer.next_requests(0) if each.lane == "commit"]
    consumer.responded(lane, 0, found())
    assert consumer.coordinator is not None
    assert consumer.coordinator.node is not None
    consumer.metadata.learn_drafts(consumer.coordinator.node, False)
    [(_, request)] = [each for each in consumer.next_requests(0) if each.lane == "commit"]
    assert request.api_version == 9
    consumer.failed("commit", 0)
    consumer.coordinator.node = found_node = consumer.coordinator.node or NodeAddress(1, "one", 9092)
    consumer.metadata.learn_drafts(found_node, True)
    [(_, request)] = [each for each in consumer.next_requests(10**6) if each.lane == "commit"]
    assert request.api_version == DRAFT_VERSION


def test_a_member_that_leads_waits_for_the_topics_that_others_want() -> None:
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ())))
    consumer.subscribe(("t",))
    lanes = [lane for lane, _ in consumer.next_requests(0)]
    assert lanes == ["metadata", "group"]
    consumer.responded("group", 0, found())
    [(lane, request)] = consumer.next_requests(0)
    row = ("me", None, due(request).body.protocols[0].metadata)
    consumer.responded(lane, 0, join_answer(0, 1, "range", "me", "me", [row]))
    assert consumer.next_requests(0) == []
    consumer.responded("metadata", 0, metadata())
    [(lane, request)] = consumer.next_requests(0)
    assert (lane, len(due(request).body.assignments)) == ("group", 1)
    assert not any(isinstance(each, Assigned) for each in consumer.take_events())


class Noted(ConsumerObserver):
    """What it heard, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def metadata_received(self, update: MetadataUpdate, accepted: bool) -> None:
        self.heard.append(("metadata", update.metadata_epoch, accepted))

    def offsets_wanted(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("wanted", partitions))

    def offsets_fetched(self, fetched: Fetched) -> None:
        self.heard.append(("found", fetched.offsets, fetched.version))

    def fetching(self, node_id: int, plan: FetchPlan, wanted: Mapping[TopicPartition, Wanted]) -> None:
        self.heard.append(
            ("fetching", node_id, plan.session_epoch, {each: wanted[each].fetch_offset for each in wanted})
        )

    def fetched(self, answer: FetchResult) -> None:
        moved = [(each.where, each.before, each.after, each.error, len(each.batches)) for each in answer.partitions]
        self.heard.append(("fetched", answer.node_id, answer.problem, moved))

    def commit_begun(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("committing", partitions))

    def committed(self, committed: Committed) -> None:
        self.heard.append(("committed", committed.succeeded))

    def position_reset(self, reset: PositionReset) -> None:
        self.heard.append(("reset", reset.from_offset, reset.to_offset))

    def group_event(self, event: GroupEvent) -> None:
        self.heard.append(("event", type(event).__name__))


def test_an_observer_hears_of_all_that_happens() -> None:
    noted = Noted()
    driver = Driver(observer=noted)
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.answer("metadata", metadata(epoch=3))
    driver.answer("node-0", fetched(error=1))
    driver.answer("node-0", listed(2))
    driver.answer("node-0", fetched(b"a", first=2))
    assert noted.heard == [
        ("metadata", 3, True),
        ("fetching", 0, 0, {T0: 5}),
        ("fetched", 0, None, [(T0, 5, 5, ErrorCode.offset_out_of_range, 0)]),
        ("reset", 5, 2),
        ("fetching", 0, 0, {T0: 2}),
        ("fetched", 0, None, [(T0, 2, 3, ErrorCode.none, 1)]),
    ]


def test_an_observer_hears_of_offsets_and_of_the_group() -> None:
    noted = Noted()
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ()), metadata_epoch=False), noted)
    consumer.assign([T0])
    assert consumer.commit(0, {T0: OffsetToCommit(4)})
    sent = {each.lane: each.request for each in consumer.next_requests(0)}
    assert {"commit"} == set(sent) - {"metadata"}, "both lanes ask for the coordinator"
    consumer.responded("commit", 0, found())
    assert {each.lane for each in consumer.next_requests(0)} == {"commit", "committed"}
    consumer.responded("commit", 0, committed(0))
    result = consumer.take_commit(0)
    assert result is not None
    assert result.succeeded
    consumer.responded("committed", 0, fetched_offsets(17))
    assert noted.heard == [
        ("committing", (T0,)),
        ("wanted", (T0,)),
        ("committed", True),
        ("found", {T0: CommittedOffset(17, 7)}, 9),
    ]


def test_a_paused_partition_is_neither_fetched_nor_given_out(reading: Driver) -> None:
    reading.answer("node-0", fetched(b"a", first=5))
    reading.consumer.pause([T0])
    assert (reading.consumer.take_records(9), reading.go()) == ([], {})
    reading.consumer.resume([T0])
    assert [each.value for each in reading.consumer.take_records(9)] == [b"a"]
    reading.go()
    assert reading.position() == 6


def test_a_damaged_batch_is_an_error_and_moves_nothing(reading: Driver) -> None:
    answer = fetched(b"a", first=5)
    [topic] = answer.responses
    part: Any = topic.partitions[0]  # Only mypy takes the fields as frozen.
    records = bytearray(part.records)
    records[-1] ^= 1
    part.records = bytes(records)
    reading.answer("node-0", answer)
    assert reading.consumer.take_failures() == [ErrorCode.corrupt_message]
    assert reading.consumer.take_records(9) == []
    reading.go(100)
    assert reading.position() == 5


def test_a_failed_fetch_of_offsets_is_begun_again_when_its_time_is_over() -> None:
    noted = Noted()
    config = ConsumerConfig((SEED,), GroupConfig("g", ()), commit_deadline_us=100)
    consumer = GroupConsumer(config, noted)
    consumer.assign([T0])
    consumer.next_requests(0)
    consumer.failed("committed", 0)
    consumer.next_requests(200)
    consumer.next_requests(200)
    assert noted.heard == [("wanted", (T0,)), ("found", {}, -1), ("wanted", (T0,))]
