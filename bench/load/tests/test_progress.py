"""Reasons why a rate is not reached: brokers, connections or the generator, while a load runs and in its result."""

import threading
import time

import pytest

from bench.load.producer import LoadPlan, LoadProducer, Settled, Waits
from bench.load.progress import causes, line
from bench.load.sink import Sink, SinkPlan
from bench.load.tests.planted import result
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import Buffer
from reference_broker.wire.errors import ErrorCode

FINE = {"acknowledged": 0, "read": 0, "lag": 0, "failed": 0, "worst_at_us": 3_000_000}
LATER = FINE | {"worst_at_us": 4_000_000}
WHERE = tuple(TopicPartition("t", index) for index in range(4))


def test_second_that_reaches_the_rate_needs_no_cause() -> None:
    after = LATER | {"acknowledged": 950, "read": 900, "lag": 50, "waits_for_responses": 3}
    fine = "950/s acknowledged, 900/s read, 50 to read"
    assert line(FINE, after, 1_000) == line(FINE, after, 0) == fine
    assert line({}, after | {"worst_at_us": 1_000_000}, 5_000) == fine
    assert line(FINE, after, 2_000) == (
        f"{fine}; below 2,000/s: the brokers: 3 partitions wait for responses, with all requests in flight"
    )


def test_what_stands_between_producers_and_readers_is_named() -> None:
    after = LATER | {"acknowledged": 950, "read": 900, "lag": 50}
    assert line(FINE, after | {"to_transform": 70}, 0).endswith("50 to read, 70 to transform")
    sent = LATER | {"unacknowledged": 950, "read": 900}
    assert line(FINE, sent, 1_000) == "950/s sent, 900/s read, 0 to read"
    assert "below 2,000/s" in line(FINE, sent, 2_000)


def test_rates_are_those_of_the_time_between_reports() -> None:
    """Workers report twice a second, so that a second of the master has one report to three."""
    late = FINE | {"acknowledged": 500, "worst_at_us": 3_500_000}
    assert line(FINE, late, 1_000) == "1,000/s acknowledged, 0/s read, 0 to read"
    assert line(FINE, FINE, 1_000) == "the workers have not reported since"


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"waits_for_responses": 3}, "the brokers: 3 partitions wait for responses"),
        ({"waits_for_leaders": 2}, "2 partitions have no connected leader"),
        ({"failed": 10}, "the brokers refused 10 records"),
        ({"worst_wanted_permille": 950}, "the generator never sleeps"),
        ({"worst_lag_us": 230_000}, "the generator is 230 ms late"),
    ],
)
def test_each_cause_has_message(report: dict[str, int], words: str) -> None:
    (cause,) = causes(FINE, LATER | report)
    assert cause.startswith(words)
    assert line(FINE, LATER | report, 1_000).endswith(f"below 1,000/s: {cause}")


def test_no_cause_is_made_up() -> None:
    assert line(FINE, LATER, 1_000).endswith("below 1,000/s: no cause is seen")


def test_result_explains_missed_rate() -> None:
    slow = result(1_000, acknowledged=500)
    assert slow.reason == "The rate was not reached: the brokers acknowledge less than is offered."
    for second in slow.measures.seconds.values():
        second.waits_for_responses = 4
    assert "all requests were in flight in 4 of 4 seconds" in slow.reason
    for second in slow.measures.seconds.values():
        second.waits_for_leaders = 1
    slow.errors["NOT_LEADER_OR_FOLLOWER"] = 3
    assert slow.reason.endswith("sent again in 4 of 4 seconds (NOT_LEADER_OR_FOLLOWER).")


class Stuck(Sink):
    """A broker that takes a batch, and then does not respond, or refuses, until it is released."""

    def __init__(self, error_code: int) -> None:
        super().__init__(SinkPlan(len(WHERE)))
        self.released = threading.Event()
        self._error_code = error_code
        self._taken = 0

    def append(self, partition: TopicPartition, batch: Buffer) -> tuple[int, int]:
        self._taken += 1
        if self._taken > len(WHERE) and not self.released.is_set():
            if self._error_code:
                return self._error_code, -1
            self.released.wait(30)
        return super().append(partition, batch)


@pytest.mark.parametrize(
    ("error_code", "requests_in_flight", "wanted"),
    [
        (ErrorCode.none, 1, Waits(4, 0)),  # The connection has as many requests in flight as it may have.
        (ErrorCode.none, 20, Waits(4, 0)),  # Each partition has.
        (int(ErrorCode.not_leader_or_follower), 5, Waits(0, 4)),
    ],
)
def test_producer_reports_reason_of_waiting_partitions(error_code: int, requests_in_flight: int, wanted: Waits) -> None:
    sink = Stuck(error_code)
    ends: list[Settled] = []
    plan = LoadPlan("p", WHERE, batch_records=10, requests_in_flight=requests_in_flight)
    producer = LoadProducer(plan, [("127.0.0.1", sink.port)], ends.append)
    threads = [threading.Thread(target=each) for each in (sink.serve, producer.run)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 10
    try:
        while not (ends and producer.waits() == wanted) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        waits = producer.waits()
    finally:
        sink.released.set()
        producer.stop()
        threads[1].join()
        sink.close()
        threads[0].join()
    assert waits == wanted
