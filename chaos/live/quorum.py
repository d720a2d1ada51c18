"""The quorum of a live cluster: who votes, and the dial map of each node, straight or through a proxy for each link."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaos.live.links import Links

VOTERS_KEY = "controller.quorum.voters"
CLUSTER_ID_KEY = "crucible.cluster.id"
DialMap: TypeAlias = Mapping[int, str]
"""Where one node finds each voter, HOST:PORT by node ID; its own address is never dialled."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """``cluster_id`` as Kafka writes it; ``dial``: by the dialling node's ID, voters and observers alike."""

    cluster_id: str
    dial: Mapping[int, DialMap]

    def config(self, node: int) -> dict[str, str]:
        """What this node is told of it. Nothing in a cluster of one: a node alone needs no introduction."""
        if len(self.dial) == 1:
            return {}
        voters = ",".join(f"{voter}@{address}" for voter, address in sorted(self.dial[node].items()))
        return {VOTERS_KEY: voters, CLUSTER_ID_KEY: self.cluster_id}


def form_quorum(cluster_id: str, listen: Sequence[str], voters: int, links: Links | None) -> Quorum:
    """``listen``: HOST:PORT of each node, of which the first ``voters`` vote. With ``links`` a proxy is made for each
    directed link."""
    dial = {
        node: {voter: _address(links, node, voter, listen[voter]) for voter in range(voters)}
        for node in range(len(listen))
    }
    return Quorum(cluster_id, dial)


def _address(links: Links | None, node: int, voter: int, listen: str) -> str:
    return listen if links is None or node == voter else links.add(node, voter, listen).listen


def new_cluster_id() -> str:
    """A random UUID in Kafka's spelling: 22 characters of base64. Never begins with a dash, which tools take for an
    option."""
    while True:
        text = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
