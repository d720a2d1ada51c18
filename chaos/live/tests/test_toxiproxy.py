"""Links through a real Toxiproxy server, and their faults as a probe sees them."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from bench.ports import free_port
from chaos.live.errors import SetupError
from chaos.live.external.brokers import behind_proxies
from chaos.live.external.target import parse_target
from chaos.live.fault_scheduler import BEGIN
from chaos.live.faults.fault_context import End
from chaos.live.links import Link, Links, cure, poison
from chaos.live.probe import probe
from chaos.live.processes import Child
from chaos.live.targets import FaultTarget
from chaos.live.toxiproxy import Toxiproxy, ToxiproxyError
from chaos.live.toxiproxy_server import ENVIRONMENT_VARIABLE, ToxiproxyServer, find
from scenarios.model import Fault, Range

if TYPE_CHECKING:
    from chaos.live.faults.fault_context import LiveFaultContext

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToxiproxyServer]:
    with ToxiproxyServer(tmp_path_factory.mktemp("toxiproxy") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's address."""
    folder = tmp_path_factory.mktemp("node")
    words = ["--listen", "127.0.0.1:0", "--data", str(folder / "data")]
    child = Child("node-0", [sys.executable, "-m", "reference_broker.serve.main", *words], folder / "log")
    line = child.line_with("ready", 30)
    assert line is not None
    yield line["listen"]
    child.end()


class OneLink:
    """The links of a place with one link."""

    def __init__(self, server: ToxiproxyServer, upstream: str) -> None:
        self.links = Links(server.client)
        self.link: Link = self.links.add("client", 0, upstream)

    def aimed(self, fault: Fault) -> FaultTarget:
        return FaultTarget(fault, tuple(self.links.by_name.values()), "link")


def begin(place: OneLink, fault: Fault) -> End:
    return BEGIN[fault.kind](cast("LiveFaultContext", place), place.aimed(fault))


def evidence(end: End) -> str:
    ended = end()
    assert ended is not None
    return ended.evidence


@pytest.fixture
def place(server: ToxiproxyServer, node: str) -> Iterator[OneLink]:
    made = OneLink(server, node)
    yield made
    made.link.proxy.destroy()


def test_toxic_is_added_to_the_streams_of_its_direction_and_removed_once(server: ToxiproxyServer) -> None:
    link = Links(server.client).add("client", 7, "127.0.0.1:1")
    assert link.listen.startswith("127.0.0.1:")
    poison(link, "slow", "latency", "both", {"latency": 5, "jitter": 1})
    poison(link, "cut", "timeout", "upstream", {"timeout": 0})
    toxics = toxics_of(link)
    assert sorted(toxics) == ["cut-upstream", "slow-downstream", "slow-upstream"]
    assert toxics["slow-upstream"] == {"latency": 5, "jitter": 1}
    for _ in range(2):
        cure(link, "slow", "both")
    assert sorted(toxics_of(link)) == ["cut-upstream"]
    link.proxy.destroy()


def test_healing_enables_all_links_and_removes_all_toxics(server: ToxiproxyServer) -> None:
    links = Links(server.client)
    link = links.add("client", 7, "127.0.0.1:1")
    poison(link, "slow", "latency", "both", {"latency": 5, "jitter": 1})
    link.proxy.disable()
    links.heal_all()
    assert server.client.call("get", f"/proxies/{link.name}")["enabled"]
    assert toxics_of(link) == {}
    link.proxy.destroy()


def toxics_of(link: Link) -> dict[str, dict[str, int]]:
    """The attributes of each toxic, by its name, as the server reports them."""
    toxics = link.proxy.server.call("get", f"/proxies/{link.name}/toxics")
    return {toxic["name"]: toxic["attributes"] for toxic in toxics}


def test_two_servers_are_two_clients(server: ToxiproxyServer, tmp_path: Path) -> None:
    with ToxiproxyServer(tmp_path / "log") as other:
        link = Links(server.client).add("client", 8, "127.0.0.1:1")
        assert set(other.client.call("get", "/proxies")) == set()
        assert link.name in server.client.call("get", "/proxies")
        link.proxy.destroy()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/proxies/none/toxics", {"type": "latency"}, 404),
        ("/proxies", {"name": "x", "upstream": "127.0.0.1:1", "listen": "999.0.0.1:1"}, 500),
        ("/proxies", {"name": "", "upstream": ""}, 400),
    ],
)
def test_refusal_is_an_error_with_its_status(
    server: ToxiproxyServer, path: str, body: dict[str, str], status: int
) -> None:
    with pytest.raises(ToxiproxyError) as refused:
        server.client.call("post", path, json=body)
    assert refused.value.status == status


def test_server_that_is_gone_is_an_error_not_a_hang() -> None:
    with pytest.raises(ToxiproxyError, match="got no response"):
        Toxiproxy("127.0.0.1", free_port()).reset()


def test_port_that_is_taken_is_one_sentence(server: ToxiproxyServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SetupError, match=f"cannot listen on {listen}: give another port"):
            Links(server.client).add("client", 7, "127.0.0.1:1", listen)


def test_missing_binary_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.prefix", "/nonexistent")
    with pytest.raises(SetupError, match="build"):
        find()


BOTH = "requests of clients and responses to them"
LINK_FAULTS = [
    (Fault("f", "link_cut"), f"{BOTH} vanished; a probe got no response within "),
    (Fault("f", "link_cut", direction="upstream"), "requests of clients vanished; a probe got no response within "),
    (Fault("f", "link_cut", direction="downstream"), "responses to clients vanished; a probe got no response within "),
    (
        Fault("f", "link_delayed", direction="downstream", delay_ms=Range(60, 60), jitter_ms=20),
        "responses to clients were delayed by 60 ms, give or take 20; a probe got ",
    ),
    (Fault("f", "link_reset"), f"{BOTH} were cut off, because each connection was reset; a probe was "),
    (
        Fault("f", "link_truncated", direction="downstream", cut_bytes=Range(100, 100)),
        "responses to clients were cut off after 100 bytes of each connection; a probe was cut off after 100 bytes",
    ),
    (Fault("f", "link_sliced"), f"{BOTH} came in pieces of 64 bytes, give or take 32, 200 µs apart; a probe got "),
    (Fault("f", "link_slowed", bytes_per_s=4000), f"{BOTH} passed at no more than 4 kB a second; a probe "),
    (Fault("f", "link_down"), "connections were closed, and new ones refused; a probe was refused"),
]


@pytest.mark.parametrize(
    ("fault", "finding"), LINK_FAULTS, ids=[f"{fault.kind}-{fault.direction}" for fault, _ in LINK_FAULTS]
)
def test_link_fault_takes_effect_leaves_evidence_and_heals(place: OneLink, fault: Fault, finding: str) -> None:
    assert probe(place.link.listen).outcome == "responded"
    assert evidence(begin(place, fault)).startswith(finding)
    healed = [probe(place.link.listen) for _ in range(5)]
    assert {each.outcome for each in healed} == {"responded"}
    assert min(each.first_us for each in healed) < 40_000, "on a busy machine some responses are late"


def test_fault_without_effect_leaves_no_evidence(server: ToxiproxyServer) -> None:
    """No server is behind this link, so a delay cannot be seen."""
    place = OneLink(server, f"127.0.0.1:{free_port()}")
    assert evidence(begin(place, Fault("f", "link_delayed", delay_ms=Range(40, 40)))) == ""
    place.link.proxy.destroy()


@pytest.mark.parametrize("kind", ["node_isolated", "link_cut", "link_down", "link_reset"])
def test_fault_on_many_links_hits_each_of_them_and_heals_all(place: OneLink, node: str, kind: str) -> None:
    several = [place.link, *(place.links.add(dialler, 0, node) for dialler in (1, 2))]
    try:
        end = begin(place, Fault("f", kind))
        assert all(probe(link.listen, limit_s=0.3).outcome != "responded" for link in several)
        finding = evidence(end)
        assert all(link.name in finding for link in several)
        assert all(probe(link.listen).outcome == "responded" for link in several)
    finally:
        for link in several[1:]:
            link.proxy.destroy()


def test_target_is_reached_through_a_proxy_whatever_it_advertises(server: ToxiproxyServer, node: str) -> None:
    links = Links(server.client)
    proxied = behind_proxies(node, links, "mine-")
    assert (proxied.bootstrap, proxied.topic_prefix) == ((node,), "mine-")
    link = links.by_name["client-node-0"]
    assert proxied.dial == {node: link.listen}
    assert probe(proxied.dial[node]).outcome == "responded"
    assert proxied.versions["fetch"] == 17
    link.proxy.disable()
    assert probe(proxied.dial[node]).outcome == "refused"
    link.proxy.destroy()


def test_target_must_be_an_address() -> None:
    assert parse_target("[::1]:9092") == ("::1", 9092)
    for wrong in ("", "host", "host:", ":1", "host:0", "host:65536"):
        with pytest.raises(SetupError, match="give HOST:PORT"):
            parse_target(wrong)
