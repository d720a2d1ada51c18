"""Measures what the proxy costs: straight to a node, through Toxiproxy, and through Toxiproxy and the proxy.

``python -m chaos.frame_proxy.measure`` prints a table. The three ways take turns, and each figure is the best of its
rounds, since a busy machine can only make it worse.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, cast

from kio.schema.create_topics.v7.request import CreatableTopic

from bench.fleet.behaviours import bodies
from chaos.frame_proxy.process import ProxyProcess, Spec
from chaos.live.cluster_command import ClusterPlan, started
from chaos.live.links import Links
from chaos.live.toxiproxy_server import ToxiproxyServer
from reference_broker.blocking.transport import Connection
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

TOPIC = "measured"
LIMIT_US = 10_000_000
ROUNDS = 5
CALLS = 1_000
MIB = 1 << 20
WAYS = ("direct", "toxiproxy", "both")
BATCH = build([Record(0, 0, None, bytes(100_000), ())])
Send = Callable[[ApiKey, int, object], Any]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        (node,) = stack.enter_context(started(ClusterPlan(root / "data"))).nodes
        toxiproxy = stack.enter_context(ToxiproxyServer(root / "toxiproxy.log"))
        link = Links(toxiproxy.client).add("client", 0, node.listen)
        host, _, port = node.listen.partition(":")
        spec = Spec([(0, host, int(port))], {node.listen: link.listen})
        process = ProxyProcess(spec, root / "proxy.log", lambda _: None)
        stack.callback(process.terminate)
        connections = [
            stack.enter_context(_connect(address)) for address in (node.listen, link.listen, process.fronts[0])
        ]
        ways = dict(zip(WAYS, (connection.call for connection in connections), strict=True))
        topic_id = _prepared(ways["direct"])
        works: dict[str, tuple[Callable[[Send], None], int, int]] = {
            "empty fetch": (_empty, CALLS, 0),
            "produce 100 kB": (_produce, 200, len(BATCH)),
            "fetch 1 MiB, version 12": (lambda send: _large(send, 12, NO_TOPIC_ID), 50, MIB),
            "fetch 1 MiB, version 17": (lambda send: _large(send, 17, topic_id), 50, MIB),
        }
        for name, (work, calls, size) in works.items():
            _print(name, _measured(ways, work, calls), size)


def _connect(address: str) -> Connection:
    host, _, port = address.partition(":")
    return Connection.open(host, int(port), LIMIT_US, "measure")


def _prepared(send: Send) -> bytes:
    """Make the topic, fill it with what one large fetch reads, and return its ID."""
    topic: Any = CreatableTopic
    made = topic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=())
    send(ApiKey.CREATE_TOPICS, 7, bodies.create_topics_request([made], LIMIT_US // 1000))
    for _ in range(2 * MIB // len(BATCH)):
        _produce(send)
    response = send(ApiKey.METADATA, 12, bodies.metadata_request((TOPIC,)))
    return cast(bytes, response.topics[0].topic_id.bytes)


def _empty(send: Send) -> None:
    send(ApiKey.FETCH, 17, FetchRequest(max_wait_ms=0))


def _produce(send: Send) -> None:
    send(ApiKey.PRODUCE, 9, ProduceRequest(1, 10_000, [ProduceTopic(TOPIC, NO_TOPIC_ID, [ProducePartition(0, BATCH)])]))


def _large(send: Send, version: int, topic_id: bytes) -> None:
    name = TOPIC if version <= 12 else ""
    body = FetchRequest(max_wait_ms=0, max_bytes=MIB, topics=[FetchTopic(name, topic_id, [FetchPartition(0, 0, MIB)])])
    response = cast(FetchResponse, send(ApiKey.FETCH, version, body))
    assert len(response.responses[0].partitions[0].records or b"") > MIB // 2


def _measured(ways: Mapping[str, Send], work: Callable[[Send], None], calls: int) -> dict[str, float]:
    """Return the median time of a call in the best round, in seconds, for each way."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for way, send in ways.items():
            took = []
            for _ in range(calls):
                begun = time.perf_counter()
                work(send)
                took.append(time.perf_counter() - begun)
            best[way] = min(best[way], median(took))
    return best


def _print(name: str, took: Mapping[str, float], size: int) -> None:
    cells = [f"{took[way] * 1e6:7.0f} us" + (f" {size / took[way] / MIB:6.0f} MiB/s" if size else "") for way in WAYS]
    ratio = took["both"] / took["toxiproxy"]
    line = " | ".join((f"{name:24}", *cells, f"{ratio:.2f}"))
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
