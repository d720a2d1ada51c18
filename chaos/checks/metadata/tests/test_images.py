"""Published metadata is what the committed records lead to, whatever kind of record that is."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from chaos.checks.metadata.images import ImagesFollowRecords, SnapshotsAreWhole
from chaos.checks.metadata.tests.metadata_quorum import BOOTSTRAPPED, Quorum, batch, settled
from chaos.checks.tests.stub_node import StubBroker, StubNode
from chaos.interceptor.watched_disk import WatchedDisk, WriteFault
from chaos.sim.disk import SimDisk
from reference_broker.core.events import Note, TimerFired
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.features import METADATA_VERSION, METADATA_VERSION_FEATURE
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataEpoch,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from reference_broker.quorum.values import Provenance

TOPIC_ID, DIRECTORY = bytes(15) + b"\x01", bytes(14) + b"\x02\x00"
SETTING = ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="hot", name="retention.ms", value="7")
BROKER = RegisterBrokerRecord(
    broker_id=4,
    incarnation_id=bytes(15) + b"\x09",
    broker_epoch=5,
    end_points=(BrokerEndpoint(name="PLAINTEXT", host="h", port=60_000, security_protocol=0),),
    features=(BrokerFeature(name="metadata.version", min_supported_version=1, max_supported_version=25),),
    rack="r",
    log_dirs=(DIRECTORY,),
)
UNFENCED = BrokerRegistrationChangeRecord(broker_id=4, broker_epoch=5, fenced=-1)
RECORDS: tuple[MetadataRecord, ...] = (
    TopicRecord(name="hot", topic_id=TOPIC_ID),
    *(
        PartitionRecord(partition_id=each, topic_id=TOPIC_ID, replicas=(0,), isr=(0,), leader=0, leader_epoch=0)
        for each in range(2)
    ),
    SETTING,
    BROKER,
    UNFENCED,
    FeatureLevelRecord(name="group.version", feature_level=1),
    ProducerIdsRecord(broker_id=0, broker_epoch=1, next_producer_id=1000),
    NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=9)),
)


def image_of(*records: MetadataRecord) -> MetadataImage:
    delta = MetadataDelta(BOOTSTRAPPED)
    for record in records:
        replay(delta, record)
    return delta.build(Provenance(0))


def explanations(written: tuple[MetadataRecord, ...], image: MetadataImage) -> str:
    """Return the violations when the records are committed and all nodes publish the image."""
    quorum: Quorum = settled()
    quorum.append(*(batch(3 + at, 1, record) for at, record in enumerate(written)))
    for node in quorum.nodes:
        node.image = image
    quorum.commit(3 + len(written))
    quorum.end()
    return " ".join(
        found.explanation
        for check in quorum.checks
        if isinstance(check, ImagesFollowRecords)
        for found in check.violations
    )


@pytest.mark.clause("S-16", "T-8")
def test_image_of_all_records_is_right() -> None:
    assert not explanations(RECORDS, image_of(*RECORDS))
    for gone in (
        RemoveTopicRecord(topic_id=TOPIC_ID),
        replace(SETTING, value=None),
        replace(SETTING, value=""),
        UnregisterBrokerRecord(broker_id=4, broker_epoch=5),
        BrokerRegistrationChangeRecord(broker_id=4, broker_epoch=5, fenced=1, in_controlled_shutdown=1),
        BrokerRegistrationChangeRecord(broker_id=4, broker_epoch=5, log_dirs=(DIRECTORY, TOPIC_ID)),
        replace(BROKER, broker_epoch=13),
        FeatureLevelRecord(name="group.version", feature_level=0),
    ):
        assert not explanations((*RECORDS, gone), image_of(*RECORDS, gone)), gone


def _broker(image: MetadataImage, **changes: Any) -> MetadataImage:
    return replace(image, brokers={4: replace(image.brokers[4], **changes)})


DEFECTS: dict[str, Callable[[MetadataImage], MetadataImage]] = {
    "feature": lambda image: replace(image, features=BOOTSTRAPPED.features),
    "topic": lambda image: replace(image, topics={}),
    "partitions": lambda image: replace(
        image, topics={"hot": replace(image.topics["hot"], partitions=image.topics["hot"].partitions[:1])}
    ),
    "another ID": lambda image: replace(image, topics={"hot": replace(image.topics["hot"], topic_id=DIRECTORY)}),
    "setting": lambda image: replace(image, configs={(TOPIC_RESOURCE, "hot"): {"retention.ms": "8"}}),
    "no settings": lambda image: replace(image, configs={}),
    "no broker": lambda image: replace(image, brokers={}),
    "fenced": lambda image: _broker(image, fenced=True),
    "leaving": lambda image: _broker(image, in_controlled_shutdown=True),
    "directories": lambda image: _broker(image, log_dirs=()),
    "rack": lambda image: _broker(image, rack=None),
    "broker epoch": lambda image: _broker(image, broker_epoch=4),
    "port": lambda image: _broker(image, port=1),
    "levels": lambda image: _broker(image, features=()),
    "producer ID": lambda image: replace(image, next_producer_id=0),
    "metadata epoch": lambda image: replace(image, metadata_epoch=8),
}


@pytest.mark.clause("S-16", "T-8")
@pytest.mark.parametrize("defect", DEFECTS)
def test_image_that_differs_from_the_records_is_a_violation(defect: str) -> None:
    assert "the committed records lead to" in explanations(RECORDS, DEFECTS[defect](image_of(*RECORDS)))


@pytest.mark.clause("S-16")
@pytest.mark.parametrize("kept", [True, False])
def test_settings_of_a_deleted_topic_are_gone(kept: bool) -> None:
    records = (*RECORDS, RemoveTopicRecord(topic_id=TOPIC_ID))
    image = image_of(*records)
    if kept:
        image = replace(image, configs={(TOPIC_RESOURCE, "hot"): {"retention.ms": "7"}})
    assert bool(explanations(records, image)) is kept


@pytest.mark.clause("T-8")
@pytest.mark.parametrize("shown", [True, False])
def test_aborted_transaction_changes_nothing(shown: bool) -> None:
    aborted = (BeginTransactionRecord(name="t"), *RECORDS[:2], AbortTransactionRecord(reason="r"), NoOpRecord())
    setting = replace(SETTING, resource_type=BROKER_RESOURCE, resource_name="")
    assert bool(explanations((*aborted, setting), image_of(*RECORDS[:2] * shown, setting))) is shown


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("kind", [TOPIC_RESOURCE, BROKER_RESOURCE])
def test_only_a_topic_that_exists_has_settings(kind: int, exists: bool) -> None:
    records = (*RECORDS[: 3 * exists], replace(SETTING, resource_type=kind))
    assert ("which does not exist" in explanations(records, image_of(*records))) is (
        kind == TOPIC_RESOURCE and not exists
    )


@pytest.mark.clause("T-8")
@pytest.mark.parametrize("shown", [True, False])
def test_transaction_that_ended_counts(shown: bool) -> None:
    ended = (BeginTransactionRecord(name="t"), *RECORDS, EndTransactionRecord())
    assert bool(explanations(ended, image_of(*RECORDS) if shown else BOOTSTRAPPED)) is not shown


@pytest.mark.clause("T-7")
def test_transaction_without_records_is_aborted_and_the_next_counts() -> None:
    begin, end = BeginTransactionRecord(name="t"), EndTransactionRecord()
    records = (begin, AbortTransactionRecord(reason="r"), begin, *RECORDS, end)
    assert not explanations(records, image_of(*RECORDS))


def made(
    written: tuple[MetadataRecord, ...],
    snapshot: tuple[MetadataRecord, ...],
    at: int = len(RECORDS),
    damage: str = "",
) -> list[str]:
    """Return the violations of a snapshot with these records, which ends ``at`` records after the bootstrap.

    With ``damage``, it lacks a byte, or the disk has changed one of it or of another file.
    """
    quorum: Quorum = settled()
    quorum.append(*(batch(3 + each, 1, record) for each, record in enumerate(written)))
    quorum.commit(3 + len(written))
    (check,) = (each for each in quorum.checks if isinstance(each, SnapshotsAreWhole))
    boot = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)
    data = b"".join(batch(each, 1, record) for each, record in enumerate((boot, *snapshot)))
    disk, path = SimDisk(Random(0)), f"__cluster_metadata-0/{3 + at:020d}-0000000001.checkpoint"
    part = path + (".part" if damage == "part" else "")
    disk.append(part, [data[: len(data) - (damage == "short")]])
    disk.append("other", [b"o"])
    if damage in ("whole", "part"):
        disk.flip(part, 8 * len(data) - 8)
    elif damage == "other":
        disk.flip("other", 0)
        disk.write(path, data[:-1] + bytes((data[-1] ^ 1,)))
    watched = WatchedDisk(disk, lambda _, __, size: WriteFault(size - 1, lambda: None, flips=True))
    if damage in ("made", "other made"):
        made_path = ("other/" if "other" in damage else "") + path.replace(".checkpoint", "-made.checkpoint.part")
        watched.write(made_path, data)
        disk.delete(path)
        disk.rename(made_path, path)
    if part != path:
        disk.rename(part, path)
    node = StubNode(StubBroker(disk=watched)).as_node()
    check.acted(9, node, TimerFired(1), [Note("snapshot_renamed", (("end_offset", 3 + at), ("epoch", 1)))])
    assert check.evidence == (0 if damage else 1)
    return [violation.explanation for violation in check.violations]


@pytest.mark.clause("S-9")
def test_snapshot_that_the_disk_has_damaged_is_not_compared() -> None:
    assert made(RECORDS, LIVE[1:], damage="whole") == []
    assert made(RECORDS, LIVE[1:], damage="part") == []
    assert made(RECORDS, LIVE[1:], damage="made") == []
    assert made(RECORDS, LIVE[1:])


@pytest.mark.clause("S-9")
@pytest.mark.parametrize("damage", ["short", "other", "other made"])
def test_snapshot_with_a_wrong_crc_or_length_that_no_fault_has_damaged(damage: str) -> None:
    assert ["has a wrong CRC or length" in each for each in made(RECORDS, LIVE, damage=damage)] == [True]


LIVE = (*RECORDS[:4], replace(BROKER, fenced=False), *RECORDS[6:])
"""One record for each thing: broker 4 is not fenced any more."""
ELIGIBLE = PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, eligible_leader_replicas=(3,))


@pytest.mark.clause("S-15", "S-16", "T-9")
def test_snapshot_has_one_record_for_each_thing() -> None:
    assert made(RECORDS, LIVE) == []
    second = RECORDS[2]
    assert isinstance(second, PartitionRecord)
    changed = replace(second, partition_epoch=0, eligible_leader_replicas=(3,))
    assert made((*RECORDS, ELIGIBLE), (*LIVE[:2], changed, *LIVE[3:]), len(RECORDS) + 1) == []
    assert made((*RECORDS, ELIGIBLE), LIVE) == [], "the change is behind the end of the snapshot"
    gone = RemoveTopicRecord(topic_id=TOPIC_ID)
    assert made((*RECORDS, gone), LIVE[4:], len(RECORDS) + 1) == []


@pytest.mark.parametrize("lacks", range(len(LIVE)))
def test_snapshot_that_lacks_a_thing_is_a_violation(lacks: int) -> None:
    assert made(RECORDS, (*LIVE[:lacks], *LIVE[lacks + 1 :]))


def test_snapshot_with_old_or_additional_records_is_a_violation() -> None:
    assert any("elr=(3,)" in each for each in made((*RECORDS, ELIGIBLE), LIVE, len(RECORDS) + 1))
    assert any("records for" in each for each in made(RECORDS, (*LIVE, SETTING)))
    assert made(RECORDS[:-1], LIVE, len(RECORDS) - 1)
