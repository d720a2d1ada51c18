"""Derive the played form of a scenario: for one seed, with or without epochs, and on an external target.

Each function returns another scenario and leaves the given one as it is. ``scenarios.revisions`` has the revisions of
fetch sessions, and ``chaos.sim.swarm`` the swarms, which are drawn at random.
"""

from dataclasses import replace

from scenarios.model import Fault, Range, Scenario

TRAFFIC_SHARE = 10
"""The required traffic is divided by this on an external target. Such a broker may take ten seconds to start after each
kill, where ours takes one, and partitions with one replica are unavailable for that time."""
PATIENCE = 5
"""By this factor more may a producer be behind its schedule on an external target."""


def drawn(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with one fault of each ``either`` group and a fixed ``nth`` for each swept fault.

    Nothing is random here. The seeds go through the alternatives and the swept ranges in order, the first in the file
    fastest, so N seeds cover the first N combinations. All other ranges are drawn where they are used. Drawing again
    changes nothing, and both worlds play the result.
    """
    wheel = _Wheel(seed)
    chosen: dict[str, str] = {}
    for fault in scenario.faults:
        if fault.either and fault.either not in chosen:
            names = [alternative.name for alternative in scenario.faults if alternative.either == fault.either]
            chosen[fault.either] = names[wheel.turn(len(names))]
    drawn_faults = [fault for fault in scenario.faults if not fault.either or chosen[fault.either] == fault.name]
    return replace(scenario, faults=tuple(_placed(fault, wheel) for fault in drawn_faults))


class _Wheel:
    """Gives the digits of the seed one after the other, each in the requested base."""

    def __init__(self, seed: int) -> None:
        self._rest = seed

    def turn(self, base: int) -> int:
        digit = self._rest % base
        self._rest //= base
        return digit


def _placed(fault: Fault, wheel: _Wheel) -> Fault:
    """Return the fault as one of this seed: with a fixed ``nth``, and no alternative to another fault."""
    fault = replace(fault, either="")
    if not fault.swept:
        return fault
    at = fault.nth.low + wheel.turn(_span(fault))
    return replace(fault, nth=Range(at, at), swept=False)


def _span(fault: Fault) -> int:
    return fault.nth.high - fault.nth.low + 1 if fault.swept else 1


def sends_leader_epochs(scenario: Scenario) -> bool:
    """Return whether there are groups or a mirror, and all of them send leader epochs."""
    load = scenario.load
    members = (*load.groups, *((load.mirror,) if load.mirror is not None else ()))
    return bool(members) and all(member.leader_epochs for member in members)


def with_leader_epochs(scenario: Scenario) -> Scenario:
    """Return the scenario whose groups and mirror send leader epochs (KIP-320). Nothing else differs."""
    load = scenario.load
    groups = tuple(replace(group, leader_epochs=True) for group in load.groups)
    mirror = None if load.mirror is None else replace(load.mirror, leader_epochs=True)
    return replace(scenario, load=replace(load, groups=groups, mirror=mirror))


def with_clients(scenario: Scenario, *, metadata_epoch: bool, leader_epochs: bool | None = None) -> Scenario:
    """Return the scenario whose groups and mirror all use metadata epochs or not, and all send leader epochs or not.

    With None the leader epochs stay as the scenario says. Producers and admins use metadata epochs where the scenario
    says so, or none of them does. Nothing else differs, not even the name.
    """
    load = scenario.load

    def sends(said: bool) -> bool:
        return said if leader_epochs is None else leader_epochs

    groups = tuple(
        replace(group, metadata_epoch=metadata_epoch, leader_epochs=sends(group.leader_epochs)) for group in load.groups
    )
    mirror = load.mirror
    if mirror is not None:
        mirror = replace(mirror, metadata_epoch=metadata_epoch, leader_epochs=sends(mirror.leader_epochs))
    producers = tuple(
        replace(producer, metadata_epoch=producer.metadata_epoch and metadata_epoch) for producer in load.producers
    )
    admins = tuple(replace(admin, metadata_epoch=admin.metadata_epoch and metadata_epoch) for admin in load.admins)
    return replace(scenario, load=replace(load, groups=groups, mirror=mirror, producers=producers, admins=admins))


def for_external_target(scenario: Scenario) -> Scenario:
    """Return the scenario with its external faults instead of the others, if it has any, and with clients that speak no
    draft. It requires less traffic."""
    faults = scenario.external_faults or scenario.faults
    return replace(
        with_clients(scenario, metadata_epoch=False),
        faults=faults,
        external_faults=(),
        min_fetches=scenario.min_fetches // TRAFFIC_SHARE,
        min_acked=scenario.min_acked // TRAFFIC_SHARE,
        max_schedule_slip_ms=scenario.max_schedule_slip_ms * PATIENCE,
    )
