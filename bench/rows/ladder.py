"""Measures incremental fetches, by the number of partitions that the session caches."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.alternation import Samples
from bench.options import Options
from bench.peers.cluster import System
from bench.peers.fetch_ladder import LadderSession
from bench.results import Curve, Figure, Results, Row, Series
from bench.rows.context import Progress, all_up, row

FLATNESS_GOAL = 1.3
WARM_BLOCKS = 2
GOALS: Mapping[tuple[int, str], float] = {
    (100, "none"): 1,
    (1_000, "none"): 4,
    (5_000, "none"): 40,
    (10_000, "none"): 80,
    (100, "1 %"): 1,
    (1_000, "1 %"): 3,
    (5_000, "1 %"): 10,
    (10_000, "1 %"): 12,
}
CHANGES: Mapping[str, Callable[[int], int]] = {
    "none": lambda _: 0,
    "one": lambda _: 1,
    "1 %": lambda partitions: partitions // 100,
}
Measured = dict[tuple[int, str], Samples]


@row("ladder")
def measure_ladder(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """Measures the fetches in blocks. The brokers take turns at each step of the ladder."""
    sizes, names = options.sizes, [system.name for system in systems]
    sessions: dict[tuple[int, str], LadderSession] = {}
    with all_up(systems, folder, 1, {}) as clusters:
        try:
            for partitions in sizes.ladder:
                for cluster in clusters:
                    progress(f"fetch ladder: {partitions:,} partitions on {cluster.name}")
                    session = LadderSession(cluster.name, cluster.ports[0], partitions)
                    sessions[partitions, cluster.name] = session
            measured = {(step, label): Samples(names, "ms") for label in CHANGES for step in sizes.ladder}
            for label in CHANGES:
                _blocks(sessions, names, label, options, measured, progress)
        finally:
            for session in sessions.values():
                session.close()
    for label in CHANGES:
        _rows(results, names[0], label, sizes.ladder, measured)
        results.curves.append(_curve(names, label, sizes.ladder, measured))


def _blocks(
    sessions: Mapping[tuple[int, str], LadderSession],
    names: Sequence[str],
    label: str,
    options: Options,
    measured: Measured,
    progress: Progress,
) -> None:
    blocks = options.sizes.ladder_blocks
    for partitions in options.sizes.ladder:
        for name in names:  # Warms up and is not counted: Java compiles what runs often.
            sessions[partitions, name].block_us(WARM_BLOCKS * options.sizes.ladder_rounds, CHANGES[label](partitions))
    for block, partitions in ((block, step) for block in range(blocks) for step in options.sizes.ladder):
        progress(f"fetch ladder: {label} changed, {partitions:,} cached, block {block + 1} of {blocks}")
        for name in names if block % 2 == 0 else reversed(names):
            times_us = sessions[partitions, name].block_us(options.sizes.ladder_rounds, CHANGES[label](partitions))
            measured[partitions, label].add(name, statistics.median(times_us) / 1000)


def _rows(results: Results, reference: str, label: str, ladder: Sequence[int], measured: Measured) -> None:
    for partitions in ladder:
        work = f"incremental fetch, {partitions:,} cached, {label} changed"
        goal = GOALS.get((partitions, label))
        results.beside(work, measured[partitions, label].figures(), less_is_better=True, at_least=goal)
    if label == "1 %":
        return
    small, big = (measured[step, label].figure(reference).values for step in (ladder[0], ladder[-1]))
    flat = Figure(tuple(more / less for more, less in zip(big, small, strict=True)), "x")
    work = f"incremental fetch, {ladder[-1]:,} against {ladder[0]:,} cached, {label} changed"
    results.rows.append(Row(work, flat, goal=f"at most {FLATNESS_GOAL} x", reached=flat.median <= FLATNESS_GOAL))


def _curve(names: Sequence[str], label: str, ladder: Sequence[int], measured: Measured) -> Curve:
    series = tuple(
        Series(name, tuple((float(step), measured[step, label].figure(name)) for step in ladder)) for name in names
    )
    return Curve(f"Incremental fetch, {label} changed", "partitions in the session", "time of a fetch", series)
