"""A client of ours sends the node one old request of each kind that other nodes sent to it earlier in this run."""

from collections.abc import Sequence
from pathlib import Path

from bench.fleet.spec import address_of
from chaos.faults.sent_requests import sent
from chaos.faults.timed import End, Place, node_of
from chaos.live.node_side.requests_kept import recorded
from chaos.live.targets import Target
from chaos.node_requests import NodeRequest
from chaos.seeds import random_for


def begin(place: Place, target: Target) -> End:
    node, spec = node_of(target), place.spec(node_of(target))
    random = random_for(spec.seed, f"{target.fault.name}-{place.now_us()}")

    def requests() -> Sequence[NodeRequest]:
        return recorded(Path(spec.claims), node).replays(node, random)

    return sent(place, address_of(spec.listen), requests)
