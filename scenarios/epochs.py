"""Enable or disable the epochs that keep a scenario's clients from stale metadata (KIP-232, KIP-320)."""

from dataclasses import replace

from scenarios.model import Scenario


def sends_leader_epochs(scenario: Scenario) -> bool:
    """Return whether there are groups or a mirror, and all of them send leader epochs."""
    load = scenario.load
    members = (*load.groups, *((load.mirror,) if load.mirror is not None else ()))
    return bool(members) and all(each.leader_epochs for each in members)


def with_leader_epochs(scenario: Scenario) -> Scenario:
    """Return the scenario whose groups and mirror send leader epochs (KIP-320). Nothing else differs."""
    load = scenario.load
    groups = tuple(replace(each, leader_epochs=True) for each in load.groups)
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
        replace(each, metadata_epoch=metadata_epoch, leader_epochs=sends(each.leader_epochs)) for each in load.groups
    )
    mirror = load.mirror
    if mirror is not None:
        mirror = replace(mirror, metadata_epoch=metadata_epoch, leader_epochs=sends(mirror.leader_epochs))
    producers = tuple(replace(each, metadata_epoch=each.metadata_epoch and metadata_epoch) for each in load.producers)
    admins = tuple(replace(each, metadata_epoch=each.metadata_epoch and metadata_epoch) for each in load.admins)
    return replace(scenario, load=replace(load, groups=groups, mirror=mirror, producers=producers, admins=admins))
