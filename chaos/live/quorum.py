"""The settings with which the nodes of a cluster find each other: voters and addresses."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from chaos.live.links import Links

Dial: TypeAlias = Mapping[tuple[int, int], str]
"""HOST:PORT at which a node reaches another, by the IDs of both, the dialler first."""

VOTERS_KEY = "controller.quorum.voters"
PEERS_KEY = "crucible.peers"
CLUSTER_ID_KEY = "crucible.cluster.id"
LISTENERS_KEY = "listeners"
TIER_KEY = "remote.log.storage.system.enable"
STORE_KEY = "crucible.remote.store.url"


def introductions(
    cluster_id: str,
    listen: Sequence[str],
    voters: int,
    links: Links | None,
    lead: Callable[[Dial], Dial] = lambda dial: dial,
) -> list[dict[str, str]]:
    """Return the settings with which each node finds the others, in the order of node IDs. A single node needs none.

    ``listen`` is HOST:PORT of each node, of which the first ``voters`` are voters. With ``links`` each directed link
    gets a proxy, and ``lead`` may add another in front of it. Followers of partitions that an observer leads dial that
    observer too. The quorum, heartbeats and followers' fetches share one link, so a fault on that link hits all of
    them.
    """
    if len(listen) == 1:
        return [{}]
    nodes = range(len(listen))
    if links is None:
        dialled: Dial = {}
    else:
        pairs = [(node, other) for node in nodes for other in nodes if node != other]
        dialled = lead({(node, other): links.add(node, other, listen[other]).listen for node, other in pairs})
    introduced = []
    for node in nodes:
        dial = [f"{other}@{dialled.get((node, other), address)}" for other, address in enumerate(listen)]
        settings = {VOTERS_KEY: ",".join(dial[:voters]), CLUSTER_ID_KEY: cluster_id}
        observers = [each for other, each in enumerate(dial) if other >= voters and other != node]
        introduced.append({**settings, PEERS_KEY: ",".join(observers)} if observers else settings)
    return introduced


def separate_listeners(clients: str, brokers: str, controllers: str) -> dict[str, str]:
    """Return the settings of a node with a listener for each kind of peer. Each address is HOST:PORT."""
    return {
        LISTENERS_KEY: f"PLAINTEXT://{clients},REPLICATION://{brokers},CONTROLLER://{controllers}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "REPLICATION",
    }


def new_cluster_id() -> str:
    """Return a random UUID in Kafka's spelling, which is 22 characters of base64. It never begins with a dash, which
    tools would parse as an option."""
    while True:
        text = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def shared_store(config: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the setting of one object store for all nodes, in ``folder``, if they have a remote tier and name none
    themselves."""
    if config.get(TIER_KEY) != "true" or STORE_KEY in config:
        return {}
    return {STORE_KEY: str((folder / "remote").absolute())}
