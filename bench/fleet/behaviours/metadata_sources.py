"""The choice of the node that a member asks for metadata."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.fleet.behaviours.protocol import Chance
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.metadata_refresher import MetadataSource

ANY_NODE: Final = -1
ALTERNATING: Final = -2


@dataclass(slots=True)
class InTurn:
    """The nodes take turns, in the order of their numbers."""

    turn: int

    def __call__(self, nodes: dict[int, NodeAddress]) -> NodeAddress:
        self.turn += 1
        return nodes[sorted(nodes)[self.turn % len(nodes)]]


def metadata_source(metadata_from: int, random: Chance) -> MetadataSource:
    """``metadata_from`` is a node's number, ANY_NODE (one is drawn each time) or ALTERNATING (they take turns). Until
    nodes are known, the bootstrap addresses are numbered in their order."""
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
