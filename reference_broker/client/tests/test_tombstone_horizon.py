"""When a fetcher restarts a log because it may have missed tombstones (H-3 to H-7)."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.metadata.v13.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta

from reference_broker.client.api_versions import NEEDED_DRAFTS, may_be_sent
from reference_broker.client.consumer import remembered_after
from reference_broker.client.group_consumer import ConsumerConfig, GroupConsumer
from reference_broker.client.group_requests import DRAFT_VERSION, PAGE_VERSION
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.tests.test_group_consumer import SEED, T0, Driver, fetched
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse, FetchTopicResponse
from reference_broker.wire.retired_fields import MetadataResponse

TOPIC_ID = b"t" * 16


@pytest.mark.clause("H-3", "H-5", "H-6", "H-7")
def test_marker_is_kept_below_it_and_dropped_at_it() -> None:
    assert [remembered_after(position, 10) for position in (0, 9, 10, 11)] == [10, 10, 0, 0]


@dataclass
class Topic:
    """A compacted log. ``records``: key and value by offset, where value None is a tombstone. ``old`` tombstones have
    survived a pass, and are removed by the next one, as in Kafka."""

    records: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    old: set[int] = field(default_factory=set)
    horizon: int = 0
    end: int = 0

    def write(self, key: int, is_tombstone: bool) -> None:
        self.records[self.end] = key, None if is_tombstone else self.end
        self.end += 1

    def clean(self) -> None:
        newest = {key: offset for offset, (key, _) in self.records.items()}
        self.records = {offset: self.records[offset] for offset in sorted(newest.values())}
        tombstones = {offset for offset, (_, value) in self.records.items() if value is None}
        for offset in sorted(tombstones & self.old):
            del self.records[offset]
            self.horizon = offset + 1
        self.old = tombstones


@dataclass
class Reader:
    """A reader that keeps the last value of each key, and clears them where it must restart."""

    position: int = 0
    remembered: int = 0
    state: dict[int, int] = field(default_factory=dict)

    def read_one(self, topic: Topic) -> None:
        known, self.remembered = self.remembered, remembered_after(self.position, topic.horizon)
        if self.remembered > known:
            self.position, self.state = 0, {}
            return
        offset = min((at for at in topic.records if at >= self.position), default=None)
        if offset is None:
            self.position = topic.end
            return
        key, value = topic.records[offset]
        self.position = offset + 1
        if value is None:
            self.state.pop(key, None)
        else:
            self.state[key] = value


WRITES = st.tuples(st.just("write"), st.integers(0, 2), st.booleans())
"""Both replicas get it. The other steps are of one replica."""
OF_ONE = st.tuples(st.sampled_from(["clean", "read"]), st.integers(0, 1), st.just(False))
STEPS = st.lists(st.one_of(WRITES, OF_ONE), max_size=60)
WRITTEN = [("write", 1, False), ("write", 0, False), ("write", 0, True)]
TWICE_CLEANED = [("clean", 0, False)] * 2
READ, READ_THE_OTHER = ("read", 0, False), ("read", 1, False)


@pytest.mark.thorough
@pytest.mark.clause("H-1", "H-3", "H-5", "H-6", "H-7")
@settings(max_examples=300)
@example([*WRITTEN, *TWICE_CLEANED, READ, READ, ("write", 1, True), *TWICE_CLEANED])
@example([("write", 1, False), *WRITTEN, *TWICE_CLEANED, READ, READ_THE_OTHER, READ_THE_OTHER, READ_THE_OTHER])
@given(STEPS)
def test_caught_up_reader_has_same_values_as_leader(steps: list[tuple[str, int, bool]]) -> None:
    """There are two replicas, each with a cleaner of its own. The reader moves between them."""
    replicas, reader = (Topic(), Topic()), Reader()
    for what, number, is_tombstone in steps:
        if what == "write":
            for replica in replicas:
                replica.write(number, is_tombstone)
        elif what == "clean":
            replicas[number].clean()
        else:
            reader.read_one(replicas[number])
    topic = replicas[0]
    for _ in range(2 * topic.end + 3):
        reader.read_one(topic)
    assert reader.position == topic.end
    topic.clean()
    assert reader.state == {key: value for key, value in topic.records.values() if value is not None}


def reading(tombstone_horizon: bool = True, topic_id: bytes = TOPIC_ID) -> Driver:
    """Return a driver that reads T0 of node 0 from offset 5."""
    driver = Driver()
    fetch = FetchSettings(leader_epochs=False, tombstone_horizon=tombstone_horizon)
    driver.consumer = GroupConsumer(ConsumerConfig((SEED,), metadata_epoch=False, fetch=fetch, backoff_us=100))
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.respond("metadata", metadata(topic_id))
    return driver


def metadata(topic_id: bytes) -> MetadataResponse:
    node = BrokerId(0)
    partition = MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=i32(0),
        leader_id=node,
        leader_epoch=i32(0),
        replica_nodes=(node,),
        isr_nodes=(node,),
        offline_replicas=(),
    )
    topic = MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName("t"),
        topic_id=UUID(bytes=topic_id),
        is_internal=False,
        partitions=(partition,),
        topic_authorized_operations=i32(0),
    )
    return MetadataResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        brokers=(MetadataResponseBroker(node_id=node, host="n0", port=i32(1), rack=None),),
        cluster_id=None,
        controller_id=node,
        topics=(topic,),
        error_code=ErrorCode.none,
    )


def horizon_response(horizon: int, log_start_offset: int, first_offset: int) -> FetchResponse:
    """Return a response for T0 with the marker and one record."""
    [topic] = fetched(b"v", first=first_offset).responses
    data = replace(topic.partitions[0], tombstone_horizon=horizon, log_start_offset=log_start_offset)
    return FetchResponse(responses=[FetchTopicResponse("", TOPIC_ID, [data])])


@pytest.mark.clause("H-3", "H-5", "H-6")
def test_consumer_drops_records_below_marker_and_notifies_application_once() -> None:
    driver = reading()
    assert driver.sent["node-0"].api_version == 1001
    driver.respond("node-0", horizon_response(10, 2, 5))
    assert driver.consumer.take_missed_tombstones() == [T0]
    assert driver.consumer.take_records(9) == []
    [reset] = driver.consumer.take_resets()
    assert (reset.from_offset, reset.to_offset, reset.reason) == (5, 2, "tombstones_missed")
    driver.respond("node-0", horizon_response(10, 2, 2))
    assert [record.offset for record in driver.consumer.take_records(9)] == [2]
    assert driver.consumer.take_missed_tombstones() == []
    driver.go()
    driver.respond("node-0", horizon_response(12, 2, 3))
    assert driver.consumer.take_missed_tombstones() == [T0], "the marker has moved (H-6)"


@pytest.mark.clause("D-3")
@pytest.mark.parametrize(
    ("version", "announced", "is_sent"),
    [
        (17, [], True),
        (1001, ["crucible.Fetch.1001"], True),
        (1001, [], False),
        (1001, ["crucible.Fetch.1000", *NEEDED_DRAFTS], False),
        (1003, [*NEEDED_DRAFTS], False),
    ],
)
def test_draft_is_sent_only_to_node_that_announces_it(version: int, announced: list[str], is_sent: bool) -> None:
    assert may_be_sent(1, version, frozenset(announced)) == is_sent


def test_consumer_without_setting_uses_released_version() -> None:
    assert reading(tombstone_horizon=False).sent["node-0"].api_version == 17


def test_dropped_partition_is_not_reported_as_missed() -> None:
    driver = reading()
    driver.respond("node-0", horizon_response(10, 2, 5))
    driver.consumer.assign([])
    assert driver.consumer.take_missed_tombstones() == []


@pytest.mark.clause("H-3", "H-5")
@pytest.mark.parametrize(("offset", "is_reported"), [(2, False), (0, False), (3, True)])
def test_seek_is_checked_again_unless_to_log_start(offset: int, is_reported: bool) -> None:
    """An application may restore state of an earlier time. One that seeks to the start whenever it must reaches the
    end."""
    driver = reading()
    driver.respond("node-0", horizon_response(10, 2, 5))
    driver.respond("node-0", horizon_response(10, 2, 2))
    assert driver.consumer.take_missed_tombstones() == [T0]
    driver.consumer.take_records(9)
    driver.consumer.seek(T0, offset)
    driver.go()
    driver.respond("node-0", horizon_response(10, 2, offset))
    assert driver.consumer.take_missed_tombstones() == ([T0] if is_reported else [])


@pytest.mark.clause("D-1")
@pytest.mark.parametrize(("horizon", "version"), [(True, DRAFT_VERSION), (False, PAGE_VERSION)])
def test_metadata_epoch_uses_drafts_with_topic_ids(horizon: bool, version: int) -> None:
    settings = FetchSettings(tombstone_horizon=horizon, leader_epochs=False)
    assert ConsumerConfig((SEED,), metadata_epoch=True, fetch=settings).draft_version == version


def test_metadata_without_topic_ids_is_rejected_with_marker() -> None:
    fetch = FetchSettings(tombstone_horizon=True)
    with pytest.raises(ValueError, match="metadata_version to 10 or more"):
        ConsumerConfig((SEED,), metadata_epoch=False, metadata_version=9, fetch=fetch)


def test_broker_without_topic_ids_does_not_disable_marker() -> None:
    driver = reading(topic_id=bytes(16))
    assert "node-0" not in driver.sent
    assert driver.consumer.take_failures() == [ErrorCode.unknown_topic_id]
