"""A host that vanishes in the simulator: the other ends of its connections learn of it only by their timeouts."""

from dataclasses import replace

import pytest

from chaos.sim.world import SimWorld
from scenarios import loader
from scenarios.model import Fault


def errors_of_clients(kind: str) -> set[str]:
    """Play the kind once, and return the errors of the operations whose node was gone."""
    scenario = loader.find("leader-host-lost-under-acks-all")
    gone = Fault("gone", kind, at_s=4.0, sim_at_s=4.0, node=2, restart_after_s=5.0)
    world = SimWorld(replace(scenario, faults=(gone,)), 1)
    world.play()
    (fired,) = world.faults
    assert fired.until_us - fired.at_us >= 5_000_000
    return {
        operation.error for operation in world.history.operations if operation.error is not None and operation.node == 2
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "errors"), [("host_lost", {"timeout"}), ("node_killed", {"disconnected", "refused"})])
def test_only_a_process_that_ends_is_seen_by_its_clients(kind: str, errors: set[str]) -> None:
    assert errors_of_clients(kind) == errors
