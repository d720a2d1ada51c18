"""Measures commits on one coordinator: 8 connections, each with 8 requests in flight, the same bytes for both."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.clients import RawConnection
from bench.peers.cluster import Cluster, System
from bench.peers.group_clients import await_coordinator, check_committed, commit_frame
from bench.results import Results
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row

CONNECTIONS = 8
IN_FLIGHT = 8
"""On each connection."""
TOPIC = "committed"


@row("commits")
def measure_commits(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    names, block = [system.name for system in systems], options.sizes.commit_block
    rates, costs = Samples(names, "commits/s"), Samples(names, "us")
    with all_up(systems, folder / "commits", 1, {}) as clusters, ExitStack() as stack:
        loads = [_Load.at(cluster, stack) for cluster in clusters]
        for load in loads:
            load.commit(block)  # Not counted: Java compiles what runs often.
        for _, load in alternate(loads, options.sizes.commit_pairs):
            began, cpu_s = time.perf_counter(), load.cluster.cpu_s()
            count = load.commit(block)
            rate = count / (time.perf_counter() - began)
            rates.add(load.cluster.name, rate)
            costs.add(load.cluster.name, (load.cluster.cpu_s() - cpu_s) / count * 1e6)
            progress(f"commits: {rate:,.0f}/s on {load.cluster.name}")
    where = f"{CONNECTIONS} connections, {IN_FLIGHT} on their way on each"
    results.beside(f"offset commits on one coordinator, {where}", rates.figures(), less_is_better=False)
    results.beside("processor time of the broker for an offset commit", costs.figures(), less_is_better=True)


@dataclass(slots=True)
class _Load:
    """``frames`` holds IN_FLIGHT encoded commits for each connection. Each connection has a group of its own."""

    cluster: Cluster
    connections: list[RawConnection]
    frames: list[bytes]

    @classmethod
    def at(cls, cluster: Cluster, stack: ExitStack) -> "_Load":
        """Raises PeerError."""
        make_topic(cluster, TOPIC)
        connections = [stack.enter_context(RawConnection(cluster.ports[0])) for _ in range(CONNECTIONS)]
        frames = []
        for number, connection in enumerate(connections):
            await_coordinator(connection, f"group-{number}", LIMIT_S)
            frames.append(commit_frame(connection, f"group-{number}", TOPIC, 42) * IN_FLIGHT)
        return cls(cluster, connections, frames)

    def commit(self, at_least: int) -> int:
        """Sends commits and returns how many were acknowledged. Raises PeerError for a refusal."""
        done = 0
        while done < at_least:
            for connection, frames in zip(self.connections, self.frames, strict=True):
                connection.send(frames)
            for connection in self.connections:
                for _ in range(IN_FLIGHT):
                    last = connection.receive()
                check_committed(last)
            done += CONNECTIONS * IN_FLIGHT
        return done
