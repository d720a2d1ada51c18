"""Large frames of many peers are received in turns, and those of a few at full speed."""

from typing import Any, cast

from reference_broker.serve.connection import Mute
from reference_broker.serve.request_scheduling import COUNTED_FROM_BYTES, MAX_BYTES, PIECE_BYTES, ReceiveBudget
from reference_broker.serve.tests.scheduling_world import FRAME, Loop, Responder

PIECES = MAX_BYTES // PIECE_BYTES


class Sender:
    """A peer that always has more to send."""

    def __init__(self) -> None:
        self.closed = False
        self.receives = True
        self.taken = 0

    def pause_receiving(self) -> None:
        assert self.receives
        self.receives = False

    def resume_receiving(self) -> None:
        assert not self.receives
        self.receives = True


def received(budget: ReceiveBudget, senders: list[Sender]) -> int:
    """Receive once from each ready sender. Return the number of pieces."""
    ready = [each for each in senders if each.receives and not each.closed]
    for each in ready:
        each.taken += 1
        budget.took(each, PIECE_BYTES)
    return len(ready)


def test_few_senders_are_not_paused() -> None:
    loop = Loop()
    budget, senders = ReceiveBudget(loop.call_soon), [Sender() for _ in range(PIECES)]
    for _ in range(5):
        assert received(budget, senders) == PIECES
        loop.once()


def test_many_senders_take_turns() -> None:
    loop = Loop()
    budget, senders = ReceiveBudget(loop.call_soon), [Sender() for _ in range(500)]
    assert received(budget, senders) == 500, "what is there already is taken"
    for _ in range(60):
        loop.once()
        assert received(budget, senders) <= 2 * PIECES
    assert min(each.taken for each in senders) >= 2


def test_turns_end_after_paused_senders_closed() -> None:
    loop = Loop()
    budget, senders = ReceiveBudget(loop.call_soon), [Sender() for _ in range(100)]
    received(budget, senders)
    for each in senders:
        each.closed = True
    for _ in range(10):
        loop.once()
    assert not loop.soon


def test_paused_connection_is_not_read_until_its_turn() -> None:
    driver = Responder()
    connection, transport = driver.connected()
    connection.pause_receiving()
    assert not transport.reads
    connection._mute(Mute.READ_AHEAD)
    connection._unmute(Mute.READ_AHEAD)
    assert not transport.reads, "its backlog is served, but others are received from"
    connection.resume_receiving()
    assert transport.reads


def test_small_pieces_do_not_count() -> None:
    driver = Responder()
    took: list[int] = []
    driver.receive_budget = cast(
        Any, type("Counting", (), {"took": lambda _, __, size_bytes: took.append(size_bytes)})()
    )
    connection, _ = driver.connected()
    connection.data_received(FRAME * (COUNTED_FROM_BYTES // len(FRAME) - 1))
    assert took == []
    connection.data_received(FRAME * (COUNTED_FROM_BYTES // len(FRAME)))
    assert took == [COUNTED_FROM_BYTES]
