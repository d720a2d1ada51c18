"""Measures how long an honest client waits among hostile peers of every kind, on one node and on three.

Only the reference broker is measured. The peers are those of ``bench/hostile``; no peer is killed here.
"""

from collections.abc import Sequence
from pathlib import Path

from bench.hostile.course import BESIDE_BUDGET_BYTES, BUDGET_BYTES, CoursePlan, Longest, play
from bench.options import Options
from bench.peers.cluster import System
from bench.peers.node import PeerError
from bench.results import Figure, ResultRow, Results
from bench.rows.context import Progress, place, row

GOAL_MS = 100.0
MIB = 1 << 20


@row("hostile")
def measure_hostile(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    sizes = options.sizes
    for nodes in options.nodes:
        progress(f"hostile peers: {sizes.hostile_peers} of each kind against {place(nodes)}")
        plan = CoursePlan(nodes, sizes.hostile_peers, sizes.hostile_s, kills=False)
        outcome = play(plan, folder / f"hostile-{nodes}", progress, systems[0])
        progress(str(outcome))
        if outcome.broken:
            raise PeerError("; ".join(outcome.broken))
        among = f"{sizes.hostile_peers} hostile peers of each kind, {place(nodes)}"
        for whom, waits in (("an honest client", outcome.waits), ("a newcomer", outcome.newcomers)):
            longest, work = Longest.of(waits), f"longest wait of {whom} among {among}"
            on_nodes = Figure((longest.on_nodes_s * 1000,), "ms")
            results.rows.append(
                ResultRow(f"{work}, with the waits for a processor", Figure((longest.took_s * 1000,), "ms"))
            )
            if waits is outcome.waits:
                reached = on_nodes.median <= GOAL_MS
                results.rows.append(ResultRow(work, on_nodes, goal=f"within {GOAL_MS:g} ms", reached=reached))
            else:  # A newcomer cannot be distinguished from a flood of them.
                results.rows.append(ResultRow(work, on_nodes))
        bound_mib = (BUDGET_BYTES + BESIDE_BUDGET_BYTES) // MIB
        memory = Figure((outcome.largest_rss_bytes / MIB,), "MiB")
        results.rows.append(
            ResultRow(
                f"largest node among {among}", memory, goal=f"under {bound_mib} MiB", reached=memory.median < bound_mib
            )
        )
