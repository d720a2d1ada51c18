"""The broker under test: the reference broker, or an external target (``external/brokers.py``).

The runner plays a scenario against either. ``RunTarget`` has the differences: how nodes are started, the frame proxies
in front of them, and their fields of the manifest.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from bench.fleet.behaviours.protocol import Versions
from chaos.live.closed_segments import OWN_LIMIT_S, ClosedSegments, segments_of
from chaos.live.cluster import LiveCluster
from chaos.live.errors import CONVERGES, Ending, RunEnd
from chaos.live.fault_scheduler import LiveFaultScheduler
from chaos.live.fleet import RESPONSES_AFTER_HEAL, ClusterAccess
from chaos.live.frame_proxies import Frames, LinkFrames, has_link_rules
from chaos.live.launchers import nodes_under_test, samples_of
from chaos.live.links import Links
from chaos.live.node_side.node_protocol import ROLE
from chaos.live.quorum import Dial
from chaos.live.recorded_quorum import RecordedQuorum, is_recorded, recorded_rows
from chaos.live.run_folder import RunFolder
from chaos.live.sampler import Sampler
from chaos.mutants.registry import by_name
from reports.manifest import CheckResult
from reports.rows import BrokerSample
from scenarios.model import Scenario

SETUP_LIMIT_S = 90.0
BROKEN_BY: Final = {Ending.NODE_ENDED_ITSELF: CONVERGES, Ending.NODE_NOT_BACK: RESPONSES_AFTER_HEAL}
"""The guarantee that each ending of the reference broker violates. A crash violates none."""

Progress: TypeAlias = Callable[[str], None]
TickUntil: TypeAlias = Callable[[Callable[[], bool], float, str], None]
"""``(done, limit_s, complaint)`` continues the run until ``done()``."""
OnEvidence: TypeAlias = Callable[[int, dict[str, Any]], None]
"""Called with each line of a node's evidence and the node's number."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run."""

    scenario: Scenario
    """The scenario with the seed's faults."""
    folder: RunFolder
    seed: int
    target: str
    mutant: str
    """Empty: none."""
    progress: Progress
    """Called with a line for each step of the run."""
    origin_us: int = field(default_factory=lambda: time.monotonic_ns() // 1000)
    start_wall_us: int = field(default_factory=lambda: time.time_ns() // 1000)

    def now_us(self) -> int:
        """Return the time since the run's start."""
        return time.monotonic_ns() // 1000 - self.origin_us

    @property
    def client_mutant(self) -> str:
        return self.mutant if self.mutant and by_name(self.mutant).side == "client" else ""

    @property
    def broker_mutant(self) -> str:
        return "" if self.client_mutant else self.mutant


class RunTarget:
    """The brokers of one run. Its methods raise SetupError, NodeDied."""

    scenario: Scenario  # what is played in front of them
    cluster: LiveCluster
    segments: ClosedSegments | None = None  # of tiered topics, if they are judged

    @property
    def samples(self) -> Sequence[BrokerSample]:
        """The rows of the table ``broker``."""
        return ()

    @property
    @abstractmethod
    def frames(self) -> Sequence[Frames]:
        """The frame proxies that run."""

    @abstractmethod
    def start(self, links: Links, on_evidence: OnEvidence, tick_until: TickUntil) -> ClusterAccess:
        """Start the nodes, unless they run already, behind their links. Return the access for clients."""

    def tick(self) -> None:
        """Do the due work; called in each iteration of the run's loop."""

    def close(self) -> None:
        """End what runs beside the nodes."""

    # The manifest

    @property
    @abstractmethod
    def config(self) -> dict[str, str]:
        """The settings that the nodes were given, by Kafka's names."""

    @property
    @abstractmethod
    def guarantees(self) -> tuple[str, ...]:
        """The guarantees for which the run is judged."""

    def notes(self) -> tuple[str, ...]:
        """Return notes for the readers of the report."""
        return ()

    @abstractmethod
    def checks(self, end: RunEnd, at_us: int, scheduler: LiveFaultScheduler) -> tuple[CheckResult, ...]:
        """Return the results for guarantees that are not judged from the clients' history: the one that the run's
        ``end`` violates, and those that nodes or the runner checked."""


class ReferenceTarget(RunTarget):
    """The nodes under test, with the interceptor and checks inside them."""

    def __init__(self, plan: RunPlan) -> None:
        size = plan.scenario.cluster
        self.scenario = plan.scenario
        self.cluster = LiveCluster(size.nodes, size.total, plan.seed, ours=True, on_line=self._evidence_line)
        self._plan = plan
        self._on_evidence: OnEvidence = lambda node, line: None  # noqa: ARG005
        self._link_frames: LinkFrames | None = None
        self._sampler = Sampler(lambda: samples_of(self.cluster.nodes), plan.now_us)

    @property
    def frames(self) -> Sequence[Frames]:
        return () if self._link_frames is None else (self._link_frames,)

    def start(self, links: Links, on_evidence: OnEvidence, tick_until: TickUntil) -> ClusterAccess:
        plan, self._on_evidence = self._plan, on_evidence
        nodes = nodes_under_test(
            plan.scenario, plan.folder, links, self._through_frame_proxy, plan.seed, plan.broker_mutant, plan.origin_us
        )
        self.cluster.launch(nodes)
        tick_until(lambda: self.cluster.is_ready, SETUP_LIMIT_S, "not all nodes were ready")
        for node in nodes:
            plan.progress(f"{node.name} serves at {node.listen}, clients reach it through {node.advertised}")
        self.segments = segments_of(self.scenario, nodes, "", Versions().metadata, OWN_LIMIT_S)
        self._sampler.start()
        return ClusterAccess(self.cluster.addresses)

    def _through_frame_proxy(self, dial: Dial) -> Dial:
        """Put the frame proxy on all links between nodes if a rule hits there."""
        plan = self._plan
        if not has_link_rules(plan.scenario):
            return dial
        self._link_frames, proxied = LinkFrames.before(dial, plan.scenario, plan.folder.logs, plan.seed, plan.origin_us)
        return proxied

    def _evidence_line(self, node: int, line: dict[str, Any]) -> None:
        if ROLE in line and self._link_frames is not None:
            self._link_frames.role(node, line[ROLE])
        self._on_evidence(node, line)

    def close(self) -> None:
        self._sampler.end()

    @property
    def samples(self) -> Sequence[BrokerSample]:
        return self._sampler.rows

    @property
    def config(self) -> dict[str, str]:
        return dict(self.scenario.cluster.config)

    @property
    def guarantees(self) -> tuple[str, ...]:
        return self.scenario.guarantees

    def checks(self, end: RunEnd, at_us: int, scheduler: LiveFaultScheduler) -> tuple[CheckResult, ...]:
        broken = BROKEN_BY.get(end.ending)
        of_node = (
            (CheckResult(guarantee=broken, holds=False, evidence=1, at_us=at_us, detail=end.explanation),)
            if broken
            else ()
        )
        of_tier = () if self.segments is None else (self.segments.judged(at_us),)
        inside = scheduler.check_reports.judged(self.scenario.guarantees)
        of_quorum = [] if end.ending is Ending.CRASHED else [*self._quorum_checks(at_us, scheduler)]
        of_quorum = [check for check in of_quorum if check.guarantee != broken]  # Explained by the end of the run.
        return (*of_quorum, *of_node, *inside, *of_tier, *scheduler.damage.judged(at_us))

    def _quorum_checks(self, at_us: int, scheduler: LiveFaultScheduler) -> tuple[CheckResult, ...]:
        """Return the results that follow from the recorded states of all nodes."""
        size, guarantees = self.scenario.cluster, self.scenario.guarantees
        if not is_recorded(guarantees):
            return ()
        replaced = {row.target for row in scheduler.rows if row.kind == "directory_missing"}
        nodes = [node.number for node in self.cluster.nodes if node.name in replaced]
        quorum = RecordedQuorum(guarantees, size.nodes, size.total - size.nodes, scheduler.over_us, nodes)
        quorum.play(recorded_rows(self._plan.folder.path, guarantees), at_us)
        return quorum.judged(at_us)
