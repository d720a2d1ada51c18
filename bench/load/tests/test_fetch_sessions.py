"""The load reader in fetch sessions (KIP-227): what it names, and what it does when a session is lost."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.load.reader import LoadReader, ReadPlan, Taken
from bench.load.sink import Sink, SinkPlan, serving
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchResponse, FetchTopic

WHERE = tuple(TopicPartition("t", index) for index in range(20))
BATCH_RECORDS = 40
BUSY = (3, 11)
"""The partitions that get batches. The others stay empty."""
LIMIT_S = 30.0
PLAN = ReadPlan("r", WHERE)


class SessionSink(Sink):
    """A sink with one fetch session, in which only BUSY partitions have batches, ``batches`` each.

    ``fault`` gets each request's number, and returns an error code for the whole response, or "closes", when the
    connection ends instead of a response.
    """

    def __init__(self, batches: int = 50, fault: Callable[[int], int | str] = lambda _: 0) -> None:
        super().__init__(SinkPlan(len(WHERE), batch_records=BATCH_RECORDS, read_batches=1))
        self.requests: list[FetchRequest] = []
        self.opened = 0
        self._fault = fault
        self._end = batches * BATCH_RECORDS
        self._epoch = 0
        self._held: dict[TopicPartition, FetchPartition] = {}

    def read(self, partition: TopicPartition, offset: int) -> tuple[bytes, int]:
        if partition.partition not in BUSY or offset >= self._end:
            return b"", self._end if partition.partition in BUSY else 0
        return super().read(partition, offset)[0], self._end

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        self.requests.append(request)
        fault = self._fault(len(self.requests))
        if fault == "closes":
            raise ConnectionAbortedError
        if fault:
            return FetchResponse(error_code=int(fault))
        if request.session_epoch == -1:
            return FetchResponse()
        is_full = request.session_epoch == 0
        if is_full:
            self.opened += 1
            self._held, self._epoch = {}, 0
        assert request.session_epoch == self._epoch, "a wrong session epoch"
        assert is_full or request.session_id == self.opened, "another session"
        self._epoch += 1
        for topic in request.topics:
            self._held.update(
                (TopicPartition(topic.topic, partition.partition), partition) for partition in topic.partitions
            )
        topics = request.topics
        if not is_full:
            held = [each for partition, each in self._held.items() if self.read(partition, each.fetch_offset)[0]]
            topics = [FetchTopic("t", NO_TOPIC_ID, held)] if held else []
        response = replace(super()._fetch(FetchRequest(topics=topics)), session_id=self.opened)
        if not response.responses:
            time.sleep(0.01)
        return response


def read_all(sink: SessionSink, plan: ReadPlan = PLAN, batches: int = 50) -> list[Taken]:
    """Read until all batches of the BUSY partitions were taken, and return them."""
    taken: list[Taken] = []

    def take(each: Taken) -> None:
        taken.append(each)
        if sum(span.count for one in taken for span in one.spans) >= batches * len(BUSY) * BATCH_RECORDS:
            reader.stop()

    with serving(sink) as address:
        reader = LoadReader(plan, address, take)
        limit = threading.Timer(LIMIT_S, reader.stop)
        limit.start()
        reader.run()
        limit.cancel()
    for partition in BUSY:
        offsets = [span.first_offset for each in taken if each.where.partition == partition for span in each.spans]
        assert offsets == [number * BATCH_RECORDS for number in range(batches)]
    return taken


def named(request: FetchRequest) -> int:
    return sum(len(topic.partitions) for topic in request.topics)


def test_session_names_all_partitions_once_and_then_those_that_moved() -> None:
    sink = SessionSink()
    read_all(sink)
    assert sink.opened == 1
    assert named(sink.requests[0]) == len(WHERE)
    assert {named(request) for request in sink.requests[1:-1]} == {len(BUSY)}


def test_session_is_closed_at_the_end() -> None:
    sink = SessionSink()
    read_all(sink)
    # The reader does not wait for the response to its last request, so the sink may still be reading it.
    deadline_s = time.monotonic() + LIMIT_S
    while sink.requests[-1].session_epoch != -1 and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert (sink.requests[-1].session_id, sink.requests[-1].session_epoch) == (1, -1)


@pytest.mark.parametrize(
    "fault",
    [int(ErrorCode.fetch_session_id_not_found), int(ErrorCode.invalid_fetch_session_epoch), "closes"],
)
def test_lost_session_is_replaced_and_nothing_read_twice(fault: int | str) -> None:
    sink = SessionSink(fault=lambda number: fault if number in (10, 20) else 0)
    read_all(sink)
    assert sink.opened == 3


def test_without_sessions_each_request_names_all_partitions() -> None:
    sink = Sessionless()
    read_all(sink, ReadPlan("r", WHERE, fetch_sessions=False))
    assert {named(request) for request in sink.requests} == {len(WHERE)}
    assert {request.session_epoch for request in sink.requests} == {-1}


def test_broker_that_opens_no_session_gets_full_requests() -> None:
    sink = Sessionless()
    read_all(sink)
    assert {named(request) for request in sink.requests} == {len(WHERE)}
    assert {request.session_epoch for request in sink.requests} == {0}


class Sessionless(SessionSink):
    def _fetch(self, request: FetchRequest) -> FetchResponse:
        self.requests.append(request)
        return Sink._fetch(self, request)
