"""Links of a benchmark's clients through Toxiproxy.

``bench`` knows no Toxiproxy, which belongs to ``chaos``. So the command line brings both together.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.load.faults import LinkError
from bench.ports import free_ports
from chaos.live.errors import SetupError
from chaos.live.links import Link, Links, cure, poison, restore, silence
from chaos.live.toxiproxy import ToxiproxyError
from chaos.live.toxiproxy_server import HOST, ToxiproxyServer

_TOXIC = "bench"


class ToxiproxyLinks:
    """``bench.load.faults.ClientLinks``. Each method raises LinkError."""

    def __init__(self, server: ToxiproxyServer, nodes: int) -> None:
        self.addresses: Sequence[tuple[str, int]] = [(HOST, port) for port in free_ports(nodes)]
        self._links = Links(server.client)
        self._by_node: list[Link] = []
        self._delayed: set[int] = set()

    def connect(self, ports: Sequence[int]) -> None:
        for number, ((host, listen), port) in enumerate(zip(self.addresses, ports, strict=True)):
            with _errors():
                link = self._links.add("client", number, f"{HOST}:{port}", f"{host}:{listen}")
            self._by_node.append(link)

    def cut(self, number: int) -> None:
        with _errors():
            silence(self._by_node[number], _TOXIC)

    def delay(self, number: int, delay_ms: int, jitter_ms: int) -> None:
        self._delayed.add(number)
        with _errors():
            attributes = {"latency": delay_ms, "jitter": jitter_ms}
            poison(self._by_node[number], _TOXIC, "latency", "downstream", attributes)

    def heal(self, number: int) -> None:
        with _errors():
            if number in self._delayed:
                self._delayed.discard(number)
                cure(self._by_node[number], _TOXIC, "downstream")
            else:
                restore(self._by_node[number], _TOXIC)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (SetupError, ToxiproxyError) as failure:
        raise LinkError(str(failure)) from failure


@contextmanager
def toxiproxy_links(nodes: int) -> Iterator[ToxiproxyLinks]:
    """Start a server, and yield a link to each of ``nodes``. Raise LinkError if it does not start."""
    with TemporaryDirectory(prefix="crucible-links-") as folder:
        with _errors():
            server = ToxiproxyServer(Path(folder) / "toxiproxy.log")
        with server:
            yield ToxiproxyLinks(server, nodes)
