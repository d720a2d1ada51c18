"""Fairness, counted in turns and never timed: the backlog of one connection does not delay the others."""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import ceil

import pytest

from reference_broker.serve.connection import READ_AHEAD_BYTES
from reference_broker.serve.request_scheduling import HEAVY_BYTES, LIGHT_S, PASS_S, Queue, RequestScheduler
from reference_broker.serve.tests.scheduling_world import (
    API_VERSIONS,
    FETCH,
    FRAME,
    MAX_LIGHT_REQUESTS,
    MOST,
    Loop,
    Responder,
    with_backlogs,
)


def test_request_without_backlog_is_served_on_arrival() -> None:
    driver = Responder()
    (greedy, _), (modest, _) = driver.connected(), driver.connected()
    greedy.data_received(FRAME * 1000)
    assert driver.served == [greedy.number]
    modest.data_received(FRAME)
    assert driver.served == [greedy.number, modest.number]


def test_pass_serves_limited_requests_before_sockets_are_polled() -> None:
    driver = Responder()
    modest, _ = driver.connected()
    with_backlogs(driver, 100, 50)
    for _ in range(20):
        driver.served.clear()
        driver.loop.once()
        assert len(driver.served) == MOST
        modest.data_received(FRAME)
        assert driver.served[-1] == modest.number


def test_simultaneous_arrivals_are_served_in_time_then_before_backlogs() -> None:
    driver = Responder()
    modest = [driver.connected()[0] for _ in range(5 * MAX_LIGHT_REQUESTS)]
    with_backlogs(driver, 100, 50)
    driver.loop.once()
    driver.served.clear()
    for each in modest:
        each.data_received(FRAME)
    assert driver.served == [each.number for each in modest[:MAX_LIGHT_REQUESTS]], "the others wait"
    driver.loop.once()
    served = [number for number in driver.served if number <= modest[-1].number]
    assert len(served) == MAX_LIGHT_REQUESTS + ceil(MAX_LIGHT_REQUESTS / 2), (
        "those that arrived have left no more of this turn"
    )
    for _ in range(4):
        driver.loop.once()
    served = [number for number in driver.served if number <= modest[-1].number]
    assert served == [each.number for each in modest], "in the order of arrival"
    assert len(driver.served) - len(modest) == 5 * MOST, "backlogs have their time in each turn"


def test_later_arrivals_wait_behind_earlier_ones() -> None:
    driver = Responder()
    early, (late, _) = [driver.connected()[0] for _ in range(3 * MAX_LIGHT_REQUESTS)], driver.connected()
    driver.loop.once()
    for each in early:
        each.data_received(FRAME)
    driver.loop.once()
    assert len(driver.served) < len(early), "some of them wait"
    late.data_received(FRAME)
    while driver.loop.soon:
        driver.loop.once()
    assert driver.served == [each.number for each in [*early, late]]


def test_first_fetch_waits_for_turn_and_does_not_delay_short_requests() -> None:
    driver = Responder()
    fetchers, (modest, _) = [driver.connected()[0] for _ in range(5 * MOST)], driver.connected()
    driver.loop.once()
    for each in fetchers:
        each.data_received(FETCH)
    assert driver.served == []
    modest.data_received(FRAME)
    assert driver.served == [modest.number]
    driver.loop.once()
    assert driver.served[1:] == [each.number for each in fetchers[:MOST]], "they have time of their own"
    fetchers[0].data_received(FETCH)
    assert driver.served[-1] == fetchers[0].number, "what it fetched was small"


def test_connection_after_heavy_fetch_waits_with_next_fetch() -> None:
    driver = Responder()
    fetcher, _ = driver.connected()
    driver.response_bytes = HEAVY_BYTES + 1
    fetcher.data_received(FETCH)
    driver.loop.once()
    driver.response_bytes = 10
    for _ in range(5):
        driver.loop.once()
        fetcher.data_received(FRAME)
        driver.loop.once()
    driver.served.clear()
    driver.loop.once()
    fetcher.data_received(FETCH)
    assert driver.served == []
    driver.loop.once()
    assert driver.served == [fetcher.number]


def test_nodes_are_served_on_arrival() -> None:
    driver = Responder()
    clients = [driver.connected()[0] for _ in range(5 * MAX_LIGHT_REQUESTS)]
    node, _ = driver.connected()
    node.of_node = True
    driver.loop.once()
    for each in clients:
        each.data_received(FRAME)
    driver.served.clear()
    node.data_received(FRAME * 3)
    assert driver.served == [node.number]
    driver.loop.once()
    assert driver.served[1:4:2] == [node.number] * 2, "its backlog shares a pass with them"


def test_connections_with_backlog_are_served_in_turn() -> None:
    driver = Responder()
    backlogs = {driver.connected()[0]: count for count in (1000, 10, 10)}
    for connection, count in backlogs.items():
        connection.data_received(FRAME * count)
    while len(driver.served) < 30:
        driver.loop.once()
    assert Counter(driver.served[:30]) == {connection.number: 10 for connection in backlogs}
    while driver.loop.soon:
        driver.loop.once()
    assert Counter(driver.served) == {connection.number: count for connection, count in backlogs.items()}


def test_late_response_moves_connection_to_end_of_queue() -> None:
    driver = Responder()
    (waiting, _), (greedy, _) = driver.connected(), driver.connected()
    driver.keeps = True
    waiting.data_received(FRAME * 3)
    driver.keeps = False
    greedy.data_received(FRAME * 3)
    driver.respond(waiting)
    driver.loop.once()
    assert driver.served == [waiting.number, greedy.number] + [greedy.number, waiting.number] * 2


def test_connection_with_growing_backlog_is_not_read_until_served() -> None:
    driver = Responder()
    greedy, transport = driver.connected()
    greedy.data_received(FRAME * 2)
    rest = READ_AHEAD_BYTES // len(FRAME) + 1
    greedy.data_received(FRAME * rest)
    assert not transport.reads
    while driver.loop.soon:
        driver.loop.once()
    assert transport.reads
    assert len(driver.served) == 2 + rest


def test_closed_connection_is_not_served() -> None:
    driver = Responder()
    greedy, _ = driver.connected()
    greedy.data_received(FRAME * 10)
    greedy.close()
    driver.loop.once()
    assert driver.served == [greedy.number]
    assert not driver.loop.soon


def test_pass_serves_one_heavy_connection() -> None:
    driver = Responder()
    driver.response_bytes = HEAVY_BYTES + 1
    heavy = [driver.connected()[0] for _ in range(100)]
    driver.response_bytes = 10
    light, _ = driver.connected()
    driver.response_bytes = HEAVY_BYTES + 1
    for each in heavy:
        each.data_received(FRAME)
    assert driver.served == [], "none of them is served when its request arrives"
    driver.response_bytes = 10
    for _ in range(50):
        before = len(driver.served)
        light.data_received(FRAME)
        driver.loop.once()
        assert len(driver.served) - before == 2
    while driver.loop.soon:
        driver.loop.once()
    assert all(each.number in driver.served for each in heavy)


def test_new_connections_do_not_starve_served_ones() -> None:
    driver = Responder()
    known, _ = driver.connected()
    newcomers = [driver.connected(served_before=False)[0] for _ in range(100)]
    for each in newcomers:
        each.data_received(FRAME)
    known.data_received(FRAME)
    assert driver.served == [known.number]
    while driver.loop.soon:
        driver.loop.once()
    assert driver.served[1:] == [each.number for each in newcomers]


def test_new_connection_does_not_wait_for_first_fetches() -> None:
    driver = Responder()
    greedy = [driver.connected(served_before=False)[0] for _ in range(500)]
    for each in greedy:
        each.data_received(FETCH)
    newcomer, _ = driver.connected(served_before=False)
    newcomer.data_received(API_VERSIONS)
    driver.loop.once()
    assert driver.served == [newcomer.number, greedy[0].number]


def test_new_connections_with_api_versions_share_pass() -> None:
    driver = Responder()
    with_backlogs(driver, 100, 50)
    others, newcomers = ([driver.connected(served_before=False)[0] for _ in range(100)] for _ in range(2))
    for connections, frame in ((others, FRAME), (newcomers, API_VERSIONS)):
        for each in connections:
            each.data_received(frame)
    driver.served.clear()
    driver.loop.once()
    assert len(driver.served) == MOST
    assert sum(number >= newcomers[0].number for number in driver.served) == MOST / 2


@pytest.mark.parametrize("slow", list(Queue))
def test_each_pass_serves_one_of_each_queue(slow: Queue) -> None:
    served = _served_in_passes(100, {slow})
    large = {Queue.FETCH, Queue.HEAVY}
    assert all(served[queue] >= (50 if queue in large else 100) for queue in Queue)
    assert served[slow] == (50 if slow in large else 100)
    assert served[Queue.HEAVY] == 50


def test_first_fetches_and_heavy_requests_are_served_in_each_pass_if_alone() -> None:
    for queue in (Queue.FETCH, Queue.HEAVY):
        assert _served_in_passes(100, {queue}, [queue])[queue] == 100


def _served_in_passes(passes: int, slow: AbstractSet[Queue], queues: Sequence[Queue] = tuple(Queue)) -> Counter[Queue]:
    """Serve one connection in each queue that always has a request. Return how often each was served."""
    loop, served = Loop(), Counter[Queue]()
    scheduler = RequestScheduler(loop, loop.clock_s)

    class Requester:
        def __init__(self, queue: Queue) -> None:
            self.queue = queue

        def must_wait(self, queue: Queue) -> bool:  # noqa: ARG002
            return False

        def take_turn(self) -> bool:
            loop.used_s += LIGHT_S * 1.2 if self.queue in slow else PASS_S / 25
            served[self.queue] += 1
            scheduler.add(self, self.queue)
            return True

    for queue in queues:
        scheduler.add(Requester(queue), queue)
    for _ in range(passes):
        loop.once()
    return served


def test_connections_closed_while_waiting_take_no_turn() -> None:
    driver = Responder()
    gone = [driver.connected(served_before=False)[0] for _ in range(1000)]
    for each in gone:
        each.data_received(FETCH + bytes(100_000))
        each.connection_lost(None)
        assert not each._reader.held_bytes, "what it had sent is released at once"
    alive, _ = driver.connected(served_before=False)
    alive.data_received(FETCH)
    driver.loop.once()
    assert driver.served == [alive.number]


def test_small_request_between_large_ones_keeps_connection_heavy() -> None:
    driver = Responder()
    driver.response_bytes = 100 * HEAVY_BYTES
    greedy, _ = driver.connected()
    driver.response_bytes = 10
    for _ in range(3):
        greedy.data_received(FRAME)
        assert driver.served == [], "it waits for its turn"
        driver.loop.once()
        driver.served.clear()
    for _ in range(5):
        greedy.data_received(FRAME)
        driver.loop.once()
    driver.served.clear()
    greedy.data_received(FRAME)
    assert driver.served == [greedy.number], "its large requests are long ago"


def test_node_connection_is_never_heavy() -> None:
    driver = Responder()
    driver.response_bytes = HEAVY_BYTES + 1
    node, _ = driver.connected()
    node.of_node = True
    node.data_received(FRAME)
    assert driver.served == [node.number]


def test_bug_in_one_turn_does_not_block_others() -> None:
    loop = Loop()
    scheduler = RequestScheduler(loop)
    served: list[int] = []

    class Taking:
        def __init__(self, number: int) -> None:
            self.number = number

        def must_wait(self, queue: Queue) -> bool:  # noqa: ARG002
            return False

        def take_turn(self) -> bool:
            if self.number == 0:
                raise ZeroDivisionError
            served.append(self.number)
            return True

    for number in range(3):
        scheduler.add(Taking(number), Queue.LIGHT)
    with pytest.raises(ZeroDivisionError):
        loop.once()
    loop.once()
    scheduler.add(Taking(3), Queue.LIGHT)
    loop.once()
    assert served == [1, 2, 3]
