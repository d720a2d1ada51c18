"""The proxy on links between nodes: which rules hit there, the sender, and what passes unchanged."""

import asyncio
import os
import signal
import socket
import time

import pytest

from bench.ports import free_port
from chaos.frame_proxy.conversation import LARGE_BYTES
from chaos.frame_proxy.process import Spec, frame_rules
from chaos.frame_proxy.proxy import AdvertisedNode, FrameProxy, LinkPair, ProxyPlan
from chaos.frame_proxy.rules_file import read_rule, why_not
from chaos.frame_proxy.tests.test_conversation import UNKNOWN_API, request, response
from chaos.interceptor.rules import settled
from chaos.seeds import random_for
from reports.rows import FaultRow
from scenarios import loader
from scenarios.fields import ScenarioError
from scenarios.model import Link

LOST: dict[str, object] = {"name": "lost", "kind": "request_dropped", "on": "request", "link": "1>0"}
SCENARIO = "link-faults"


KILLED: dict[str, object] = {"name": "killed", "kind": "node_killed", "on": "peer_response", "node": "any"}


async def hits_of(rule: dict[str, object], *words: object, size: int = 0) -> list[FaultRow]:
    """Send one request to node 0 from clients, from node 1 and from node 2, and return the hits of the rule. The
    ``words`` say what nodes are. The process of each is 100 and its number. The response has ``size`` bytes more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            writer.write(response(1, bytes(size)))
        writer.close()

    node = await asyncio.start_server(serve, "127.0.0.1", 0)
    at = f"127.0.0.1:{node.sockets[0].getsockname()[1]}"
    proxy = FrameProxy(ProxyPlan(rules=[read_rule(rule)], processes={0: 100, 1: 101, 2: 102}))
    shown = proxy.start(
        [AdvertisedNode(0, "127.0.0.1", int(at.rpartition(":")[2]))], [LinkPair(1, 0, at), LinkPair(2, 0, at)]
    )
    for number, role in enumerate(words):
        proxy.take_role(number, str(role))
    for address in shown:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request(UNKNOWN_API, 0, 1))
        async with asyncio.timeout(5):
            await reader.read(100)
        writer.close()
    proxy.close()
    node.close()
    await asyncio.sleep(0.1)
    return proxy.hits


def senders(rule: dict[str, object], *words: object) -> list[tuple[str, str]]:
    return [(row.client_id, row.target) for row in asyncio.run(hits_of(rule, *words))]


def test_rule_of_a_link_hits_what_one_node_sends_to_the_other() -> None:
    assert senders(LOST) == [("node-1", "node-0")]
    assert senders({**LOST, "link": "all>0"}) == [("node-1", "node-0"), ("node-2", "node-0")]
    assert senders({**LOST, "link": "1>2"}) == []


def test_rule_without_a_link_hits_clients_only() -> None:
    anybody: dict[str, object] = {"name": "lost", "kind": "request_dropped", "on": "request", "node": "any"}
    assert [target for _, target in senders(anybody)] == ["node-0"]


def test_link_may_lead_to_the_node_that_has_a_role_now() -> None:
    to_the_leader: dict[str, object] = {**LOST, "link": "all>leader", "total": 1}
    assert senders(to_the_leader) == []
    assert senders(to_the_leader, "leader") == [("node-1", "node-0")]
    assert senders({**LOST, "link": "all>partition_leader", "total": 1}, "follower partition_leader") != []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rule", "words", "killed"),
    [
        (KILLED, (), [101, 102]),
        ({**KILLED, "total": 1}, (), [101]),
        ({**KILLED, "node": 2}, (), [102]),
        ({**KILLED, "match": {"from_node": 0}}, (), [101, 102]),
        ({**KILLED, "match": {"from_node": 1}}, (), []),
        ({**KILLED, "node": "leader"}, ("follower", "leader"), [101]),
        ({**KILLED, "match": {"api": "vote"}}, (), []),
    ],
)
def test_response_between_nodes_hits_the_requester(
    rule: dict[str, object], words: tuple[str, ...], killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    rows = asyncio.run(hits_of(rule, *words))
    assert sent == [(process, signal.SIGKILL) for process in killed]
    assert [row.target for row in rows] == [f"node-{process - 100}" for process in killed]
    assert {row.detail for row in rows} <= {"from node-0"}


def test_large_response_between_nodes_is_hit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: None)
    rows = asyncio.run(hits_of({**KILLED, "node": 1, "total": 1}, size=2 * LARGE_BYTES))
    assert [row.target for row in rows] == ["node-1"]


def test_response_between_nodes_may_come_late() -> None:
    late = {**KILLED, "kind": "response_delayed", "delay_ms": 300, "node": 1}
    began = time.monotonic()
    assert [row.target for row in asyncio.run(hits_of(late))] == ["node-1"]
    assert time.monotonic() - began > 0.3


def test_link_listens_at_the_given_address() -> None:
    async def play() -> list[str]:
        port = free_port()
        proxy = FrameProxy(ProxyPlan())
        shown = proxy.start([], [LinkPair(0, 1, "127.0.0.1:9", f"127.0.0.1:{port}")])
        await asyncio.gather(*proxy._servers)
        assert shown == [f"127.0.0.1:{port}"]
        with socket.create_connection(("127.0.0.1", port), 5):
            pass
        proxy.close()
        await asyncio.sleep(0.1)
        return shown

    asyncio.run(play())


def test_process_applies_rules_of_its_place() -> None:
    on_links = frame_rules(Spec(pairs=[LinkPair(0, 1, "a:1")], scenario=SCENARIO))
    assert {rule.name for rule in on_links} == {fault.name for fault in loader.find(SCENARIO).faults if not fault.timed}
    assert frame_rules(Spec(nodes=[(0, "a", 1)], scenario=SCENARIO)) == []


def test_in_front_of_a_target_only_those_are_played_that_can_be() -> None:
    names = ["fetch-lost", "follower-paused"]
    assert [
        rule.name for rule in frame_rules(Spec(pairs=[LinkPair(0, 1, "a:1")], scenario=SCENARIO, external_faults=names))
    ] == ["fetch-lost"]
    before = Spec(nodes=[(0, "a", 1)], scenario="coordinator-killed", external_faults=["killed_after_commit"])
    assert [rule.name for rule in frame_rules(before)] == ["killed_after_commit"]


def test_our_own_nodes_act_at_the_responses_of_others_themselves() -> None:
    links = [LinkPair(0, 1, "a:1")]
    message = frame_rules(
        Spec(pairs=links, scenario="44", external_faults=["killed_after_some_markers", "markers_late"], seed=2)
    )
    assert [rule.name for rule in message] == ["markers_late", "killed_after_some_markers"]
    assert frame_rules(Spec(pairs=links, scenario="44", seed=3)) == []
    before = Spec(
        nodes=[(0, "a", 1)], scenario="44", external_faults=["killed_after_some_markers", "ends_late"], seed=2
    )
    assert [rule.name for rule in frame_rules(before)] == ["ends_late"]


def test_rule_has_sender_of_link() -> None:
    one, every = (settled(read_rule({**LOST, "link": link}), random_for(1, "rules")) for link in ("1>0", "all>leader"))
    assert one.node == 0
    assert one.match.from_node == 1
    assert one.match.role == "peer"
    assert every.node == "leader"
    assert every.match.from_node is None
    assert every.match.role == "peer"
    assert read_rule({**LOST, "link": "2>all"}).node == "any"
    assert read_rule(LOST).link == Link(1, 0)


def test_without_links_such_a_rule_is_refused() -> None:
    assert "only clients do" in why_not(read_rule(LOST), {0: 0, 1: 0})
    assert why_not(read_rule(LOST), {0: 0, 1: 0}, has_links=True) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link": "client>0"}, "at a state its source is a node's number or all"),
        ({"link": "leader>0"}, "at a state its source is a node's number or all"),
        ({"link": "1>client"}, "it must be A>B"),
        ({"link": "1>1"}, "the two ends must differ"),
        ({"node": 0}, "node means nothing beside link"),
        ({"match": {"role": "peer"}}, "match.role means nothing beside link"),
        ({"match": {"from_node": 2}}, "match.from_node means nothing beside link"),
        ({"kind": "node_killed"}, "link means nothing for node_killed at a state"),
        ({"kind": "request_damaged"}, "link means nothing for request_damaged at a state"),
    ],
)
def test_link_rule_with_invalid_state_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        read_rule({**LOST, **changes})
    assert message in str(refused.value)
