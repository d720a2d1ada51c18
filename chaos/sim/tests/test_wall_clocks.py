"""Wall clocks that tick seldom, and are off."""

from chaos.sim.agenda import START_WALL_MS, Agenda
from chaos.sim.machine import Machine


def test_all_wall_clocks_move_in_steps_and_one_that_is_off_stays_off() -> None:
    agenda = Agenda(clock_tick_ms=500)
    machine = Machine(0, agenda, 1, lambda _: (_ for _ in ()).throw(AssertionError))
    machine.wall_offset_ms = -1
    shown: list[tuple[int, int]] = []
    for at_ms in (0, 499, 500, 1250):
        agenda.at(at_ms * 1000, lambda: shown.append((agenda.wall_ms, machine.now.wall_ms)))
    agenda.run_until(2_000_000)
    assert [right - START_WALL_MS for right, _ in shown] == [0, 0, 500, 1000]
    assert all(off == right - 1 for right, off in shown)
    assert machine.now.mono_us == 2_000_000
