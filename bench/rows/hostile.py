"""Measures how long an honest client waits among hostile peers of every kind, on one node and on three.

Only the reference broker is measured. The peers are those of ``bench/hostile``; no peer is killed here.
"""

from bench.hostile.course import BESIDE_BUDGET_BYTES, BUDGET_BYTES, CoursePlan, Longest, play
from bench.peers.node import PeerError
from bench.rows.context import BenchRun, place, row
from bench.rows.results import Figure, ResultRow

GOAL_MS = 100.0
MIB = 1 << 20


@row("hostile")
def measure_hostile(bench: BenchRun) -> None:
    sizes = bench.options.sizes
    for nodes in bench.options.nodes:
        bench.progress(f"hostile peers: {sizes.hostile_peers} of each kind against {place(nodes)}")
        plan = CoursePlan(nodes, sizes.hostile_peers, sizes.hostile_s, kills=False)
        outcome = play(plan, bench.folder / f"hostile-{nodes}", bench.progress, bench.systems[0])
        bench.progress(str(outcome))
        if outcome.broken:
            raise PeerError("; ".join(outcome.broken))
        among = f"{sizes.hostile_peers} hostile peers of each kind, {place(nodes)}"
        for whom, waits in (("an honest client", outcome.waits), ("a newcomer", outcome.newcomers)):
            longest, work = Longest.of(waits), f"longest wait of {whom} among {among}"
            on_nodes = Figure((longest.on_nodes_s * 1000,), "ms")
            bench.results.rows.append(
                ResultRow(f"{work}, with the waits for a processor", Figure((longest.took_s * 1000,), "ms"))
            )
            if waits is outcome.waits:
                reached = on_nodes.median <= GOAL_MS
                bench.results.rows.append(ResultRow(work, on_nodes, goal=f"within {GOAL_MS:g} ms", reached=reached))
            else:  # A newcomer cannot be distinguished from a flood of them.
                bench.results.rows.append(ResultRow(work, on_nodes))
        bound_mib = (BUDGET_BYTES + BESIDE_BUDGET_BYTES) // MIB
        memory = Figure((outcome.largest_rss_bytes / MIB,), "MiB")
        bench.results.rows.append(
            ResultRow(
                f"largest node among {among}", memory, goal=f"under {bound_mib} MiB", reached=memory.median < bound_mib
            )
        )
