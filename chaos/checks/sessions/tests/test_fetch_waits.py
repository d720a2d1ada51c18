"""Times at which a parked fetch must get its response, and must not, with near misses."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.check import CheckContext
from chaos.checks.metadata.metadata_transactions import PUBLISHED_WITHIN_US
from chaos.checks.sessions.fetch_model import EVICTED, FIRST_REVISION
from chaos.checks.sessions.fetch_responses import IncrementalExact
from chaos.checks.sessions.fetch_waits import CLOSED, SOON_US, FetchWaits, diverges
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubEpochs, StubLog, StubNode, led_partition, node_partitions
from reference_broker.core.events import Closed, Event, Note, Reply, Request, TimerFired
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.tags import Tag

SESSION, FINAL_VERSION = 77, 12
FOLLOWER = 1
LATER_US = SOON_US + 1
MAX_WAIT_MS = 500


def _log_with_five_records() -> StubLog:
    return StubLog(high_watermark=5, last_stable_offset=5, log_end_offset=5, epochs=StubEpochs([3], [0]))


class ObservedNode:
    """A node that leads two partitions in leader epoch 3, each with five records of epoch 3, and the check of its
    parked fetches. Its fetch session with both partitions is open."""

    def __init__(self, version: int = FINAL_VERSION, replica_id: int = -1, role: str = "") -> None:
        self.context: CheckContext = check_context()
        self.check = FetchWaits(self.context)
        self.sent = IncrementalExact(self.context)  # It keeps what was sent in the session.
        self.version, self.replica_id, self.role = version, replica_id, role
        self.at_us = self.correlation = 0
        self.logs = [_log_with_five_records() for _ in range(2)]
        self.partitions = [
            led_partition(index, log, leader_epoch=3, followers=[FOLLOWER]) for index, log in enumerate(self.logs)
        ]
        self.node = StubNode(StubBroker(partitions=node_partitions(*self.partitions)))
        opening = self.fetch({0: 5, 1: 5}, number=0)
        self.respond(opening, self.line(0), self.line(1))

    @property
    def led(self) -> dict[tuple[str, int], Partition]:
        return self.node.broker.partitions.by_name

    def line(self, index: int, **fields: Any) -> PartitionData:
        return PartitionData(index, 0, self.logs[index].high_watermark, **fields)

    def fetch(
        self,
        named: dict[int, int],
        number: int,
        min_bytes: int = 1,
        connection: int = 1,
        isolation_level: int = 0,
        last_epoch: int = -1,
        max_wait_ms: int = MAX_WAIT_MS,
    ) -> Request:
        self.correlation += 1
        body = FetchRequest(
            replica_id=self.replica_id,
            max_wait_ms=max_wait_ms if number else 0,
            min_bytes=min_bytes,
            max_bytes=10_000,
            isolation_level=isolation_level,
            session_id=SESSION if self.correlation > 1 else 0,
            session_epoch=number,
            topics=[FetchTopic("t", b"", [FetchPartition(*each, 100, 3, last_epoch) for each in named.items()])],
            fetch_type=int(number > 0),
        )
        role = self.role or ("peer" if self.replica_id >= 0 else "client")
        tag = Tag(1, self.version, "f", body.session_id, number, role=role)
        request = Request(connection, self.correlation, 1, self.version, "f", body, tag)
        if number:
            self.handle(request)
        return request

    def respond(self, request: Request, *lines: PartitionData, error: int = 0, event: Event | None = None) -> None:
        response = FetchResponse(error, SESSION, [FetchTopicResponse("t", b"", list(lines))])
        reply = Reply(request.connection, request.correlation_id, 1, self.version, response, request.tag)
        self.handle(event or (request if self.correlation == 1 else TimerFired(1)), reply)

    def handle(self, event: Event, *effects: Any, touched: int | None = None) -> None:
        self.check.acted(self.at_us, self.node.as_node(), event, effects)
        for each in self.context.fetches.acted(self.node.as_node(), event, effects):
            self.check.fetched(self.at_us, each)
            self.sent.fetched(self.at_us, each)
        logs = () if touched is None else (self.logs[touched].as_log(),)
        if touched is None:
            # A test may have changed a role, which only a publication does.
            self.node.publish(replace(self.node.image))
        self.check.logs_touched(self.at_us, self.node.as_node(), logs, False)
        self.check.viewed(self.at_us, self.node.as_node())

    def advance(self, us: int) -> None:
        self.at_us += us
        self.handle(TimerFired(9))

    def append(self, index: int = 1, committed: bool = True) -> None:
        log = self.logs[index]
        log.log_end_offset += 1
        if committed:
            log.high_watermark = log.last_stable_offset = log.log_end_offset
        self.handle(TimerFired(8), touched=index)

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


@pytest.fixture
def node() -> ObservedNode:
    return ObservedNode()


@pytest.mark.clause("F-14")
def test_fetch_that_waits_for_its_time_is_right(node: ObservedNode) -> None:
    request = node.fetch({}, 1)
    node.advance(MAX_WAIT_MS * 1000)
    node.respond(request)
    assert node.explanations == []
    assert node.check.evidence == 0


@pytest.mark.clause("F-14")
def test_no_fetch_waits_longer_than_its_time(node: ObservedNode) -> None:
    request = node.fetch({}, 1)
    node.advance(MAX_WAIT_MS * 1000 + SOON_US)
    assert node.explanations == []
    node.at_us += 1
    node.respond(request)
    assert len(node.explanations) == 1
    assert "although max_wait_ms have passed" in node.explanations[0]


@pytest.mark.clause("F-14")
def test_data_end_the_wait_of_a_fetch(node: ObservedNode) -> None:
    request = node.fetch({}, 1)
    node.append()
    node.advance(SOON_US)
    node.respond(request, node.line(1, records=b"r"))
    assert node.explanations == []
    node.fetch({1: 6}, 2)
    node.append()
    node.advance(LATER_US)
    assert len(node.explanations) == 1
    assert "although 1 bytes are there and it waits for 1" in node.explanations[0]


@pytest.mark.clause("G-3", "G-5", "G-6")
@pytest.mark.parametrize(
    ("what", "is_due"),
    [
        ("all was sent", False),
        ("of the final revision", True),
        ("named", True),
        ("repeated", True),
        ("more follows", True),
        ("more follows later", True),
        ("an error since", True),
        ("nothing was sent", True),
    ],
)
def test_records_that_previous_response_had_end_no_wait_in_first_revision(what: str, is_due: bool) -> None:
    node = ObservedNode(FINAL_VERSION if what == "of the final revision" else FIRST_REVISION)
    node.append()
    if what == "more follows":
        node.append()
    sent = b"" if what == "nothing was sent" else build([Record(value=b"v")], base_offset=5)
    node.respond(node.fetch({}, 1), node.line(1, records=sent))
    assert node.explanations == []
    if what == "an error since":
        del node.led["t", 1]
        node.respond(node.fetch({}, 2), PartitionData(1, ErrorCode.not_leader_or_follower, -1))
        node.led["t", 1] = node.partitions[1]
    number = {"repeated": 1, "an error since": 3}.get(what, 2)
    node.fetch({1: 5} if what == "named" else {}, number)
    if what == "more follows later":
        node.append()
    node.advance(LATER_US)
    assert bool(node.explanations) is is_due


@pytest.mark.clause("G-4", "G-5")
@pytest.mark.parametrize(("appended", "is_due"), [(0, False), (1, True)])
def test_records_of_a_full_response_end_no_wait_in_first_revision(appended: int, is_due: bool) -> None:
    """The full request keeps the session's number, so the request that follows may have the number of one before it."""
    node = ObservedNode(FIRST_REVISION)
    first = node.fetch({}, 1)
    node.advance(MAX_WAIT_MS * 1000)
    node.respond(first)
    node.append()
    full = node.fetch({1: 5}, 0)
    node.respond(full, node.line(1, records=build([Record(value=b"v")], base_offset=5)), event=full)
    node.fetch({}, 1)
    for _ in range(appended):
        node.append()
    node.advance(LATER_US)
    assert bool(node.explanations) is is_due


@pytest.mark.clause("F-14")
def test_response_that_came_late_is_red_though_nothing_happened_before_it(node: ObservedNode) -> None:
    request = node.fetch({}, 1)
    node.append()
    node.at_us += LATER_US
    node.respond(request, node.line(1, records=b"r"))
    assert len(node.explanations) == 1


@pytest.mark.clause("F-14")
def test_node_that_a_fault_affects_responds_later(node: ObservedNode) -> None:
    node.fetch({}, 1)
    node.append()
    node.context.quorum.fault_times.node(0, LATER_US)
    node.advance(LATER_US)
    assert node.explanations == []
    node.advance(LATER_US)
    assert len(node.explanations) == 1


@pytest.mark.clause("F-14", "X-4")
@pytest.mark.parametrize(("replica_id", "is_due"), [(-1, False), (1, True)])
def test_only_followers_read_above_the_high_watermark(replica_id: int, is_due: bool) -> None:
    node = ObservedNode(replica_id=replica_id)
    node.fetch({}, 1)
    node.append(committed=False)
    node.advance(LATER_US)
    assert bool(node.explanations) is is_due


@pytest.mark.clause("F-14", "X-4")
@pytest.mark.parametrize("level", [0, 1])
def test_reader_of_committed_records_waits_for_the_last_stable_offset(level: int) -> None:
    node = ObservedNode()
    node.fetch({}, 1, isolation_level=level)
    node.append()
    node.logs[1].last_stable_offset = 5
    node.handle(TimerFired(7), touched=1)
    node.advance(LATER_US)
    assert bool(node.explanations) is (level == 0)


@pytest.mark.clause("F-14")
def test_consumer_is_sent_nothing_before_its_bytes_are_there(node: ObservedNode) -> None:
    node.respond(node.fetch({}, 1))
    assert len(node.explanations) == 1
    assert "with 0 bytes, and it waits for 1 or for 500 ms" in node.explanations[0]


@pytest.mark.clause("F-14")
def test_response_in_the_event_of_its_request_may_be_too_early_too(node: ObservedNode) -> None:
    body = FetchRequest(session_id=SESSION, session_epoch=1)
    request = Request(1, 9, 1, FINAL_VERSION, "f", body, Tag(1, FINAL_VERSION, "f", SESSION, 1))
    node.respond(request, event=request)
    assert len(node.explanations) == 1
    assert "after 0 ms with 0 bytes" in node.explanations[0]


@pytest.mark.clause("F-22")
@pytest.mark.parametrize("role", ["peer", "client"])
def test_leader_may_respond_to_a_follower_early(role: str) -> None:
    """Also if the client ID was damaged, so that it is no node's: the replica ID says who fetches."""
    node = ObservedNode(replica_id=1, role=role)
    node.respond(node.fetch({}, 1))
    assert node.explanations == []


@pytest.mark.clause("F-22")
@pytest.mark.parametrize(("replica_id", "ends"), [(1, []), (-1, ["although partition t-7 fails since"])])
def test_fetch_outside_sessions_is_judged_unless_it_has_a_replica_id(replica_id: int, ends: list[str]) -> None:
    """Nodes fetch the metadata log so, and wait for its records. Their client ID may be damaged."""
    node = ObservedNode(replica_id=replica_id, role="client")
    node.fetch({7: 0}, -1)
    node.advance(LATER_US)
    assert [explanation.rpartition(", ")[2] for explanation in node.explanations] == ends


@pytest.mark.clause("F-22")
def test_client_id_of_a_node_makes_no_follower() -> None:
    node = ObservedNode(role="peer")
    node.respond(node.fetch({}, 1))
    assert "with 0 bytes, and it waits for 1 or for 500 ms" in node.explanations[0]


@pytest.mark.clause("F-14")
@pytest.mark.parametrize("what", ["error", "diverging", "replica"])
def test_error_and_a_direction_end_the_wait(node: ObservedNode, what: str) -> None:
    lines = {
        "error": PartitionData(0, ErrorCode.not_leader_or_follower, -1),
        "diverging": node.line(0, diverging_epoch=EpochEndOffset(2, 4)),
        "replica": node.line(0, preferred_read_replica=2),
    }
    node.respond(node.fetch({}, 1), lines[what])
    assert node.explanations == []


@pytest.mark.clause("F-13", "F-14")
@pytest.mark.parametrize("what", ["removed", "epoch", "out of range"])
def test_partition_that_begins_to_fail_ends_the_wait(node: ObservedNode, what: str) -> None:
    node.fetch({}, 1)
    partition = node.partitions[0]
    if what == "removed":
        partition.is_removed = True
        del node.led["t", 0]
        node.advance(0)
    elif what == "epoch":
        partition.leader_epoch = 4
        node.advance(0)
    else:
        node.logs[0].log_start_offset = 6
        node.logs[0].log_end_offset = 6
        node.handle(TimerFired(8), touched=0)
    assert node.explanations == []
    node.advance(LATER_US)
    assert len(node.explanations) == 1
    assert "although partition t-0 fails since" in node.explanations[0]


@pytest.mark.clause("F-14")
@pytest.mark.parametrize(
    ("what", "behind_us", "is_late"),
    [
        ("role", 0, True),
        ("role", LATER_US, False),
        ("role", PUBLISHED_WITHIN_US, False),
        ("role", PUBLISHED_WITHIN_US + LATER_US, True),
        ("data", LATER_US, True),
    ],
)
def test_publication_over_several_events_delays_wait_by_its_roles_only(
    node: ObservedNode, what: str, behind_us: int, is_late: bool
) -> None:
    node.fetch({}, 1, max_wait_ms=10 * MAX_WAIT_MS)
    node.node.lags_behind_metadata(behind_us > 0)
    if what == "role":
        node.partitions[0].leader_epoch = 4
        node.advance(0)
    else:
        node.append()
    for _ in range(behind_us // 50_000):
        node.advance(50_000)
    node.node.lags_behind_metadata(False)
    node.advance(SOON_US if behind_us else LATER_US)
    assert bool(node.explanations) is is_late


@pytest.mark.clause("F-14")
@pytest.mark.parametrize("named", [{}, {0: 5}])
def test_error_that_lasts_ends_a_wait_only_if_it_is_named(node: ObservedNode, named: dict[int, int]) -> None:
    del node.led["t", 0]
    node.fetch(named, 1)
    node.advance(LATER_US)
    assert bool(node.explanations) is bool(named)


@pytest.mark.clause("F-14")
def test_log_that_diverges_ends_the_wait_of_a_request_that_names_it() -> None:
    node = ObservedNode(replica_id=1)
    node.logs[0].epochs.starts = [2]
    node.fetch({0: 5}, 1, last_epoch=2)
    node.advance(LATER_US)
    assert len(node.explanations) == 1


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [(5, 1, False), (6, 1, True), (5, 2, True), (9, 3, False), (9, 4, True), (0, 0, False), (1, 0, True)],
)
def test_log_diverges_where_an_epoch_ended_or_never_was(offset: int, last_epoch: int, expected: bool) -> None:
    log = StubLog(log_end_offset=9, epochs=StubEpochs([1, 3], [0, 5]))
    assert diverges(log.as_log(), offset, last_epoch) is expected


@pytest.mark.clause("F-3", "G-3")
@pytest.mark.parametrize("version", [FINAL_VERSION, FIRST_REVISION])
def test_later_request_of_the_session_ends_the_wait(version: int) -> None:
    node = ObservedNode(version)
    first = node.fetch({}, 1)
    second = node.fetch({}, 2, connection=2)
    node.respond(first, error=ErrorCode.invalid_fetch_session_epoch)
    node.advance(LATER_US)
    assert node.explanations == []
    node.fetch({}, 3, connection=1)
    node.advance(LATER_US)
    assert len(node.explanations) == 1
    assert "its session has ended or has accepted a later request" in node.explanations[0]
    assert f"request {second.tag.session_epoch}," in node.explanations[0]


@pytest.mark.clause("F-9")
@pytest.mark.parametrize("note", [CLOSED, EVICTED])
@pytest.mark.parametrize("session_id", [SESSION, SESSION + 1])
def test_end_of_the_session_ends_the_wait(node: ObservedNode, note: str, session_id: int) -> None:
    node.fetch({}, 1)
    node.handle(TimerFired(3), Note(note, (("session_id", session_id), ("rule", "b"))))
    node.advance(LATER_US)
    assert bool(node.explanations) is (session_id == SESSION)


def test_fetch_whose_connection_closed_or_whose_process_ended_waits_no_more(node: ObservedNode) -> None:
    node.fetch({}, 1)
    node.handle(Closed(1))
    node.append()
    node.advance(LATER_US)
    node.fetch({1: 6}, 2)
    node.node = replace(node.node)
    node.append()
    node.advance(LATER_US)
    assert node.explanations == []


def test_fetch_of_records_in_the_remote_tier_may_wait(node: ObservedNode) -> None:
    node.fetch({0: 1}, 1)
    node.logs[0].local_log_start_offset = 2
    node.append()
    node.advance(LATER_US)
    assert node.explanations == []
