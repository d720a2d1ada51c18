"""Idle connections and storms of new ones, against a sink that closes some."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.load import connections
from bench.load.connections import Connected, ConnectionMaker, ConnectionPlan, connection_plans
from bench.load.sink import Sink
from reference_broker.client.tests.transaction_world import NaiveBroker
from reference_broker.wire.apis import ApiKey

LIMIT_S = 30.0


class Door(Sink):
    """A sink that counts its connections. ``refuses`` gets each one's number, from 1."""

    def __init__(self, refuses: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__()
        self._handlers[ApiKey.API_VERSIONS] = lambda _: NaiveBroker(2).versions()
        self._numbers = itertools.count(1)
        self._refuses = refuses
        self.open: set[socket.socket] = set()
        self.most = 0

    def _serve_one(self, connection: socket.socket) -> None:
        if self._refuses(next(self._numbers)):
            connection.close()
            return
        self.open.add(connection)
        self.most = max(self.most, len(self.open))
        super()._serve_one(connection)
        self.open.discard(connection)


@contextmanager
def running(door: Door, plan: ConnectionPlan) -> Iterator[tuple[ConnectionMaker, list[Connected]]]:
    ends: list[Connected] = []
    maker = ConnectionMaker(plan, [("127.0.0.1", door.port)], ends.append)
    threads = [threading.Thread(target=each) for each in (door.serve, maker.run)]
    for thread in threads:
        thread.start()
    try:
        yield maker, ends
    finally:
        maker.stop()
        threads[1].join()
        door.close()
        threads[0].join()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.01)


def test_idle_connections_stay_open_and_are_closed_at_the_end() -> None:
    door = Door()
    with running(door, ConnectionPlan("c", ("t",), idle=30)) as (maker, ends):
        until(lambda: maker.held == 30, "opening 30 connections")
        assert len(door.open) == 30
    until(lambda: not door.open, "closing all connections")
    assert not ends


def test_idle_connection_that_is_closed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LOOK_S", 0.02)
    door = Door()
    with running(door, ConnectionPlan("c", ("t",), idle=5)) as (maker, _):
        until(lambda: maker.held == 5, "opening 5 connections")
        (first, *_) = door.open
        first.shutdown(socket.SHUT_RDWR)
        until(lambda: first not in door.open and len(door.open) == 5 and maker.held == 5, "opening another one")


def test_storm_is_open_loop_and_closes_each_connection() -> None:
    door = Door()
    with running(door, ConnectionPlan("c", ("t",), per_s=200)) as (_, ends):
        until(lambda: len(ends) >= 40, "forty connections")
    due_us = [end.due_us for end in ends]
    assert {after - before for before, after in itertools.pairwise(due_us)} == {5_000}
    assert all(end.end_us > end.due_us for end in ends)
    assert {end.error for end in ends} == {None}
    assert door.most < 20  # Of more than forty. The door's threads may notice late that one was closed.


def test_failures_are_counted_and_end_nothing() -> None:
    door = Door(lambda number: number % 3 == 0)
    with running(door, ConnectionPlan("c", ("t",), per_s=500)) as (_, ends):
        until(lambda: len(ends) >= 60, "sixty connections")
    failed = [end for end in ends if end.error is not None]
    assert {end.error for end in failed} <= {"closed", "reset"}
    assert abs(len(failed) - len(ends) / 3) <= 2
    door = Door(lambda number: number == 2)
    with running(door, ConnectionPlan("c", ("t",), idle=4)) as (maker, ends):
        until(lambda: len(ends) == 1, "a failure")
        until(lambda: maker.held == 4, "opening 4 connections all the same")


@pytest.mark.parametrize(("count", "per_s"), [(0, 0.0), (1, 0.0), (1_234, 175.0), (0, 0.5)])
def test_clients_share_connections_and_their_rate(count: int, per_s: float) -> None:
    plans = connection_plans(["t"], count, per_s)
    assert sum(plan.idle for plan in plans) == count
    assert sum(plan.per_s for plan in plans) == pytest.approx(per_s)
    assert all(plan.idle <= 500 and plan.per_s <= 10 for plan in plans)
    assert len({plan.process for plan in plans}) == len(plans)
