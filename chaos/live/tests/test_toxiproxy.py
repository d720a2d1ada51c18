"""The typed layer against a real Toxiproxy server, and the faults of links as a probe sees them."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bench.ports import free_port
from chaos.faults.registry import LIVE
from chaos.faults.timed import End, Place
from chaos.live.errors import SetupError
from chaos.live.links import Link, Links
from chaos.live.probe import probe
from chaos.live.processes import Child
from chaos.live.target import behind_proxies, parse_target
from chaos.live.targets import Target
from chaos.live.toxiproxy import Toxiproxy, ToxiproxyError
from chaos.live.toxiproxy_server import ENVIRONMENT_VARIABLE, ToxiproxyServer, find
from scenarios.model import Fault, Range

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToxiproxyServer]:
    with ToxiproxyServer(tmp_path_factory.mktemp("toxiproxy") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's address."""
    import sys

    folder = tmp_path_factory.mktemp("node")
    words = ["--listen", "127.0.0.1:0", "--data", str(folder / "data")]
    child = Child("node-0", [sys.executable, "-m", "reference_broker.serve.main", *words], folder / "log")
    yield child.await_line("ready")["listen"]
    child.terminate()
    child.close()


class OneLink:
    """``chaos.faults.timed.Place`` with one link."""

    def __init__(self, server: ToxiproxyServer, upstream: str) -> None:
        self.links = Links(server.client)
        self.link: Link = self.links.add("client", 0, upstream)

    def child(self, node: int) -> Child:
        raise AssertionError(f"a link fault asked for node {node}")

    def restart(self, node: int) -> None:
        raise AssertionError(f"a link fault restarted node {node}")

    def order_disk(self, node: int, order: dict[str, object]) -> None:
        raise AssertionError(f"a link fault told node {node}'s disk {order}")

    def disk_struck(self, node: int, kind: str) -> str:
        raise AssertionError(f"a link fault asked for {kind} of node {node}")

    def aimed(self, fault: Fault) -> Target:
        return Target(fault, tuple(self.links.by_name.values()), "link")


def begin(place: OneLink, fault: Fault) -> End:
    return LIVE[fault.kind](cast("Place", place), place.aimed(fault))


def evidence(end: End) -> str:
    ended = end()
    assert ended is not None
    return ended.evidence


@pytest.fixture
def place(server: ToxiproxyServer, node: str) -> Iterator[OneLink]:
    made = OneLink(server, node)
    yield made
    server.client.delete(made.link.name)


def test_values_come_from_the_server_s_own_answers(server: ToxiproxyServer) -> None:
    client = server.client
    made = client.create("p", "127.0.0.1:1")
    assert made.listen.startswith("127.0.0.1:")
    assert made.enabled
    toxic = client.add_toxic("p", "slow", "latency", "downstream", {"latency": 5, "jitter": 1})
    assert toxic.attributes == {"latency": 5, "jitter": 1}
    assert [each.name for each in client.proxy("p").toxics] == ["slow"]
    assert client.update("p", enabled=False).enabled is False
    client.reset()
    assert client.proxy("p").enabled
    assert client.proxy("p").toxics == ()
    client.remove_toxic("p", "slow")
    client.delete("p")
    assert "p" not in client.proxies()


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda client: client.proxy("nowhere"), 404),
        (lambda client: client.create("twice", "127.0.0.1:1"), 409),
        (lambda client: client.add_toxic("twice", "x", "magic", "upstream", {}), 400),
        (lambda client: client.create("bad", "127.0.0.1:1", listen="nonsense"), 500),
    ],
)
def test_refusals_are_our_errors_with_the_status(server: ToxiproxyServer, call: object, status: int) -> None:
    if "twice" not in server.client.proxies():
        server.client.create("twice", "127.0.0.1:1")
    with pytest.raises(ToxiproxyError) as caught:
        call(server.client)  # type: ignore[operator]
    assert caught.value.status == status


def test_two_servers_are_two_clients(server: ToxiproxyServer, tmp_path: Path) -> None:
    with ToxiproxyServer(tmp_path / "log") as other:
        other.client.create("only-here", "127.0.0.1:1")
        assert "only-here" in other.client.proxies()
        assert "only-here" not in server.client.proxies()


def test_a_server_that_is_gone_is_an_error_not_a_hang() -> None:
    with pytest.raises(ToxiproxyError, match="did not answer"):
        Toxiproxy("127.0.0.1", free_port(), timeout_s=0.5).version()


def test_a_missing_binary_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.prefix", "/nonexistent")
    with pytest.raises(SetupError, match="build"):
        find()


LINK_FAULTS = [
    Fault("f", "link_cut"),
    Fault("f", "link_cut", direction="upstream"),
    Fault("f", "link_cut", direction="downstream"),
    Fault("f", "link_delayed", delay_ms=Range(40, 40)),
    Fault("f", "link_reset"),
    Fault("f", "link_truncated", direction="downstream", cut_bytes=Range(100, 100)),
    Fault("f", "link_sliced"),
    Fault("f", "link_slowed", bytes_per_s=4000),
    Fault("f", "link_down"),
]


@pytest.mark.parametrize("fault", LINK_FAULTS, ids=lambda fault: f"{fault.kind}-{fault.direction}")
def test_a_link_fault_is_felt_leaves_evidence_and_heals(place: OneLink, fault: Fault) -> None:
    assert probe(place.link.listen).outcome == "answered"
    assert evidence(begin(place, fault)) != ""
    healed = [probe(place.link.listen) for _ in range(5)]
    assert {each.outcome for each in healed} == {"answered"}
    assert min(each.first_us for each in healed) < 40_000, "on a busy machine some answers are late"


def test_a_fault_without_effect_leaves_no_evidence(server: ToxiproxyServer) -> None:
    """Nobody answers behind this link, so a delay cannot be seen."""
    place = OneLink(server, f"127.0.0.1:{free_port()}")
    assert evidence(begin(place, Fault("f", "link_delayed", delay_ms=Range(40, 40)))) == ""
    server.client.delete(place.link.name)


@pytest.mark.parametrize("kind", ["node_isolated", "link_cut", "link_down", "link_reset"])
def test_a_fault_on_many_links_hits_each_of_them_and_heals_all(place: OneLink, node: str, kind: str) -> None:
    several = [place.link, *(place.links.add(dialler, 0, node) for dialler in (1, 2))]
    try:
        end = begin(place, Fault("f", kind))
        assert all(probe(link.listen, limit_s=0.3).outcome != "answered" for link in several)
        told = evidence(end)
        assert all(link.name in told for link in several)
        assert all(probe(link.listen).outcome == "answered" for link in several)
    finally:
        for link in several[1:]:
            place.links._client.delete(link.name)


def test_a_target_is_reached_through_a_proxy_whatever_it_advertises(server: ToxiproxyServer, node: str) -> None:
    links = Links(server.client)
    found = behind_proxies(node, links)
    assert found.nodes == (node,)
    assert found.dial == {node: links.of_node(0).listen}
    assert probe(found.dial[node]).outcome == "answered"
    assert found.versions["fetch"] == 17
    links.down(links.of_node(0))
    assert probe(found.dial[node]).outcome == "refused"
    server.client.delete("client-node-0")


def test_a_target_must_be_an_address() -> None:
    assert parse_target("[::1]:9092") == ("::1", 9092)
    for wrong in ("", "host", "host:", ":1", "host:0", "host:65536"):
        with pytest.raises(SetupError, match="give HOST:PORT"):
            parse_target(wrong)
