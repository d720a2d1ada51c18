"""Apache Kafka's own Java tools, unmodified, against the reference broker and on its files."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.peers.kafka import ToolError
from bench.peers.node import BrokerNode
from bench.peers.stock_clients import producer_perf
from bench.peers.tests.java_tools import FEATURES, JavaTools, dump_segments, run_tool
from bench.peers.tests.nodes import reference_node
from reference_broker.apis.registry import SERVED
from reference_broker.wire.apis import FIRST_DRAFT_VERSION

if TYPE_CHECKING:
    from bench.peers.tests.conftest import Metrics

pytestmark = pytest.mark.peer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EACH = 300
PERF_RECORDS = 40_000

DUMP_COMPLAINTS = re.compile(
    "isvalid: false|Mismatches|Non-consecutive|Found timestamp mismatch|Found out of order|Could not|Error|Exception"
)
"""What kafka-dump-log says of a file that is not right."""


@pytest.fixture
def tools(node: BrokerNode) -> JavaTools:
    return JavaTools(node.bootstrap)


def test_api_versions_and_cluster_are_shown(tools: JavaTools) -> None:
    shown = tools.api_versions()
    public = {key: high for key, (low, high) in SERVED.items() if low < FIRST_DRAFT_VERSION}
    assert {key: high for key, (_, high) in shown.items()} == public
    assert re.fullmatch(r"[\w-]{22}", tools.cluster_id())


def _features(tools: JavaTools) -> dict[str, tuple[str, str, str]]:
    """Return by feature the supported range and the finalized level, as ``kafka-features describe`` prints them."""
    printed = run_tool(FEATURES, "--bootstrap-server", tools.bootstrap, "describe")
    row = r"^Feature: (\S+)\tSupportedMinVersion: (\S+)\tSupportedMaxVersion: (\S+)\tFinalizedVersionLevel: (\S+)\t"
    return {name: (low, high, level) for name, low, high, level in re.findall(row, printed, re.M)}


def test_features_follow_a_release_up_and_down_as_in_kafka(tmp_path: Path) -> None:
    """The output equals that of Apache Kafka 4.1.1, except for share.version 1, which is missing."""
    with reference_node(tmp_path) as node:
        tools = JavaTools(node.bootstrap)
        begin = _features(tools)
        assert begin["metadata.version"] == ("3.3-IV3", "4.1-IV1", "4.1-IV1")
        assert begin["group.version"] == begin["kraft.version"] == ("0", "1", "0")
        upgraded = run_tool(FEATURES, "--bootstrap-server", node.bootstrap, "upgrade", "--release-version", "4.1")
        levels = {"eligible.leader.replicas.version": "1", "group.version": "1", "kraft.version": "1"}
        levels |= {"metadata.version": "27", "transaction.version": "2"}
        assert upgraded.splitlines() == [f"{name} was upgraded to {level}." for name, level in levels.items()]
        shown = {name: level for name, (_, _, level) in _features(tools).items()}
        assert {name: shown[name] for name in levels} == levels | {"metadata.version": "4.1-IV1"}
        run_tool(FEATURES, "--bootstrap-server", node.bootstrap, "downgrade", "--release-version", "4.0")
        shown = {name: level for name, (_, _, level) in _features(tools).items()}
        assert (shown["metadata.version"], shown["eligible.leader.replicas.version"]) == ("4.0-IV3", "0")
        with pytest.raises(ToolError, match="Can't downgrade the version of this feature"):
            run_tool(FEATURES, "--bootstrap-server", node.bootstrap, "downgrade", "--feature", "kraft.version=0")
        with pytest.raises(ToolError, match="does not support this feature"):
            run_tool(FEATURES, "--bootstrap-server", node.bootstrap, "upgrade", "--feature", "share.version=1")


def test_topics_are_created_described_grown_and_deleted(tools: JavaTools) -> None:
    tools.create_topic("life", "--partitions", "3", configs={"retention.ms": "86400000", "cleanup.policy": "delete"})
    assert "life" in tools.list_topics()
    topic = tools.describe_topic("life")
    clusters = {"min.insync.replicas": "1"}  # The tool shows what the metadata sets for all brokers, too.
    assert topic.configs == {"retention.ms": "86400000", "cleanup.policy": "delete", **clusters}
    assert [(partition.leader, partition.replicas, partition.isr) for partition in topic.partitions.values()] == [
        (0, (0,), (0,))
    ] * 3
    tools.grow_topic("life", 5)
    grown = tools.describe_topic("life")
    assert (grown.topic_id, sorted(grown.partitions)) == (topic.topic_id, [0, 1, 2, 3, 4])
    tools.delete_topic("life")
    assert "life" not in tools.list_topics()
    tools.create_topic("life", "--replica-assignment", "0,0")
    again = tools.describe_topic("life")
    assert len(again.partitions) == 2
    assert again.topic_id != topic.topic_id


def test_invalid_request_is_rejected_with_reason(tools: JavaTools) -> None:
    tools.create_topic("strict", "--partitions", "2")
    tools.create_topic("strict", "--if-not-exists", "--partitions", "2")
    for words, reason in (
        (("strict",), "already exists"),
        (("unknown", "--config", "segment.bytes=20000"), "segment.bytes"),
        (("three", "--replication-factor", "3"), "replication factor"),
        (("bad/name",), "Topic name is invalid"),
    ):
        with pytest.raises(ToolError, match=reason):
            tools.create_topic(*words)
    with pytest.raises(ToolError, match="2 partition"):
        tools.grow_topic("strict", 1)
    with pytest.raises(ToolError, match="does not exist"):
        tools.describe_topic("missing")


def test_configs_are_described_with_defaults(tools: JavaTools) -> None:
    tools.create_topic("settings", configs={"retention.ms": "1234567"})
    topic = tools.configs("topics", "settings")
    expected = {"retention.ms": "1234567", "cleanup.policy": "delete", "segment.bytes": str(1 << 30)}
    assert {key: topic[key] for key in expected} == expected
    broker = tools.configs("brokers", "0")
    assert broker["max.incremental.fetch.session.cache.slots"] == "1000"


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_records_of_every_compression_are_read_in_order(tools: JavaTools, metrics: "Metrics", isolation: str) -> None:
    """The console producer is idempotent with acks=all; offsets are dense, a start inside a batch works."""
    topic = f"codecs-{isolation}"
    tools.create_topic(topic)
    requests = metrics.requests("InitProducerId")
    sent = [f"{codec}-{number}" for codec in CODECS for number in range(EACH)]
    for codec in CODECS:
        tools.produce(topic, [value for value in sent if value.startswith(codec)], codec)
    assert metrics.requests("InitProducerId") == requests + len(CODECS)
    words = ("--isolation-level", isolation, "--max-messages")
    read = tools.consume(topic, 0, "earliest", *words, str(len(sent)))
    assert [(record.offset, record.value) for record in read] == list(enumerate(sent))
    inside = EACH * 2 + 17
    read = tools.consume(topic, 0, str(inside), *words, "3")
    assert [(record.offset, record.value) for record in read] == list(enumerate(sent))[inside : inside + 3]


def test_consumer_at_the_end_keeps_one_session_until_it_leaves(
    tools: JavaTools, metrics: "Metrics", eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """A Java consumer sends incremental fetches; later records wake its long poll."""
    tools.create_topic("tail")
    tools.produce("tail", ["before"])
    assert metrics.fetch_sessions() == 0

    def fetched_beyond(count: int) -> Callable[[], bool]:
        return lambda: metrics.requests("Fetch") > count

    with tools.consuming("tail", 0, "latest") as consumer:
        assert eventually(lambda: metrics.fetch_sessions() == 1)
        for value in ("first", "second"):
            assert eventually(fetched_beyond(metrics.requests("Fetch") + 2))
            tools.produce("tail", [value])
            assert consumer.next_value() == value
            assert metrics.fetch_sessions() == 1
        consumer.stop()
        assert eventually(lambda: metrics.fetch_sessions() == 0)


def test_offsets_by_time(tools: JavaTools) -> None:
    tools.create_topic("times", "--partitions", "2")
    tools.produce("times", ["a", "b"], "none", "--producer-property", "partitioner.ignore.keys=true")
    time.sleep(0.05)
    later_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    tools.produce("times", ["c"])
    ends = tools.offsets("times", "latest")
    assert sum(ends.values()) == 3
    assert tools.offsets("times", "earliest") == {0: 0, 1: 0}
    newest = tools.offsets("times", "max-timestamp")
    by_time = tools.offsets("times", str(later_ms))
    ((partition, offset),) = by_time.items()
    assert (offset, newest[partition]) == (ends[partition] - 1,) * 2
    assert tools.consume("times", partition, str(offset), "--max-messages", "1")[0].value == "c"


def test_deleted_records_stay_deleted_after_kill(tmp_path: Path) -> None:
    values = [str(number) for number in range(50)]
    plan = tmp_path / "plan.json"
    with reference_node(tmp_path) as first:
        tools = JavaTools(first.bootstrap)
        tools.create_topic("cut")
        tools.produce("cut", values)
        assert tools.delete_records(plan, {("cut", 0): 20}) == {("cut", 0): 20}
        with pytest.raises(ToolError, match="OffsetOutOfRange"):
            tools.delete_records(plan, {("cut", 0): len(values) + 1})
        assert first.process is not None
        first.process.kill()
    with reference_node(tmp_path) as second:
        tools = JavaTools(second.bootstrap)
        assert tools.offsets("cut", "earliest") == {0: 20}
        read = tools.consume("cut", 0, "earliest", "--max-messages", "30")
        assert [record.value for record in read] == values[20:]
        assert tools.delete_records(plan, {("cut", 0): -1}) == {("cut", 0): len(values)}
        assert tools.offsets("cut", "earliest") == {0: len(values)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a node that Java producers wrote to and that was then stopped."""
    folder = tmp_path_factory.mktemp("written")
    with reference_node(folder) as node:
        tools = JavaTools(node.bootstrap)
        tools.create_topic("rolled", configs={"segment.bytes": str(1 << 20), "index.interval.bytes": "1000"})
        for codec in CODECS:
            tools.produce("rolled", [f"{codec}-{number}" for number in range(EACH)], codec)
        assert producer_perf(node.bootstrap, "rolled", PERF_RECORDS, 100) > 0
        tools.create_topic("gone")
        tools.delete_topic("gone")
    return folder / "data"


def test_segments_pass_the_dump_tool(written: Path) -> None:
    """Every batch decodes down to its records; the perf test's batches fill several segments."""
    logs = sorted((written / "rolled-0").glob("*.log"))
    assert len(logs) > 3
    shown = dump_segments(logs, "--deep-iteration", "--print-data-log")
    assert DUMP_COMPLAINTS.search(re.sub("payload: .*", "", shown)) is None
    offsets = [int(each) for each in re.findall(r"^\| offset: (\d+) ", shown, re.M)]
    assert offsets == list(range(EACH * len(CODECS) + PERF_RECORDS))
    assert set(re.findall(r"compresscodec: (\w+)", shown)) == set(CODECS)
    assert set(re.findall(r"partitionLeaderEpoch: (-?\d+)", shown)) == {"0"}


def test_indexes_pass_the_dump_tool(written: Path) -> None:
    """Of closed segments and, after a clean stop, of the active one: sane, and true of the log beside them."""
    segments = written / "rolled-0"
    indexes = sorted(segments.glob("*index"))
    assert {index.name.partition(".")[0] for index in indexes} == {path.stem for path in segments.glob("*.log")}
    shown = dump_segments(indexes)
    assert DUMP_COMPLAINTS.search(shown) is None
    assert shown.count("offset: ") > 10 * len(indexes)
    assert dump_segments(indexes, "--index-sanity-check").count(" passed sanity check.") == len(indexes)
    assert DUMP_COMPLAINTS.search(dump_segments(indexes, "--verify-index-only")) is None


@pytest.mark.parametrize(
    ("suffix", "key_bytes", "entry_bytes", "complaint"),
    [(".index", 4, 8, "Mismatches"), (".timeindex", 8, 12, "Found timestamp mismatch")],
)
def test_dump_tool_complains_of_a_wrong_index(
    written: Path, tmp_path: Path, suffix: str, key_bytes: int, entry_bytes: int, complaint: str
) -> None:
    """The tests above rely on this complaint: the first entry gets the key (offset or timestamp) of the last."""
    first = min((written / "rolled-0").glob("*.log"))
    for each in (first, first.with_suffix(".index"), first.with_suffix(".timeindex")):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    index = tmp_path / f"{first.stem}{suffix}"
    entries = index.read_bytes()
    last = entries[-entry_bytes:]
    index.write_bytes(last[:key_bytes] + entries[key_bytes:])
    shown = dump_segments([index])
    assert complaint in shown
    assert DUMP_COMPLAINTS.search(shown)


def test_metadata_log_passes_the_dump_tool(written: Path) -> None:
    logs = sorted((written / "__cluster_metadata-0").glob("*.log"))
    shown = dump_segments(logs, "--cluster-metadata-decoder")
    assert DUMP_COMPLAINTS.search(shown) is None
    types = re.findall(r'payload: \{"type":"(\w+)"', shown)
    assert {"FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD", "PRODUCER_IDS_RECORD"} <= set(types)
    assert [types.count(f"{each}_RECORD") for each in ("TOPIC", "PARTITION", "CONFIG", "REMOVE_TOPIC")] == [2, 2, 3, 1]
    assert "LeaderChange: " in shown
