"""The links of a live cluster: one Toxiproxy proxy for each directed link, node to node and clients to node."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from chaos.live.errors import SetupError
from chaos.live.toxiproxy import Stream, Toxiproxy, ToxiproxyError, Traffic

Dialler: TypeAlias = int | Literal["client"]
"""A node's ID, or all clients together."""
ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Link:
    """``dialler`` connects to ``node``; ``listen`` is what the dialler is told, HOST:PORT, ``upstream`` where the node
    really is."""

    dialler: Dialler
    node: int
    listen: str
    upstream: str

    @property
    def name(self) -> str:
        return link_name(self.dialler, self.node)


def link_name(dialler: Dialler, node: int) -> str:
    """client-node-0, node-0-node-1: who dials stands first."""
    return f"{dialler if dialler == 'client' else f'node-{dialler}'}-node-{node}"


class Links:
    """All proxies of one run. Toxics added through here are named, so that healing removes exactly them."""

    def __init__(self, client: Toxiproxy) -> None:
        self._client = client
        self.by_name: dict[str, Link] = {}

    def add(self, dialler: Dialler, node: int, upstream: str, listen: str = ANY_PORT) -> Link:
        """Raises SetupError if ``listen`` cannot be had."""
        try:
            proxy = self._client.create(link_name(dialler, node), upstream, listen)
        except ToxiproxyError as failure:
            raise SetupError(f"Toxiproxy cannot listen on {listen} ({failure}): give another port.") from failure
        link = Link(dialler, node, proxy.listen, upstream)
        self.by_name[link.name] = link
        return link

    def of_node(self, node: int) -> Link:
        """The link on which clients reach it."""
        return self.by_name[link_name("client", node)]

    def between(self, dialler: Dialler, node: int) -> Link | None:
        """None: nobody dials there (a node itself)."""
        return self.by_name.get(link_name(dialler, node))

    def traffic(self, link: Link) -> Traffic:
        return self._client.traffic(link.name)

    def poison(self, link: Link, name: str, kind: str, stream: Stream, attributes: dict[str, int]) -> None:
        self._client.add_toxic(link.name, f"{name}-{stream}", kind, stream, attributes)

    def cure(self, link: Link, name: str, stream: Stream) -> None:
        self._client.remove_toxic(link.name, f"{name}-{stream}")

    def down(self, link: Link) -> None:
        self._client.update(link.name, enabled=False)

    def up(self, link: Link) -> None:
        self._client.update(link.name, enabled=True)

    def heal_all(self) -> None:
        self._client.reset()


def streams(direction: str) -> tuple[Stream, ...]:
    """Of a fault's ``direction``: both, upstream or downstream."""
    if direction == "upstream":
        return ("upstream",)
    if direction == "downstream":
        return ("downstream",)
    return ("upstream", "downstream")
