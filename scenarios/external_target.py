"""Derive the scenario that is played on an external target."""

from dataclasses import replace

from scenarios.epochs import with_clients
from scenarios.model import Scenario

SHARE = 10
"""The required traffic is divided by this. An external broker may take ten seconds to start after each kill, where ours
takes one, and partitions with one replica are unavailable for that time."""
PATIENCE = 5
"""By this factor more may a producer be behind its schedule."""


def for_external_target(scenario: Scenario) -> Scenario:
    """Return the scenario with its external faults instead of the others, if it has any, and with clients that speak no
    draft. It requires less traffic."""
    faults = scenario.external_faults or scenario.faults
    return replace(
        with_clients(scenario, metadata_epoch=False),
        faults=faults,
        external_faults=(),
        min_fetches=scenario.min_fetches // SHARE,
        min_acked=scenario.min_acked // SHARE,
        max_schedule_slip_ms=scenario.max_schedule_slip_ms * PATIENCE,
    )
