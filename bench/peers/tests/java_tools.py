"""Apache Kafka's own command-line tools, run unmodified against any broker."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.kafka import ToolError, java_command, run_java

LIMIT_S = 60
"""A tool that takes longer has hung; each takes one or two seconds, most of it Java's start."""

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DUMP = "kafka.tools.DumpLogSegments"

_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """``leader`` is -1 if the tool shows none. ``elr`` and ``last_known_elr`` are those of KIP-966."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """``topic_id``: as Kafka prints it, base64 for URLs; ``configs``: the overrides."""

    topic_id: str
    configs: dict[str, str]
    partitions: dict[int, DescribedPartition]


@dataclass(frozen=True, slots=True)
class DescribedReplica:
    """Of the metadata log. ``lag``: records behind the leader; ``status``: Leader, Follower or Observer; times are
    wall-clock, -1 where the leader knows none."""

    node_id: int
    log_end_offset: int
    lag: int
    last_fetch_ms: int
    last_caught_up_ms: int
    status: str


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A row of ``kafka-consumer-groups --describe``. ``current`` -1: none committed; ``lag`` -1: not known."""

    topic: str
    partition: int
    current: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    offset: int
    timestamp_ms: int
    value: str


def run_tool(main_class: str, *words: str, stdin: str = "") -> str:
    """Run a tool, and return its standard output.

    Raise ToolError when it failed or hung, PeerError when there is no Java or no jars.
    """
    return _ran(main_class, words, stdin)[0]


def dump_segments(paths: Sequence[Path], *options: str) -> str:
    """``kafka-dump-log``: batches, or index entries checked against the ``.log`` file beside them.

    Complaints are at the end: the tool prints them on standard error and ends with 0.
    """
    return "".join(_ran(DUMP, ("--files", ",".join(str(path) for path in paths), *options), ""))


def _ran(main_class: str, words: Sequence[str], stdin: str) -> tuple[str, str]:
    """Return standard output and standard error."""
    return run_java(main_class, words, LIMIT_S, _JAVA_OPTIONS, stdin)


@dataclass(frozen=True, slots=True)
class JavaTools:
    """The tools that talk to a broker at ``bootstrap`` (HOST:PORT). Every method raises as ``run_tool`` does."""

    bootstrap: str

    def run(self, main_class: str, *words: str, stdin: str = "") -> str:
        return run_tool(main_class, *words, "--bootstrap-server", self.bootstrap, stdin=stdin)

    def create_topic(self, name: str, *words: str, configs: Mapping[str, str] | None = None) -> None:
        """``words``: more options, such as ``--partitions 3``."""
        settings = [word for key, value in (configs or {}).items() for word in ("--config", f"{key}={value}")]
        self.run(TOPICS, "--create", "--topic", name, *words, *settings)

    def list_topics(self) -> list[str]:
        return self.run(TOPICS, "--list").split()

    def describe_topic(self, name: str) -> DescribedTopic:
        return _described(self.run(TOPICS, "--describe", "--topic", name))

    def grow_topic(self, name: str, partitions: int) -> None:
        self.run(TOPICS, "--alter", "--topic", name, "--partitions", str(partitions))

    def delete_topic(self, name: str) -> None:
        self.run(TOPICS, "--delete", "--topic", name)

    def set_config(self, topic: str, key: str, value: str) -> None:
        words = ["--entity-type", "topics", "--entity-name", topic, "--add-config", f"{key}={value}"]
        self.run(CONFIGS, "--alter", *words)

    def configs(self, entity_type: str, name: str) -> dict[str, str]:
        """Every setting of a topic or broker (``topics``, ``brokers``), with defaults."""
        shown = self.run(CONFIGS, "--describe", "--all", "--entity-type", entity_type, "--entity-name", name)
        return dict(re.findall(r"^  ([\w.]+)=(.*?) sensitive=", shown, re.M))

    def produce(self, topic: str, values: Sequence[str], compression: str = "none", *words: str) -> None:
        """One record for each value; the Java producer's defaults: idempotent, acks=all."""
        stdin = "".join(f"{value}\n" for value in values)
        self.run(PRODUCER, "--topic", topic, "--compression-codec", compression, *words, stdin=stdin)

    def consume(self, topic: str, partition: int, offset: str, *words: str) -> list[ConsumedRecord]:
        """Consume from ``offset`` (a number, ``earliest``, ``latest``); ``words`` say when to end, and more."""
        return _consumed(self.run(CONSUMER, *_consumer_words(topic, partition, offset), *words))

    def consume_as_group(self, topic: str, group: str, count: int) -> list[str]:
        """The values of so many records, as the group's only member; from the earliest where nothing is committed. What
        it printed is committed when this returns."""
        words = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(count)]
        return self.run(CONSUMER, *words).splitlines()

    def groups(self, *words: str) -> str:
        """``kafka-consumer-groups``. It prints some refusals and ends with 0."""
        shown = self.run(GROUPS, *words)
        if shown.lstrip().startswith("Error: Deletion"):
            raise ToolError(shown.strip())
        return shown

    def group_offsets(self, group: str) -> list[GroupOffset]:
        """``--describe``: committed offsets beside the logs' ends, by topic and partition."""
        rows = re.findall(
            rf"^{group}\s+(\S+)\s+(\d+)\s+(\d+|-)\s+(\d+|-)\s+(\d+|-)\s",
            self.groups("--describe", "--group", group),
            re.M,
        )
        numbers = [(topic, *(-1 if each == "-" else int(each) for each in row)) for topic, *row in rows]
        return sorted((GroupOffset(*number) for number in numbers), key=lambda each: (each.topic, each.partition))

    @contextmanager
    def consuming(self, topic: str, partition: int, offset: str) -> Iterator["RunningConsumer"]:
        """A console consumer that goes on until the block ends."""
        words = [*_consumer_words(topic, partition, offset), "--bootstrap-server", self.bootstrap]
        with _running_consumer(words) as process:
            yield RunningConsumer(process)

    def offsets(self, topic: str, time: str) -> dict[int, int]:
        """Partition to offset at ``time``: milliseconds, ``earliest``, ``latest``, ``max-timestamp``.

        A partition with no record at or after the time is omitted.
        """
        rows = (line.rsplit(":", 2) for line in self.run(OFFSETS, "--topic", topic, "--time", time).split())
        return {int(partition): int(offset) for _, partition, offset in rows}

    def delete_records(self, plan: Path, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Partition to low watermark; ``plan`` is the file that the tool reads, written here. -1: to the end.

        The tool lists a refused partition and ends with 0: ToolError here.
        """
        entries = [{"topic": t, "partition": p, "offset": offset} for (t, p), offset in offsets.items()]
        plan.write_text(json.dumps({"version": 1, "partitions": entries}))
        shown = self.run(DELETE_RECORDS, "--offset-json-file", str(plan))
        if "\terror: " in shown:
            raise ToolError(shown.strip())
        rows = re.findall(r"^partition: (\S+)-(\d+)\tlow_watermark: (-?\d+)$", shown, re.M)
        return {(topic, int(partition)): int(low) for topic, partition, low in rows}

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """API key to its lowest and highest version, for the APIs that the tool can use."""
        rows = re.findall(r"\((\d+)\): (\d+)(?: to (\d+))? \[usable", self.run(API_VERSIONS))
        return {int(key): (int(low), int(high or low)) for key, low, high in rows}

    def quorum_status(self) -> dict[str, str]:
        """``kafka-metadata-quorum describe --status``, by the words before each colon."""
        shown = run_tool(QUORUM, "--bootstrap-server", self.bootstrap, "describe", "--status")
        return {key: value.strip() for key, value in re.findall(r"^(\w+):(.*)$", shown, re.M)}

    def quorum_replication(self) -> list[DescribedReplica]:
        """``kafka-metadata-quorum describe --replication``: the leader, the followers, the observers."""
        shown = run_tool(QUORUM, "--bootstrap-server", self.bootstrap, "describe", "--replication")
        head, *rows = [line.split() for line in shown.splitlines() if line.strip()]
        cells = [dict(zip(head, row, strict=True)) for row in rows]
        return [
            DescribedReplica(
                int(row["NodeId"]),
                int(row["LogEndOffset"]),
                int(row["Lag"]),
                int(row["LastFetchTimestamp"]),
                int(row["LastCaughtUpTimestamp"]),
                row["Status"],
            )
            for row in cells
        ]

    def cluster_id(self) -> str:
        return self.run(CLUSTER, "cluster-id").strip().removeprefix("Cluster ID: ")


@contextmanager
def console_member(bootstrap: str, topic: str, group: str) -> "Iterator[subprocess.Popen[str]]":
    """A console consumer in a group until the block ends, which makes it leave. Values on its standard output, one a
    line."""
    words = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group, "--from-beginning"]
    with _running_consumer(words) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def _running_consumer(words: Sequence[str]) -> "Iterator[subprocess.Popen[str]]":
    command = java_command(CONSUMER, words, _JAVA_OPTIONS)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True, slots=True)
class RunningConsumer:
    process: "subprocess.Popen[str]"

    def next_value(self) -> str:
        """Wait for the next record's value; empty when the consumer ended."""
        assert self.process.stdout is not None
        return _record(self.process.stdout.readline()).value

    def stop(self) -> int:
        """Terminate it: it closes its fetch session. Java's exit status for that is 143."""
        self.process.terminate()
        return self.process.wait(LIMIT_S)


def _consumer_words(topic: str, partition: int, offset: str) -> list[str]:
    shown = ["--property", "print.offset=true", "--property", "print.timestamp=true"]
    return ["--topic", topic, "--partition", str(partition), "--offset", offset, *shown]


def _consumed(shown: str) -> list[ConsumedRecord]:
    return [_record(line) for line in shown.splitlines()]


def _record(line: str) -> ConsumedRecord:
    """Parse a line such as ``CreateTime:1700000000000 <tab> Offset:17 <tab> value``."""
    timestamp, offset, value = line.rstrip("\n").split("\t", 2)
    return ConsumedRecord(int(offset.rpartition(":")[2]), int(timestamp.rpartition(":")[2]), value)


def _described(shown: str) -> DescribedTopic:
    """Parse the line of the topic and one for each partition, with tabs between fields."""
    head, *rows = [
        dict(field.split(": ", 1) for field in line.strip().split("\t") if ": " in field) for line in shown.splitlines()
    ]
    configs = dict(pair.split("=", 1) for pair in re.split(r",(?=[\w.]+=)", head.get("Configs", "")) if pair)
    partitions = {
        int(row["Partition"]): DescribedPartition(
            -1 if row["Leader"] == "none" else int(row["Leader"]),
            *(_ids(row.get(name, "")) for name in ("Replicas", "Isr", "Elr", "LastKnownElr")),
        )
        for row in rows
    }
    return DescribedTopic(head["TopicId"], configs, partitions)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each.strip().isdecimal())
