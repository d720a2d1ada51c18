"""The partitions of a fetch response, and what the session caches of them: each near miss is red."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from chaos.checks.check import FetchCheck
from chaos.checks.sessions.fetch_model import (
    FIRST_REVISION,
    CompletedFetch,
    PartitionName,
    PendingFetch,
    Session,
    WantedPartition,
)
from chaos.checks.sessions.fetch_partitions import COMPARED_AT_ONCE, PartitionsSent, SessionCacheExact
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubEpochs,
    StubImages,
    StubLog,
    StubNode,
    broker_image,
    image_of,
    led_partition,
    node_partitions,
    topic_image,
)
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Reply, Request
from reference_broker.metadata.image import MetadataImage, PartitionImage
from reference_broker.records.record import Record, build
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH_OK,
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from reference_broker.wire.tags import Tag

BATCH = bytes(build([Record(timestamp_ms=0, value=b"v" * 30)]))
SIZE = len(BATCH)
SESSION, FINAL_VERSION, FOLLOWER = 77, 12, 1
TOPIC = b"t" * 16
T0, T1 = ("t", 0), ("t", 1)


LEADER_EPOCH = 3
LED_ELSEWHERE = 2
"""The node that leads t-2, in leader epoch 6."""


def _log() -> StubLog:
    """Return a log with offsets 2 to 10 and high watermark 8. The records of epoch 1 end at 5."""
    return StubLog(
        log_start_offset=2,
        local_log_start_offset=2,
        high_watermark=8,
        last_stable_offset=7,
        log_end_offset=10,
        epochs=StubEpochs([1, LEADER_EPOCH], [0, 5]),
    )


def _image() -> MetadataImage:
    led_here = PartitionImage((0, FOLLOWER), (0, FOLLOWER), 0, LEADER_EPOCH, 0)
    led_elsewhere = PartitionImage((0, LED_ELSEWHERE), (0, LED_ELSEWHERE), LED_ELSEWHERE, 6, 0)
    topic = topic_image("t", led_here, led_here, led_elsewhere, topic_id=TOPIC)
    return image_of(topic, brokers=map(broker_image, range(3)))


class CheckedNode:
    """A node that leads t-0 and t-1 in leader epoch 3, with logs as ``_log`` returns them. Topic t has a third
    partition, which node 2 leads in leader epoch 6."""

    def __init__(self, kind: type[FetchCheck]) -> None:
        self.check = kind(check_context())
        self.log = _log()
        led = [
            led_partition(index, log, leader_epoch=LEADER_EPOCH, followers=[FOLLOWER])
            for index, log in enumerate((self.log, _log()))
        ]
        config = replace(BrokerConfig(), fetch_max_bytes=10_000, replica_fetch_response_max_bytes=20_000)
        broker = StubBroker(config=config, partitions=node_partitions(*led), controller=StubImages(_image()))
        self.sessions = broker.fetch_sessions.sessions
        self.node = StubNode(broker).as_node()
        self.session = Session()

    def line(self, index: int = 0, **fields: Any) -> PartitionData:
        return replace(PartitionData(index, 0, 8, 7, 2), **fields)

    def request(self, wanted: dict[Any, WantedPartition], **fields: Any) -> PendingFetch:
        given: dict[str, Any] = {
            "partitions": wanted,
            "session_id": SESSION,
            "number": 4,
            "incremental": True,
            "is_first": False,
            "max_bytes": 1000,
            "reads_committed": False,
            "named": wanted,
        }
        return PendingFetch(**{**given, **fields})

    def respond(self, request: PendingFetch, *lines: PartitionData, version: int = FINAL_VERSION) -> None:
        body = FetchResponse(
            0, SESSION, [FetchTopicResponse("t", b"", list(lines))], response_flags=INCREMENTAL_FETCH_OK
        )
        reply = Reply(1, 1, 1, version, body, Tag(1, version, "f", SESSION, 4))
        data: dict[PartitionName, PartitionData] = {("t", line.partition): line for line in lines}
        fetch = CompletedFetch(self.node, "f", SESSION, self.session, request, False, data, reply)
        self.check.fetched(0, fetch)

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation.partition(": ")[2] for violation in self.check.violations]


def wanted(offset: int = 8, **fields: Any) -> WantedPartition:
    given: dict[str, Any] = {"offset": offset, "max_bytes": 100, "leader_epoch": 3}
    return WantedPartition(**{**given, **fields})


@pytest.fixture
def node() -> CheckedNode:
    return CheckedNode(PartitionsSent)


@pytest.mark.clause("F-5", "G-4")
def test_full_response_has_each_partition_once(node: CheckedNode) -> None:
    request = node.request({T0: wanted(), T1: wanted()}, incremental=False)
    node.respond(request, node.line(0), node.line(1))
    assert node.explanations == []
    node.respond(request, node.line(0))
    assert node.explanations == ["t-1 is missing in a full response"]
    node.respond(request, node.line(0), node.line(1), node.line(1))
    assert node.explanations[1:] == ["a partition is in it twice"]


@pytest.mark.clause("F-16")
@pytest.mark.parametrize(
    ("limits", "max_bytes", "sizes", "is_right"),
    [
        ((SIZE, SIZE), 1000, (1, 1), True),
        ((SIZE, SIZE), 1000, (2, 1), False),
        ((1, SIZE), 1000, (1, 1), True),
        ((SIZE, 1), 1000, (1, 1), False),
        ((SIZE, SIZE - 1), 1000, (1, 1), False),
        ((SIZE, SIZE), 2 * SIZE, (1, 1), True),
        ((SIZE, SIZE), 2 * SIZE - 1, (1, 1), False),
        ((9 * SIZE, SIZE), 2 * SIZE - 1, (2, 0), False),
        ((SIZE, SIZE), 1, (1, 0), True),
        ((SIZE, SIZE), 1, (1, 1), False),
    ],
)
def test_only_the_first_batch_may_exceed_a_limit(
    node: CheckedNode, limits: tuple[int, int], max_bytes: int, sizes: tuple[int, int], is_right: bool
) -> None:
    request = node.request({each: wanted(5, max_bytes=limit) for each, limit in zip((T0, T1), limits, strict=True)})
    node.respond(
        replace(request, max_bytes=max_bytes),
        *(node.line(index, records=BATCH * each) for index, each in enumerate(sizes)),
    )
    assert (node.explanations == []) is is_right


@pytest.mark.clause("F-16")
@pytest.mark.parametrize(("replica_id", "is_right"), [(-1, False), (FOLLOWER, True)])
def test_followers_have_a_limit_of_their_own(node: CheckedNode, replica_id: int, is_right: bool) -> None:
    request = node.request({T0: wanted(5, max_bytes=1 << 30)}, max_bytes=1 << 30, replica_id=replica_id)
    node.respond(request, node.line(records=BATCH * (12_000 // SIZE)))
    assert (node.explanations == []) is is_right


@pytest.mark.clause("F-13", "F-14")
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, ErrorCode.none),
        ({"leader_epoch": -1}, ErrorCode.none),
        ({"leader_epoch": 2}, ErrorCode.fenced_leader_epoch),
        ({"leader_epoch": 4}, ErrorCode.unknown_leader_epoch),
        ({"offset": 1}, ErrorCode.offset_out_of_range),
        ({"offset": 2}, ErrorCode.none),
        ({"offset": 10}, ErrorCode.none),
        ({"offset": 11}, ErrorCode.offset_out_of_range),
        ({"offset": 8, "last_epoch": 3}, ErrorCode.none),
        ({"offset": 5, "last_epoch": 1}, ErrorCode.none),
        ({"offset": 5, "last_epoch": 4}, ErrorCode.offset_out_of_range),
    ],
)
@pytest.mark.parametrize(
    "sent",
    [
        0,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_out_of_range,
        ErrorCode.unknown_topic_or_partition,
    ],
)
def test_error_is_that_of_the_state(node: CheckedNode, fields: dict[str, int], error: int, sent: int) -> None:
    data = node.line(records=BATCH) if not sent else PartitionData(0, sent, -1)
    node.respond(node.request({T0: wanted(**fields)}), data)
    assert node.explanations == ([] if sent == error else [f"t-0 has error {sent:d}, and its state gives {int(error)}"])


@pytest.mark.clause("F-13")
@pytest.mark.parametrize(
    ("index", "epoch", "errors"),
    [
        (2, -1, [ErrorCode.not_leader_or_follower]),
        (2, 6, [ErrorCode.not_leader_or_follower]),
        (2, 5, [ErrorCode.fenced_leader_epoch]),
        (2, 7, [ErrorCode.unknown_leader_epoch]),
        (3, -1, [ErrorCode.unknown_topic_or_partition]),
    ],
)
def test_partition_that_is_led_elsewhere_has_an_error_that_says_so(
    node: CheckedNode, index: int, epoch: int, errors: list[int]
) -> None:
    request = node.request({("t", index): wanted(leader_epoch=epoch)})
    for sent in (0, 1, 3, 6, 74, 75):
        before = len(node.explanations)
        node.respond(request, PartitionData(index, sent, -1))
        assert (len(node.explanations) == before) is (sent in errors)


@pytest.mark.clause("F-13")
@pytest.mark.parametrize(
    ("leader", "at", "is_right"),
    [
        ((2, 6), [(2, "host-2")], True),
        (None, [], False),
        ((2, 5), [(2, "host-2")], False),
        ((1, 6), [(1, "host-1")], False),
        ((2, 6), [], False),
        ((2, 6), [(2, "host-1")], False),
        ((2, 6), [(2, "host-2"), (2, "host-2")], False),
        ((2, 6), [(2, "host-2"), (1, "host-1")], False),
    ],
)
@pytest.mark.parametrize("version", [15, 16])
def test_consumer_is_sent_the_leader_and_its_address(
    node: CheckedNode, version: int, leader: tuple[int, int] | None, at: list[tuple[int, str]], is_right: bool
) -> None:
    name = (TOPIC, 2)
    data = PartitionData(2, 6, -1, current_leader=None if leader is None else LeaderIdAndEpoch(*leader))
    body = FetchResponse(
        0, SESSION, [FetchTopicResponse("", TOPIC, [data])], node_endpoints=[NodeEndpoint(*each, 9092) for each in at]
    )
    reply = Reply(1, 1, 1, version, body, Tag(1, version, "f", SESSION, 4))
    for replica_id in (-1, FOLLOWER):
        request = node.request({name: wanted(leader_epoch=-1)}, replica_id=replica_id)
        node.check.fetched(
            0, CompletedFetch(node.node, "f", SESSION, node.session, request, False, {name: data}, reply)
        )
        is_judged = version >= 16 and replica_id < 0
        assert (node.explanations == []) is (is_right or not is_judged)
        node.check.violations.clear()


@pytest.mark.clause("F-14")
@pytest.mark.parametrize(
    ("offset", "last_epoch", "end"),
    [(5, 1, None), (6, 1, (1, 5)), (8, 3, None), (8, 2, (1, 5)), (5, 0, (0, 0))],
)
def test_diverging_epoch_is_the_last_that_both_logs_may_have(
    node: CheckedNode, offset: int, last_epoch: int, end: tuple[int, int] | None
) -> None:
    request = node.request({T0: wanted(offset, last_epoch=last_epoch)})
    for sent in (None, (0, 0), (1, 5), (1, 6), (3, 5)):
        before = len(node.explanations)
        node.respond(request, node.line(diverging_epoch=None if sent is None else EpochEndOffset(*sent)))
        assert (len(node.explanations) == before) is (sent == end)


@pytest.mark.clause("F-13", "F-14")
@pytest.mark.parametrize("what", ["high_watermark", "last_stable_offset", "log_start_offset"])
def test_offsets_are_those_before_or_after_the_event(node: CheckedNode, what: str) -> None:
    request, now = node.request({T0: wanted()}), getattr(node.log, what)
    node.respond(request, node.line())
    assert node.explanations == []
    for sent in (-1, now - 1, now + 1):
        before = len(node.explanations)
        node.respond(request, node.line(**{what: sent}))
        assert len(node.explanations) == before + 1
        assert what in node.explanations[-1]


@pytest.mark.clause("F-14")
def test_response_may_be_older_than_the_last_change_of_its_event() -> None:
    node = CheckedNode(PartitionsSent)
    node.check.logs_touched(0, node.node, (node.log.as_log(),), False)  # type: ignore[attr-defined]
    node.log.high_watermark = 9
    request = node.request({T0: wanted()})
    node.respond(request, node.line())
    node.respond(request, node.line(high_watermark=9))
    assert node.explanations == []
    node.respond(request, node.line(high_watermark=7))
    assert len(node.explanations) == 1


@dataclass
class StubCachedPartition:
    """A partition as the session caches it after ``CachingNode.serve``."""

    fetch_offset: int = 8
    max_bytes: int = 100
    current_leader_epoch: int = LEADER_EPOCH
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = 8
    sent_log_start_offset: int = 2


@dataclass
class StubFetchSession:
    """A consumer's session after its request with epoch 4."""

    partitions: dict[PartitionName, StubCachedPartition]
    epoch: int = 5
    privileged: bool = False
    replica_id: int = -1
    has_unfinished_fetch: bool = False


class CachingNode(CheckedNode):
    """The node, with a session in the state that it should have after a response."""

    def __init__(self) -> None:
        super().__init__(SessionCacheExact)
        self.cached = StubFetchSession({T0: StubCachedPartition(), T1: StubCachedPartition()})
        self.sessions[SESSION] = self.cached

    def serve(self, request: PendingFetch | None = None) -> list[str]:
        self.respond(request or self.request({T0: wanted(), T1: wanted()}), self.line(0))
        return self.explanations


@pytest.mark.clause("F-13", "G-8")
def test_session_that_caches_what_was_requested_and_sent_is_right() -> None:
    assert CachingNode().serve() == []


@pytest.mark.clause("F-13", "F-14", "G-8")
@pytest.mark.parametrize(
    "field",
    [
        "fetch_offset",
        "max_bytes",
        "current_leader_epoch",
        "last_fetched_epoch",
        "log_start_offset",
        "sent_high_watermark",
        "sent_log_start_offset",
    ],
)
def test_each_field_of_a_cached_partition_is_compared(field: str) -> None:
    node = CachingNode()
    setattr(node.cached.partitions[T0], field, 9)
    (explanation,) = node.serve()
    assert "9" in explanation


@pytest.mark.clause("F-14")
def test_after_an_error_nothing_counts_as_sent() -> None:
    node = CachingNode()
    request = node.request({T0: wanted(), T1: wanted()})
    error = PartitionData(0, ErrorCode.offset_moved_to_tiered_storage, 8, 7, 2)
    node.cached.partitions[T0] = StubCachedPartition(sent_high_watermark=-1, sent_log_start_offset=-1)
    node.respond(request, error)
    assert node.explanations == []
    node.cached.partitions[T0] = StubCachedPartition()
    node.respond(request, error)
    assert node.explanations == ["t-0: (8, 2) counts as sent last, and (-1, -1) was sent"]


@pytest.mark.clause("F-1", "F-3", "F-12", "F-19")
@pytest.mark.parametrize(
    ("field", "value"),
    [("privileged", True), ("replica_id", 1), ("epoch", 4), ("epoch", 6), ("partitions", {T0: StubCachedPartition()})],
)
def test_fields_of_the_session_are_compared(field: str, value: Any) -> None:
    node = CachingNode()
    setattr(node.cached, field, value)
    assert node.serve()


@pytest.mark.clause("F-3")
@pytest.mark.parametrize(("number", "epoch"), [(2**31 - 1, 1), (2**31 - 2, 2**31 - 1), (1, 2)])
@pytest.mark.parametrize("more", [0, 1])
def test_epoch_wraps(number: int, epoch: int, more: int) -> None:
    node = CachingNode()
    node.cached.epoch = epoch + more
    request = node.request({T0: wanted(), T1: wanted()}, number=number)
    assert bool(node.serve(request)) is bool(more)


@pytest.mark.clause("G-3")
def test_number_of_the_first_revision_does_not_wrap() -> None:
    node = CachingNode()
    node.cached.epoch = 2**31
    request = node.request({T0: wanted(), T1: wanted()}, number=2**31 - 1, is_first=True)
    node.respond(request, node.line(0), version=FIRST_REVISION)
    assert node.explanations == []


@pytest.mark.clause("F-13")
def test_partitions_that_a_request_did_not_name_are_compared_now_and_then() -> None:
    node = CachingNode()
    node.cached.partitions[T1].fetch_offset = 9
    request = node.request({T0: wanted(), T1: wanted()}, named={})
    for _ in range(COMPARED_AT_ONCE - 1):
        assert node.serve(request) == []
    assert node.serve(request) == ["t-1: fetch offset 9 is cached, and 8 was requested last"]


@pytest.mark.clause("G-3")
@pytest.mark.parametrize(
    ("correlation_id", "session_id", "is_judged"), [(1, SESSION, True), (2, SESSION, False), (2, SESSION + 1, True)]
)
def test_response_in_the_event_of_another_request_of_its_session_is_not_compared(
    correlation_id: int, session_id: int, is_judged: bool
) -> None:
    node = CachingNode()
    node.cached.epoch = 9
    came = Request(1, correlation_id, 1, FINAL_VERSION, "f", FetchRequest(session_id=session_id), Tag(1, 1, "f", 0, 0))
    node.check.acted(0, node.node, came, ())
    assert bool(node.serve()) is is_judged


def test_session_at_work_is_not_compared() -> None:
    node = CachingNode()
    node.cached.has_unfinished_fetch, node.cached.epoch = True, 9
    assert node.serve() == []
