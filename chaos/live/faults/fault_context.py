"""The context of a live fault, its begin and its end."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from chaos.faults.disk_damage import DamageCheck
from chaos.live.cluster import LiveCluster
from chaos.live.launchers import NodeUnderTest
from chaos.live.node_side.node_protocol import NodeSpec
from chaos.live.processes import Child, NodeProcess
from chaos.live.targets import FaultTarget
from reports.rows import FaultRow


class LiveFaultContext:
    """The context of a fault: the nodes of the run, their disks, and its time. ``now_us`` returns the time since the
    run's start."""

    def __init__(
        self,
        cluster: LiveCluster,
        damage: DamageCheck,
        now_us: Callable[[], int],
        progress: Callable[[str], None],
    ) -> None:
        self.now_us = now_us
        self.damage = damage  # notes the files that faults have damaged
        self.fired: list[FiredFault] = []  # so far, in the order of their evidence
        self.is_over = False  # whether the load is over; faults in several steps must end then
        self._cluster = cluster
        self._progress = progress
        self._disk_evidence: dict[tuple[int, str], str] = {}

    @property
    def rows(self) -> list[FaultRow]:
        """The evidence of the faults that fired so far."""
        return [each.row for each in self.fired]

    def record(self, row: FaultRow) -> "FiredFault":
        """Record evidence that a fault fired."""
        fired = FiredFault(row)
        self.fired.append(fired)
        return fired

    def child(self, node: int) -> NodeProcess:
        process = self._cluster.nodes[node].process
        assert process is not None
        return process

    def restart(self, node: int) -> None:
        """Start the node's next incarnation, if the one before has ended."""
        self._progress(f"node-{node} is started again")
        self._cluster.restart(node)

    def spec(self, node: int) -> NodeSpec:
        """Return what the node was started with."""
        launcher = self._cluster.nodes[node].launcher
        assert isinstance(launcher, NodeUnderTest)
        return launcher.spec

    def data_folder(self, node: int) -> Path:
        """Return the node's data folder. Only a stopped node's may be changed."""
        return self._cluster.nodes[node].data

    def addresses(self) -> tuple[str, ...]:
        """Return HOST:PORT of each node in the order of the numbers, without a proxy before it."""
        return tuple(node.listen for node in self._cluster.nodes)

    def reconfigure(self, node: int, config: dict[str, str]) -> None:
        """Give these settings to the node's next incarnations, beside or instead of what they had."""
        self._cluster.nodes[node].launcher.reconfigure(config)

    def is_ready(self, node: int) -> bool:
        """Return whether the node serves."""
        found = self._cluster.nodes[node]
        return found.running and found.is_ready

    def all_ready(self) -> bool:
        return all(map(self.is_ready, range(len(self._cluster.nodes))))

    def send_command(self, node: int, command: dict[str, Any]) -> None:
        """Send the process of a node under test a command through its stdin."""
        process = self.child(node)
        assert isinstance(process, Child)
        process.send_command(**command)

    def configure_disk_faults(self, node: int, settings: dict[str, object]) -> None:
        """Configure the faults of the node's disk (``DiskFaults.configure`` in ``chaos.live.node_side``)."""
        self._disk_evidence = {key: what for key, what in self._disk_evidence.items() if key[0] != node}
        self.send_command(node, {"disk": settings})

    def disk_evidence(self, node: int, kind: str) -> str:
        """Return the evidence of a fault of the node's disk since the last command. It is empty if there is none."""
        self._cluster.read(node)
        return self._disk_evidence.get((node, kind), "")

    def note_disk_evidence(self, node: int, kind: str, evidence: str) -> None:
        """Keep what the node's disk reported."""
        self._disk_evidence[node, kind] = evidence


@dataclass(slots=True)
class FiredFault:
    """A fault that fired."""

    row: FaultRow
    """Its evidence."""

    def complete(self, until_us: int, detail: str) -> None:
        """Add to the evidence how the fault ended."""
        self.row = replace(self.row, until_us=until_us, detail=f"{self.row.detail} {detail}".strip())


@dataclass(frozen=True, slots=True)
class Firing:
    """One of several times that a fault fired. Times are microseconds of the run."""

    target: str
    at_us: int
    until_us: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a fault."""

    evidence: str
    """Shows that the fault had an effect; if it is empty, the fault counts as not fired."""
    firings: tuple[Firing, ...] = ()
    """Of a fault that fires several times by itself; each of them counts."""
    doubt: str = ""
    """What speaks against it, for the run's log, if there is no evidence."""


End: TypeAlias = Callable[[], Ended | None]
"""Undoes the fault and returns how it ended. It returns None if the fault still goes on, and is then called again soon.
Once the context's ``is_over`` is true it never returns None."""
Begin: TypeAlias = Callable[[LiveFaultContext, FaultTarget], End]


def node_of(target: FaultTarget) -> int:
    """Return the node that is the target of the fault."""
    node = target.fault.node
    assert isinstance(node, int), f"{target.fault.name} was not aimed at a node"
    return node


def back_again(context: LiveFaultContext, target: FaultTarget, evidence: str) -> End:
    """Return the end of a fault that has ended a node: it starts the node again, unless the node stays away."""

    def end() -> Ended:
        if target.fault.restart_after_s >= 0:
            context.restart(node_of(target))
        return Ended(evidence)

    return end
