"""The directed links of a live cluster, each with a Toxiproxy proxy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chaos.live.errors import SetupError
from chaos.live.toxiproxy import LinkProxy, Toxiproxy, ToxiproxyError

Dialler: TypeAlias = int | Literal["client"]
"""A node's ID, or all clients together."""
ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Link:
    """A link from one side to a node, through a proxy."""

    dialler: Dialler
    """The side that connects."""
    node: int
    """ID of the node that it reaches."""
    listen: str
    """Address to which the dialler connects, HOST:PORT."""
    proxy: LinkProxy
    """Accepts connections at ``listen`` and forwards them to the node."""
    port: str = ""
    """The port's name, if there is a proxy for each of several ports."""

    @property
    def name(self) -> str:
        return link_name(self.dialler, self.node, self.port)


def link_name(dialler: Dialler, node: int, port: str = "") -> str:
    """Return a name such as client-node-0, node-0-node-1 or node-0-node-1-controller. The dialler comes first."""
    name = f"{dialler if dialler == 'client' else f'node-{dialler}'}-node-{node}"
    return f"{name}-{port}" if port else name


@dataclass(frozen=True, slots=True)
class Front:
    """A proxy between clients and a frame proxy."""

    link: Link
    toxic: Callable[[bool], None]
    """Notifies the frame proxy whether a toxic is on."""


class Links:
    """All proxies of one run."""

    def __init__(self, client: Toxiproxy) -> None:
        self._client = client
        self.by_name: dict[str, Link] = {}
        self.fronts: dict[int, Front] = {}
        """By node. No fault of a link hits these."""

    def add(self, dialler: Dialler, node: int, upstream: str, listen: str = ANY_PORT, port: str = "") -> Link:
        """Make the proxy of one link to the node at ``upstream``. Raise SetupError if ``listen`` is taken."""
        name = link_name(dialler, node, port)
        try:
            proxy = self._client.create(upstream, name, listen)
        except ToxiproxyError as failure:
            raise SetupError(f"Toxiproxy cannot listen on {listen}: give another port ({failure}).") from failure
        link = self.by_name[name] = Link(dialler, node, proxy.listen, proxy, port)
        return link

    def add_front(self, node: int, upstream: str, toxic: Callable[[bool], None]) -> Link:
        """Make a proxy between clients and a frame proxy at ``upstream``."""
        name = f"front-{link_name('client', node)}"
        proxy = self._client.create(upstream, name, ANY_PORT)
        link = Link("client", node, proxy.listen, proxy, "front")
        self.fronts[node] = Front(link, toxic)
        return link

    def between(self, dialler: Dialler, node: int) -> Link | None:
        """Return None if there is no such link (from a node to itself)."""
        return self.by_name.get(link_name(dialler, node))

    def heal_all(self) -> None:
        """Enable all proxies and remove all toxics."""
        self._client.reset()


def poison(link: Link, name: str, kind: str, direction: str, attributes: Mapping[str, int]) -> None:
    """Add a toxic to each stream of a fault's ``direction``: upstream (requests), downstream (responses) or both."""
    for stream in _streams(direction):
        link.proxy.add_toxic(f"{name}-{stream}", kind, stream, attributes)


def cure(link: Link, name: str, direction: str) -> None:
    """Remove what ``poison`` added. A toxic that is gone already is no error."""
    for stream in _streams(direction):
        link.proxy.remove_toxic(f"{name}-{stream}")


NEVER_MS = 24 * 3_600_000


def silence(link: Link, name: str) -> None:
    """Drop everything on the link in both directions, and keep one end of a connection open when the other end closes.

    The toxic ``timeout`` alone would forward the close; ``slow_close`` in front of it delays that.
    """
    poison(link, f"{name}-close", "slow_close", "both", {"delay": NEVER_MS})
    poison(link, name, "timeout", "both", {"timeout": 0})


def restore(link: Link, name: str) -> None:
    """End a silence. All connections that survived it are closed first: Toxiproxy may hang when a toxic is removed from
    a connection that still carries bytes (#412)."""
    link.proxy.disable()
    cure(link, f"{name}-close", "both")
    cure(link, name, "both")
    link.proxy.enable()


def _streams(direction: str) -> tuple[str, ...]:
    return ("upstream", "downstream") if direction == "both" else (direction,)
