"""Makes a scenario as it is played in front of a broker that is not ours."""

from dataclasses import replace

from scenarios.epochs import with_clients
from scenarios.model import Scenario


def from_outside(scenario: Scenario) -> Scenario:
    """Returns the scenario with its ``[[outside]]`` faults instead of the others, if it has any, and with clients that
    speak no draft. Doing this twice changes nothing."""
    faults = scenario.outside or scenario.faults
    return replace(with_clients(scenario, metadata_epoch=False), faults=faults, outside=())
