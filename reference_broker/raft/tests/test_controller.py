"""A quorum of one: order, durability, restart, damage."""

import json
from random import Random

import pytest

from reference_broker.log.disk import DiskError
from reference_broker.log.memory_disk import MemoryDisk
from reference_broker.model.metadata_delta import MetadataFault
from reference_broker.raft.controller import MAX_RECORDS_PER_OPERATION, TooManyRecords
from reference_broker.raft.metadata_log import MetadataLog
from reference_broker.raft.metadata_records import (
    ConfigRecord,
    NoOpRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
)
from reference_broker.raft.node_files import StartRefused
from reference_broker.raft.tests.raft_world import NOW, ManualSync, nothing, started, topic_records
from reference_broker.raft.uuids import random_uuid, uuid_from_text, uuid_text

A, B = (number.to_bytes(16, "big") for number in (1001, 1002))
LOG = "__cluster_metadata-0/00000000000000000000.log"


def test_a_new_node_is_ready_only_when_its_first_records_are_durable():
    disk, sync = MemoryDisk(), ManualSync(auto=False)
    controller = started(disk, sync=sync)
    assert not controller.ready
    assert not disk.exists("meta.properties")
    sync.complete()
    assert controller.ready
    assert controller.image.features == {"metadata.version": 25}
    assert [broker.fenced for broker in controller.image.brokers.values()] == [False]
    assert len(uuid_from_text(controller.cluster_id)) == 16
    assert f"cluster.id={controller.cluster_id}\n".encode() in disk.files["meta.properties"]
    state = json.loads(disk.files["__cluster_metadata-0/quorum-state"])
    assert (state["leaderId"], state["leaderEpoch"], state["currentVoters"]) == (1, 1, [{"voterId": 1}])


def test_a_change_is_seen_only_after_its_sync_and_several_keep_their_order():
    sync = ManualSync()
    controller = started(sync=sync)
    sync.auto = False
    told, published = [], []
    controller.subscribe(lambda delta, _: published.append([change.after.name for change in delta.topics]))
    controller.propose(topic_records("a", A), lambda: told.append("a"))
    controller.propose(topic_records("b", B), lambda: told.append("b"))
    controller.propose([], lambda: told.append("nothing"))
    assert (told, published, list(controller.image.topics)) == ([], [], [])
    assert list(controller.latest.topics) == ["a", "b"]
    sync.complete(1)
    assert (told, published) == (["a"], [["a"]])
    sync.complete()
    assert (told, published) == (["a", "b", "nothing"], [["a"], ["b"]])
    assert controller.image is controller.latest


def test_a_later_sync_that_completes_first_publishes_all_before_it():
    sync = ManualSync()
    controller = started(sync=sync)
    sync.auto = False
    told = []
    controller.propose(topic_records("a", A), lambda: told.append("a"))
    controller.propose(topic_records("b", B), lambda: told.append("b"))
    sync.waiting.reverse()
    sync.complete()
    assert told == ["a", "b"]


def test_restart_keeps_everything_acknowledged_and_takes_a_new_epoch():
    disk = MemoryDisk()
    first = started(disk)
    first.propose([*topic_records("a", A, 3), _config("a", "retention.ms", "5")], nothing)
    first.propose(topic_records("b", B), nothing)
    first.propose([RemoveTopicRecord(topic_id=B)], nothing)
    first.propose([ProducerIdsRecord(broker_id=1, next_producer_id=1000)], nothing)
    second = started(disk, seed=99)
    assert second.cluster_id == first.cluster_id
    assert second.epoch == first.epoch + 1
    assert {name: topic.topic_id for name, topic in second.image.topics.items()} == {"a": A}
    assert second.image.topic_configs("a") == {"retention.ms": "5"}
    assert second.image.next_producer_id == 1000
    assert second.broker_epoch > first.broker_epoch
    epochs = [partition.leader_epoch for partition in second.image.topics["a"].partitions]
    assert epochs == [1, 1, 1]


def test_records_of_more_than_one_batch_are_replayed_in_slices_to_the_same_image():
    disk = MemoryDisk()
    first = started(disk)
    for number in range(80):
        topic_id = (2000 + number).to_bytes(16, "big")
        first.propose(topic_records(f"t{number}", topic_id, 100), nothing)
    assert len(disk.files[LOG]) > 2 * 256 * 1024
    second = started(disk)
    assert len(second.image.topics) == 80
    assert all(len(topic.partitions) == 100 for topic in second.image.topics.values())


@pytest.mark.clause("T-5")
@pytest.mark.parametrize("cut_bytes", [1, 30, 61, 100])
def test_a_torn_tail_of_the_metadata_log_loses_the_torn_batch_only(cut_bytes):
    disk = MemoryDisk()
    first = started(disk)
    first.propose(topic_records("a", A), nothing)
    kept = len(disk.files[LOG])
    first.propose(topic_records("b", B), nothing)
    assert len(disk.files[LOG]) - kept > cut_bytes
    del disk.files[LOG][-cut_bytes:]
    second = started(disk)
    assert list(second.image.topics) == ["a"]
    second.propose(topic_records("b", B), nothing)
    assert list(started(disk).image.topics) == ["a", "b"]


def test_a_power_loss_before_anything_was_synced_starts_afresh():
    disk = MemoryDisk()
    started(disk, sync=ManualSync(auto=False))
    disk.files = {path: content for path, content in disk.files.items() if not path.endswith(".log")}
    assert started(disk).ready


def test_more_records_than_a_batch_may_hold_are_refused_and_nothing_is_written():
    disk = MemoryDisk()
    controller = started(disk)
    before, size = controller.latest, len(disk.files[LOG])
    controller.propose([NoOpRecord()] * MAX_RECORDS_PER_OPERATION, nothing)
    with pytest.raises(TooManyRecords, match="10001 metadata records"):
        controller.propose([NoOpRecord()] * (MAX_RECORDS_PER_OPERATION + 1), nothing)
    huge = [_config("a", f"k{number}", "v" * 900_000) for number in range(10)]
    size, before = len(disk.files[LOG]), controller.latest
    with pytest.raises(TooManyRecords, match="bytes"):
        controller.propose(huge, nothing)
    assert (len(disk.files[LOG]), controller.latest) == (size, before)


def test_a_disk_that_fails_leaves_log_and_image_as_they_were():
    disk = MemoryDisk()
    controller = started(disk)
    disk.fail_after = 0
    with pytest.raises(DiskError):
        controller.propose(topic_records("a", A), nothing)
    disk.fail_after = None
    assert "a" not in controller.latest.topics
    controller.propose(topic_records("a", A), nothing)
    assert list(started(disk).image.topics) == ["a"]


def test_records_that_cannot_follow_are_refused_before_they_are_written():
    disk = MemoryDisk()
    controller = started(disk)
    size = len(disk.files[LOG])
    with pytest.raises(MetadataFault, match="no topic with ID"):
        controller.propose([RemoveTopicRecord(topic_id=A)], nothing)
    assert len(disk.files[LOG]) == size


def test_the_directory_of_another_node_is_refused_in_one_sentence():
    disk = MemoryDisk()
    started(disk, node_id=1)
    with pytest.raises(StartRefused, match="belongs to node 1, not 2"):
        started(disk, node_id=2)


def test_a_lost_metadata_log_is_refused_before_its_partitions_could_be_taken_for_strays():
    disk = MemoryDisk()
    started(disk)
    del disk.files[LOG]
    with pytest.raises(StartRefused, match="metadata log in __cluster_metadata-0 is gone"):
        started(disk)


@pytest.mark.parametrize("path", ["meta.properties", "__cluster_metadata-0/quorum-state"])
def test_a_damaged_node_file_is_refused_in_one_sentence(path):
    disk = MemoryDisk()
    started(disk)
    disk.files[path] = bytearray(b"{{{")
    with pytest.raises(StartRefused, match=f"{path} is damaged"):
        started(disk)


def test_topic_ids_and_cluster_id_come_from_the_random_that_was_given():
    ids = [(controller.cluster_id, controller.allocate_topic_id()) for controller in (started(seed=5), started(seed=5))]
    assert ids[0] == ids[1]
    assert started(seed=6).cluster_id != ids[0][0]


def test_random_uuids_are_version_4_and_their_text_never_begins_with_a_dash():
    random = Random(3)
    values = [random_uuid(random) for _ in range(500)]
    assert all(value[6] >> 4 == 4 and value[8] >> 6 == 2 for value in values)
    assert not any(uuid_text(value).startswith("-") for value in values)
    assert [uuid_from_text(uuid_text(value)) for value in values] == values


def _config(topic: str, name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=topic, name=name, value=value)


def test_records_that_cannot_be_replayed_stop_the_start_with_one_sentence():
    disk = MemoryDisk()
    controller = started(disk)
    metadata_log = MetadataLog(controller.metadata_log)
    metadata_log.append(NOW, [RemoveTopicRecord(topic_id=A)], controller.epoch)
    with pytest.raises(StartRefused, match="metadata log is damaged in or after the batch that ends at offset"):
        started(disk)
