"""``crucible bench``: the broker's figures, and beside a peer's in the same run, in alternation."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.options import Options
from bench.peers.cluster import System
from bench.peers.errors import PeerError
from bench.peers.kafka import HEAP, SETTINGS
from bench.peers.systems import systems
from bench.results import Results
from bench.rows import (
    cleaner,
    commits,
    coordinator_killed,
    failover,
    fetch,
    group_join,
    ladder,
    leader_killed,
    memory,
    metadata,
    produce,
    rebalance,
    records,
    rest,
    start,
)
from bench.rows.context import Progress
from reference_broker.blocking.transport import TransportError

Measures = Callable[[Results, Sequence[System], Path, Options, Progress], None]

FAILURES = (PeerError, TransportError, OSError, subprocess.TimeoutExpired)
"""A broker that cannot be had, refuses, hangs or goes away."""

MEASURES: Mapping[str, Measures] = {
    "ladder": ladder.measure,
    "start": start.measure,
    "memory": memory.measure,
    "records": records.measure,
    "produce": produce.measure,
    "fetch": fetch.measure,
    "rest": rest.measure,
    "leader-killed": leader_killed.measure,
    "group-join": group_join.measure,
    "rebalance": rebalance.measure,
    "commits": commits.measure,
    "coordinator-killed": coordinator_killed.measure,
    "cleaner": cleaner.measure,
    "failover": failover.measure,
    "metadata": metadata.measure,
}


def run(peer: str | None, progress: Progress, options: Options | None = None) -> Results:
    """All figures that ``options`` choose; ``Results.missing`` says which could not be had, and why."""
    options = options or Options(peer)
    results = Results(options.peer, settings=_settings(options.peer))
    for row in options.chosen():
        with tempfile.TemporaryDirectory(prefix="crucible-bench-") as scratch:
            try:
                MEASURES[row](results, systems(options.peer), Path(scratch), options, progress)
            except FAILURES as failure:  # The other rows took minutes and are worth having.
                results.missing[row] = f"{type(failure).__name__}: {failure}"
                progress(f"{row} could not be measured: {results.missing[row]}")
    return results


def _settings(peer: str | None) -> dict[str, str]:
    """What the peer is told beside its defaults."""
    return {**SETTINGS, "java": " ".join(HEAP)} if peer else {}
