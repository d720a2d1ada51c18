"""From which node a member has its metadata."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.fleet.behaviours.chance import Chance
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.metadata_refresher import MetadataSource

ANY_NODE: Final = -1
ALTERNATING: Final = -2


@dataclass(slots=True)
class InTurn:
    """One after the other, by number."""

    turn: int

    def __call__(self, nodes: dict[int, NodeAddress]) -> NodeAddress:
        self.turn += 1
        return nodes[sorted(nodes)[self.turn % len(nodes)]]


def metadata_source(metadata_from: int, random: Chance) -> MetadataSource:
    """``metadata_from``: a node's number, ANY_NODE (one drawn each time) or ALTERNATING. Nodes are numbered as the
    bootstrap addresses are until one is known."""
    choose: Callable[[dict[int, NodeAddress]], NodeAddress]
    if metadata_from >= 0:

        def choose(nodes: dict[int, NodeAddress]) -> NodeAddress:
            return nodes.get(metadata_from) or nodes[min(nodes)]

    elif metadata_from == ALTERNATING:
        choose = InTurn(random.randrange(1 << 16))
    else:

        def choose(nodes: dict[int, NodeAddress]) -> NodeAddress:
            return random.choice([nodes[each] for each in sorted(nodes)])

    def source(known: tuple[NodeAddress, ...], bootstrap: tuple[NodeAddress, ...]) -> NodeAddress:
        return choose({each.node_id: each for each in (*bootstrap, *known)})

    return source
