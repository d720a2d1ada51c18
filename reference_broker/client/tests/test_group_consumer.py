"""The whole consumer without a network: its requests by channel, and the effects of responses."""

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
from reference_broker.client.tests.group_world import due, found, join_response
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
        else MetadataTopic1001(name="t", error_code=ErrorCode.unknown_topic_or_partition, partitions=())
    )
    brokers = tuple(MetadataBroker1000(node_id=each, host=f"n{each}", port=1) for each in (0, 1))
    return MetadataResponse1001(brokers=brokers, metadata_epoch=epoch, topics=(topic,))


def listed(offset: int, error: int = 0) -> ListOffsetsResponse:
    row = ListOffsetsPartitionResponse(partition_index=i32(0), error_code=ErrorCode(error), offset=i64(offset))
    topic = ListOffsetsTopicResponse(name=TopicName("t"), partitions=(row,))
    return ListOffsetsResponse(throttle_time=i32Timedelta.parse(timedelta(0)), topics=(topic,))


def fetched(*values: bytes, first: int = 0, error: int = 0, **more: Any) -> FetchResponse:
    data = build([Record(timestamp_ms=1, value=value) for value in values], base_offset=first) if values else b""
    row = PartitionData(0, error, 100, log_start_offset=0, records=data, **more)
    return FetchResponse(responses=[FetchTopicResponse("t", bytes(16), [row])])


class Driver:
    """``sent``: requests in flight, by channel."""

    def __init__(self, observer: ConsumerObserver | None = None, **fetch: Any) -> None:
        settings = FetchSettings(**{"leader_epochs": False, **fetch})
        config = ConsumerConfig((SEED,), fetch=settings, backoff_us=100)
        self.consumer = GroupConsumer(config, observer or ConsumerObserver())
        self.sent: dict[str, Any] = {}
        self.now = 0

    def go(self, later_us: int = 0) -> dict[str, Any]:
        self.now += later_us
        for channel, request in self.consumer.next_requests(self.now):
            assert channel not in self.sent
            self.sent[channel] = request
        return self.sent

    def respond(self, channel: str, body: object) -> dict[str, Any]:
        self.sent.pop(channel)
        self.consumer.responded(channel, self.now, body)
        return self.go()

    def position(self) -> int:
        [topic] = self.sent["node-0"].body.topics
        return int(topic.partitions[0].fetch_offset)


@pytest.fixture
def reading() -> Driver:
    """Return a driver that reads T0 of node 0 from offset 5."""
    driver = Driver()
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.respond("metadata", metadata())
    assert driver.position() == 5
    return driver


@pytest.mark.clause("F-8")
def test_end_fetches_closes_session_after_pending_fetch(reading: Driver) -> None:
    opened = fetched(b"x", first=5)
    opened.session_id = 7  # type: ignore[misc]  # Only mypy takes the fields as frozen.
    reading.consumer.end_fetches()
    assert not reading.consumer.has_ended_fetches
    request = reading.respond("node-0", opened)["node-0"]
    assert (request.body.session_id, request.body.session_epoch, request.body.topics) == (7, -1, [])
    assert "node-0" not in reading.respond("node-0", FetchResponse())
    assert reading.consumer.has_ended_fetches


def test_end_fetches_without_session_sends_no_request() -> None:
    driver = Driver()
    driver.consumer.assign([T0])
    driver.go()
    driver.consumer.end_fetches()
    driver.respond("metadata", metadata())
    assert driver.sent == {}
    assert driver.consumer.has_ended_fetches


def test_missing_position_uses_reset_policy() -> None:
    driver = Driver(reset="latest")
    driver.consumer.assign([T0])
    driver.go()
    driver.respond("metadata", metadata())
    assert driver.sent["node-0"].body.topics[0].partitions[0].timestamp == -1
    driver.respond("node-0", listed(8))
    assert driver.position() == 8
    assert driver.consumer.take_resets() == [PositionReset(T0, -1, 8, "no_offset", -1)]


def test_missing_assigned_topic_is_requested_again() -> None:
    driver = Driver()
    driver.consumer.assign([T0])
    driver.go()
    assert driver.respond("metadata", metadata(known=False)) == {}
    assert driver.consumer.wake_at_us == 100
    assert "metadata" in driver.go(100)
    driver.respond("metadata", metadata())
    assert list(driver.sent) == ["node-0"]


def test_missing_subscribed_topic_is_requested_again() -> None:
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ()), backoff_us=100))
    consumer.subscribe(("t",))
    consumer.next_requests(0)
    consumer.responded("metadata", 0, metadata(known=False))
    assert "metadata" in [channel for channel, _ in consumer.next_requests(100)]
    consumer.responded("metadata", 100, metadata())
    assert "metadata" not in [channel for channel, _ in consumer.next_requests(10_000)]


def test_records_are_returned_before_more_are_fetched(reading: Driver) -> None:
    assert reading.respond("node-0", fetched(b"a", b"b", first=5)) == {}
    assert [record.offset for record in reading.consumer.take_records(1)] == [5]
    assert (reading.consumer.position(T0), reading.go()) == (6, {})
    assert [record.value for record in reading.consumer.take_records(9)] == [b"b"]
    reading.go()
    assert reading.position() == 7


def test_out_of_range_resets_position_and_reports_old_offset(reading: Driver) -> None:
    reading.respond("node-0", fetched(error=ErrorCode.offset_out_of_range))
    assert reading.sent["node-0"].body.topics[0].partitions[0].timestamp == -2
    reading.respond("node-0", listed(2))
    assert reading.position() == 2
    assert reading.consumer.take_resets() == [PositionReset(T0, 5, 2, "out_of_range", -1)]


def test_out_of_range_without_reset_policy_is_raised_to_application() -> None:
    driver = Driver(reset="none")
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.respond("metadata", metadata())
    driver.respond("node-0", fetched(error=ErrorCode.offset_out_of_range))
    assert driver.consumer.take_failures() == [ErrorCode.offset_out_of_range]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unsupported_compression_type,
        ErrorCode.kafka_storage_error,
    ],
)
def test_moved_leader_is_looked_up_and_fetched_from(reading: Driver, error: int) -> None:
    assert list(reading.respond("node-0", fetched(error=error))) == ["metadata"]
    reading.respond("metadata", metadata(leader=1))
    assert list(reading.sent) == ["node-1"]


def test_unresponsive_leader_is_replaced_by_next(reading: Driver) -> None:
    reading.sent.pop("node-0")
    reading.consumer.failed("node-0", reading.now)
    assert list(reading.go()) == ["metadata"]
    reading.respond("metadata", metadata(leader=1))
    assert list(reading.sent) == ["node-1"]


@pytest.mark.clause("M-5")
def test_stale_metadata_does_not_restore_old_leader(reading: Driver) -> None:
    reading.respond("node-0", fetched(error=ErrorCode.not_leader_or_follower))
    reading.respond("metadata", metadata(leader=1, epoch=9))
    reading.respond("node-1", fetched(error=ErrorCode.not_leader_or_follower))
    assert reading.respond("metadata", metadata(leader=0, epoch=8)) == {}
    assert reading.consumer.metadata.refused == 1
    assert reading.go(100)["metadata"].to is not None
    assert "node-0" not in reading.sent
    reading.respond("metadata", metadata(leader=1, epoch=9))
    assert "node-1" in reading.sent


@pytest.mark.parametrize("sought", [2, 50])
def test_response_from_before_seek_is_discarded(reading: Driver, sought: int) -> None:
    reading.consumer.seek(T0, sought)
    reading.respond("node-0", fetched(b"a", first=5))
    assert reading.consumer.take_records(9) == []
    assert reading.position() == sought


def test_response_for_dropped_partition_is_discarded(reading: Driver) -> None:
    reading.consumer.assign([])
    reading.respond("node-0", fetched(b"a", first=5))
    assert reading.consumer.take_records(9) == []


def test_divergence_moves_position_back(reading: Driver) -> None:
    reading.respond("node-0", fetched(diverging_epoch=EpochEndOffset(2, 3)))
    assert reading.position() == 3
    assert reading.consumer.take_resets() == [PositionReset(T0, 5, 3, "truncated", -1)]


def test_fatal_fetch_error_is_raised_to_application(reading: Driver) -> None:
    reading.respond("node-0", fetched(error=ErrorCode.topic_authorization_failed))
    assert reading.consumer.take_failures() == [ErrorCode.topic_authorization_failed]


@pytest.mark.clause("M-12")
def test_metadata_is_requested_until_required_epoch(reading: Driver) -> None:
    reading.consumer.want_epoch(4)
    assert "metadata" in reading.go()
    reading.respond("metadata", metadata(epoch=3))
    assert "metadata" not in reading.go(99)
    assert "metadata" in reading.go(1)
    reading.respond("metadata", metadata(epoch=4))
    assert "metadata" not in reading.go(1000)


@pytest.mark.clause("M-14")
def test_commit_to_coordinator_without_drafts_uses_released_version() -> None:
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ())))
    consumer.assign([T0])
    consumer.partitions.place(T0, 3)
    assert consumer.commit(0)
    [(channel, request)] = [each for each in consumer.next_requests(0) if each.channel == "commit"]
    consumer.responded(channel, 0, found())
    assert consumer.coordinator is not None
    assert consumer.coordinator.node is not None
    consumer.metadata.learn_drafts(consumer.coordinator.node, False)
    [(_, request)] = [each for each in consumer.next_requests(0) if each.channel == "commit"]
    assert request.api_version == 9
    consumer.failed("commit", 0)
    consumer.coordinator.node = found_node = consumer.coordinator.node or NodeAddress(1, "one", 9092)
    consumer.metadata.learn_drafts(found_node, True)
    [(_, request)] = [each for each in consumer.next_requests(10**6) if each.channel == "commit"]
    assert request.api_version == DRAFT_VERSION


def test_leader_waits_for_topics_of_other_members() -> None:
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ())))
    consumer.subscribe(("t",))
    channels = [channel for channel, _ in consumer.next_requests(0)]
    assert channels == ["metadata", "group"]
    consumer.responded("group", 0, found())
    [(channel, request)] = consumer.next_requests(0)
    row = ("me", None, due(request).body.protocols[0].metadata)
    consumer.responded(channel, 0, join_response(0, 1, "range", "me", "me", [row]))
    assert consumer.next_requests(0) == []
    consumer.responded("metadata", 0, metadata())
    [(channel, request)] = consumer.next_requests(0)
    assert (channel, len(due(request).body.assignments)) == ("group", 1)
    assert not any(isinstance(event, Assigned) for event in consumer.take_events())


class Noted(ConsumerObserver):
    """Records the callbacks, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def metadata_received(self, update: MetadataUpdate, accepted: bool) -> None:
        self.events.append(("metadata", update.metadata_epoch, accepted))

    def offsets_wanted(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.events.append(("wanted", partitions))

    def offsets_fetched(self, fetched: Fetched) -> None:
        self.events.append(("found", fetched.offsets, fetched.version))

    def fetching(self, node_id: int, plan: FetchPlan, partitions: Mapping[TopicPartition, Wanted]) -> None:
        self.events.append(
            (
                "fetching",
                node_id,
                plan.session_epoch,
                {partition: partitions[partition].fetch_offset for partition in partitions},
            )
        )

    def fetched(self, result: FetchResult) -> None:
        moved = [
            (partition.where, partition.before, partition.after, partition.error, len(partition.batches))
            for partition in result.partitions
        ]
        self.events.append(("fetched", result.node_id, result.problem, moved))

    def commit_begun(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.events.append(("committing", partitions))

    def committed(self, committed: Committed) -> None:
        self.events.append(("committed", committed.succeeded))

    def position_reset(self, reset: PositionReset) -> None:
        self.events.append(("reset", reset.from_offset, reset.to_offset))

    def group_event(self, event: GroupEvent) -> None:
        self.events.append(("event", type(event).__name__))


def test_observer_is_notified_of_metadata_fetches_and_resets() -> None:
    noted = Noted()
    driver = Driver(observer=noted)
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.respond("metadata", metadata(epoch=3))
    driver.respond("node-0", fetched(error=ErrorCode.offset_out_of_range))
    driver.respond("node-0", listed(2))
    driver.respond("node-0", fetched(b"a", first=2))
    assert noted.events == [
        ("metadata", 3, True),
        ("fetching", 0, 0, {T0: 5}),
        ("fetched", 0, None, [(T0, 5, 5, ErrorCode.offset_out_of_range, 0)]),
        ("reset", 5, 2),
        ("fetching", 0, 0, {T0: 2}),
        ("fetched", 0, None, [(T0, 2, 3, ErrorCode.none, 1)]),
    ]


def test_observer_is_notified_of_offsets_and_commits() -> None:
    noted = Noted()
    consumer = GroupConsumer(ConsumerConfig((SEED,), GroupConfig("g", ()), metadata_epoch=False), noted)
    consumer.assign([T0])
    assert consumer.commit(0, {T0: OffsetToCommit(4)})
    sent = {request.channel: request.request for request in consumer.next_requests(0)}
    assert {"commit"} == set(sent) - {"metadata"}, "both channels look up the coordinator"
    consumer.responded("commit", 0, found())
    assert {request.channel for request in consumer.next_requests(0)} == {"commit", "committed"}
    consumer.responded("commit", 0, committed(0))
    result = consumer.take_commit(0)
    assert result is not None
    assert result.succeeded
    consumer.responded("committed", 0, fetched_offsets(17))
    assert noted.events == [
        ("committing", (T0,)),
        ("wanted", (T0,)),
        ("committed", True),
        ("found", {T0: CommittedOffset(17, 7)}, 9),
    ]


def test_paused_partition_is_neither_fetched_nor_returned(reading: Driver) -> None:
    reading.respond("node-0", fetched(b"a", first=5))
    reading.consumer.pause([T0])
    assert (reading.consumer.take_records(9), reading.go()) == ([], {})
    reading.consumer.resume([T0])
    assert [record.value for record in reading.consumer.take_records(9)] == [b"a"]
    reading.go()
    assert reading.position() == 6


def test_damaged_batch_is_error_and_moves_no_position(reading: Driver) -> None:
    response = fetched(b"a", first=5)
    [topic] = response.responses
    part: Any = topic.partitions[0]  # Only mypy takes the fields as frozen.
    records = bytearray(part.records)
    records[-1] ^= 1
    part.records = bytes(records)
    reading.respond("node-0", response)
    assert reading.consumer.take_failures() == [ErrorCode.corrupt_message]
    assert reading.consumer.take_records(9) == []
    reading.go(100)
    assert reading.position() == 5


def test_failed_offset_fetch_is_restarted_after_deadline() -> None:
    noted = Noted()
    config = ConsumerConfig((SEED,), GroupConfig("g", ()), commit_deadline_us=100)
    consumer = GroupConsumer(config, noted)
    consumer.assign([T0])
    consumer.next_requests(0)
    consumer.failed("committed", 0)
    consumer.next_requests(200)
    consumer.next_requests(200)
    assert noted.events == [("wanted", (T0,)), ("found", {}, -1), ("wanted", (T0,))]
