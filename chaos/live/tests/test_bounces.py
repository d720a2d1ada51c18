"""A rolling bounce with other settings, and a feature that is finalized while the load runs; no process is started."""

from pathlib import Path
from typing import Any

import pytest

from chaos.live.fault_scheduler import BEGIN, RETRY_S
from chaos.live.faults.fault_context import End, Ended, Firing, LiveFaultContext
from chaos.live.faults.node_faults import rolling_bounce
from chaos.live.launchers import BrokerLauncher
from chaos.live.targets import FaultTarget
from chaos.live.tests.test_fault_scheduler import SECOND_US, SchedulerWorld
from scenarios.model import Fault

BOUNCE = Fault("b", "rolling_bounce", restart_after_s=0.5, between_s=1.0, config=(("key", "new"),))


class Child:
    """Ends 100 ms after SIGTERM."""

    def __init__(self, place: "FakePlace", pid: int) -> None:
        self.pid = pid
        self.label = f"pid {pid}"
        self._place = place
        self._end_sent_us = -1

    def request_end(self) -> None:
        self._end_sent_us = self._place.at_us

    @property
    def exit_status(self) -> int | None:
        return 0 if 0 <= self._end_sent_us <= self._place.at_us - 100_000 else None

    def how_it_ended(self) -> str:
        return "exited with 0"


class FakePlace:
    """A node is ready 300 ms after its start. ``settings``: of its incarnation."""

    def __init__(self) -> None:
        self.at_us = 0
        self.is_over = False
        self.started: dict[int, int] = dict.fromkeys(range(3), -SECOND_US)
        self.children = {node: Child(self, 100 + node) for node in range(3)}
        self.settings: dict[int, dict[str, str]] = {}
        self.wanted: dict[int, dict[str, str]] = {}

    def now_us(self) -> int:
        return self.at_us

    def addresses(self) -> tuple[str, ...]:
        return ("a:1", "b:1", "c:1")

    def child(self, node: int) -> Child:
        return self.children[node]

    def is_ready(self, node: int) -> bool:
        return self.children[node].exit_status is None and self.at_us - self.started[node] >= 300_000

    def reconfigure(self, node: int, config: dict[str, str]) -> None:
        self.wanted[node] = config

    def restart(self, node: int) -> None:
        assert sum(child.exit_status is not None for child in self.children.values()) == 1, "two are down at once"
        self.settings[node] = self.wanted[node]
        self.children[node] = Child(self, 200 + node)
        self.started[node] = self.at_us


def run_started(place: FakePlace) -> End:
    some_place: Any = place
    return rolling_bounce(some_place, FaultTarget(BOUNCE, (), "node-0"))


def through(place: FakePlace, end: End, within_s: float) -> Ended | None:
    until_us = place.at_us + int(within_s * SECOND_US)
    while place.at_us < until_us:
        place.at_us += 50_000
        if (ended := end()) is not None:
            return ended
    return None


def test_one_after_the_other_ends_and_comes_back_with_the_new_settings() -> None:
    place = FakePlace()
    end = run_started(place)
    assert through(place, end, 1.2) is None
    assert place.settings == {0: {"key": "new"}}, "the second waits until the first serves and between_s is over"
    ended = through(place, end, 10)
    assert ended is not None
    assert list(place.settings.items()) == [(node, {"key": "new"}) for node in range(3)]
    assert ended.evidence.count("exited with 0") == 3
    assert [firing.target for firing in ended.firings] == ["node-0", "node-1", "node-2"]
    assert all(one.until_us < next_one.at_us for one, next_one in zip(ended.firings, ended.firings[1:], strict=False))


def test_node_that_another_fault_has_hit_is_waited_for() -> None:
    place = FakePlace()
    place.started[1] = 20 * SECOND_US
    end = run_started(place)
    assert through(place, end, 10) is None
    assert not place.settings, "no node ends while another one is down"
    place.started[1] = 0
    assert through(place, end, 10) is not None


def test_bounce_that_the_end_of_the_load_cuts_short_did_not_happen() -> None:
    place = FakePlace()
    end = run_started(place)
    assert through(place, end, 2.0) is None
    place.is_over = True
    assert end() == Ended("")


def test_each_node_that_a_bounce_restarted_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    firings = tuple(Firing(f"node-{node}", node, node + 1, f"node-{node}: came back") for node in range(3))
    monkeypatch.setitem(BEGIN, "rolling_bounce", lambda place, target: lambda: Ended("all", firings))  # noqa: ARG005
    world = SchedulerWorld(Fault("b", "rolling_bounce", at_s=1.0))
    world.run_until(2.0)
    rows = [(row.name, row.target, row.hit, row.at_us, row.until_us) for row in world.scheduler.rows]
    assert rows == [("b", f"node-{node}", node + 1, node, node + 1) for node in range(3)]


def test_unfinished_fault_is_polled_and_leaves_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def begin(place: LiveFaultContext, target: FaultTarget) -> End:  # noqa: ARG001
        def end() -> Ended | None:
            looks.append(place.now_us())
            return Ended("done") if len(looks) == 4 else None

        return end

    monkeypatch.setitem(BEGIN, "rolling_bounce", begin)
    world = SchedulerWorld(Fault("b", "rolling_bounce", at_s=1.0))
    world.run_until(3.0)
    (row,) = world.scheduler.rows
    assert row.detail == "done"
    assert len(looks) == 4
    assert row.until_us - row.at_us >= 3 * int(RETRY_S * SECOND_US)


def test_end_of_the_load_reaches_what_still_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(place: LiveFaultContext, target: FaultTarget) -> End:  # noqa: ARG001
        return lambda: Ended("") if place.is_over else None

    monkeypatch.setitem(BEGIN, "rolling_bounce", begin)
    world = SchedulerWorld(Fault("b", "rolling_bounce", at_s=1.0))
    world.run_until(2.0)
    world.scheduler.end_all()
    assert world.scheduler.rows == []


def test_settings_of_a_bounce_are_those_of_the_next_start() -> None:
    world = SchedulerWorld()
    launcher = BrokerLauncher("node-1", (), {"a": "1", "b": "1"}, Path(), Path())
    world.nodes[1].launcher = launcher
    world.scheduler.context.reconfigure(1, {"b": "2"})
    assert launcher.config == {"a": "1", "b": "2"}
