"""The simulator's fleet: the same behaviours as the live one, made from a scenario."""

from collections.abc import Sequence

from bench.fleet.behaviours.producers import KeyedProducer
from bench.fleet.behaviours.protocol import Address
from bench.fleet.plans import idle_writer_plan
from bench.fleet.spec import FleetSpec, settings_of
from chaos.seeds import number_for, random_for
from scenarios.model import Scenario

DRAIN_MS = 8_000
FINAL_READ_MS = 8_000
FINAL_READ_OF_CLUSTER_MS = 25_000


def spec_of(scenario: Scenario, seed: int, bootstrap: Sequence[Address], target: Sequence[Address]) -> FleetSpec:
    """Returns the scenario's load at its simulated size. ``target`` is the cluster that its mirror copies to."""
    return FleetSpec(
        bootstrap=_where(bootstrap),
        load=scenario.load.in_simulator,
        target=_where(target),
        seed=number_for(seed, "fleet"),
        drain_ms=DRAIN_MS,
        final_read_ms=FINAL_READ_MS if scenario.cluster.total == 1 else FINAL_READ_OF_CLUSTER_MS,
    )


def _where(addresses: Sequence[Address]) -> list[str]:
    return [f"{host}:{port}" for host, port in addresses]


def idle_writer(spec: FleetSpec, seed: int) -> KeyedProducer | None:
    """Returns a writer that appends once to each idle partition while the load runs; None if that is done before the
    load."""
    plan = idle_writer_plan(spec)
    return None if plan is None else KeyedProducer(plan, settings_of(spec), random_for(seed, plan.process))
