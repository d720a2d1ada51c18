"""The links of a live cluster: one Toxiproxy proxy for each directed link."""

from dataclasses import dataclass

from chaos.live.toxiproxy import Stream, Toxiproxy, Traffic


@dataclass(frozen=True, slots=True)
class Link:
    """``name`` such as client-node-0 (who dials first); ``listen`` is what the dialler is told, HOST:PORT."""

    name: str
    listen: str
    upstream: str


class Links:
    """All proxies of one run. Toxics added through here are named, so that healing removes exactly them."""

    def __init__(self, client: Toxiproxy) -> None:
        self._client = client
        self.by_name: dict[str, Link] = {}

    def add(self, dialler: str, node: int, upstream: str) -> Link:
        name = f"{dialler}-node-{node}"
        proxy = self._client.create(name, upstream)
        link = self.by_name[name] = Link(name, proxy.listen, upstream)
        return link

    def of_node(self, node: int) -> Link:
        """The link on which clients reach it."""
        return self.by_name[f"client-node-{node}"]

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
