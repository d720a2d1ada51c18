"""Long work: what each event does, what comes out, and what a bug costs."""

from collections.abc import Callable, Collection
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.ports.node_ports import Now, Ports
from reference_broker.ports.slicing import (
    Budget,
    Sliced,
    SliceQueue,
    in_batches,
    in_slices,
    run_slices,
    run_to_end,
    slices_run_by,
    sort_in_slices,
)


class EventLoop:
    """Ports with timers alone. ``next_event`` fires the oldest one."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], object]] = []

    @property
    def ports(self) -> Ports:
        return cast(Ports, self)

    def now(self) -> Now:
        return Now(0, 0)

    def set_timer(self, deadline_us: int, fire: Callable[[], object]) -> int:
        assert deadline_us == 0, "the next slice is due at once"
        self.timers.append(fire)
        return len(self.timers)

    def next_event(self) -> None:
        self.timers.pop(0)()

    def run(self) -> None:
        """Run events until no timer is set. There is never more than one."""
        for _ in range(10):
            if not self.timers:
                return
            assert len(self.timers) == 1
            self.next_event()
        pytest.fail("the work does not end")


def work(name: str, slices: int, log: list[str]) -> Sliced[str]:
    for number in range(slices):
        log.append(f"{name}{number}")
        if number < slices - 1:
            yield
    return f"{name} is done"


def test_each_event_runs_one_slice_and_then_follows_the_last() -> None:
    loop, log = EventLoop(), list[str]()
    run_slices(loop.ports, work("a", 3, log), lambda: log.append("then"))
    assert log == ["a0"]
    loop.next_event()
    assert log == ["a0", "a1"]
    loop.next_event()
    assert log == ["a0", "a1", "a2", "then"]
    assert not loop.timers


def test_work_that_fits_one_slice_is_done_in_this_event() -> None:
    loop, log = EventLoop(), list[str]()
    run_slices(loop.ports, work("a", 1, log), lambda: log.append("then"))
    assert log == ["a0", "then"]
    assert not loop.timers


def test_run_to_end_returns_the_result_of_all_slices() -> None:
    log: list[str] = []
    assert run_to_end(work("a", 4, log)) == "a is done"
    assert len(log) == 4


def test_queue_finishes_one_piece_of_work_before_the_next_and_has_one_timer() -> None:
    loop, log = EventLoop(), list[str]()
    queue = SliceQueue(loop.ports)
    queue.add(work("a", 2, log))
    queue.add(work("b", 2, log))
    assert log == [], "the work starts in the next event"
    loop.run()
    assert log == ["a0", "a1", "b0", "b1"]


def test_work_may_be_added_to_a_queue_by_the_work_that_it_runs() -> None:
    loop, log = EventLoop(), list[str]()
    queue = SliceQueue(loop.ports)

    def adding() -> Sliced[None]:
        queue.add(work("b", 1, log))
        yield
        log.append("a is done")

    queue.add(adding())
    loop.run()
    assert log == ["a is done", "b0"]


def test_bug_in_a_slice_ends_the_work_and_reaches_only_its_runner() -> None:
    caught: list[Exception] = []
    steps = 0

    def run(step: Callable[[], object]) -> bool:
        nonlocal steps
        steps += 1
        try:
            step()
        except ZeroDivisionError as bug:
            caught.append(bug)
        return not caught

    log: list[str] = []

    def buggy() -> Sliced[None]:
        log.append("first")
        yield
        log.append(str(1 // 0))
        yield
        log.append("never")

    run_to_end(slices_run_by(run, buggy()))
    assert log == ["first"]
    assert (len(caught), steps) == (1, 2)


@given(st.lists(st.integers()), st.integers(1, 7))
def test_slices_get_every_item_once_in_order_and_at_most_the_budget(items: list[int], size: int) -> None:
    batches: list[Collection[int]] = []
    slices = sum(1 for _ in in_slices(items, size, batches.append))
    assert [each for batch in batches for each in batch] == items
    assert all(len(batch) <= size for batch in batches)
    assert slices == (0 if len(items) <= size else len(batches)), "one event does one batch"
    assert list(in_batches(items, size)) == [list(batch) for batch in batches if batch]


def test_slices_start_only_when_they_are_run() -> None:
    batches: list[Collection[int]] = []
    work = in_slices([1, 2], 2, batches.append)
    assert batches == []
    run_to_end(work)
    assert batches == [[1, 2]]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())), st.integers(1, 7))
def test_sorting_in_slices_equals_sorting_at_once_equal_keys_included(items: list[tuple[int, int]], size: int) -> None:
    def key(item: tuple[int, int]) -> int:
        return item[0]

    slices = 0

    def counted() -> Sliced[list[tuple[int, int]]]:
        nonlocal slices
        work = sort_in_slices(items, size, key)
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: list[tuple[int, int]] = end.value
                return result
            slices += 1
            yield

    assert run_to_end(counted()) == sorted(items, key=key)
    sorted_batches, merged_batches = -(-len(items) // size), len(items) // size
    assert slices == (0 if len(items) <= size else sorted_batches + merged_batches)


@pytest.mark.parametrize(("costs", "ends"), [((1, 1, 1, 1, 1, 1), (3, 6)), ((2, 2, 1), (2,)), ((9, 1, 1, 1), (1, 4))])
def test_budget_ends_a_slice_when_its_units_are_spent_and_begins_another(
    costs: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    budget = Budget(3)
    assert tuple(number for number, cost in enumerate(costs, 1) if budget.spend(cost)) == ends


def test_renewed_budget_is_whole() -> None:
    budget = Budget(3)
    budget.spend(2)
    budget.renew()
    assert not budget.spend(2)
    assert budget.spend(1)
