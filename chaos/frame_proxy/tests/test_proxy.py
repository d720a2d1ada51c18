"""The proxy as a whole, in a loop of its own and without clients."""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from chaos.frame_proxy.proxy import AdvertisedNode, FrameProxy, ProxyPlan
from chaos.frame_proxy.tests.test_conversation import UNKNOWN_API, request
from chaos.interceptor.tests.intercepted import rule
from reference_broker.core.events import Reply
from reference_broker.wire.tags import Tag

NODE = AdvertisedNode(0, "127.0.0.1", 9)
REPLY = Reply(1, 1, UNKNOWN_API, 0, None, Tag(UNKNOWN_API, 0, "c"))


def test_paused_node_goes_on_when_the_proxy_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))

    async def play() -> None:
        proxy = FrameProxy(
            ProxyPlan(rules=[replace(rule("node_paused", "response"), duration_s=60.0)], processes={0: 77})
        )
        proxy.start([NODE])
        await asyncio.gather(*proxy._servers)
        (front,) = proxy._fronts
        front.replied(REPLY)
        proxy.close()

    asyncio.run(play())
    assert sent == [(77, signal.SIGSTOP), (77, signal.SIGCONT)]


def test_rule_added_again_counts_from_zero() -> None:
    async def play() -> list[int]:
        proxy = FrameProxy(ProxyPlan())
        proxy.start([NODE])
        await asyncio.gather(*proxy._servers)
        (front,) = proxy._fronts
        once = rule("response_dropped", "response", total=1)
        for _ in range(2):
            proxy.add(once)
            front.replied(REPLY)
            front.replied(REPLY)
            assert proxy.remove(once.name)
        proxy.close()
        return [row.hit for row in proxy.hits]

    assert asyncio.run(play()) == [1, 1]


def test_garbage_response_to_duplicated_request_stops_reading_of_node() -> None:
    async def play() -> tuple[list[str], int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            with suppress(ConnectionError):
                for _ in range(20):
                    writer.write(b"\xff" * (1 << 20))
                    await writer.drain()
            writer.close()

        node = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = FrameProxy(ProxyPlan(rules=[rule("request_duplicated", "request")]))
        (front,) = proxy.start([AdvertisedNode(0, "127.0.0.1", node.sockets[0].getsockname()[1])])
        host, _, port = front.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request(UNKNOWN_API, 0, 1))
        async with asyncio.timeout(5):
            while len(proxy.hits) < 2:
                await asyncio.sleep(0.01)
            while left := sum(len(front._phantoms) for front in proxy._fronts):
                await asyncio.sleep(0.01)
        writer.close()
        proxy.close()
        node.close()
        await asyncio.sleep(0.1)
        return [row.detail for row in proxy.hits], left

    (_, outcome), left = asyncio.run(play())
    assert outcome.startswith("closed: the node sent what is no response")
    assert left == 0


def test_nodes_without_end_do_not_get_listeners_without_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chaos.frame_proxy.proxy.MAX_FRONTS", 3)

    async def play() -> list[tuple[str, int]]:
        proxy = FrameProxy(ProxyPlan())
        proxy.start([NODE])
        addresses = [proxy.advertised(number, "forged", 9) for number in range(1, 9)]
        assert addresses[0] == proxy.advertised(1, "forged", 9)
        await asyncio.gather(*proxy._servers)
        proxy.close()
        return addresses

    addresses = asyncio.run(play())
    assert [host for host, _ in addresses] == ["127.0.0.1"] * 2 + ["forged"] * 6
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "no front for node 3 at forged:9 (there are 3 already)" in shown


def test_metadata_response_gives_leader_of_first_partition() -> None:
    def topic(name: str, leader: int) -> object:
        partitions = [
            SimpleNamespace(partition_index=0, leader_id=leader, replica_nodes=(7, 8)),
            SimpleNamespace(partition_index=1, leader_id=9, replica_nodes=(9,)),
        ]
        return SimpleNamespace(name=name, partitions=partitions)

    async def play() -> list[str]:
        lost = replace(rule("response_dropped", "response"), node="partition_leader")
        proxy = FrameProxy(ProxyPlan(rules=[lost], topic="hot"))
        proxy.start([AdvertisedNode(each, "127.0.0.1", each) for each in (7, 8, 9)])
        await asyncio.gather(*proxy._servers)
        for topics in ([], [topic("cold", 9)], [topic("cold", 9), topic("hot", 8)], [topic("hot", 7)]):
            proxy.learn(topics)
            for front in proxy._fronts:
                front.replied(REPLY._replace(tag=Tag(UNKNOWN_API, 0, f"c{proxy.role_of(7)}")))
        assert [proxy.role_of(node) for node in (7, 8, 9)] == ["partition_leader", "partition_follower", ""]
        proxy.close()
        return [row.target for row in proxy.hits]

    assert asyncio.run(play()) == ["node-8", "node-7"]
