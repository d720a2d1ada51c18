"""A pause that a rule begins ends when all faults are healed, and its evidence says so."""

from dataclasses import replace

from chaos.sim.world import SimWorld
from scenarios import loader
from scenarios.model import Fault


def test_pause_at_a_request_near_the_loads_end_is_over_at_the_heal() -> None:
    scenario = loader.find("failed-sync")
    long = Fault("long", "node_paused", "request", after_s=3.9, total=1, duration_s=30.0, sim_duration_s=30.0)
    world = SimWorld(replace(scenario, faults=(long,), load=replace(scenario.load, seconds=4.0, sim_seconds=4.0)), 1)
    (machine,) = world.cluster.machines
    paused: list[bool] = []
    heal = world.cluster.heal

    def healed() -> None:
        heal()
        paused.append(machine.paused)

    world.cluster.heal = healed  # type: ignore[method-assign]
    world.play()
    assert paused == [False]
    (row,) = world.faults
    assert world.load_from_us + 3_900_000 <= row.at_us < world.load_until_us
    assert row.until_us == world.load_until_us
    assert not [violation for check in world.checks for violation in check.violations]
