"""A node whose files were damaged while it was stopped."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta

from reference_broker.core.events import Note
from reference_broker.core.tests.node_world import NodeWorld, sent_batch
from reference_broker.log.checkpoints import SYNCED_FILE
from reference_broker.ports.disk import MemoryDisk
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE, METADATA_DIRECTORY, StartRefused
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

MINUTE = timedelta(minutes=1)
METADATA_LOG = f"{METADATA_DIRECTORY}/00000000000000000000.log"


def stopped(*, cleanly: bool, **config: Any) -> NodeWorld:
    world = NodeWorld(**config)
    world.create("t")
    producer = world.producer_id()
    for sequence in range(9):
        world.produce("t", 0, sent_batch(producer, sequence, b"x" * 50))
    if cleanly:
        world.shut_down()
        world.settle()
        assert world.node.stopped
    return world


def flip(disk: MemoryDisk, path: str, position: int) -> None:
    disk.files[path][position] ^= 1


def positions(content: bytes) -> list[int]:
    """Return the positions of the batches in a file."""
    found, at = [], 0
    while at < len(content):
        found.append(at)
        at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")
    return found


def notes(world: NodeWorld, what: str) -> list[dict[str, Any]]:
    return [dict(effect.fields) for effect in world.effects if isinstance(effect, Note) and effect.what == what]


def test_node_with_offline_log_leaves_no_clean_shutdown_file() -> None:
    world = stopped(cleanly=False)
    world.log("t").segments.is_offline = True
    assert world.produce("t", 0, sent_batch(7, 0, b"new")).error_code == ErrorCode.kafka_storage_error
    world.shut_down()
    world.settle()
    assert world.node.stopped
    assert not world.disk.exists(CLEAN_SHUTDOWN_FILE)


@pytest.mark.parametrize("cleanly", [True, False], ids=["clean stop", "kill"])
def test_start_rejects_damaged_metadata_log_without_change(cleanly: bool) -> None:
    """Each batch is checked: all of them were synced before they counted."""
    stopped_disk = stopped(cleanly=cleanly).disk
    batches = positions(bytes(stopped_disk.files[METADATA_LOG]))
    for batch in batches if not cleanly else batches[2:3]:
        disk = stopped_disk.copy()
        flip(disk, METADATA_LOG, batch + 16)
        before = {path: bytes(content) for path, content in disk.files.items() if path.endswith(".log")}
        with pytest.raises(StartRefused) as refused:
            NodeWorld(disk)
        assert str(refused.value).startswith(f"The metadata log is damaged: {METADATA_LOG} is damaged at byte {batch} ")
        assert "restore this file from a copy" in str(refused.value)
        assert {path: bytes(content) for path, content in disk.files.items() if path.endswith(".log")} == before


@pytest.mark.parametrize("cleanly", [True, False], ids=["clean stop", "kill"])
def test_node_starts_with_damaged_synced_offset_file(cleanly: bool) -> None:
    world = stopped(cleanly=cleanly)
    path = f"{METADATA_DIRECTORY}/{SYNCED_FILE}"
    for position in range(len(world.disk.files[path])):
        for bit in (1, 8):
            disk = world.disk.copy()
            disk.files[path][position] ^= bit
            assert "t" in NodeWorld(disk).node.broker.controller.image.topics


def test_error_for_short_metadata_log_names_synced_offset_file() -> None:
    world = stopped(cleanly=False)
    del world.disk.files[METADATA_LOG][positions(bytes(world.disk.files[METADATA_LOG]))[1] :]
    with pytest.raises(StartRefused) as refused:
        NodeWorld(world.disk)
    assert f"{METADATA_DIRECTORY}/{SYNCED_FILE} says that records up to offset" in str(refused.value)


def test_partition_unknown_to_truncated_metadata_log_becomes_stray() -> None:
    """After a power loss that removed the synced-offset file, damage looks like a torn tail."""
    world = stopped(cleanly=False)
    world.disk.delete(f"{METADATA_DIRECTORY}/{SYNCED_FILE}")
    held = bytes(world.disk.files["t-0/00000000000000000000.log"])
    batch = positions(bytes(world.disk.files[METADATA_LOG]))[1]
    flip(world.disk, METADATA_LOG, batch + 16)
    again = NodeWorld(world.disk)
    assert "t" not in again.node.broker.controller.image.topics
    (stray,) = [name for name in world.disk.list("") if name.endswith("-stray")]
    assert bytes(world.disk.files[f"{stray}/00000000000000000000.log"]) == held
    (cut,) = notes(again, "log_cut")
    assert (cut["file"], cut["position"]) == (METADATA_LOG, batch)
    assert cut["bytes"] > 0


def test_damaged_synced_records_quarantine_partition_after_kill() -> None:
    """The checkpoint of synced offsets was written a minute after the first records. The last ones came later."""
    world = stopped(cleanly=False, log_flush_interval_messages="1")
    world.advance(60_000)
    noted = world.log("t").files.durable_end
    assert noted == 9
    world.produce("t", 0, sent_batch(0, 9, b"later"))
    segment = "t-0/00000000000000000000.log"
    first, *_, last = positions(bytes(world.disk.files[segment]))
    torn, damaged = world.disk.copy(), world.disk.copy()
    flip(torn, segment, last + 16)
    assert [cut["offset"] for cut in notes(NodeWorld(torn), "log_cut")] == [noted]
    flip(damaged, segment, first + 16)
    assert [note["until"] for note in notes(NodeWorld(damaged), "log_quarantined")] == [noted]


@pytest.mark.parametrize(
    "damage",
    [lambda disk, path: flip(disk, path, 16), lambda disk, path: disk.delete(path)],
    ids=["flipped bit", "lost segment"],
)
def test_partition_with_damaged_segment_is_offline_until_restored(
    damage: Callable[[MemoryDisk, str], None],
) -> None:
    world = stopped(cleanly=True, log_segment_bytes="400")
    paths = sorted(path for path in world.disk.files if path.startswith("t-0/") and path.endswith(".log"))
    assert len(paths) == 3
    whole = world.disk.copy()
    damage(world.disk, paths[1])
    again = NodeWorld(world.disk)
    assert [note["partition"] for note in notes(again, "log_quarantined")] == ["t-0"]
    response = again.produce("t", 0, sent_batch(0, 0, b"new"))
    assert response.error_code == ErrorCode.kafka_storage_error
    assert world.disk.exists(f"{paths[2]}.damaged"), "nothing is deleted"
    again.shut_down()
    again.settle()
    lasting = NodeWorld(again.disk)
    assert lasting.produce("t", 0, sent_batch(0, 0, b"new")).error_code == ErrorCode.kafka_storage_error
    lasting.shut_down()
    lasting.settle()
    lasting.disk.delete("t-0/quarantine")
    settled = NodeWorld(lasting.disk)
    assert settled.produce("t", 0, sent_batch(0, 0, b"new")).error_code == ErrorCode.none, "a person has decided"
    restored = NodeWorld(whole)
    assert restored.produce("t", 0, sent_batch(0, 9, b"new")).error_code == ErrorCode.none


def test_damaged_topic_id_file_loses_no_records() -> None:
    world = stopped(cleanly=True, log_segment_bytes="400")
    whole = {path: bytes(content) for path, content in world.disk.files.items() if path.startswith("t-0/")}
    content = world.disk.files["t-0/partition.metadata"]
    letters = range(len("version: 0\ntopic_id: "), len(content))
    flip(world.disk, "t-0/partition.metadata", next(at for at in letters if chr(content[at] ^ 1).isalnum()))
    again = NodeWorld(world.disk)
    (note,) = notes(again, "log_quarantined")
    assert "partition.metadata has the ID of another topic" in note["why"]
    assert again.produce("t", 0, sent_batch(0, 0, b"new")).error_code == ErrorCode.kafka_storage_error
    again.shut_down()
    again.settle()
    disk = again.disk
    for path in [path for path in whole if path.endswith(".log")]:
        assert bytes(disk.files[f"{path}.damaged"]) == whole[path]
        disk.rename(f"{path}.damaged", path)
    disk.delete("t-0/quarantine")
    restored = NodeWorld(disk)
    assert restored.produce("t", 0, sent_batch(0, 9, b"new")).base_offset == 9, "a person brought the records back"


def test_partition_without_directory_after_clean_stop_is_offline() -> None:
    world = stopped(cleanly=True)
    for path in [path for path in world.disk.files if path.startswith("t-0/")]:
        world.disk.delete(path)
    again = NodeWorld(world.disk)
    refused = again.produce("t", 0, sent_batch(7, 0, b"new"))
    assert refused.error_code == ErrorCode.kafka_storage_error
    (note,) = notes(again, "log_quarantined")
    assert (note["partition"], note["until"]) == ("t-0", 9)
    assert "gone" in note["why"]


def test_recreated_topic_starts_empty_after_clean_stop() -> None:
    world = stopped(cleanly=False)
    world.delete("t")
    world.create("t")
    world.shut_down()
    world.settle()
    again = NodeWorld(world.disk)
    assert again.produce("t", 0, sent_batch(again.producer_id(), 0)).error_code == ErrorCode.none


@pytest.mark.parametrize("wiped", [False, True], ids=["kept aside", "wiped after that"])
def test_requested_unclean_election_restores_partition_with_remaining_records(wiped: bool) -> None:
    world = stopped(cleanly=True)
    flip(world.disk, "t-0/00000000000000000000.log", 16)
    lost = NodeWorld(world.disk)
    assert lost.produce("t", 0, sent_batch(7, 0, b"new")).error_code == ErrorCode.kafka_storage_error
    if wiped:
        lost.shut_down()
        lost.settle()
        for path in [path for path in lost.disk.files if path.startswith("t-0/")]:
            lost.disk.delete(path)
        lost = NodeWorld(lost.disk)
        assert lost.produce("t", 0, sent_batch(7, 0, b"new")).error_code != ErrorCode.none
    partitions = (TopicPartitions(topic=TopicName("t"), partitions=(i32(0),)),)
    elect = ElectLeadersRequest(election_type=i8(1), topic_partitions=partitions, timeout=i32Timedelta.parse(MINUTE))
    response = lost.request(ApiKey.ELECT_LEADERS, 2, elect)
    assert response.replica_election_results[0].partition_result[0].error_code == ErrorCode.none
    again = lost.produce("t", 0, sent_batch(lost.producer_id(), 0, b"new"))
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
