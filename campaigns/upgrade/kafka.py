"""Apache Kafka before and after an upgrade: the older one writes a log directory, and the newer one gets it.

Before: Kafka 2.7.2 with its ZooKeeper, the last release before producer snapshots are kept. Stock producers of
librdkafka write to one topic, with timestamps of the last two days. Kafka keeps the snapshots of its newest segments
only. All of it runs on loopback and is stopped cleanly.

After: Kafka 4.1.1 with LocalTieredStorage. The steps are those that are taken with the reference broker: Kafka makes
the topics and their IDs, stops cleanly, gets the files of their partitions, and starts again. Its checkpoints get the
ends of the logs, as a clean stop would write them.
"""

import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers.cluster import PeerCluster, target_cluster, until
from bench.peers.node import BrokerNode, PeerError, end
from bench.peers.systems import BOTH
from bench.ports import free_ports
from bench.targets.loader import find
from bench.targets.model import TargetError
from bench.targets.providers import kafka
from campaigns.upgrade import client
from campaigns.upgrade.full_replay import ReplayedSegment
from campaigns.upgrade.journey import eligible_segments
from campaigns.upgrade.kafka_files import checkpoint, checkpoint_rows
from campaigns.upgrade.taking_over import LOG_START, OldDirectory, put

VERSION_BEFORE = "2.7.2"
KAFKA_BEFORE = f"Apache Kafka {VERSION_BEFORE}"
TOPIC = "events"
SEGMENT_BYTES = 1 << 20
TURNS = 320
TURN_RECORDS, RECORD_BYTES = 4, 8_000
HOURS = 48.0
LIVES_TURNS = 16
"""Number of turns after which a producer ends and a new one comes."""
TRANSACTIONAL_EVERY = 4
"""Each fourth producer writes in transactions, and aborts every third one."""
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
    """Let Kafka write a directory below ``folder``, and return its path. Raise PeerError."""
    say(f"{KAFKA_BEFORE} and its ZooKeeper start; Maven fetches their jars at the first use")
    with _running(folder) as port:
        say(f"producers write {TURNS * TURN_RECORDS * RECORD_BYTES >> 20} MiB to {KAFKA_BEFORE}")
        _write(f"127.0.0.1:{port}")
    say(f"{KAFKA_BEFORE} has stopped cleanly")
    return folder / "data"


@contextmanager
def _running(folder: Path) -> Iterator[int]:
    """Yield the broker's port."""
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
    """Raise PeerError if it had to be killed: after a crash Kafka recreates all snapshots."""
    end([node], signal.SIGTERM)
    if node.process is None or node.process.returncode not in (0, ENDED_BY_SIGTERM):
        raise PeerError(f"{node.name} did not stop cleanly.")


def _write(bootstrap: str) -> None:
    """Raise PeerError."""
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


VERSION_AFTER = "4.1.1"
KAFKA_AFTER = f"Apache Kafka {VERSION_AFTER}"
SETTINGS = {
    **BOTH,
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.manager.task.retry.backoff.ms": "500",
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
}
ENDS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
LOG = "node-0/log.txt"
WATCHED_S = 30.0
START_LIMIT_S = 120.0
TIER_READY = "Initialized topic-based RLMM resources successfully"
POLL_INTERVAL_S = 0.5
_FAILURE = re.compile(r"NullPointerException: [^\n]*producerStateSnapshotFile[^\n]*")
_PLACE = re.compile(r"at (\S*RLMCopyTask\.copyLogSegment\([^)]*\))")


@dataclass(frozen=True, slots=True)
class Watched:
    """One run of Kafka with tiered topics."""

    how: str
    watched_s: float
    eligible: int
    listed: int
    """How many of the ``eligible`` segments it reported in the tier at the end."""
    stored: int
    """Number of objects in the tier's folder."""
    failures: int
    """Number of copy failures in its log."""
    last_failures: int
    """Those in the second half of the time."""
    message: str
    """The last failure's message."""
    place: str
    """Where the last failure was raised."""

    @property
    def is_stuck(self) -> bool:
        """Segments were left, and it still failed in the second half of the time."""
        return self.listed < self.eligible and self.last_failures > 0

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row, in the order of ``LIFE_HEADINGS``."""
        return (
            f"{KAFKA_AFTER}, {self.how}",
            f"{self.watched_s:.0f} s",
            f"{self.listed} of {self.eligible}",
            str(self.stored),
            f"{self.failures} ({self.last_failures} in the second half)",
            "yes" if self.is_stuck else "no",
        )


LIFE_HEADINGS = ("broker", "watched", "eligible segments listed", "objects in the tier", "failed copies", "stuck")


def watched(
    old: OldDirectory,
    replays: Mapping[str, Sequence[ReplayedSegment]],
    folder: Path,
    say: Callable[[str], None],
    limit_s: float = WATCHED_S,
) -> list[Watched]:
    """Two lives: the first in which the topics are tiered, and one after a clean restart. Raise PeerError and
    UpgradeError."""
    ends = {
        (partition.topic, partition.index): [one.next_offset for one in eligible_segments(replays[partition.name])]
        for partition in old.partitions
    }
    say(f"{KAFKA_AFTER} starts, and makes the topics and their IDs")
    with _prepared(folder) as cluster:
        (node,) = cluster.members
        with _life(cluster, folder / LOG, {}):
            client.create_topics(node.port, old.topics)
        _put(old, replays, folder / "node-0" / "data")
        lives: list[Watched] = []
        for how in ("made tiered", "after a clean restart"):
            with _life(cluster, folder / LOG, old.topics):
                if not lives:
                    client.make_tiered(node.port, list(old.topics))
                say(f"{KAFKA_AFTER}, {how}: watched for up to {limit_s:g} s")
                lives.append(_watch(how, node.port, ends, folder, limit_s))
    return lives


@contextmanager
def _prepared(folder: Path) -> Iterator[PeerCluster]:
    chosen = replace(find(f"kafka@{VERSION_AFTER}"), nodes=1)
    with target_cluster(chosen, folder, SETTINGS) as cluster:
        yield cluster


@contextmanager
def _life(cluster: PeerCluster, log: Path, topics: Mapping[str, int]) -> Iterator[None]:
    """Run the cluster from a start to a clean stop. Wait until the partitions have leaders and the remote tier is
    ready: Kafka does not end before that. Raise PeerError."""
    (node,) = cluster.members
    before = _count(log, TIER_READY)
    cluster.launch()
    cluster.await_ready()
    until(lambda: _count(log, TIER_READY) > before, START_LIMIT_S, f"The remote tier of {KAFKA_AFTER}")
    if topics:
        until(lambda: client.are_led(node.port, topics), START_LIMIT_S, f"A leader for each partition on {KAFKA_AFTER}")
    yield
    stop_cleanly(node)


def _count(log: Path, words: str) -> int:
    return log.read_text(errors="replace").count(words) if log.exists() else 0


def _put(old: OldDirectory, replays: Mapping[str, Sequence[ReplayedSegment]], data: Path) -> None:
    """Kafka's ``partition.metadata`` stays, with the topic's ID. Raise UpgradeError."""
    for partition in old.partitions:
        put(partition, data / partition.name)
    rows = {f"{each.topic} {each.index}": replays[each.name][-1].next_offset for each in old.partitions}
    for name in ENDS:
        _write_checkpoint(data / name, rows)
    _write_checkpoint(
        data / LOG_START, {f"{each.topic} {each.index}": each.log_start for each in old.partitions if each.log_start}
    )


def _write_checkpoint(path: Path, offsets: Mapping[str, int]) -> None:
    others = [" ".join(row) for row in checkpoint_rows(path) if " ".join(row[:2]) not in offsets]
    path.write_text(checkpoint([*others, *(f"{name} {offset}" for name, offset in offsets.items())]))


def _watch(how: str, port: int, ends: Mapping[tuple[str, int], Sequence[int]], folder: Path, limit_s: float) -> Watched:
    """Poll until all is listed, or until the time limit."""
    log, total = folder / LOG, sum(map(len, ends.values()))
    before, began, halfway, listed = len(_failures(log)), time.monotonic(), 0, 0
    while listed < total and time.monotonic() < began + limit_s:
        offsets = client.tiered_offsets(port, list(ends))
        listed = sum(end - 1 <= offsets.get(name, -1) for name, each in ends.items() for end in each)
        if time.monotonic() < began + limit_s / 2:
            halfway = len(_failures(log)) - before
        time.sleep(POLL_INTERVAL_S)
    found = _failures(log)
    places = _PLACE.findall(log.read_text(errors="replace"))
    return Watched(
        how,
        time.monotonic() - began,
        total,
        listed,
        sum(path.is_file() for path in (folder / "tier").rglob("*")),
        len(found) - before,
        len(found) - before - halfway,
        found[-1] if found else "",
        places[-1] if places else "",
    )


def _failures(log: Path) -> list[str]:
    return _FAILURE.findall(log.read_text(errors="replace"))
