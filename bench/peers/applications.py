"""Java applications that run beside a cluster, what they write, and kills of nodes while they work."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import confluent_kafka

from bench.children import ends_with_me
from bench.peers.clients import RetryingClient
from bench.peers.cluster import PeerCluster, until
from bench.peers.kafka import java_command
from bench.peers.node import BrokerNode, PeerError
from bench.peers.reference import ReferenceNode

VM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
LIMIT_S = 60.0
AHEAD_TRIES = 40
AHEAD_LIMIT_S = 0.3
COMMITTED = {"isolation.level": "read_committed", "enable.auto.commit": "false", "group.id": "crucible-bench-reader"}

Progress: TypeAlias = Callable[[], int]
"""Returns a number that grows while an application works, such as its acknowledged records."""
Rows: TypeAlias = list[tuple[bytes | None, bytes | None]]
"""The key and value of each record, in the order of offsets."""
Records: TypeAlias = dict[int, Rows]
"""The rows of each partition."""


class Application:
    """A Java program in the background. Its standard output and error go to ``folder``/``name``.out and .err, and it
    ends with the block. ``classpath`` is that of Kafka's server and tools if it is None."""

    def __init__(
        self, name: str, folder: Path, main_class: str, words: Sequence[str], classpath: str | None = None
    ) -> None:
        self.name = name
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self._command = java_command(main_class, words, VM, classpath)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.launch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def launch(self) -> None:
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=ends_with_me()
            )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def await_end(self, limit_s: float, status: int = 0) -> None:
        """Wait until the program ends by itself. Raise PeerError if it does not or ends with another status."""
        assert self._process is not None
        try:
            ended = self._process.wait(limit_s)
        except subprocess.TimeoutExpired as expired:
            raise PeerError(f"{self.name} did not end within {limit_s:g} s: {self.last_lines()}") from expired
        if ended != status:
            raise PeerError(f"{self.name} ended with status {ended}: {self.last_lines()}")

    def stop(self, limit_s: float = LIMIT_S) -> None:
        """Send SIGTERM, and wait until the shutdown hooks have run and it ends with status 143. Raise PeerError."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self.await_end(limit_s, 128 + signal.SIGTERM)

    def lines(self) -> list[str]:
        """Return the whole lines that it has printed so far."""
        return self.out.read_text(errors="replace").rpartition("\n")[0].splitlines()

    def count(self, text: str) -> int:
        """Return how often ``text`` is in its standard output so far."""
        return self.out.read_bytes().count(text.encode())

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what it has printed as JSON objects with this name, as Kafka's verifiable clients do."""
        found = [json.loads(line) for line in self.lines() if line.startswith("{")]
        return [each for each in found if each.get("name") == name]

    def last_lines(self) -> str:
        """Return the ends of both outputs in one line."""
        texts = [path.read_text(errors="replace") for path in (self.out, self.err) if path.exists()]
        return " / ".join(line for text in texts for line in text.splitlines()[-5:])


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a properties file of Java and return its path."""
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def committed_end(bootstrap: str, topic: str, partitions: int) -> int:
    """Return the sum of the last stable offsets, or -1 if not all leaders respond."""
    consumer = confluent_kafka.Consumer({**COMMITTED, "bootstrap.servers": bootstrap, "log_level": 0})
    try:
        wanted = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
        return sum(consumer.get_watermark_offsets(each, timeout=5)[1] for each in wanted)
    except confluent_kafka.KafkaException:
        return -1
    finally:
        consumer.close()


def read_committed(bootstrap: str, topic: str, partitions: int, limit_s: float = LIMIT_S) -> Records:
    """Read each partition to its last stable offset with librdkafka, which is no part of any application. Raise
    PeerError."""
    settings = {**COMMITTED, "bootstrap.servers": bootstrap, "log_level": 0, "enable.partition.eof": "true"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    found: Records = {number: [] for number in range(partitions)}
    ended: set[int] = set()

    def all_read() -> bool:
        for message in consumer.consume(1000, 0.2):
            partition, error = message.partition() or 0, message.error()
            if error is None:
                found[partition].append((message.key(), message.value()))
                ended.discard(partition)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(partition)
        return len(ended) == partitions

    try:
        until(all_read, limit_s, f"reading {topic} to its end")
        return found
    finally:
        consumer.close()


def delivery_problems(acknowledged: Sequence[str], read: Sequence[str], sent: Sequence[str]) -> list[str]:
    """Return what is wrong with values that were each sent once: those acknowledged but never read, read more than
    once, or never sent."""
    times, known = Counter(read), set(sent)
    kinds = {
        "lost": [each for each in dict.fromkeys(acknowledged) if each not in times],
        "duplicated": [each for each, count in times.items() if count > 1],
        "never sent": [time for time in times if time not in known],
    }
    return [f"{len(each)} {kind}: {each[:3]}" for kind, each in kinds.items() if each]


def order_problems(partitions: Records) -> list[str]:
    """Return the partitions in which numbers are not in ascending order."""
    numbers = {partition: [int(value or b"-1") for _, value in rows] for partition, rows in partitions.items()}
    return [f"{each} out of order" for each, number in numbers.items() if any(a >= b for a, b in pairwise(number))]


def copy_problems(source: Records, copy: Records) -> list[str]:
    """Return how a copy differs from its source, where every partition must have the same records in the same order."""
    found = []
    for partition, wanted in source.items():
        has = copy.get(partition, [])
        if has == wanted:
            continue
        missing, extra = Counter(wanted) - Counter(has), Counter(has) - Counter(wanted)
        counts = f"{missing.total()} lost and {extra.total()} duplicated or foreign"
        first = next((row for row in (*missing, *extra)), "the order differs")
        found.append(f"partition {partition}: {counts} of {len(wanted)}, first {first}")
    return found


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL of the leader of a partition."""

    partition: str
    node_id: int
    before: int  # the application's progress before the kill
    at: int  # its progress at the kill
    after: int  # its progress after the kill
    unreplicated_bytes: int  # how much longer its log was than those of its followers, if these were stopped first

    @property
    def fell_at_work(self) -> bool:
        return self.before < self.at < self.after


@dataclass(frozen=True, slots=True)
class Killer:
    """Kills nodes of a cluster while an application works."""

    cluster: PeerCluster
    client: RetryingClient
    progress: Progress
    step: int  # progress required before and after each kill; more than responses in flight could show
    limit_s: float = LIMIT_S

    def kill_leader(self, topic: str, partition: int, ahead: bool = False) -> Kill:
        """Kill the leader with SIGKILL, wait until the application works on without it, and restart it.

        With ``ahead`` the other nodes are stopped first, until the leader has records that no other replica has. Raise
        PeerError.
        """
        before = max(0, self.progress())
        at = self._await_progress(before, "before the kill")
        leader = self.cluster.member(self.client.led(topic, partition, self.limit_s).leader)
        others = [member for member in self.cluster.members if member is not leader]
        unreplicated = self._stopped_while_ahead(leader, others, f"{topic}-{partition}") if ahead else 0
        leader.send_signal(signal.SIGKILL)
        leader.reap()
        for other in others:
            other.send_signal(signal.SIGCONT)
        self.client.led(topic, partition, self.limit_s, other_than=leader.node_id)
        after = self._await_progress(max(at, self.progress()), "after the kill")
        leader.launch()
        leader.await_ready()
        return Kill(f"{topic}-{partition}", leader.node_id, before, at, after, unreplicated)

    def _await_progress(self, since: int, when: str) -> int:
        until(lambda: self.progress() >= since + self.step, self.limit_s, f"progress {when}, from {since}")
        return self.progress()

    def _stopped_while_ahead(self, leader: BrokerNode, others: Sequence[BrokerNode], partition: str) -> int:
        """Stop the other nodes when the leader's log has just grown, until it is longer than theirs. They are resumed
        in between, since an application may wait for them before it writes here again. Return the difference."""

        def ahead() -> int:
            return _log_bytes(leader, partition) - max(_log_bytes(other, partition) for other in others)

        for _ in range(AHEAD_TRIES):
            self._await_growth(leader, partition)
            for other in others:
                other.send_signal(signal.SIGSTOP)
            try:
                until(lambda: ahead() > 0, AHEAD_LIMIT_S, "more in the leader's log", 0.001)
            except PeerError:
                for other in others:
                    other.send_signal(signal.SIGCONT)
            else:
                return ahead()
        raise PeerError(f"the leader of {partition} was never ahead of its stopped followers")

    def _await_growth(self, leader: BrokerNode, partition: str) -> None:
        known = _log_bytes(leader, partition)
        until(lambda: _log_bytes(leader, partition) > known, self.limit_s, f"growth of {partition}", 0.001)


def _log_bytes(node: BrokerNode, partition: str) -> int:
    assert isinstance(node, ReferenceNode)
    return sum(path.stat().st_size for path in (node.data / partition).glob("*.log"))
