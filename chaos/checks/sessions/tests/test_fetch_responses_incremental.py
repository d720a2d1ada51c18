"""Checks of incremental Fetch responses: each missing or superfluous partition is a violation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from chaos.checks.check import FetchCheck
from chaos.checks.sessions.fetch_model import EVICTED, FIRST_REVISION, CompletedFetch, FetchModel
from chaos.checks.sessions.fetch_responses import IncrementalExact, NoStarvation
from chaos.checks.suite import CheckSuite
from chaos.checks.tests.check_context import check_context
from reference_broker.core.events import Closed, Note, Reply, Request
from reference_broker.records.record import Record, build
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.tags import Tag

SESSION, FINAL_VERSION, NO_DATA = 77, 12, b""
BATCH = bytes(build([Record(timestamp_ms=0, value=b"v" * 30)]))
LIMIT = 1000
MISSING = "is new or had an error in the previous response, and is missing now"


@dataclass
class Log:
    """Each offset holds one batch of BATCH's size."""

    log_start_offset: int = 0
    local_log_start_offset: int = 0
    high_watermark: int = 5
    log_end_offset: int = 5
    last_stable_offset: int = 5

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:  # noqa: ARG002
        return b"".join(each.to_bytes(8, "big") + BATCH[8:] for each in range(offset, end))


@dataclass
class LedPartition:
    index: int
    log: Log
    topic: str = "t"
    leader_epoch: int = 3


@dataclass
class Partitions:
    by_name: dict[tuple[str, int], LedPartition] = field(default_factory=dict)
    by_id: dict[tuple[bytes, int], LedPartition] = field(default_factory=dict)
    followed: dict[tuple[str, int], LedPartition] = field(default_factory=dict)


@dataclass
class Image:
    topics: dict[str, object] = field(default_factory=dict)


@dataclass
class Controller:
    image: Image = field(default_factory=Image)


@dataclass
class Broker:
    partitions: Partitions = field(default_factory=Partitions)
    controller: Controller = field(default_factory=Controller)
    node_id: int = 0


@dataclass
class FakeNode:
    """A node with what ``FetchModel`` reads of one."""

    broker: Broker = field(default_factory=Broker)


class Session:
    """One client's session with a node that leads ``count`` partitions in leader epoch 3. Each ends at offset 5."""

    def __init__(
        self, check: FetchCheck, count: int = 2, version: int = FINAL_VERSION, offset: int = 5, role: str = "client"
    ) -> None:
        self.check, self.version, self.role = check, version, role
        self.model = FetchModel()
        self.logs = [Log() for _ in range(count)]
        self.led = {("t", index): LedPartition(index, log) for index, log in enumerate(self.logs)}
        self.node: Any = FakeNode(Broker(Partitions(self.led)))
        self.number = self.correlation = 0
        self.fetch(dict.fromkeys(range(count), offset), *(self.line(index) for index in range(count)))

    def line(self, index: int, records: bytes = NO_DATA, **fields: Any) -> PartitionData:
        log = self.logs[index]
        return PartitionData(index, 0, log.high_watermark, -1, log.log_start_offset, records=records, **fields)

    def fetch(
        self,
        named: dict[int, int],
        *lines: PartitionData,
        number: int | None = None,
        forget: tuple[int, ...] = (),
        max_bytes: int = LIMIT,
        isolation_level: int = 0,
        without_response: bool = False,
    ) -> None:
        """Send one fetch, and handle its response. The number is the next one unless it is given. With
        ``without_response`` the request is parked until a later one overtakes it."""
        number = self.number if number is None else number
        self.number, self.correlation = number + 1, self.correlation + 1
        body = FetchRequest(
            replica_id=1 if self.role == "peer" else -1,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=SESSION if self.correlation > 1 else 0,
            session_epoch=number,
            topics=[FetchTopic("t", b"", [FetchPartition(each, offset, 100, 3) for each, offset in named.items()])],
            forgotten=[ForgottenTopic("t", b"", list(forget))],
            fetch_type=int(number > 0),
        )
        response = FetchResponse(session_id=SESSION, responses=[FetchTopicResponse("t", b"", list(lines))])
        tag = Tag(1, self.version, "f", body.session_id, number, role=self.role)
        request = Request(1, self.correlation, 1, self.version, "f", body, tag)
        reply = Reply(1, self.correlation, 1, self.version, response, tag)
        for each in self.model.acted(self.node, request, [] if without_response else [reply]):
            self.check.fetched(0, each)

    def begin(self, named: dict[int, int], number: int, connection: int) -> Request:
        """Send a fetch, whose response comes in a later event."""
        self.correlation += 1
        body = FetchRequest(
            max_bytes=LIMIT,
            session_id=SESSION,
            session_epoch=number,
            topics=[FetchTopic("t", b"", [FetchPartition(each, offset, 100, 3) for each, offset in named.items()])],
            fetch_type=int(number > 0),
        )
        tag = Tag(1, self.version, "f", SESSION, number, role=self.role)
        request = Request(connection, self.correlation, 1, self.version, "f", body, tag)
        assert not list(self.model.acted(self.node, request, ()))
        return request

    def finish(self, request: Request, *lines: PartitionData, error: int = 0) -> None:
        """Handle the response to a fetch that was sent before."""
        body = FetchResponse(error, SESSION, responses=[FetchTopicResponse("t", b"", list(lines))])
        reply = Reply(request.connection, request.correlation_id, 1, self.version, body, request.tag)
        for fetch in self.model.acted(self.node, Closed(9), [reply]):
            self.check.fetched(0, fetch)

    def refuse(self, error: ErrorCode) -> None:
        """Respond to the last request with an error, in an event after that of its arrival."""
        tag = Tag(1, self.version, "f", SESSION, self.number - 1, role=self.role)
        reply = Reply(1, self.correlation, 1, self.version, FetchResponse(error), tag)
        assert not list(self.model.acted(self.node, Closed(9), [reply]))

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation.partition(": ")[2] for violation in self.check.violations]


def session(version: int = FINAL_VERSION, offset: int = 5, count: int = 2) -> Session:
    return Session(IncrementalExact(check_context()), count, version, offset)


def grow(log: Log, high_watermark: int) -> None:
    log.high_watermark = log.log_end_offset = log.last_stable_offset = high_watermark


def test_request_whose_connection_closes_is_forgotten() -> None:
    node: Any = FakeNode()
    model = FetchModel()
    request = Request(4, 1, 1, FINAL_VERSION, "c", FetchRequest(), Tag(1, FINAL_VERSION, "c", 0, 0))
    assert not list(model.acted(node, request, ()))
    assert not list(model.acted(node, Closed(4), ()))
    assert not model._pending


@pytest.mark.parametrize("kind", [IncrementalExact, NoStarvation])
def test_state_of_session_is_dropped_on_eviction(kind: type[FetchCheck]) -> None:
    talk = Session(kind(check_context()))
    talk.fetch({})
    assert list(talk.model.sessions) == [(0, SESSION)]
    other = Note(EVICTED, (("session_id", SESSION + 1), ("rule", "b")))
    assert not list(talk.model.acted(talk.node, Closed(9), [other]))
    assert list(talk.model.sessions) == [(0, SESSION)]
    note = Note(EVICTED, (("session_id", SESSION), ("rule", "b")))
    assert not list(talk.model.acted(talk.node, Closed(9), [note]))
    assert not talk.model.sessions
    assert not [each for each in vars(talk.check).values() if isinstance(each, dict) and each]


@pytest.mark.clause("F-10")
@pytest.mark.parametrize("error", [ErrorCode.fetch_session_topic_id_error, ErrorCode.invalid_fetch_session_epoch])
def test_request_that_is_refused_late_changes_nothing(error: ErrorCode) -> None:
    """It may wait for the request before it, and be refused in a later event."""
    talk = session(count=3)
    talk.fetch({0: 4, 2: 4}, number=7, forget=(1,), without_response=True)
    talk.refuse(error)
    talk.fetch({}, number=1)
    assert talk.explanations == []
    grow(talk.logs[1], 6)
    talk.fetch({}, talk.line(1), number=2)
    assert talk.explanations == [], "partition 1 is in the session still"


def test_overtaken_request_has_changed_its_session() -> None:
    talk = session(count=3)
    talk.fetch({0: 4}, number=1, forget=(1,), without_response=True)
    grow(talk.logs[1], 6)
    talk.fetch({}, talk.line(1), number=2)
    assert "t-1 is not in the session, and was sent" in talk.explanations


@pytest.mark.clause("F-7", "F-9")
def test_node_that_goes_on_with_a_session_that_it_evicted_is_red() -> None:
    talk = session()
    grow(talk.logs[1], 6)
    list(talk.model.acted(talk.node, Closed(9), [Note(EVICTED, (("session_id", SESSION), ("rule", "b")))]))
    talk.fetch({}, talk.line(1))
    assert talk.explanations == ["t-1 is not in the session, and was sent"]


@pytest.mark.clause("F-14", "G-6")
@pytest.mark.parametrize("version", [FINAL_VERSION, FIRST_REVISION])
def test_partition_sent_again_without_a_reason_is_a_violation(version: int) -> None:
    talk = session(version)
    talk.fetch({})
    assert talk.explanations == []
    talk.fetch({}, talk.line(1))
    assert talk.explanations == ["t-1 was sent again, without records, and with (5, 0) as before"]


def higher_watermark(talk: Session) -> PartitionData:
    grow(talk.logs[1], 6)
    return talk.line(1)


def higher_log_start(talk: Session) -> PartitionData:
    talk.logs[1].log_start_offset = 1
    return talk.line(1)


def an_error(talk: Session) -> PartitionData:  # noqa: ARG001
    return PartitionData(1, int(ErrorCode.not_leader_or_follower), -1)


def a_diverging_epoch(talk: Session) -> PartitionData:
    return talk.line(1, diverging_epoch=EpochEndOffset(1, 2))


def a_preferred_replica(talk: Session) -> PartitionData:
    return talk.line(1, preferred_read_replica=2)


def an_error_in_the_response_before(talk: Session) -> PartitionData:
    talk.fetch({}, an_error(talk))
    return talk.line(1)


@pytest.mark.clause("F-14")
@pytest.mark.parametrize(
    "sent",
    [
        higher_watermark,
        higher_log_start,
        an_error,
        a_diverging_epoch,
        a_preferred_replica,
        an_error_in_the_response_before,
    ],
)
def test_each_reason_of_the_final_revision_allows_a_partition_to_be_sent(
    sent: Callable[[Session], PartitionData],
) -> None:
    talk = session()
    talk.fetch({}, sent(talk))
    assert talk.explanations == []


def raise_log_start(talk: Session) -> None:
    talk.logs[1].log_start_offset = 1


def lose_partition(talk: Session) -> None:
    del talk.led["t", 1]


def raise_leader_epoch(talk: Session) -> None:
    talk.led["t", 1].leader_epoch = 4


def truncate_log(talk: Session) -> None:
    grow(talk.logs[1], 4)


@pytest.mark.clause("F-14", "G-5")
@pytest.mark.parametrize("version", [FINAL_VERSION, FIRST_REVISION])
@pytest.mark.parametrize(
    ("change", "state"),
    [
        (raise_log_start, "changed"),
        (lose_partition, "an error"),
        (raise_leader_epoch, "an error"),
        (truncate_log, "an error"),
    ],
)
def test_change_must_be_in_the_response_after_it(version: int, change: Callable[[Session], None], state: str) -> None:
    talk = session(version)
    talk.fetch({})
    change(talk)
    talk.fetch({})
    assert talk.explanations == [], "it may have changed after the response was made, in the same event"
    talk.fetch({})
    (explanation,) = talk.explanations
    assert explanation.startswith(f"t-1 has {state}, and was not sent")


@pytest.mark.clause("F-12", "F-14")
def test_new_partition_and_one_after_an_error_must_be_sent() -> None:
    talk = session()
    talk.fetch({}, forget=(1,))
    talk.fetch({1: 5})
    assert talk.explanations == [f"t-1 {MISSING}"]
    talk = session()
    talk.fetch({}, an_error(talk))
    assert talk.explanations == []
    talk.fetch({})
    assert talk.explanations == [f"t-1 {MISSING}"]


@pytest.mark.clause("F-14", "P-11")
@pytest.mark.parametrize("is_sent", [True, False])
def test_state_after_a_follower_was_sent_to_the_tier_must_be_sent(is_sent: bool) -> None:
    """The error comes with the offsets of the partition, which do not change."""
    talk = Session(IncrementalExact(check_context()), role="peer", offset=4)
    talk.logs[1].local_log_start_offset = 5
    moved = PartitionData(1, int(ErrorCode.offset_moved_to_tiered_storage), 5, 5, 0)
    talk.fetch({0: 5}, moved)
    talk.fetch({1: 5}, *[talk.line(1)] * is_sent)
    talk.fetch({})
    assert talk.explanations == ([] if is_sent else [f"t-1 {MISSING}"] * 2)


@pytest.mark.clause("F-14")
@pytest.mark.parametrize(
    ("role", "explanations"), [("client", []), ("peer", ["t-1 has data, and was not sent; last sent: (5, 0)"])]
)
def test_follower_is_owed_records_above_the_high_watermark(role: str, explanations: list[str]) -> None:
    talk = Session(IncrementalExact(check_context()), role=role)
    for log in talk.logs:
        log.log_end_offset = 6
    for _ in range(2):
        talk.fetch({}, talk.line(0, BATCH))
    assert talk.explanations == explanations


def test_only_checks_that_judge_followers_are_given_responses_to_them() -> None:
    given: list[tuple[str, bool]] = []

    class OfClients(FetchCheck):
        def fetched(self, at_us: int, fetch: CompletedFetch) -> None:  # noqa: ARG002
            given.append((type(self).__name__, fetch.request.by_follower))

    class OfAll(OfClients):
        judges_followers = True

    context = check_context()
    suite = CheckSuite([OfClients(context), OfAll(context)], context)

    class ModelOfSuite(FetchModel):
        def acted(self, *what: Any) -> Iterator[CompletedFetch]:
            suite.acted(0, *what)
            return iter(())

    for role in ("client", "peer"):
        talk = session()
        talk.model, talk.role = ModelOfSuite(), role
        talk.fetch({})
    assert given == [("OfClients", False), ("OfAll", False), ("OfAll", True)]


@pytest.mark.clause("F-13")
def test_naming_a_partition_again_is_no_reason_to_send_it() -> None:
    talk = session()
    talk.fetch({1: 5})
    talk.fetch({1: 5}, talk.line(1))
    assert talk.explanations == ["t-1 was sent again, without records, and with (5, 0) as before"]


@pytest.mark.clause("F-14", "F-16")
@pytest.mark.parametrize(("max_bytes", "is_due"), [(LIMIT, True), (100 + len(BATCH), True), (99 + len(BATCH), False)])
def test_data_within_the_limits_is_due(max_bytes: int, is_due: bool) -> None:
    talk = session(offset=4)
    for _ in range(2):
        talk.fetch({}, talk.line(0, BATCH), max_bytes=max_bytes)
    assert bool(talk.explanations) is is_due


@pytest.mark.clause("F-14", "P-11")
@pytest.mark.parametrize(("local_start", "is_due"), [(4, True), (5, False)])
def test_records_that_are_in_the_remote_tier_only_come_when_the_store_gives_them(
    local_start: int, is_due: bool
) -> None:
    talk = session(offset=4)
    for log in talk.logs:
        log.local_log_start_offset = local_start
    for _ in range(2):
        talk.fetch({}, talk.line(0, BATCH))
    assert bool(talk.explanations) is is_due


@pytest.mark.clause("F-16")
@pytest.mark.parametrize("version", [FINAL_VERSION, FIRST_REVISION])
def test_response_has_data_if_there_is_any_whatever_the_limit(version: int) -> None:
    talk = session(version, offset=4)
    for index in (0, 1):
        talk.fetch({}, talk.line(index, BATCH), max_bytes=1)
    assert talk.explanations == []
    talk = session(version, offset=4)
    talk.fetch({}, max_bytes=1)
    assert [explanation.split(",")[0] for explanation in talk.explanations] == ["t-0 has data", "t-1 has data"]


@pytest.mark.clause("X-4", "G-5")
@pytest.mark.parametrize("version", [FINAL_VERSION, FIRST_REVISION])
@pytest.mark.parametrize(("offset", "level", "is_due"), [(4, 0, True), (4, 1, False), (3, 1, True)])
def test_records_of_an_open_transaction_are_not_due_to_a_reader_of_committed_ones(
    version: int, offset: int, level: int, *, is_due: bool
) -> None:
    talk = session(version, offset)
    for log in talk.logs:
        log.last_stable_offset = 4
    for _ in range(3):
        talk.fetch({}, isolation_level=level)
    assert bool(talk.explanations) is is_due


@pytest.mark.clause("G-6")
@pytest.mark.parametrize("again", [(0, 1), (0,)])
def test_response_that_is_sent_again_holds_the_first_one(again: tuple[int, ...]) -> None:
    talk = session(FIRST_REVISION)
    for log in talk.logs:
        grow(log, 6)
    talk.fetch({}, talk.line(0, BATCH), talk.line(1, BATCH), number=1)
    talk.fetch({}, *(talk.line(each, BATCH) for each in again), number=1)
    missing = ["t-1 was in the first response to this request, and not in the second"]
    assert talk.explanations == ([] if len(again) == 2 else missing)


@pytest.mark.clause("G-5", "G-6")
def test_change_between_two_responses_to_a_request_is_sent_by_the_second_and_by_the_next() -> None:
    talk = session(FIRST_REVISION)
    for log in talk.logs:
        grow(log, 6)
    talk.fetch({0: 6, 1: 6}, talk.line(0), number=1)
    talk.logs[1].log_start_offset = 1
    for number in (1, 2):
        talk.fetch({}, talk.line(0), talk.line(1), number=number)
    assert talk.explanations == ["t-0 was sent again, without records, and with (6, 0) as before"], "it had not changed"
    talk.fetch({}, talk.line(1), number=3)
    assert talk.explanations[1:] == ["t-1 was sent again, without records, and with (6, 1) as before"]


@pytest.mark.clause("G-5", "G-6")
def test_another_leader_between_two_responses_to_a_request_is_a_change() -> None:
    """Between the two epochs there was an error to send."""
    talk = session(FIRST_REVISION)
    for log in talk.logs:
        grow(log, 6)
    talk.fetch({0: 6, 1: 6}, talk.line(0), talk.line(1), number=1)
    talk.led["t", 1].leader_epoch += 2
    for number in (1, 2):
        talk.fetch({}, talk.line(0), talk.line(1), number=number)
    assert talk.explanations == ["t-0 was sent again, without records, and with (6, 0) as before"]


@pytest.mark.clause("G-5")
@pytest.mark.parametrize(("why", "right"), [("log end", True), ("named", True), ("omitted", True), ("nothing", False)])
def test_first_revision_has_further_reasons_to_send_a_partition(why: str, right: bool) -> None:
    talk = session(FIRST_REVISION, offset=4 if why == "omitted" else 5)
    talk.fetch({}, *([talk.line(0, BATCH), talk.line(1, BATCH)] if why == "omitted" else []))
    if why == "log end":
        talk.logs[1].log_end_offset = 6
    talk.fetch({1: 5} if why == "named" else {}, talk.line(1))
    assert (talk.explanations == []) is right


@pytest.mark.clause("G-4")
@pytest.mark.parametrize("without_response", [True, False])
def test_full_request_of_the_first_revision_starts_again_even_if_it_is_overtaken(without_response: bool) -> None:
    talk = session(FIRST_REVISION)
    talk.fetch({}, number=1)
    full = {} if without_response else {0: talk.line(0), 1: talk.line(1)}
    talk.fetch({0: 5, 1: 5}, *full.values(), number=0, without_response=without_response)
    talk.fetch({}, talk.line(0), talk.line(1), number=2)
    assert bool(talk.explanations) is not without_response


@pytest.mark.clause("G-4", "G-5")
@pytest.mark.parametrize("in_between", [True, False])
def test_request_that_is_repeated_after_a_full_one_is_still_the_last_one(in_between: bool) -> None:
    """A full request keeps the session's number. So what changes behind it is in a second response to the last
    incremental request, and once more in the response to the next one."""
    talk = session(FIRST_REVISION)
    talk.fetch({}, number=1)
    if in_between:
        talk.fetch({0: 5, 1: 5}, talk.line(0), talk.line(1), number=0)
    talk.fetch({}, talk.line(0), number=1 if in_between else 2)
    talk.fetch({}, talk.line(0), number=2 if in_between else 3)
    assert bool(talk.explanations) is not in_between


@pytest.mark.clause("G-4", "G-5")
@pytest.mark.parametrize("again", [True, False])
def test_full_response_is_no_response_to_the_request_that_its_request_overtook(again: bool) -> None:
    """Request 1 got no response, so what changes behind the full one has number 1 and is in one response."""
    talk = session(FIRST_REVISION)
    talk.fetch({}, number=1, without_response=True)
    talk.fetch({0: 5, 1: 5}, talk.line(0), talk.line(1), number=0)
    grow(talk.logs[1], 6)
    talk.fetch({1: 6}, talk.line(1), number=1)
    talk.fetch({}, *([talk.line(1)] if again else []), number=2)
    assert bool(talk.explanations) is again


@pytest.mark.clause("G-4", "G-5")
@pytest.mark.parametrize(
    ("responds", "right"), [("before", False), ("in between", True), ("refused in between", True), ("never", False)]
)
def test_full_request_under_way_may_replace_the_partitions_before_the_next_request(responds: str, right: bool) -> None:
    """A second full request, on another connection, waits for the first one. By its response it shows that the node did
    not handle it after the incremental one."""
    talk = session(FIRST_REVISION)
    first, second = talk.begin({0: 5, 1: 5}, 0, connection=1), talk.begin({0: 5, 1: 5}, 0, connection=2)
    talk.finish(first, talk.line(0), talk.line(1))
    if responds == "before":
        talk.finish(second, talk.line(0), talk.line(1))
    incremental = talk.begin({}, 1, connection=1)
    if responds == "in between":
        talk.finish(second, talk.line(0), talk.line(1))
    if responds == "refused in between":
        talk.finish(second, error=10001)
    talk.finish(incremental, talk.line(1))
    assert talk.explanations == ([] if right else ["t-1 was sent again, without records, and with (5, 0) as before"])


@pytest.mark.clause("F-7")
def test_partition_outside_the_session_is_not_sent() -> None:
    talk = session()
    talk.fetch({}, talk.line(1), forget=(1,))
    assert talk.explanations == ["t-1 is not in the session, and was sent"]


# The order of service


@pytest.mark.clause("F-15", "G-7")
@pytest.mark.parametrize("version", [FINAL_VERSION, FIRST_REVISION])
@pytest.mark.parametrize("count", [2, 5, 64, 200])
def test_partition_waits_for_all_others_once_and_no_longer(version: int, count: int) -> None:
    for extra in (0, count // 64 + 1):
        talk = Session(NoStarvation(check_context()), count, version, offset=0)
        talk.fetch({}, talk.line(0, BATCH))
        for turn in range(count - 2 + extra):
            talk.fetch({}, talk.line(1 + turn % (count - 2) if count > 2 else 0, BATCH))
        starved = [explanation for explanation in talk.explanations if f"t-{count - 1} has data" in explanation]
        assert bool(starved) is bool(extra), (extra, talk.explanations)


@pytest.mark.clause("G-3", "G-7")
def test_number_without_a_response_may_have_been_the_partition_s_turn() -> None:
    for number, is_starved in ((3, True), (4, False)):
        talk = Session(NoStarvation(check_context()), 3, FIRST_REVISION, offset=0)
        talk.fetch({}, talk.line(0, BATCH))
        talk.fetch({}, talk.line(1, BATCH))
        talk.fetch({}, talk.line(0, BATCH), number=number)
        talk.fetch({}, talk.line(1, BATCH))
        assert bool(talk.explanations) is is_starved
