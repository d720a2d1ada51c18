"""Apache Kafka's dump tool on what a node writes of its metadata: the log, with transactions, and the snapshots."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.peers.tests.java_tools import JavaTools
from bench.peers.tests.metadata_dump import Dump, DumpedRecord, dump_metadata
from bench.peers.tests.nodes import reference_node

pytestmark = pytest.mark.peer

PARTITIONS = 300
BATCH_BYTES = 8192
CONFIG = {
    "crucible.metadata.batch.max.bytes": str(BATCH_BYTES),
    "metadata.log.max.record.bytes.between.snapshots": "15000",
}
"""The partitions of one topic are some 20 kB of records: more than a batch, and more than until the next snapshot."""

MARKERS = ("BEGIN_TRANSACTION_RECORD", "END_TRANSACTION_RECORD", "ABORT_TRANSACTION_RECORD")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata directory of a node that was changed by Kafka's tools and then stopped."""
    home = tmp_path_factory.mktemp("metadata")
    with reference_node(home, CONFIG) as node:
        tools = JavaTools(node.bootstrap)
        tools.create_topic("many", "--partitions", str(PARTITIONS), configs={"retention.ms": "1000"})
        tools.create_topic("gone")
        tools.set_config("many", "retention.ms", "2000")
        tools.delete_topic("gone")
        tools.grow_topic("many", 2 * PARTITIONS)
    return home / "data" / "__cluster_metadata-0"


@pytest.fixture(scope="module")
def log(folder: Path) -> Dump:
    return dump_metadata(sorted(folder.glob("*.log")))


def snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.checkpoint"))


def test_log_is_whole(log: Dump) -> None:
    assert not log.complaints
    ends = [batch.last_offset + 1 for batch in log.batches]
    assert [batch.base_offset for batch in log.batches] == [0, *ends[:-1]]
    assert log.controls[0] == (0, "LeaderChange")
    assert {"FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD", "TOPIC_RECORD", "REMOVE_TOPIC_RECORD"} <= set(log.kinds())
    assert log.kinds().count("PARTITION_RECORD") == 2 * PARTITIONS + 1


@pytest.mark.clause("T-1")
def test_change_larger_than_batch_is_transaction(log: Dump) -> None:
    """The bootstrap records, then each creation of more partitions than fit: markers never nest or stay open."""
    assert max(batch.size_bytes for batch in log.batches) <= BATCH_BYTES
    kinds = [kind for kind in log.kinds() if kind in MARKERS]
    assert len(kinds) >= 4
    assert kinds == ["BEGIN_TRANSACTION_RECORD", "END_TRANSACTION_RECORD"] * (len(kinds) // 2)


@pytest.mark.clause("S-16")
def test_each_snapshot_passes_the_dump_tool(folder: Path) -> None:
    assert len(snapshots(folder)) >= 1
    for path in snapshots(folder):
        dump = dump_metadata([path])
        assert not dump.complaints
        end_offset, epoch = (int(part) for part in path.stem.split("-"))
        assert dump.snapshot_ids == ((end_offset, epoch),)
        assert {batch.epoch for batch in dump.batches} == {epoch}
        ends = [batch.last_offset + 1 for batch in dump.batches]
        assert [batch.base_offset for batch in dump.batches] == [0, *ends[:-1]]
        assert dump.controls == ((0, "SnapshotHeader"), (ends[-1] - 1, "SnapshotFooter"))
        assert not set(MARKERS) & set(dump.kinds())
    assert [path.name for path in folder.iterdir() if path.name.endswith((".part", ".deleted"))] == []


@pytest.mark.clause("S-16")
def test_snapshot_equals_log_before_its_end(folder: Path, log: Dump) -> None:
    for path in snapshots(folder):
        end_offset = int(path.stem.split("-")[0])
        replayed = [record for record in log.records if record.offset < end_offset]
        assert live(dump_metadata([path]).records) == live(replayed)


def live(records: Iterable[DumpedRecord]) -> dict[str, object]:
    """Return the state after all records, by Kafka's meaning of them."""
    topics: dict[str, str] = {}
    partitions: dict[str, dict[int, tuple[int, int, int]]] = {}
    configs: dict[tuple[int, str, str], str] = {}
    features: dict[str, int] = {}
    brokers: dict[int, int] = {}
    for record in records:
        data = record.data
        match record.kind:
            case "TOPIC_RECORD":
                topics[data["topicId"]] = data["name"]
            case "PARTITION_RECORD":
                state = data["leader"], data["leaderEpoch"], data["partitionEpoch"]
                partitions.setdefault(data["topicId"], {})[data["partitionId"]] = state
            case "PARTITION_CHANGE_RECORD":
                there = partitions[data["topicId"]]
                leader, leader_epoch, partition_epoch = there[data["partitionId"]]
                if "leader" in data:
                    leader, leader_epoch = data["leader"], leader_epoch + 1
                there[data["partitionId"]] = leader, leader_epoch, partition_epoch + 1
            case "REMOVE_TOPIC_RECORD":
                name = topics.pop(data["topicId"])
                partitions.pop(data["topicId"])
                configs = {key: value for key, value in configs.items() if key[:2] != (2, name)}
            case "CONFIG_RECORD":
                configs[data["resourceType"], data["resourceName"], data["name"]] = data["value"]
            case "FEATURE_LEVEL_RECORD":
                features[data["name"]] = data["featureLevel"]
            case "REGISTER_BROKER_RECORD":
                brokers[data["brokerId"]] = data["brokerEpoch"]
    return {"topics": topics, "partitions": partitions, "configs": configs, "features": features, "brokers": brokers}


def test_dump_tool_complains_of_a_damaged_snapshot(folder: Path, tmp_path: Path) -> None:
    """The tests above rely on this complaint."""
    newest = snapshots(folder)[-1]
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    copy = tmp_path / newest.name
    copy.write_bytes(damaged)
    assert dump_metadata([copy]).complaints
