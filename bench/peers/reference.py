"""The reference broker as a process of its own, for measurements beside peers: one node."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.node import RunningNode, free_ports, running

LAUNCHER = Path(__file__).resolve().parents[2] / "crucible.py"


@contextmanager
def reference_node(
    folder: Path, config: Mapping[str, str] | None = None, metrics_port: int | None = None
) -> Iterator[RunningNode]:
    """A node on ``folder``/data (fresh, or as one left it) with default settings, or ``config`` (Kafka's names)
    beside them; ``metrics_port``: serves Prometheus metrics on 127.0.0.1 there."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    metrics = ["--metrics", f"127.0.0.1:{metrics_port}"] if metrics_port is not None else []
    options = [word for key, value in (config or {}).items() for word in ("--config", f"{key}={value}")]
    command = [
        sys.executable,
        str(LAUNCHER),
        "broker",
        "--listen",
        f"127.0.0.1:{port}",
        "--data",
        str(folder / "data"),
        *metrics,
        *options,
    ]
    with running("reference broker", command, port, folder / "broker.log") as node:
        yield node
