"""An external broker in one run: its nodes, the way to them through our proxies, and the rules at frames."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from bench.targets.model import Chosen
from chaos.checks.guarantee_selection import promised_on_the_wire
from chaos.frame_proxy.proxy import Node, Pair
from chaos.live.closed_segments import GUARANTEE, ClosedSegments, segments_of
from chaos.live.errors import SetupError
from chaos.live.external.cluster import ALL_KNOWN_LIMIT_S, Target
from chaos.live.external.needs import chosen, needs_links, playable
from chaos.live.external.roles import RolesSeen, watched
from chaos.live.external.target import behind_proxies, nodes_of
from chaos.live.fleet import Way
from chaos.live.frame_proxies import ExternalFrames, Frames, LinkFrames, has_frame_rules, has_link_rules
from chaos.live.links import Links
from chaos.live.run_folder import RunFolder
from reports.manifest import Check
from scenarios.model import Scenario

STAYS_UP = "target-stays-up"
POLL_EVERY_S = 0.3
TickUntil: TypeAlias = Callable[[Callable[[], bool], float, str], None]
"""``(done, limit_s, complaint)`` goes on with the run until ``done()``."""


class ExternalRun:
    """``scenario`` is what is played, ``cluster`` the target's nodes. Raises SetupError, TargetDied."""

    def __init__(
        self,
        scenario: Scenario,
        target: str,
        folder: RunFolder,
        seed: int,
        origin_us: int,
        progress: Callable[[str], None],
    ) -> None:
        self._wanted = chosen(target)
        self.scenario = playable(scenario, self._wanted)
        self._target = Target(self._wanted, self.scenario.cluster, folder.data, folder.logs, seed)
        self.cluster = self._target.cluster
        self._seen: RolesSeen | None = None
        self._folder = folder
        self._seed = seed
        self._origin_us = origin_us
        self._progress = progress
        self._before: ExternalFrames | None = None
        self._between: LinkFrames | None = None
        self.segments: ClosedSegments | None = None

    @property
    def frames(self) -> Sequence[Frames]:
        """The frame proxies that run."""
        return [each for each in (self._before, self._between) if each is not None]

    def reach(self, links: Links, prefix: str, tick_until: TickUntil) -> Way:
        """Start the target's nodes if that is ours to do, and put a proxy before each of them. The run's topics begin
        with ``prefix``, so it touches nothing else on the broker."""
        cluster, target = self.cluster, self._target
        if target.known_nodes:
            self._progress(f"{shown(self._wanted)}: {target.known_nodes} nodes")
        lead = self._lead if has_link_rules(self.scenario, is_ours=False) else None
        target.launch(links if needs_links(self.scenario) else None, lead)
        tick_until(lambda: cluster.is_ready, float("inf"), "")
        nodes = self._wait_for_all(tick_until)
        self._check_order(nodes)
        way = behind_proxies(target.bootstrap, links, prefix)
        for address, dialled in way.dial.items():
            self._progress(f"{address} is reached through {dialled}")
        ids = [each.node_id for each in nodes]
        version = way.versions["metadata"]
        if cluster.nodes and all("files" in each.launcher.abilities for each in cluster.nodes):
            self.segments = segments_of(self.scenario, cluster.nodes, prefix, version)
        self._seen = watched(self.scenario, prefix, way.bootstrap, ids, cluster.voters, version, cluster.lives)
        if not has_frame_rules(self.scenario) and not promised_on_the_wire(self.scenario):
            return way
        frames = self._before = ExternalFrames(
            self.scenario,
            nodes,
            way,
            target.processes(),
            self._folder,
            self._seed,
            self._origin_us,
            self._seen is not None,
            links,
        )
        for address, dialled in frames.way.dial.items():
            self._progress(f"before that, frames to {address} pass {dialled}")
        return frames.way

    def _check_order(self, nodes: Sequence[Node]) -> None:
        """Faults call a node by its place among the addresses, and rules by its place among the IDs."""
        given, known = self._wanted.file.addresses, [f"{each.host}:{each.port}" for each in nodes]
        if sorted(given) == sorted(known) and list(given) != known:
            raise SetupError(f"{shown(self._wanted)}: addresses must be in the order of IDs: {', '.join(known)}.")

    def _lead(self, pairs: Sequence[Pair]) -> Sequence[str]:
        """Put the frame proxy on all links between nodes."""
        logs = self._folder.logs
        frames = self._between = LinkFrames(self.scenario, pairs, logs, self._seed, self._origin_us, is_ours=False)
        return frames.fronts

    def _wait_for_all(self, tick_until: TickUntil) -> Sequence[Node]:
        """Wait until the cluster's metadata has as many nodes as the cluster, and return them."""
        found: list[Node] = []
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

    # The course

    def tick(self) -> None:
        """Pass on the current roles and processes of the nodes."""
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

    def checks(self, died: str, at_us: int) -> tuple[Check, ...]:
        """``died`` is how a node ended by itself, or empty."""
        if not self.cluster.nodes:
            return ()
        up = Check(guarantee=STAYS_UP, holds=not died, evidence=len(self.cluster.nodes), at_us=at_us, detail=died)
        return (up,) if self.segments is None else (up, self.segments.judged(at_us))

    def notes(self) -> tuple[str, ...]:
        """Return what a reader must know, for the report."""
        return (f"Played against {shown(self._wanted)}. {_EXTERNAL}",)

    @property
    def config(self) -> dict[str, str]:
        """The settings that the target's nodes were given, by Kafka's names."""
        return self._target.settings(0) if self._wanted.file.node is not None else {}

    @property
    def guarantees(self) -> tuple[str, ...]:
        of_tier = () if self.segments is None else (GUARANTEE,)
        return (STAYS_UP, *of_tier) if self.cluster.nodes else ()


def shown(wanted: Chosen) -> str:
    return f"{wanted.file.title} {wanted.version}".strip()


_EXTERNAL = (
    "The broker is not ours: nothing is known of what happened inside it. Its fetch sessions are judged by the frames "
    "that passed the proxy before it, as far as these tell. What only a node's inside or its trace tells is left out."
)
