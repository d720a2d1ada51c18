"""Large requests are decoded beside the event loop, so that others are served meanwhile."""

import asyncio
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from reference_broker.serve.aside import SWITCH_S, Aside
from reference_broker.serve.tests.test_hostile_input import API_VERSIONS_0, assert_serves, connected, framed, read_frame
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.messages import decode_response, encode_request

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

NAMES = 100_000
"""Decoding them takes a tenth of a second of processor time and more."""


def test_work_is_done_in_order_and_in_another_thread() -> None:
    usual_s = sys.getswitchinterval()

    async def scene() -> list[tuple[int, bool]]:
        aside, done, all_done = Aside(asyncio.get_running_loop()), [], asyncio.Event()

        def work(number: int) -> Callable[[], tuple[int, bool]]:
            return lambda: (number, threading.current_thread() is threading.main_thread())

        def take(result: tuple[int, bool]) -> None:
            done.append(result)
            if len(done) == 3:
                all_done.set()

        for number in range(3):
            aside.run(work(number), take)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        assert not done, "never before run returns"
        await all_done.wait()
        aside.close()
        return done

    assert asyncio.run(scene()) == [(0, False), (1, False), (2, False)]
    assert sys.getswitchinterval() == pytest.approx(usual_s)


@pytest.mark.live
def test_others_are_served_while_a_large_request_is_decoded(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker()
    assert_serves(broker)
    names = (MetadataRequestTopic(topic_id=None, name=TopicName("no-such-topic")),) * NAMES
    body = MetadataRequest(topics=names, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    large = b"".join(encode_request(ApiKey.METADATA, 9, 1, "greedy", body))
    with connected(broker) as greedy, connected(broker) as modest:
        modest.sendall(framed(API_VERSIONS_0))
        read_frame(modest)
        greedy.settimeout(60)
        greedy.sendall(large)
        answered_meanwhile = 0
        greedy.setblocking(False)
        while not _is_readable(greedy):
            modest.sendall(framed(API_VERSIONS_0))
            read_frame(modest)
            answered_meanwhile += 1
            time.sleep(0.001)
        greedy.settimeout(60)
        answer: Any = decode_response(ApiKey.METADATA, 9, memoryview(read_frame(greedy)))[1]
    assert len(answer.topics) == 1
    assert answered_meanwhile >= 10


@pytest.mark.live
def test_a_node_ends_while_a_large_request_is_decoded(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker()
    names = (MetadataRequestTopic(topic_id=None, name=TopicName("x")),) * (6 * NAMES)
    body = MetadataRequest(topics=names, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    with connected(broker) as greedy:
        greedy.settimeout(60)
        greedy.sendall(b"".join(encode_request(ApiKey.METADATA, 9, 1, "greedy", body)))
        time.sleep(0.2)
        began_s = time.monotonic()
        assert broker.stop() == 0
    assert time.monotonic() - began_s < 10


@pytest.mark.live
def test_a_large_frame_that_cannot_be_decoded_costs_its_connection(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker()
    with connected(broker) as greedy:
        greedy.sendall(framed(struct.pack(">hhihb", ApiKey.METADATA, 9, 7, -1, 0) + b"\xff" * 200_000))
        assert greedy.recv(1) == b""
    (line,) = broker.await_log("connection_closed")
    assert line["level"] == "warn"
    assert_serves(broker)


def _is_readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
