"""The cluster that a node is told of: who votes, and the dial map of each node, straight or through a proxy for each
link."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaos.live.links import Links

VOTERS_KEY = "controller.quorum.voters"
PEERS_KEY = "crucible.peers"
CLUSTER_ID_KEY = "crucible.cluster.id"
DialMap: TypeAlias = Mapping[int, str]
"""Where one node finds each node, HOST:PORT by node ID; its own address is never dialled."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """``cluster_id`` as Kafka writes it; ``dial``: by the dialling node's ID, voters and observers alike. The first
    ``voters`` of them vote."""

    cluster_id: str
    dial: Mapping[int, DialMap]
    voters: int

    def config(self, node: int) -> dict[str, str]:
        """What this node is told of it. Nothing in a cluster of one: a node alone needs no introduction.

        The quorum, heartbeats and followers' fetches go one way, so that whoever cuts a link cuts them all.
        """
        if len(self.dial) == 1:
            return {}
        known = sorted(self.dial[node].items())
        told = {VOTERS_KEY: _listed(known[: self.voters]), CLUSTER_ID_KEY: self.cluster_id}
        observers = [(other, address) for other, address in known[self.voters :] if other != node]
        return {**told, PEERS_KEY: _listed(observers)} if observers else told


def form_quorum(cluster_id: str, listen: Sequence[str], voters: int, links: Links | None) -> Quorum:
    """``listen``: HOST:PORT of each node, of which the first ``voters`` vote. With ``links`` a proxy is made for each
    directed link: an observer is dialled too, by the followers of the partitions that it leads."""
    everyone = range(len(listen))
    dial = {node: {other: _address(links, node, other, listen[other]) for other in everyone} for node in everyone}
    return Quorum(cluster_id, dial, voters)


def _listed(nodes: Sequence[tuple[int, str]]) -> str:
    return ",".join(f"{node}@{address}" for node, address in nodes)


def _address(links: Links | None, node: int, other: int, listen: str) -> str:
    return listen if links is None or node == other else links.add(node, other, listen).listen


def new_cluster_id() -> str:
    """A random UUID in Kafka's spelling: 22 characters of base64. Never begins with a dash, which tools take for an
    option."""
    while True:
        text = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
