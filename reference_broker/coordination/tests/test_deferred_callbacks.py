"""Deferred callbacks run in their order, after the rest of the event, and a bounded number in each event."""

from collections.abc import Callable
from typing import Any

from reference_broker.coordination.scheduling import DeferredCallbacks
from reference_broker.ports.coroutines import run_coroutine
from reference_broker.ports.slicing import COORDINATOR_STEPS_PER_EVENT
from reference_broker.replication.tests.timed_ports import TimedPorts


class Event(TimedPorts):
    """An event that ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.last_steps: list[Callable[[], None]] = []

    def at_end(self, step: Callable[[], None]) -> None:
        self.last_steps.append(step)

    def end(self) -> None:
        while self.last_steps:
            self.last_steps.pop(0)()


def world() -> tuple[Event, DeferredCallbacks, list[int]]:
    event = Event()
    ports: Any = event
    return event, DeferredCallbacks(ports), []


def test_deferred_step_runs_at_end_of_event_without_timer() -> None:
    event, steps, done = world()
    for number in range(3):
        steps.add(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == []
    event.end()
    assert (done, event.timers) == ([0, 1, 2], {})
    steps.add(lambda: done.append(3))
    event.end()
    assert done == [0, 1, 2, 3]


def test_step_added_by_a_step_runs_in_same_event() -> None:
    event, steps, done = world()
    steps.add(lambda: steps.add(lambda: done.append(1)))
    event.end()
    assert (done, event.timers) == ([1], {})


def test_many_steps_take_several_events_and_keep_their_order() -> None:
    event, steps, done = world()
    for number in range(2 * COORDINATOR_STEPS_PER_EVENT):
        steps.add(lambda number=number: done.append(number))  # type: ignore[misc]
    event.end()
    assert done == list(range(COORDINATOR_STEPS_PER_EVENT))
    steps.add(lambda: done.append(-1))
    event.end()
    assert len(done) == COORDINATOR_STEPS_PER_EVENT, "it waits for those before it"
    event.pass_ms(0)
    assert done == [*range(2 * COORDINATOR_STEPS_PER_EVENT), -1]
    assert (event.events, event.timers) == (2, {})


def test_coroutine_waits_for_end_of_event() -> None:
    event, steps, done = world()

    async def work() -> None:
        await steps.end_of_event()
        done.append(1)

    run_coroutine(work())
    assert done == []
    event.end()
    assert done == [1]
