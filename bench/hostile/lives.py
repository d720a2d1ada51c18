"""The kinds of hostile peers, and the frames that they send.

A life is one connection of one peer: it connects, misbehaves, and returns or is closed. Each kind is a coroutine over a
plain socket. What a broker does to the connection is no error: it may close it whenever it likes. No kind sends
anything that a client on the network could not send.

Most kinds send whole frames that are valid, or nearly so, and that no honest client would send. Each frame is made
once. Each comes from a finding that ended, froze or bloated a node of this project. The tests of each finding alone are
``core/tests/test_hostile_*.py``; here they come all at once.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, Final, TypeAlias
from uuid import UUID

from bench.fleet.behaviours.bodies import ALL_TOPICS, API_VERSIONS_REQUEST, metadata_request
from reference_broker.apis.tests.messages import message_from
from reference_broker.core.tests.hostile_records import bomb, raw_batch, raw_record
from reference_broker.quorum.messages import build_begin_quorum_epoch_request
from reference_broker.records.compression import Compression
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.messages import body_class, encode_request
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

TOPIC: Final = "honest"
"""The topic of the honest client, which hostile peers read, too."""
HOSTILE_TOPIC: Final = "hostile"
"""Hostile peers write to this one. What they write counts for nothing."""
CLIENT_ID: Final = "hostile"


LONG: Final = "x" * 32_760
"""The longest name that an error message could not repeat."""
HIGHEST_EPOCH: Final = 2**31 - 1
BOMB_RECORDS: Final = 200_000


def frame(api_key: int, version: int, body: object, client_id: str = CLIENT_ID) -> bytes:
    return b"".join(encode_request(api_key, version, 1, client_id, body))


def _frame(api_key: int, version: int, client_id: str = CLIENT_ID, **values: Any) -> bytes:
    return frame(api_key, version, message_from(body_class(api_key, "request"), values), client_id)


def _produced(topic: str, batch: bytes, client_id: str = CLIENT_ID) -> bytes:
    body = ProduceRequest(1, 5000, [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(0, batch)])])
    return frame(ApiKey.PRODUCE, 9, body, client_id)


def _created(name: str, partitions: int) -> bytes:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    return _frame(ApiKey.CREATE_TOPICS, 2, topics=[topic], validate_only=False)


@cache
def huge_names() -> Sequence[bytes]:
    """Names that no error message can carry, and impossible numbers of partitions."""
    resource = {"resource_type": 2, "resource_name": LONG}
    return (
        _created(LONG, 1),
        _created("a-million-partitions", 1_000_000),
        _frame(ApiKey.DESCRIBE_CONFIGS, 1, resources=[{**resource, "configuration_keys": None}]),
        _frame(ApiKey.ALTER_CONFIGS, 0, resources=[{**resource, "configs": []}]),
        _frame(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, resources=[{**resource, "configs": []}]),
    )


@cache
def repetition() -> Sequence[bytes]:
    """The same thing requested thousands of times in one request."""
    settings = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}
    return (
        _frame(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",) * 2200),
        _frame(ApiKey.DESCRIBE_CONFIGS, 1, resources=[settings] * 2000),
        frame(ApiKey.METADATA, 9, metadata_request([TOPIC] * 50_000)),
        frame(ApiKey.METADATA, 9, metadata_request([f"missing-{number}" for number in range(20_000)])),
    )


@cache
def records() -> Sequence[bytes]:
    """Batches that hold less or far more than they say, and look-ups by time into them."""
    now_ms = int(time.time() * 1000)
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": now_ms}
    overflow = raw_batch(raw_record(timestamp_delta=2**66), base_timestamp_ms=now_ms)
    claims = raw_batch(b"", 2**31 - 1, Compression.GZIP, body=b"garbage")
    return (
        _produced(HOSTILE_TOPIC, overflow),
        _produced(HOSTILE_TOPIC, claims),
        _produced(HOSTILE_TOPIC, bomb(Compression.ZSTD, BOMB_RECORDS)),
        _produced("__consumer_offsets", raw_batch(raw_record()), "__admin_client"),
        _frame(
            ApiKey.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": HOSTILE_TOPIC, "partitions": [partition]}],
        ),
    )


@cache
def forged() -> Sequence[bytes]:
    """Requests of the quorum and of brokers, by a client that is no node."""
    node = "node-0:AAAAAAAAAAAAAAAAAAAAAA"
    begins = [
        build_begin_quorum_epoch_request(cluster, -1, 1, HIGHEST_EPOCH)
        for cluster in ("anything", "crucible-bench-cluster")
    ]
    said: dict[str, Any] = {"broker_id": 0, "broker_epoch": HIGHEST_EPOCH}
    return (
        *(frame(ApiKey.BEGIN_QUORUM_EPOCH, 0, body, node) for body in begins),
        _frame(ApiKey.BROKER_REGISTRATION, 1, node, cluster_id="anything", incarnation_id=UUID(int=7), **said),
        _frame(ApiKey.BROKER_HEARTBEAT, 0, node, want_shut_down=True, **said),
        _frame(ApiKey.ALTER_PARTITION, 2, node, topics=[], **said),
    )


def one_of(frames: Callable[[], Sequence[bytes]]) -> Callable[[Random], bytes]:
    def choose(random: Random) -> bytes:
        return random.choice(frames())

    return choose


HOST: Final = "127.0.0.1"
MIB: Final = 1 << 20
TINY_BUFFER: Final = 4096
"""Of a peer that does not read, so that the broker keeps what the system does not take."""
HOLD_S: Final = (1.0, 5.0)
"""Bounds of the time for which a peer keeps its connection or request."""
BREATH_S: Final = (0.2, 1.0)
"""Between two deeds of a peer that is to be a nuisance and not a benchmark."""

Frames: TypeAlias = Callable[[Random], bytes]
"""Makes whole frames that a broker must be able to decode, or must refuse."""


class Peer:
    """One connection. The loop's socket calls are used, because a stream would read what a hostile peer leaves."""

    def __init__(self, port: int, random: Random) -> None:
        self.random = random
        self.sent_bytes = 0
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def connect(self, receive_buffer: int = 0) -> None:
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await self._loop.sock_connect(self._socket, (HOST, self._port))

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)
        self.sent_bytes += len(data)

    async def read_some(self) -> bytes:
        return await self._loop.sock_recv(self._socket, 1 << 16)

    async def pause(self, bounds_s: tuple[float, float]) -> None:
        await asyncio.sleep(self.random.uniform(*bounds_s))

    def reset(self) -> None:
        """Close with a TCP reset instead of a FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


Life: TypeAlias = Callable[[Peer], Awaitable[None]]


_API_VERSIONS: Final = frame(ApiKey.API_VERSIONS, 3, API_VERSIONS_REQUEST)
_METADATA: Final = frame(ApiKey.METADATA, 9, ALL_TOPICS)


def _fetch_all(max_wait_ms: int = 0) -> bytes:
    wanted = FetchTopic(TOPIC, NO_TOPIC_ID, [FetchPartition(0, 0, 50 * MIB)])
    return frame(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=max_wait_ms, max_bytes=50 * MIB, topics=[wanted]))


async def half_frame(peer: Peer) -> None:
    """A frame of megabytes that never gets its second half."""
    await peer.connect()
    length = peer.random.choice([MIB // 2, MIB, 4 * MIB])
    await peer.send(struct.pack(">i", length) + bytes(length // 2))
    await peer.pause(HOLD_S)


async def huge_length(peer: Peer) -> None:
    """A length that nothing follows: the largest that is allowed, or one that is not."""
    await peer.connect()
    await peer.send(struct.pack(">i", peer.random.choice([104_857_600, 0x7FFFFFFF, -1])) + b"abc")
    await peer.pause(HOLD_S)


async def pipelining(peer: Peer) -> None:
    """Hundreds of requests at once, again and again, whose responses are not read."""
    await peer.connect(TINY_BUFFER)
    for _ in range(10):
        await peer.send(peer.random.choice([_API_VERSIONS, _METADATA]) * 300)
        await peer.pause(BREATH_S)


async def unread_responses(peer: Peer) -> None:
    """Fetch all records of a topic, and read nothing."""
    await peer.connect(TINY_BUFFER)
    await peer.send(_fetch_all() * 2)
    await peer.pause(HOLD_S)


async def slow_loris(peer: Peer) -> None:
    """A valid request, byte by byte."""
    await peer.connect()
    for byte in _METADATA:
        await peer.send(bytes([byte]))
        await peer.pause((0.05, 0.2))
    await peer.read_some()


async def reset_in_the_middle(peer: Peer) -> None:
    """A reset while a request is on its way, or while its response is awaited."""
    await peer.connect()
    request = peer.random.choice([_METADATA, _fetch_all(500), _API_VERSIONS])
    await peer.send(request[: peer.random.randrange(1, len(request) + 1)])
    await peer.pause((0.0, 0.2))
    peer.reset()
    await peer.pause(BREATH_S)


async def garbage(peer: Peer) -> None:
    """Random bytes: alone, behind a length that fits, or behind a header that fits."""
    await peer.connect()
    noise = peer.random.randbytes(peer.random.choice([3, 60, 5000]))
    header = struct.pack(">hhih", peer.random.randrange(-1, 80), peer.random.randrange(-1, 14), 1, -1)
    framed = peer.random.choice([noise, struct.pack(">i", len(noise)) + noise])
    if peer.random.random() < 0.5:
        framed = struct.pack(">i", len(header + noise)) + header + noise
    await peer.send(framed)
    await peer.pause(BREATH_S)


async def flood(peer: Peer) -> None:
    """Comes and goes."""
    await peer.connect()
    await peer.pause((0.0, 0.3))


def valid_frames(random: Random) -> bytes:
    """Small and large requests of the usual kinds."""
    names = [random.choice([TOPIC, "", "x" * 30_000, "no-such-topic"]) for _ in range(random.choice([1, 10, 40]))]
    one_topic = frame(ApiKey.METADATA, 9, metadata_request(names))
    return random.choice([_API_VERSIONS, _METADATA, _fetch_all(), one_topic])


def requests(frames: Frames) -> Life:
    """Valid but hostile requests, each of which gets a response or closes the connection."""

    async def life(peer: Peer) -> None:
        await peer.connect()
        for _ in range(5):
            await peer.send(frames(peer.random))
            if not await peer.read_some():
                return
            await peer.pause(BREATH_S)

    return life


KINDS: Final[Mapping[str, Life]] = {
    "half-frame": half_frame,
    "huge-length": huge_length,
    "pipelining": pipelining,
    "unread-responses": unread_responses,
    "slow-loris": slow_loris,
    "reset": reset_in_the_middle,
    "garbage": garbage,
    "flood": flood,
    "requests": requests(valid_frames),
    "huge-names": requests(one_of(huge_names)),
    "repetition": requests(one_of(repetition)),
    "records": requests(one_of(records)),
    "forged": requests(one_of(forged)),
}
