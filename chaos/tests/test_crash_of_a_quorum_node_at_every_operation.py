"""A node of a quorum that dies before one disk operation of its life, and soon again in the recovery that follows: it
comes back, no node forgets what a majority has, and all logs agree in the end."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Literal, TypeAlias

import pytest

from chaos.sim.disk import SimDisk, Synced
from chaos.sim.machine import Machine, ProcessKilled
from chaos.sim.world import SimWorld
from reference_broker.ports.disk import Buffer, DiskError
from scenarios import loader
from scenarios.loader import Scenario

pytestmark = pytest.mark.simulated

NODES, OBSERVERS = 3, 1
ClusterAccess: TypeAlias = Literal["kill", "power", "sync"]
TWICE: tuple[tuple[ClusterAccess, ClusterAccess], ...] = (("kill", "kill"), ("power", "power"))
MIXED: tuple[tuple[ClusterAccess, ClusterAccess], ...] = (("kill", "power"), ("sync", "power"))
STEPS = {TWICE: 9, MIXED: 27}
"""One in so many operations of a life; each seed begins at another one."""
LOST_WITH_THE_POWER = ("unseen", "lost-write", "fetch-gap")
"""Acknowledged without a sync, so that it may be lost."""


class MortalDisk(SimDisk):
    """A disk whose machine dies instead of the ``deaths``-th changes (counted from 0).

    Half of a write may have been done. ``ways`` has the way of each death. By ``sync`` the next sync fails, and the
    node ends itself.
    """

    def __init__(self, random: Random, machine: Machine, deaths: Sequence[int], ways: Sequence[ClusterAccess]) -> None:
        super().__init__(random)
        self.changes = 0
        self._next_sync_fails = False
        self._machine = machine
        self._deaths = dict(zip(deaths, ways, strict=True))

    @property
    def _is_due(self) -> bool:
        return self._deaths.get(self.changes, "sync") != "sync"

    def _live_on(self) -> None:
        way = self._deaths.get(self.changes)
        self.changes += 1
        if way == "sync":
            self._next_sync_fails = True
        elif way is not None:
            self._machine.restart_after_us = 300_000
            raise ProcessKilled(way == "power")

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        if self._is_due:
            super().append(path, [data[: len(data) // 2]])
        self._live_on()
        return super().append(path, [data])

    def truncate(self, path: str, size: int) -> None:
        self._live_on()
        super().truncate(path, size)

    def write(self, path: str, data: Buffer) -> None:
        if self._is_due:
            super().write(path, bytes(data)[: len(data) // 2])
        self._live_on()
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._live_on()
        super().rename(source, target)

    def delete(self, path: str) -> None:
        self._live_on()
        super().delete(path)

    def finish_sync(self, synced: Synced) -> None:
        """Finish the sync outside the node's events, because the node dies beside it."""
        try:
            self._live_on()
        except ProcessKilled as death:
            self._machine.kill_now(death.power_loss)
            return
        if self._next_sync_fails:
            self._next_sync_fails = False
            self._machine.disk_failed()
            self.fail_begun(synced)
            raise DiskError("sync: input/output error")
        super().finish_sync(synced)


def scenario() -> Scenario:
    """Topics are made, changed and deleted; the first epoch, the bootstrap and snapshots are part of it."""
    scenario = loader.find("33")
    return replace(
        scenario,
        faults=(),
        cluster=replace(scenario.cluster, nodes=NODES, observers=OBSERVERS),
        load=replace(scenario.load, sim_seconds=1.0),
    )


def lived(seed: int, node: int, deaths: Sequence[int], ways: Sequence[ClusterAccess]) -> MortalDisk:
    """A whole run with all its checks."""
    world = SimWorld(scenario(), seed)
    machine = world.cluster.machines[node]
    disk = machine.disk = MortalDisk(Random(seed * 1000 + sum(deaths)), machine, deaths, ways)
    world.play()
    broken = [
        violation
        for check in world.checks
        for violation in check.violations
        if "power" not in ways or violation.guarantee not in LOST_WITH_THE_POWER
    ]
    assert not broken, (seed, node, deaths, broken[:3])
    return disk


@pytest.mark.parametrize(
    ("ways", "step"),
    [(ways, step) for group, step in STEPS.items() for ways in group],
    ids=["-then-".join(ways) for group in STEPS for ways in group],
)
@pytest.mark.rotated(4)
@pytest.mark.parametrize("node", [0, NODES], ids=["voter", "observer"])
def test_node_that_dies_before_any_disk_operation_and_again_in_its_recovery(
    node: int, ways: tuple[ClusterAccess, ClusterAccess], step: int
) -> None:
    seed = 2 * node + ways.count("power")
    deaths = seed % step
    while lived(seed, node, (deaths, deaths + 4), ways).changes > deaths:
        deaths += step
    assert deaths > 3 * step
