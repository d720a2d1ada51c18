"""Excuses and costs of a disk fault for a simulated machine."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from chaos.sim.agenda import Agenda
from chaos.sim.links import Links
from chaos.sim.machine import ERROR_LIMIT_US, RESTART_AFTER_FAILURE_US, Machine, nothing
from chaos.sim.network import Network
from chaos.sim.tests.test_peers import FakeNode
from reference_broker.core.events import Effect, Event, TimerFired
from reference_broker.core.node import NodeFailed
from reference_broker.ports.node_ports import Now

TIMER = TimerFired(1)


class Weak(FakeNode):
    """A machine that ends itself at any event."""

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:  # noqa: ARG002
        raise NodeFailed("it is tired")


class Lone:
    """One machine with a weak node, and the last words that nothing excuses."""

    def __init__(self, seed: int = 1) -> None:
        self.agenda = Agenda()
        self.words: list[str] = []
        self.machine = Machine(0, self.agenda, seed, self._boot, on_failure=lambda _, words: self.words.append(words))
        Network([self.machine], Links(self.agenda, 1), Random(1))
        self.machine.start()

    def _boot(self, machine: Machine) -> Any:
        return Weak(machine.node_id, self.agenda), (), nothing

    def ends(self, after_us: int = 0) -> list[str]:
        self.agenda.run_until(self.agenda.now_us + after_us)
        self.machine.deliver(self.machine.incarnation, TIMER)
        assert not self.machine.alive
        return self.words


def test_node_may_end_itself_soon_after_its_disk_failed_and_not_later() -> None:
    for after_us, words in ((0, []), (ERROR_LIMIT_US, []), (ERROR_LIMIT_US + 1, ["it is tired"])):
        lone = Lone()
        lone.machine.disk_failed()
        assert lone.ends(after_us) == words


def test_failure_of_the_disk_excuses_no_later_start() -> None:
    lone = Lone()
    lone.machine.disk_failed()
    assert lone.ends() == []
    assert lone.ends(RESTART_AFTER_FAILURE_US) == ["it is tired"]


def test_failure_that_is_reported_late_or_to_a_stopped_process_excuses_it_once_it_arrives() -> None:
    lone = Lone()
    lone.machine.disk_failed(reported_after_us=1_000_000)
    assert lone.ends(ERROR_LIMIT_US + 1_000_000) == []
    lone = Lone()
    lone.machine.disk_failed()
    lone.machine.pause(30_000_000)
    assert lone.ends(31_000_000) == []


@pytest.mark.parametrize("damage", ["a bit", "full"])
def test_damaged_file_and_a_full_disk_excuse_for_as_long_as_they_are_there(damage: str) -> None:
    lone = Lone()
    if damage == "full":
        lone.machine.disk.capacity_bytes = 0
    else:
        lone.machine.disk.append("a", [b"1"])
        lone.machine.disk.flip("a", 0)
    assert lone.ends(2 * ERROR_LIMIT_US) == []
    assert lone.ends(RESTART_AFTER_FAILURE_US) == []


def test_node_that_ends_after_a_failed_sync_has_lost_bytes_of_the_files_of_that_sync_alone() -> None:
    lost: dict[str, None] = {}
    for seed in range(20):
        lone = Lone(seed)
        for path in ("t-0/a.log", "t-1/a.log"):
            lone.machine.disk.append(path, [b"1"])
        lone.machine.disk.fail_sync(["t-0/a.log"])
        lone.machine.kill_now(power_loss=False)
        lost.update(dict.fromkeys(lone.machine.lost_bytes_of))
    assert list(lost) == ["t-0/a.log"]
