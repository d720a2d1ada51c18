"""One process of the reference broker for tests."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.node import BrokerNode, end
from bench.peers.reference import ReferenceNode
from bench.ports import free_port


@contextmanager
def reference_node(
    folder: Path, config: Mapping[str, str] | None = None, metrics_port: int | None = None
) -> Iterator[BrokerNode]:
    """A node that is ready, on ``folder``/data (fresh, or as one left it), with default settings or ``config`` beside
    them; ``metrics_port``: serves Prometheus metrics on 127.0.0.1 there. Raises PeerError."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = ["--metrics", f"127.0.0.1:{metrics_port}"] if metrics_port is not None else []
    node = ReferenceNode(0, free_port(), folder / "data", config or {}, *metrics)
    try:
        node.launch()
        node.await_ready()
        yield node
    finally:
        end([node])
