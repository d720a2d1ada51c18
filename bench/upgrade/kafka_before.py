"""Apache Kafka 2.7.2 with its ZooKeeper writes a log directory: the last release before producer snapshots are kept.

Stock producers of librdkafka write to one topic, with timestamps of the last two days. Kafka keeps the snapshots of its
newest segments only. All of it runs on loopback and is stopped cleanly.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.node import BrokerNode, PeerError, end
from bench.ports import free_ports
from bench.targets.model import TargetError
from bench.targets.providers import kafka

VERSION_BEFORE = "2.7.2"
KAFKA_BEFORE = f"Apache Kafka {VERSION_BEFORE}"
TOPIC = "events"
SEGMENT_BYTES = 1 << 20
TURNS = 320
TURN_RECORDS, RECORD_BYTES = 4, 8_000
HOURS = 48.0
LIVES_TURNS = 16
"""After so many turns a producer ends, and a new one comes."""
TRANSACTIONAL_EVERY = 4
"""One of so many producers writes in transactions, and aborts every third one."""
LONG_TURNS = range(150, 190)
"""One transaction lasts that long, over several segments and over the time before which producers are expired."""
LIMIT_S = 60.0
ENDED_BY_SIGTERM = 143
"""Java's exit code for a clean end."""
_JAVA = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_ZOOKEEPER = """dataDir={folder}/zookeeper
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
"""
_SERVER = """broker.id=0
zookeeper.connect=127.0.0.1:{zookeeper}
listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.ms=-1
"""


def written_by_kafka(folder: Path, say: Callable[[str], None]) -> Path:
    """Lets Kafka write a directory below ``folder``, and returns its path. Raises PeerError."""
    say(f"{KAFKA_BEFORE} and its ZooKeeper start; Maven fetches their jars at the first use")
    with _running(folder) as port:
        say(f"producers write {TURNS * TURN_RECORDS * RECORD_BYTES >> 20} MiB to {KAFKA_BEFORE}")
        _write(f"127.0.0.1:{port}")
    say(f"{KAFKA_BEFORE} has stopped cleanly")
    return folder / "data"


@contextmanager
def _running(folder: Path) -> Iterator[int]:
    """Yields the broker's port."""
    try:
        classpath = kafka.classpath(VERSION_BEFORE)
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong
    folder.mkdir(parents=True, exist_ok=True)
    zookeeper, port = free_ports(2)
    (folder / "zoo.cfg").write_text(_ZOOKEEPER.format(folder=folder, port=zookeeper))
    (folder / "server.properties").write_text(_SERVER.format(folder=folder, zookeeper=zookeeper, port=port))
    java = ["java", *_JAVA, "-cp", classpath]
    keeper_main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    keeper_words = [*java, keeper_main, str(folder / "zoo.cfg")]
    keeper = BrokerNode("ZooKeeper", 0, zookeeper, keeper_words, folder / "zookeeper.log")
    broker_words = [*java, "kafka.Kafka", str(folder / "server.properties")]
    broker = BrokerNode(KAFKA_BEFORE, 0, port, broker_words, folder / "kafka.log")
    try:
        keeper.launch()
        broker.launch()
        broker.await_ready()
        yield port
        stop_cleanly(broker)
    finally:
        end([broker, keeper], signal.SIGKILL)


def stop_cleanly(node: BrokerNode) -> None:
    """Raises PeerError if it had to be killed: after a crash Kafka makes all snapshots anew."""
    end([node], signal.SIGTERM)
    if node.process is None or node.process.returncode not in (0, ENDED_BY_SIGTERM):
        raise PeerError(f"{node.name} did not stop cleanly.")


def _write(bootstrap: str) -> None:
    """Raises PeerError."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    try:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        wanted = NewTopic(TOPIC, 1, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
        admin.create_topics([wanted])[TOPIC].result(LIMIT_S)
        _produce(bootstrap)
    except KafkaException as failure:
        raise PeerError(f"{KAFKA_BEFORE} did not take the records: {failure}") from failure


def _produce(bootstrap: str) -> None:
    from confluent_kafka import Producer

    def producer(transactional_id: str = "") -> Producer:
        config: dict[str, str | int | bool] = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
        made = Producer({**config, "transactional.id": transactional_id} if transactional_id else config)
        if transactional_id:
            made.init_transactions(LIMIT_S)
        return made

    def send(by: Producer, turn: int) -> None:
        at_ms = now_ms - int((TURNS - 1 - turn) * HOURS * 3_600_000 / TURNS)
        for number in range(TURN_RECORDS):
            value = (turn * TURN_RECORDS + number).to_bytes(8, "big") * (RECORD_BYTES // 8)
            by.produce(TOPIC, value, partition=0, timestamp=at_ms)
        if by.flush(LIMIT_S):
            raise PeerError(f"{KAFKA_BEFORE} did not acknowledge records within {LIMIT_S:g} s.")

    now_ms, current, long = time.time_ns() // 1_000_000, producer(), producer("long")
    is_transactional = False
    for turn in range(TURNS):
        life, age = divmod(turn, LIVES_TURNS)
        if age == 0:
            is_transactional = life % TRANSACTIONAL_EVERY == 1
            current = producer(f"life-{life}" if is_transactional else "")
        if turn == LONG_TURNS.start:
            long.begin_transaction()
            send(long, turn)
        if turn == LONG_TURNS.stop:
            send(long, turn)
            long.commit_transaction(LIMIT_S)
        if is_transactional:
            current.begin_transaction()
        send(current, turn)
        if is_transactional and turn % 3 == 0:
            current.abort_transaction(LIMIT_S)
        elif is_transactional:
            current.commit_transaction(LIMIT_S)
