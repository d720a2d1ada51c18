"""Proxies on the directed links between nodes of a target that we start."""

from random import SystemRandom

from bench.targets.layout import HOST, Plan
from chaos.live.errors import SetupError
from chaos.live.links import Links

BLOCKS = range(20, 250)
ATTEMPTS = 5


def via_proxies(plan: Plan, links: Links) -> dict[tuple[int, int], str]:
    """Makes a proxy for each directed link, and for each port of it if nodes have several. Returns where a node finds
    another one then (``bench.targets.layout.Via``). It is empty if the target does not let us in between.

    Nodes that look names up find each other at addresses of their own in 127.0.0.0/8, one for each pair, with the same
    ports. Runs side by side draw different blocks of these.
    """
    pairs = [(node, other) for node in range(plan.total) for other in range(plan.total) if node != other]
    if plan.node.links == "peers":
        real = {other: f"{HOST}:{ports['client']}" for other, ports in enumerate(plan.ports)}
        return {(node, other): links.add(node, other, real[other]).listen for node, other in pairs}
    if plan.node.links == "none":
        return {}
    block = SystemRandom().choice(BLOCKS)
    via = {(node, other): f"127.{block}.{node + 1}.{other + 1}" for node, other in pairs}
    for node, other in pairs:
        for name, port in plan.ports[other].items():
            if name != "client":
                _add(links, node, other, f"{HOST}:{port}", f"{via[node, other]}:{port}", name)
    return via


def _add(links: Links, node: int, other: int, upstream: str, listen: str, port: str) -> None:
    try:
        links.add(node, other, upstream, listen, port)
    except SetupError as failure:
        raise SetupError(
            f"No proxy can listen on {listen}, an address of its own for one link between nodes: {failure}"
        ) from failure
