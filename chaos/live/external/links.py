"""Proxies on the directed links between the nodes of a target that we start."""

from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import NamedTuple, TypeAlias

from bench.targets.layout import HOST, ClusterLayout
from chaos.frame_proxy.proxy import Pair
from chaos.live.errors import SetupError
from chaos.live.links import ANY_PORT, Links

BLOCKS = range(20, 250)
Lead: TypeAlias = Callable[[Sequence[Pair]], Sequence[str]]
"""Puts something more on links, and returns HOST:PORT before each of them."""


def via_proxies(plan: ClusterLayout, links: Links, lead: Lead | None = None) -> dict[tuple[int, int], str]:
    """Make a proxy for each directed link, and for each port of it if nodes have several. Return where a node finds
    another one then (``bench.targets.layout.Via``). It is empty if the target does not let us in between. ``lead`` may
    put something more before the proxies.

    Nodes that look names up find each other at addresses of their own in 127.0.0.0/8, one for each pair, with the same
    ports. Run side by side draw different blocks of these.
    """
    pairs = [(node, other) for node in range(plan.total) for other in range(plan.total) if node != other]
    if plan.node.links == "none":
        return {}
    if plan.node.links == "peers":
        ends = [_End(node, other, plan.ports[other]["client"]) for node, other in pairs]
        return dict(zip(pairs, _stand_on(ends, links, lead), strict=True))
    block = SystemRandom().choice(BLOCKS)
    via = {(node, other): f"127.{block}.{node + 1}.{other + 1}" for node, other in pairs}
    ends = [
        _End(node, other, port, f"{via[node, other]}:{port}", name)
        for node, other in pairs
        for name, port in plan.ports[other].items()
        if name != "client"
    ]
    _stand_on(ends, links, lead)
    return via


class _End(NamedTuple):
    """One port of a link's target, where to listen before it, and its name if there are several."""

    node: int
    other: int
    port: int
    listen: str = ANY_PORT
    name: str = ""


def _stand_on(ends: Sequence[_End], links: Links, lead: Lead | None) -> Sequence[str]:
    """Return HOST:PORT before each of them."""
    if lead is None:
        return [_add(links, end, end.listen) for end in ends]
    return lead([Pair(end.node, end.other, _add(links, end, ANY_PORT), end.listen) for end in ends])


def _add(links: Links, end: _End, listen: str) -> str:
    try:
        return links.add(end.node, end.other, f"{HOST}:{end.port}", listen, end.name).listen
    except SetupError as failure:
        raise SetupError(
            f"No proxy can listen on {listen}, an address of its own for one link between nodes: {failure}"
        ) from failure
