"""A client of ours sends the node one forged request of each kind in the name of other nodes."""

from collections.abc import Sequence
from pathlib import Path

from bench.fleet.spec import address_of
from chaos.faults.sent_requests import sent
from chaos.faults.timed import End, Place, node_of
from chaos.live.node_side.requests_kept import recorded
from chaos.live.quorum import CLUSTER_ID_KEY, VOTERS_KEY
from chaos.live.targets import Target
from chaos.node_requests import Forger, NodeRequest
from chaos.seeds import random_for


def begin(place: Place, target: Target) -> End:
    node, spec = node_of(target), place.spec(node_of(target))
    random = random_for(spec.seed, f"{target.fault.name}-{place.now_us()}")

    voters = tuple(range(len(spec.config[VOTERS_KEY].split(","))))

    def requests() -> Sequence[NodeRequest]:
        kept = recorded(Path(spec.claims), node)
        return Forger(kept, spec.config[CLUSTER_ID_KEY], voters, node, random).requests()

    return sent(place, address_of(spec.listen), requests)
