"""RequestScheduler while the memory for requests is full, and the memory of a connection."""

from typing import Any, cast

from reference_broker.serve.connection import OWN_BYTES, Connection
from reference_broker.serve.tests.scheduling_world import API_VERSIONS, FETCH, FRAME, MOST, Responder, with_backlogs


class FullMemory:
    """A memory budget that is full, or not. ``reserve``: whether small requests may be served all the same."""

    def __init__(self) -> None:
        self.is_full_now = True
        self.reserve = False

    def is_full(self, holder: Connection, is_small: bool = False) -> bool:
        return self.is_full_now and not holder.of_node and not (is_small and self.reserve)

    def changed(self, _: Connection) -> None: ...


def test_full_memory_keeps_queue_order() -> None:
    driver = Responder()
    modest, _ = driver.connected()
    greedy = with_backlogs(driver, 100, 50)
    memory = FullMemory()
    driver.memory = cast(Any, memory)
    driver.loop.once()
    modest.data_received(FRAME)
    for _ in range(50):
        driver.loop.once()
    assert driver.served == []
    memory.is_full_now = False
    driver.scheduler.memory_is_free()
    assert driver.served[0] == modest.number
    assert len(driver.served) == 1 + MOST
    assert set(driver.served[1:]) <= {each.number for each in greedy}
    driver.scheduler.memory_is_free()
    assert len(driver.served) == 1 + MOST, "only a pass that served nothing is compensated"


def test_full_memory_serves_small_requests_from_reserve() -> None:
    driver = Responder()
    (modest, _), (fetcher, _), (newcomer, _) = (driver.connected(served) for served in (True, True, False))
    with_backlogs(driver, 10, 5)
    memory = FullMemory()
    memory.reserve = True
    driver.memory = cast(Any, memory)
    driver.loop.once()
    fetcher.data_received(FETCH)
    newcomer.data_received(API_VERSIONS)
    modest.data_received(FRAME)
    assert driver.served == [modest.number]
    for _ in range(5):
        driver.loop.once()
    assert driver.served == [modest.number, newcomer.number], "backlogs and the fetch wait for free memory"


def test_request_waiting_for_memory_does_not_block_node() -> None:
    driver = Responder()
    modest, _ = driver.connected()
    slow, _ = driver.connected()
    (greedy,) = with_backlogs(driver, 1, 5)
    memory = FullMemory()
    driver.memory = cast(Any, memory)
    modest.data_received(FRAME)
    slow.data_received(FRAME[:-1])
    assert modest.waits_since_s() is greedy.waits_since_s() is None
    assert slow.waits_since_s() is not None, "its frame is not complete"


def test_nodes_are_served_while_client_memory_is_full() -> None:
    driver = Responder()
    client, _ = driver.connected()
    node, _ = driver.connected()
    node.of_node = True
    driver.memory = cast(Any, FullMemory())
    for each in (client, node):
        each.data_received(FRAME * 3)
    while node._reader.has_frame():
        driver.loop.once()
    assert driver.served == [node.number] * 3


def test_response_counts_whole_until_last_byte_is_read() -> None:
    """The response's buffers are sent as they are, so none of them is released before that."""
    driver = Responder()
    reader, transport = driver.connected()
    empty_bytes = reader.held_bytes()
    assert empty_bytes >= OWN_BYTES
    reader.send([bytes(1_000_000)])
    transport.unread_bytes = 1
    assert reader.held_bytes() == empty_bytes + 1_000_000
    reader.send([bytes(10)])
    transport.unread_bytes = 11
    assert reader.held_bytes() == empty_bytes + 1_000_010
    transport.unread_bytes = 10
    assert reader.held_bytes() == empty_bytes + 10
    transport.unread_bytes = 0
    assert reader.held_bytes() == empty_bytes


def test_decoded_large_request_counts_until_response() -> None:
    driver = Responder()
    reader, _ = driver.connected()
    empty_bytes = reader.held_bytes()
    reader.count_decoded(1_000_000)
    assert reader.held_bytes() == empty_bytes + 1_000_000
    reader.done()
    assert reader.held_bytes() <= empty_bytes
