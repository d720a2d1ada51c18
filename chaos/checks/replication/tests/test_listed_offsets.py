"""Offsets that a leader returns to ListOffsets, with near misses."""

import pytest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v10.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from bench.fleet.behaviours.bodies import milliseconds
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.listed_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LIST_OFFSETS, OffsetsListed
from chaos.checks.replication.replica_view import Copy, Held, Replicated
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubImages, StubNode, image_of, node_partitions, topic_image
from reference_broker.core.events import Closed, Reply, Request
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin
from reference_broker.metadata.image import PartitionImage
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

pytestmark = pytest.mark.clause("E-2", "X-4")

TOPIC_ID = b"t" * 16
KEY = (TOPIC_ID, 0)
COMMITTED = 1
TAG = Tag(LIST_OFFSETS, 10, "c")


class Leader:
    """Node 1, which leads t-0 in leader epoch 4. Its log had ten records when that began, six of them committed."""

    def __init__(self) -> None:
        self.check = OffsetsListed(check_context())
        self.log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(), Now(0, 0), True))
        self.log.topic_id = TOPIC_ID
        self.append(10)
        self.log.advance_high_watermark(6)
        self.led = Partition("t", TOPIC_ID, 0, 4, self.log)
        broker = StubBroker(
            node_id=1, partitions=node_partitions(self.led), controller=StubImages(image_of(topic_image("t")))
        )
        self.node = StubNode(broker).as_node()
        state = PartitionImage((0, 1, 2), (0, 1, 2), 1, 4, 1)
        replicated = Replicated("t-0", KEY, state, Eligible.of(state, 2))
        before, now = Held(0, -1, 0, 6, 10), Held(0, 4, 0, 6, 10)
        self.check.copy_changed(0, replicated, Copy(1, now, self.log), before, now)

    def append(self, count: int) -> None:
        for _ in range(count):
            batch = bytes(build([Record(timestamp_ms=0, value=b"v")]))
            self.log.append(Now(0, 0), batch, 4, origin=BatchOrigin.BROKER)

    def request(self, timestamp: int = LATEST, isolation: int = 0, leader_epoch: int = -1) -> None:
        wanted = ListOffsetsPartition(
            partition_index=i32(0), current_leader_epoch=i32(leader_epoch), timestamp=i64(timestamp)
        )
        body = ListOffsetsRequest(
            replica_id=BrokerId(-1),
            isolation_level=i8(isolation),
            topics=(ListOffsetsTopic(name=TopicName("t"), partitions=(wanted,)),),
            timeout=milliseconds(1000),
        )
        self.check.acted(0, self.node, Request(1, 1, LIST_OFFSETS, 10, "c", body, TAG), ())

    def respond(self, offset: int = -1, error: ErrorCode = ErrorCode.none) -> bool:
        """Return whether the response violates the rule."""
        result = ListOffsetsPartitionResponse(
            partition_index=i32(0), error_code=error, timestamp=i64(-1), offset=i64(offset), leader_epoch=i32(4)
        )
        body = ListOffsetsResponse(
            throttle_time=milliseconds(0),
            topics=(ListOffsetsTopicResponse(name=TopicName("t"), partitions=(result,)),),
        )
        self.check.acted(0, self.node, Closed(9), (Reply(1, 1, LIST_OFFSETS, 10, body, TAG),))
        self.check._judge(0, self.node)
        return bool(self.check.violations)


@pytest.mark.parametrize("isolation", [0, COMMITTED])
def test_new_leader_returns_no_latest_offset_before_its_epoch_is_committed(isolation: int) -> None:
    leader = Leader()
    leader.request(isolation=isolation)
    assert leader.respond(6)


def test_new_leader_may_refuse_latest_offset_before_its_epoch_is_committed() -> None:
    leader = Leader()
    leader.request()
    assert not leader.respond(error=ErrorCode.offset_not_available)


def test_latest_offset_at_start_of_epoch_is_due() -> None:
    leader = Leader()
    leader.append(2)
    leader.log.advance_high_watermark(10)
    leader.request()
    assert not leader.respond(10)
    leader.request()
    assert leader.respond(error=ErrorCode.offset_not_available)


def test_refusal_is_right_if_the_watermark_moves_during_the_request() -> None:
    leader = Leader()
    leader.request()
    leader.log.advance_high_watermark(10)
    assert not leader.respond(error=ErrorCode.offset_not_available)


@pytest.mark.parametrize(
    ("timestamp", "offset", "is_wrong"),
    [
        (LATEST, 10, False),
        (LATEST, 9, True),
        (LATEST, 12, True),
        (EARLIEST, 0, False),
        (EARLIEST, 1, True),
        (EARLIEST_LOCAL, 0, False),
        (EARLIEST_LOCAL, 2, True),
        (0, 3, False),
    ],
)
def test_offsets_are_those_of_the_log(timestamp: int, offset: int, is_wrong: bool) -> None:
    leader = Leader()
    leader.append(2)
    leader.log.advance_high_watermark(10)
    leader.request(timestamp)
    assert leader.respond(offset) is is_wrong


@pytest.mark.parametrize(
    ("leader_epoch", "error", "is_wrong"),
    [
        (4, ErrorCode.none, False),
        (3, ErrorCode.fenced_leader_epoch, False),
        (5, ErrorCode.unknown_leader_epoch, False),
        (3, ErrorCode.none, True),
        (5, ErrorCode.fenced_leader_epoch, True),
    ],
)
def test_other_leader_epochs_are_refused(leader_epoch: int, error: ErrorCode, is_wrong: bool) -> None:
    leader = Leader()
    leader.log.advance_high_watermark(10)
    leader.request(leader_epoch=leader_epoch)
    assert leader.respond(-1 if error else 10, error) is is_wrong


def test_partition_that_changed_its_leader_is_not_judged() -> None:
    leader = Leader()
    leader.request()
    leader.led.leader_epoch = 5
    assert not leader.respond(6)
