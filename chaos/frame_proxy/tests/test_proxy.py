"""The proxy as a whole, in a loop of its own and without clients."""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace

import pytest

from chaos.frame_proxy.proxy import Node, Proxy, ProxyPlan
from chaos.frame_proxy.tests.test_conversation import UNKNOWN_API, request
from chaos.tests.intercepted import rule
from reference_broker.core.effects import Reply
from reference_broker.wire.tags import Tag

NODE = Node(0, "127.0.0.1", 9)
ANSWER = Reply(1, 1, UNKNOWN_API, 0, None, Tag(UNKNOWN_API, 0, "c"))


def test_a_paused_node_goes_on_when_the_proxy_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))

    async def play() -> None:
        proxy = Proxy(ProxyPlan(rules=[replace(rule("node_paused", "reply"), duration_s=60.0)], processes={0: 77}))
        proxy.start([NODE])
        await asyncio.gather(*proxy._servers)
        (front,) = proxy._fronts
        front.answered(ANSWER)
        proxy.close()

    asyncio.run(play())
    assert sent == [(77, signal.SIGSTOP), (77, signal.SIGCONT)]


def test_a_rule_that_comes_again_counts_from_the_start() -> None:
    async def play() -> list[int]:
        proxy = Proxy(ProxyPlan())
        proxy.start([NODE])
        await asyncio.gather(*proxy._servers)
        (front,) = proxy._fronts
        once = rule("response_dropped", "reply", total=1)
        for _ in range(2):
            proxy.add(once)
            front.answered(ANSWER)
            front.answered(ANSWER)
            assert proxy.remove(once.name)
        proxy.close()
        return [row.hit for row in proxy.hits]

    assert asyncio.run(play()) == [1, 1]


def test_a_node_that_answers_a_doubled_request_with_garbage_is_read_no_further() -> None:
    async def play() -> tuple[list[str], int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            with suppress(ConnectionError):
                for _ in range(20):
                    writer.write(b"\xff" * (1 << 20))
                    await writer.drain()
            writer.close()

        node = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = Proxy(ProxyPlan(rules=[rule("request_duplicated", "request")]))
        (told,) = proxy.start([Node(0, "127.0.0.1", node.sockets[0].getsockname()[1])])
        host, _, port = told.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request(UNKNOWN_API, 0, 1))
        async with asyncio.timeout(5):
            while len(proxy.hits) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        left = sum(len(front._phantoms) for front in proxy._fronts)
        writer.close()
        proxy.close()
        node.close()
        await asyncio.sleep(0.1)
        return [row.detail for row in proxy.hits], left

    (_, answer), left = asyncio.run(play())
    assert answer.startswith("closed: the node sent what is no answer")
    assert left == 0
