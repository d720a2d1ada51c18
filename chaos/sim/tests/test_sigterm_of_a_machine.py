"""SIGTERM of a simulated machine that takes its time, is stopped, or is to start again meanwhile."""

from random import Random
from typing import Any

from chaos.sim.agenda import Agenda
from chaos.sim.links import Links
from chaos.sim.machine import Machine, nothing
from chaos.sim.network import Network
from chaos.sim.tests.test_peers import FakeNode
from reference_broker.core.events import TimerFired
from reference_broker.ports.node_ports import Now


class Slow(FakeNode):
    """Ends at the first event after its shutdown was requested."""

    def shutdown(self, now: Now) -> Any:  # noqa: ARG002
        self.shutting_down = True
        return ()

    def handle(self, now: Now, event: Any) -> Any:
        self.stopped = getattr(self, "shutting_down", False)
        return super().handle(now, event)


def one_machine() -> Machine:
    agenda = Agenda()
    boot: Any = lambda machine: (Slow(machine.node_id, agenda), (), nothing)  # noqa: E731
    machine = Machine(0, agenda, 1, boot)
    Network([machine], Links(agenda, 1), Random(1))
    machine.start()
    return machine


def go_on(machine: Machine, for_us: int = 0) -> None:
    machine.agenda.run_until(machine.agenda.now_us + for_us)
    machine.deliver(machine.incarnation, TimerFired(1))
    machine.agenda.run_until(machine.agenda.now_us)


def test_node_that_is_still_ending_when_it_is_to_start_again_does_so_once_it_is_gone() -> None:
    machine = one_machine()
    machine.terminate()
    machine.start()
    assert (machine.alive, machine.incarnation) == (True, 0)
    go_on(machine)
    assert (machine.alive, machine.incarnation) == (True, 1)
    go_on(machine)
    assert machine.alive, "the new process was not shut down"


def test_node_that_is_not_started_stays_away() -> None:
    machine = one_machine()
    machine.terminate()
    go_on(machine, 10_000_000)
    assert not machine.alive


def test_stopped_process_ends_when_it_goes_on_and_starts_again_then() -> None:
    machine = one_machine()
    machine.pause(1_000_000)
    machine.terminate()
    machine.pause(2_000_000)
    machine.start()
    go_on(machine, 1_500_000)
    assert (machine.alive, machine.incarnation) == (True, 0)
    go_on(machine, 1_000_000)
    assert (machine.alive, machine.incarnation) == (True, 1)


def test_signal_to_a_stopped_process_that_is_killed_is_not_for_the_next_one() -> None:
    machine = one_machine()
    machine.pause(1_000_000)
    machine.terminate()
    machine.kill_now(power_loss=False)
    machine.start()
    incarnation = machine.incarnation
    go_on(machine, 2_000_000)
    assert (machine.alive, machine.incarnation) == (True, incarnation)
