"""Coroutines: where they wait, with what they go on, and how they end when they are cancelled."""

from collections.abc import Callable
from typing import cast

import pytest

from reference_broker.ports.coroutines import Wait, completed, pause, result_of, run_coroutine, start
from reference_broker.ports.node_ports import Now, Ports
from reference_broker.ports.slicing import Sliced


class Timers:
    """Ports with timers alone. ``fire`` fires the oldest one, and returns its deadline."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, Callable[[], None]]] = []

    @property
    def ports(self) -> Ports:
        return cast(Ports, self)

    def now(self) -> Now:
        return Now(0, 0)

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self.pending.append((deadline_us, fire))
        return len(self.pending)

    def fire(self) -> int:
        deadline_us, fire = self.pending.pop(0)
        fire()
        return deadline_us


def test_coroutine_goes_on_with_each_result_at_once_or_later() -> None:
    timers, done, waiting = Timers(), list[int](), list[Callable[[int], None]]()

    async def work() -> None:
        done.append(await Wait[int](lambda resume: resume(1)))
        done.append(await Wait[int](waiting.append))
        await pause(timers.ports, 5_000)
        done.append(3)

    run_coroutine(work())
    assert done == [1]
    waiting.pop()(2)
    assert done == [1, 2]
    assert timers.fire() == 5_000
    assert (done, timers.pending) == ([1, 2, 3], [])


def test_error_reaches_the_caller_that_delivers_the_result() -> None:
    waiting: list[Callable[[int], None]] = []

    async def work() -> None:
        assert await Wait[int](waiting.append) == 1, "another result"

    run_coroutine(work())
    with pytest.raises(AssertionError, match="another result"):
        waiting.pop()(2)


@pytest.mark.parametrize("ends_while_it_waits", [True, False])
def test_cancelled_coroutine_ends_at_its_next_wait(ends_while_it_waits: bool) -> None:
    is_current, done = True, list[str]()
    first, second = list[Callable[[int], None]](), list[Callable[[int], None]]()

    async def work() -> None:
        nonlocal is_current
        try:
            await Wait[int](first.append)
            done.append("resumed")
            is_current = False
            await Wait[int](second.append)
            done.append("resumed again")
        finally:
            done.append("closed")

    run_coroutine(work(), lambda: is_current)
    is_current = not ends_while_it_waits
    first.pop()(1)
    assert done == (["closed"] if ends_while_it_waits else ["resumed", "closed"])
    assert not second, "the next wait has begun"


def test_each_slice_has_an_event_of_its_own() -> None:
    timers, done = Timers(), list[int]()

    def sliced() -> Sliced[int]:
        done.append(1)
        yield
        done.append(2)
        yield
        return 3

    async def work() -> None:
        done.append(await result_of(timers.ports, sliced()))

    run_coroutine(work())
    assert done == [1]
    timers.fire()
    assert done == [1, 2]
    timers.fire()
    assert (done, timers.pending) == ([1, 2, 3], [])


@pytest.mark.parametrize("comes_first", ["result", "await"])
def test_started_work_gives_its_result_before_or_after_the_await(comes_first: str) -> None:
    done, waiting = list[int](), list[Callable[[int], None]]()

    async def work() -> int:
        return 1 + await Wait[int](waiting.append)

    future = start(work())

    async def user() -> None:
        done.append(await completed(1))
        done.append(await future)

    if comes_first == "result":
        waiting.pop()(1)
        run_coroutine(user())
    else:
        run_coroutine(user())
        assert done == [1]
        waiting.pop()(1)
    assert done == [1, 2]
