"""The brokers of an external target in one run: nodes, proxies in front of them, and rules at frames."""

import time
from collections.abc import Sequence

from bench.targets.model import Chosen
from chaos.checks.guarantee_selection import promised_of_external, promised_on_the_wire
from chaos.frame_proxy.proxy import AdvertisedNode, LinkPair
from chaos.live.closed_segments import GUARANTEE as CLOSED_SEGMENTS
from chaos.live.closed_segments import segments_of
from chaos.live.errors import RunEnd, SetupError
from chaos.live.external.cluster import ALL_KNOWN_LIMIT_S, TargetNodes
from chaos.live.external.needs import chosen, needs_links, playable
from chaos.live.external.roles import RolesSeen, watched
from chaos.live.external.target import discover, nodes_of
from chaos.live.fault_scheduler import LiveFaultScheduler
from chaos.live.fleet import ClusterAccess
from chaos.live.frame_proxies import ExternalFrames, Frames, LinkFrames, has_frame_rules, has_link_rules
from chaos.live.links import Links
from chaos.live.run_folder import gave_sessions
from chaos.live.run_target import OnEvidence, RunPlan, RunTarget, TickUntil
from reports.manifest import CheckResult

STAYS_UP = "target-stays-up"
POLL_EVERY_S = 0.3


class ExternalTarget(RunTarget):
    """The nodes of an external target, with the faults of the scenario that it supports. Its methods raise SetupError,
    TargetDied."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._wanted = chosen(plan.target)
        self.scenario = playable(plan.scenario, self._wanted)
        self._target = TargetNodes(self._wanted, self.scenario.cluster, plan.folder.data, plan.folder.logs, plan.seed)
        self.cluster = self._target.cluster
        self._seen: RolesSeen | None = None
        self._before: ExternalFrames | None = None
        self._between: LinkFrames | None = None

    @property
    def frames(self) -> Sequence[Frames]:
        return [each for each in (self._before, self._between) if each is not None]

    def start(self, links: Links, on_evidence: OnEvidence, tick_until: TickUntil) -> ClusterAccess:  # noqa: ARG002
        """Start the target's nodes unless they run already, and put a proxy in front of each. The run's topics have
        their own prefix, so that nothing else on the broker is affected."""
        plan, cluster, target = self._plan, self.cluster, self._target
        prefix = f"crucible-{plan.start_wall_us}-"
        if target.known_nodes:
            plan.progress(f"{shown(self._wanted)}: {target.known_nodes} nodes")
        lead = self._lead if has_link_rules(self.scenario, is_ours=False) else None
        target.launch(links if needs_links(self.scenario) else None, lead)
        tick_until(lambda: cluster.is_ready, float("inf"), "")
        nodes = self._wait_for_all(tick_until)
        self._check_order(nodes)
        access = behind_proxies(target.bootstrap, links, prefix)
        for address, dialled in access.dial.items():
            plan.progress(f"{address} is reached through {dialled}")
        ids = [node.node_id for node in nodes]
        version = access.versions["metadata"]
        if cluster.nodes and all("files" in node.launcher.abilities for node in cluster.nodes):
            self.segments = segments_of(self.scenario, cluster.nodes, prefix, version)
        self._seen = watched(self.scenario, prefix, access.bootstrap, ids, cluster.voters, version, cluster.lives)
        if not has_frame_rules(self.scenario) and not promised_on_the_wire(self.scenario):
            return access
        frames = self._before = ExternalFrames(
            self.scenario,
            nodes,
            access,
            target.processes(),
            plan.folder,
            plan.seed,
            plan.origin_us,
            self._seen is not None,
            links,
        )
        for address, dialled in frames.access.dial.items():
            plan.progress(f"before that, frames to {address} pass {dialled}")
        return frames.access

    def _check_order(self, nodes: Sequence[AdvertisedNode]) -> None:
        """Faults identify a node by its place among the addresses, rules by its place among the IDs."""
        given, known = self._wanted.file.addresses, [f"{node.host}:{node.port}" for node in nodes]
        if sorted(given) == sorted(known) and list(given) != known:
            raise SetupError(f"{shown(self._wanted)}: addresses must be in the order of IDs: {', '.join(known)}.")

    def _lead(self, pairs: Sequence[LinkPair]) -> Sequence[str]:
        """Put the frame proxy on all links between nodes."""
        plan = self._plan
        logs = plan.folder.logs
        frames = self._between = LinkFrames(self.scenario, pairs, logs, plan.seed, plan.origin_us, is_ours=False)
        return frames.fronts

    def _wait_for_all(self, tick_until: TickUntil) -> Sequence[AdvertisedNode]:
        """Wait until the cluster's metadata has as many nodes as the cluster, and return them."""
        found: list[AdvertisedNode] = []
        wanted = self._target.known_nodes
        deadline_s = time.monotonic() + ALL_KNOWN_LIMIT_S
        again_s = 0.0

        def all_known() -> bool:
            nonlocal again_s
            now_s = time.monotonic()
            if now_s < again_s:
                return False
            try:
                found[:] = nodes_of(self._target.bootstrap)
            except SetupError:
                if not wanted or now_s > deadline_s:
                    raise
            if now_s > deadline_s:
                raise SetupError(
                    f"{shown(self._wanted)} advertised {len(found)} nodes within {ALL_KNOWN_LIMIT_S:g} s; it has "
                    f"{wanted}."
                )
            again_s = time.monotonic() + POLL_EVERY_S
            return len(found) >= max(wanted, 1)

        tick_until(all_known, float("inf"), "")
        return found

    def tick(self) -> None:
        """Pass the current roles and processes of the nodes to the frame proxies."""
        for node, role in ({} if self._seen is None else self._seen.now()).items():
            self.cluster.roles.note(node, role)
            for frames in self.frames:
                frames.role(node, role)
        for frames in self.frames:
            frames.has_processes(self._target.processes())

    def close(self) -> None:
        if self._seen is not None:
            self._seen.close()

    # The manifest

    @property
    def config(self) -> dict[str, str]:
        return self._target.settings(0) if self._wanted.file.node is not None else {}

    @property
    def guarantees(self) -> tuple[str, ...]:
        """Return the guarantees to judge. Those of fetch sessions are judged only if the target grants sessions, which
        is optional."""
        seen = promised_on_the_wire(self.scenario) if gave_sessions(self._plan.folder.path) else ()
        of_nodes = (STAYS_UP,) if self.cluster.nodes else ()
        of_tier = () if self.segments is None else (CLOSED_SEGMENTS,)
        return (*promised_of_external(self.scenario), *seen, *of_nodes, *of_tier)

    def notes(self) -> tuple[str, ...]:
        return (f"Played against {shown(self._wanted)}. {_EXTERNAL}",)

    def checks(self, end: RunEnd, at_us: int, scheduler: LiveFaultScheduler) -> tuple[CheckResult, ...]:  # noqa: ARG002
        if not self.cluster.nodes:
            return ()
        died = "" if end.crash else end.explanation  # how a node ended by itself, or empty
        up = CheckResult(guarantee=STAYS_UP, holds=not died, evidence=len(self.cluster.nodes), at_us=at_us, detail=died)
        return (up,) if self.segments is None else (up, self.segments.judged(at_us))


def shown(wanted: Chosen) -> str:
    return f"{wanted.file.title} {wanted.version}".strip()


_EXTERNAL = (
    "The broker is not ours: nothing is known of what happened inside it. Its fetch sessions are judged by the frames "
    "that passed the proxy before it, as far as these show. What only a node's inside or its trace shows is omitted."
)


def behind_proxies(text: str, links: Links, topic_prefix: str) -> ClusterAccess:
    """Put a proxy before each node, and return the access to the cluster through them. Raise SetupError.

    The nodes advertise their own addresses, not those of the proxies, so the fleet's clients get a dial map: instead of
    the address that a node advertises, they connect to the proxy in front of that node.
    """
    nodes, versions = discover(text)
    dial = {node: links.add("client", number, node).listen for number, node in enumerate(nodes)}
    return ClusterAccess(tuple(nodes), topic_prefix, versions, dial)
