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
        return [fault.row for fault in self.fired]

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
        """Start the node's next incarnation, if the previous one has ended."""
        self._progress(f"node-{node} is started again")
        self._cluster.restart(node)

    def spec(self, node: int) -> NodeSpec:
        """Return the settings with which the node was started."""
        launcher = self._cluster.nodes[node].launcher
        assert isinstance(launcher, NodeUnderTest)
        return launcher.spec

    def data_folder(self, node: int) -> Path:
        """Return the node's data folder. It may be changed only while the node is stopped."""
        return self._cluster.nodes[node].data

    def addresses(self) -> tuple[str, ...]:
        """Return HOST:PORT of each node in the order of the numbers, without a proxy before it."""
        return tuple(node.listen for node in self._cluster.nodes)

    def reconfigure(self, node: int, config: dict[str, str]) -> None:
        """Set these settings for the node's next incarnations; others are kept."""
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
        """Record a report of the node's disk."""
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
    """The evidence that the fault had an effect; if empty, the fault counts as not fired."""
    firings: tuple[Firing, ...] = ()
    """Firings of a fault that fires several times; each counts."""
    doubt: str = ""
    """For the run's log: why there is no evidence."""


End: TypeAlias = Callable[[], Ended | None]
"""Undoes the fault and returns how it ended. It returns None while the fault is not over, and is then called again
soon. Once the context's ``is_over`` is true it never returns None."""
Begin: TypeAlias = Callable[[LiveFaultContext, FaultTarget], End]


def node_of(target: FaultTarget) -> int:
    """Return the node that is the target of the fault."""
    node = target.fault.node
    assert isinstance(node, int), f"{target.fault.name} was not aimed at a node"
    return node


def back_again(context: LiveFaultContext, target: FaultTarget, evidence: str) -> End:
    """Return the end of a fault that has ended a node: it restarts the node, unless the fault says that it stays
    down."""

    def end() -> Ended:
        if target.fault.restart_after_s >= 0:
            context.restart(node_of(target))
        return Ended(evidence)

    return end
