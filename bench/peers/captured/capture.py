"""Capture the Produce requests that client libraries write: ``python -m bench.peers.captured.capture [CLIENT...]``.

Each client writes the same three records to the reference broker through a proxy, plain and idempotent, with each
compression that it has. The proxy copies the frames of Produce requests, with their lengths, into
``CLIENT-VERSION.bin``. The client ID says what a frame is: ``sarama/plain/gzip``.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import aiokafka
import confluent_kafka

from bench import golang
from bench.peers.clients import connect, create_topic
from bench.peers.kafka import KAFKA_VERSION, run_java
from bench.peers.node import end
from bench.peers.reference import ReferenceNode
from bench.ports import free_ports
from reference_broker.wire.apis import ApiKey

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka

FOLDER = Path(__file__).resolve().parent
TOPIC = "captured"
RECORDS: tuple[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]], ...] = (
    (b"k1", b"a value that is long enough to be compressed, " * 12, [("trace", b"1")]),
    (None, b"without a key", []),
    (b"k2", None, []),
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT_S = 120


class Proxy(ThreadingTCPServer):
    """Forward connections to the broker. ``frames`` gets the Produce requests, with their lengths."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, broker_port: int) -> None:
        self.broker_port = broker_port
        self.frames: list[bytes] = []
        super().__init__(("127.0.0.1", port), _Connection)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Connection(BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Proxy)
        with socket.create_connection(("127.0.0.1", self.server.broker_port)) as broker:
            threading.Thread(target=_copy, args=(broker, self.request), daemon=True).start()
            stream = self.request.makefile("rb")
            while length := stream.read(4):
                frame = length + stream.read(int.from_bytes(length, "big"))
                if int.from_bytes(frame[4:6], "big") == ApiKey.PRODUCE:
                    self.server.frames.append(frame)
                broker.sendall(frame)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        """The client has closed its connection."""


def _kafka_python(bootstrap: str) -> None:
    for codec, idempotent, client_id in _ways("kafka-python", codecs=("none", "gzip", "lz4", "zstd")):
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            enable_idempotence=idempotent,
            compression_type=None if codec == "none" else codec,
            linger_ms=200,
        )
        for key, value, headers in RECORDS:
            producer.send(TOPIC, value, key, headers, partition=0)
        producer.flush(20)
        producer.close()


def _aiokafka(bootstrap: str) -> None:
    async def write(codec: str, idempotent: bool, client_id: str) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            enable_idempotence=idempotent,
            compression_type=None if codec == "none" else codec,
            linger_ms=200,
        )
        await producer.start()
        sent = [await producer.send(TOPIC, value, key, 0, headers=headers) for key, value, headers in RECORDS]
        await asyncio.gather(*sent)
        await producer.stop()

    for way in _ways("aiokafka"):
        asyncio.run(write(*way))


def _librdkafka(bootstrap: str) -> None:
    for codec, idempotent, client_id in _ways("librdkafka"):
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "enable.idempotence": idempotent,
            "compression.type": codec,
            "linger.ms": 200,
        }
        producer = confluent_kafka.Producer(settings)
        for key, value, headers in RECORDS:
            producer.produce(TOPIC, value, key, 0, headers=[*headers])
        producer.flush(20)


def _java(bootstrap: str) -> None:
    for codec, idempotent, client_id in _ways("java"):
        properties = [f"client.id={client_id}", f"enable.idempotence={str(idempotent).lower()}", "linger.ms=200"]
        reading = ["parse.key=true", "parse.headers=true", "null.marker=NULL"]
        words = ["--bootstrap-server", bootstrap, "--topic", TOPIC, "--compression-codec", codec, "--batch-size", "100"]
        words += [word for each in properties for word in ("--producer-property", each)]
        words += [word for each in reading for word in ("--property", each)]
        lines = (
            f"{','.join(f'{name}:{text.decode()}' for name, text in headers) or 'NULL'}\t"
            f"{(key or b'NULL').decode()}\t{(value or b'NULL').decode()}\n"
            for key, value, headers in RECORDS
        )
        run_java("org.apache.kafka.tools.ConsoleProducer", words, LIMIT_S, stdin="".join(lines))


def _go(name: str) -> Callable[[str], None]:
    def write(bootstrap: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            product = Path(folder) / "clients"
            golang.build("the Go clients", ["build", "-C", str(FOLDER / "go"), "-o", str(product), "."], product)
            subprocess.run([product, name, bootstrap, TOPIC], check=True, timeout=LIMIT_S)

    return write


def _javascript(name: str) -> Callable[[str], None]:
    def write(bootstrap: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for path in (FOLDER / "js").iterdir():
                (Path(folder) / path.name).write_bytes(path.read_bytes())
            subprocess.run(["npm", "install", "--silent"], cwd=folder, check=True, timeout=LIMIT_S)
            command = ["node", "main.mjs", name, bootstrap, TOPIC]
            subprocess.run(command, cwd=folder, check=True, timeout=LIMIT_S)

    return write


def _ways(name: str, codecs: tuple[str, ...] = CODECS) -> Iterator[tuple[str, bool, str]]:
    """Yield each compression and kind of producer, with the client ID that says so."""
    for codec in codecs:
        for kind in ("plain", "idempotent"):
            yield codec, kind == "idempotent", f"{name}/{kind}/{codec}"


CLIENTS: dict[str, tuple[str, Callable[[str], None]]] = {
    "kafka-python": (version("kafka-python"), _kafka_python),
    "aiokafka": (version("aiokafka"), _aiokafka),
    "librdkafka": (str(confluent_kafka.libversion()[0]), _librdkafka),
    "java": (KAFKA_VERSION, _java),
    "sarama": ("1.61.1", _go("sarama")),
    "franz-go": ("1.22.3", _go("franz-go")),
    "kafka-go": ("0.4.51", _go("kafka-go")),
    "kafkajs": ("2.2.4", _javascript("kafkajs")),
    "platformatic": ("1.35.0", _javascript("platformatic")),
}
"""The version of each client, as ``go/go.mod`` and ``js/package.json`` pin it, and what writes its records."""


@contextmanager
def _broker(folder: Path) -> Iterator[Proxy]:
    """A node whose advertised address is the proxy's, with the topic."""
    port, behind = free_ports(2)
    config = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    node = ReferenceNode(0, behind, folder / "data", config)
    try:
        node.launch()
        node.await_ready()
        with connect(behind) as connection:
            create_topic(connection, TOPIC, 1)
        with Proxy(port, behind) as proxy:
            yield proxy
            proxy.shutdown()
    finally:
        end([node])


def main(chosen: list[str]) -> None:
    for name in chosen or CLIENTS:
        release, write = CLIENTS[name]
        with tempfile.TemporaryDirectory() as folder, _broker(Path(folder)) as proxy:
            write(f"127.0.0.1:{proxy.server_address[1]}")
        (FOLDER / f"{name}-{release}.bin").write_bytes(b"".join(proxy.frames))
        sys.stdout.write(f"{name} {release}: {len(proxy.frames)} requests\n")


if __name__ == "__main__":
    main(sys.argv[1:])
