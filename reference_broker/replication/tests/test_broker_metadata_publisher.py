"""Role changes of partitions by the publisher, and the number of them in one event."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.checkpoints import write_partition_metadata
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.broker_settings import CLUSTER
from reference_broker.metadata.delta import MetadataDelta, TopicChange
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.image import TOPIC_RESOURCE, MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import PUBLISHED_CHANGES_PER_SLICE
from reference_broker.records.record import Record, build
from reference_broker.replication.broker_metadata_publisher import BrokerMetadataPublisher
from reference_broker.replication.partitions import Partition, Partitions

TOPIC_ID = b"t" * 16
ALMOST = b"u" + TOPIC_ID[1:]
LED = PartitionImage((1, 2), (1, 2), 1, 0, 0)
FOLLOWED = PartitionImage((1, 2), (1, 2), 2, 1, 1)
STRAY = f"t-0.{TOPIC_ID.hex()}-stray"


@dataclass
class Roles:
    """Records the calls that it gets, as words."""

    calls: list[str] = field(default_factory=list)
    minimums: list[int] = field(default_factory=list)
    """min.insync.replicas of a partition when its leadership started"""

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        self.minimums.append(partition.log.config.min_insync_replicas)
        assert partition.leader_epoch == state.leader_epoch
        assert not partition.is_removed
        self.calls.append(f"leads {partition.index} in {state.leader_epoch}.{state.partition_epoch}")

    def stops_leading(self, partition: Partition) -> None:
        assert partition.is_removed
        self.calls.append(f"stops_leading {partition.index}{' with its topic' if partition.is_topic_deleted else ''}")

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: UnifiedLog) -> None:
        assert (log.topic_id, log.directory) == (topic.topic_id, f"t-{index}")
        self.calls.append(f"follows {state.leader} in {state.leader_epoch}")

    def stops_following(self, topic_id: bytes, index: int) -> None:
        assert topic_id == TOPIC_ID
        self.calls.append(f"stops_following {index}")

    def reconfigured(self, partition: Partition) -> None:
        self.calls.append(f"reconfigured {partition.index} {partition.log.config.min_insync_replicas}")

    def forgets(self, log: UnifiedLog) -> None:
        self.calls.append(f"forgets {log.directory}")


class PublisherWorld:
    """Node 1 with topic ``t``, whose states are published one after the other."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.roles = Roles()
        self.partitions = Partitions()
        self.steps: list[Callable[[], None]] = []
        self.notes: list[tuple[str, dict[str, int | str]]] = []
        self.image = MetadataImage()
        self.publisher = BrokerMetadataPublisher(
            1,
            BrokerConfig(),
            self.disk,
            self.partitions,
            self.roles,
            now=lambda: Now(0, 0),
            later=self.steps.append,
            sync=lambda _, done: self.steps.append(done),
            note=lambda what, *fields: self.notes.append((what, dict(fields))),
        )

    def publish(self, *states: PartitionImage) -> list[str]:
        """Publish the states; without any, delete the topic. Return the calls of this event."""
        before = self.image.topics.get("t")
        after = TopicImage("t", TOPIC_ID, states) if states else None
        changed = tuple(n for n, state in enumerate(states) if before is None or before.partitions[n] != state)
        topics = {"t": after} if after is not None else {}
        self.image = replace(self.image, topics=topics)
        delta = MetadataDelta(self.image)
        delta.topics = (TopicChange(before, after, changed),)
        return self.calls_of(lambda: self.publisher.publish(delta, self.image))

    def calls_of(self, work: Callable[[], None]) -> list[str]:
        self.roles.calls.clear()
        work()
        return list(self.roles.calls)

    def settle(self) -> None:
        while self.steps:
            self.steps.pop(0)()


@pytest.mark.clause("TopicsImageTest.testBasicLocalChanges", "TopicsImageTest.testUpdatedLeaders")
def test_replica_role_follows_image() -> None:
    world = PublisherWorld()
    assert world.publish(LED) == ["stops_following 0", "leads 0 in 0.0"]
    assert world.publish(replace(LED, isr=(1,), partition_epoch=1)) == ["leads 0 in 0.1"]
    log = world.partitions.by_name["t", 0].log
    assert world.publish(FOLLOWED) == ["stops_leading 0", "follows 2 in 1"]
    assert list(world.publisher.logs_not_led()) == [log]
    assert world.publish(replace(FOLLOWED, leader_epoch=2)) == ["follows 2 in 2"]
    assert world.publish(replace(FOLLOWED, leader=-1, leader_epoch=3)) == ["stops_following 0"]
    assert world.publish(replace(LED, leader_epoch=4)) == ["stops_following 0", "leads 0 in 4.0"]
    assert world.partitions.by_name["t", 0].log is log


def test_replica_is_led_or_followed_but_not_both() -> None:
    world = PublisherWorld()

    def found() -> list[tuple[int, int | None]]:
        known = (*world.partitions.by_name.values(), *world.partitions.followed.values())
        return [(each.leader_epoch, each.followed_leader) for each in known]

    world.publish(LED)
    assert found() == [(0, None)]
    world.publish(FOLLOWED)
    assert found() == [(1, 2)]
    followed = world.partitions.followed[TOPIC_ID, 0]
    world.publish(replace(FOLLOWED, leader=-1, leader_epoch=3))
    assert (found(), world.partitions.followed[TOPIC_ID, 0]) == ([(3, -1)], followed)
    world.publish(replace(LED, leader_epoch=4))
    assert (found(), followed.is_removed) == ([(4, None)], True)
    world.publish(replace(FOLLOWED, leader_epoch=5))
    world.publish()
    assert found() == []


def test_config_without_effect_is_noted_once() -> None:
    world = PublisherWorld()
    configs = {(TOPIC_RESOURCE, name): {"preallocate": "true", "retention.ms": "5"} for name in ("t", "u")}
    image = replace(world.image, configs=configs)
    delta = MetadataDelta(image)
    delta.configs = {key: {**settings} for key, settings in configs.items()}
    world.publisher.publish(delta, image)
    noted = [(what, fields["setting"], fields["of"]) for what, fields in world.notes]
    assert noted == [("setting_without_effect", "preallocate", "t")]


def test_deleted_topic_is_dropped_by_leader_and_followers() -> None:
    world = PublisherWorld()
    world.publish(LED, FOLLOWED)
    assert world.publish() == ["stops_leading 0 with its topic", "stops_following 1", "forgets t-1"]
    assert not list(world.publisher.logs_not_led())
    assert not world.partitions.by_name


@pytest.mark.clause("TopicsImageTest.testLocalReassignmentChanges")
def test_reassigned_replica_is_deleted() -> None:
    world = PublisherWorld()
    world.publish(FOLLOWED)
    log = next(iter(world.publisher.logs_not_led()))
    log.append_replicated(Now(0, 0), build([Record(timestamp_ms=0, value=b"v")], leader_epoch=0))
    assert world.publish(replace(FOLLOWED, replicas=(2, 3))) == ["stops_following 0", "forgets t-0"]
    world.settle()
    assert not world.disk.files


def test_large_topic_is_opened_in_slices_and_publications_wait() -> None:
    world = PublisherWorld()
    count = 3 * PUBLISHED_CHANGES_PER_SLICE + 1
    calls = world.publish(*(FOLLOWED,) * count)
    assert len(calls) == PUBLISHED_CHANGES_PER_SLICE
    assert world.publisher.is_behind
    assert world.publish() == []
    slices = 0
    while world.publisher.is_behind:
        slices += 1
        assert len(world.calls_of(world.steps.pop(0))) <= 2 * PUBLISHED_CHANGES_PER_SLICE
    assert slices >= 4
    assert not list(world.publisher.logs_not_led())


@pytest.mark.parametrize(("known", "calls"), [(0, []), (3, []), (4, ["forgets t-0"])])
def test_high_watermark_beyond_opened_log_is_dropped(known: int, calls: list[str]) -> None:
    """The high watermark was of another topic of that name, or of a lost tail: the records in its place are not
    committed yet."""
    world = PublisherWorld()
    world.publish(FOLLOWED)
    log = next(iter(world.publisher.logs_not_led()))
    for offset in range(3):
        record = build([Record(timestamp_ms=0, value=b"v")], base_offset=offset, leader_epoch=0)
        log.append_replicated(Now(0, 0), record)
    again = PublisherWorld(world.disk)
    for _ in again.publisher.start(world.image, True, {("t", 0): known}):
        """Opening."""
    assert again.roles.calls == [*calls, "follows 2 in 1"]


def test_config_change_of_large_topic_is_applied_in_slices() -> None:
    world = PublisherWorld()
    world.publish(LED, FOLLOWED, *(LED,) * PUBLISHED_CHANGES_PER_SLICE)
    world.settle()
    configs = {(TOPIC_RESOURCE, "t"): {"min.insync.replicas": "2"}}
    delta = MetadataDelta(world.image)
    delta.configs.update(configs)
    world.image = replace(world.image, configs=configs)
    calls = world.calls_of(lambda: world.publisher.publish(delta, world.image))
    assert 0 < len(calls) <= PUBLISHED_CHANGES_PER_SLICE
    assert calls[:2] == ["reconfigured 0 2", "reconfigured 2 2"]
    while world.publisher.is_behind:
        calls += world.calls_of(world.steps.pop(0))
    assert len(calls) == PUBLISHED_CHANGES_PER_SLICE + 1


def test_replica_count_includes_every_role() -> None:
    world = PublisherWorld()

    def matches() -> bool:
        here = len(world.partitions.by_name) + len(list(world.publisher.logs_not_led()))
        return world.publisher.replica_count.value == here

    elsewhere = replace(FOLLOWED, replicas=(2, 3))
    for states in (
        (LED, FOLLOWED, elsewhere),
        (FOLLOWED, replace(FOLLOWED, leader=-1), elsewhere),
        (elsewhere, FOLLOWED, LED),
        (),
        (FOLLOWED,),
        (),
    ):
        world.publish(*states)
        world.settle()
        assert matches()
    world.publish(LED, FOLLOWED)
    again = PublisherWorld(world.disk)
    for _ in again.publisher.start(world.image, True):
        """Opening."""
    assert again.publisher.replica_count.value == 2


def test_start_restores_high_watermarks() -> None:
    world = PublisherWorld()
    world.publish(FOLLOWED)
    log = next(iter(world.publisher.logs_not_led()))
    for offset in range(3):
        record = build([Record(timestamp_ms=0, value=b"v")], base_offset=offset, leader_epoch=0)
        log.append_replicated(Now(0, 0), record)
    again = PublisherWorld(world.disk)
    for _ in again.publisher.start(world.image, True, {("t", 0): 2}):
        pass
    (log,) = again.publisher.logs_not_led()
    assert (log.log_end_offset, log.high_watermark) == (3, 2)
    assert again.roles.calls == ["follows 2 in 1"]
    assert not again.publisher.is_behind


def test_replica_reassigned_while_stopped_becomes_stray_at_start() -> None:
    """The replica may return to this node, but not with its old records."""
    world = PublisherWorld()
    world.publish(FOLLOWED, FOLLOWED)
    for log in world.publisher.logs_not_led():
        log.append_replicated(Now(0, 0), build([Record(timestamp_ms=0, value=b"v")], leader_epoch=0))
    away = PublisherWorld(world.disk)
    away.image = world.image
    away.publish(replace(FOLLOWED, replicas=(2, 3)), FOLLOWED)
    again = PublisherWorld(world.disk)
    for _ in again.publisher.start(away.image, True):
        """Opening."""
    assert world.disk.list("") == [STRAY, "t-1"]
    assert [log.directory for log in again.publisher.logs_not_led()] == ["t-1"]


def with_records(count: int = 3) -> PublisherWorld:
    world = PublisherWorld()
    world.publish(FOLLOWED)
    (log,) = world.publisher.logs_not_led()
    for number in range(count):
        record = Record(timestamp_ms=0, value=b"%d" % number)
        log.append_replicated(Now(0, 0), moved(build([record], leader_epoch=0), number))
    return world


def moved(batch: bytes, offset: int) -> bytes:
    """Return the batch at an offset, which its CRC does not cover."""
    return offset.to_bytes(8, "big") + batch[8:]


def started(world: PublisherWorld, image: MetadataImage, *, clean: bool = True) -> PublisherWorld:
    again = PublisherWorld(world.disk)
    again.image = image
    for _ in again.publisher.start(image, clean):
        """Opening."""
    again.settle()
    return again


@pytest.mark.clause("UnifiedLogTest.testLogFailsWhenInconsistentTopicIdSet", "UnifiedLogTest.testLogRecoversTopicId")
def test_directory_unknown_to_metadata_is_not_deleted() -> None:
    """The metadata may be damaged. A topic of the same name gets a directory of its own."""
    world = with_records()
    held = bytes(world.disk.files["t-0/00000000000000000000.log"])
    started(world, MetadataImage())
    assert bytes(world.disk.files[f"{STRAY}/00000000000000000000.log"]) == held
    other = replace(world.image.topics["t"], topic_id=b"o" * 16)
    back = with_records()
    opened = started(back, replace(world.image, topics={"t": other}))
    assert back.disk.list("") == [STRAY]
    assert opened.notes == [("stray_renamed", {"directory": "t-0", "name": STRAY})]
    assert [log.log_end_offset for log in opened.publisher.logs_not_led()] == [0]


def test_second_stray_of_partition_keeps_first() -> None:
    world = with_records()
    started(world, MetadataImage())
    world.disk.files |= with_records().disk.files
    started(world, MetadataImage())
    assert world.disk.list("") == [STRAY, STRAY.replace("-stray", ".2-stray")]


def test_topic_deleted_in_metadata_is_deleted_at_start() -> None:
    world = with_records()
    again = PublisherWorld(world.disk)
    delta = MetadataDelta(world.image)
    delta.topics = (TopicChange(world.image.topics["t"], None),)
    again.publisher.note_deletions(delta)
    for _ in again.publisher.start(MetadataImage(), True):
        """Opening."""
    assert world.disk.list("") == []


@pytest.mark.parametrize("leader", [-1, 1])
def test_recreated_topic_does_not_miss_records_of_deleted_one(leader: int) -> None:
    """The high watermark that was written at the clean stop is that of the deleted topic."""
    back, earlier = with_records(), b"o" * 16
    write_partition_metadata(back.disk, "t-0", earlier)
    again = PublisherWorld(back.disk)
    state = PartitionImage((1, 2), (2,), leader, 1, 1)
    again.image = replace(back.image, topics={"t": TopicImage("t", TOPIC_ID, (state,))})
    for _ in again.publisher.start(again.image, True, {("t", 0): 1}):
        """Opening."""
    stray = f"t-0.{earlier.hex()}-stray"
    assert again.notes == [("stray_renamed", {"directory": "t-0", "name": stray})]
    assert not again.partitions.offline
    assert not again.publisher.misplaced()


@pytest.mark.parametrize("elr", [(), (1,)])
def test_directory_with_other_topic_id_is_stray_or_quarantined(elr: tuple[int, ...]) -> None:
    other = TopicImage("t", ALMOST, (replace(FOLLOWED, isr=(2,), elr=elr),))
    opened = started(with_records(), MetadataImage(topics={"t": other}))
    assert [what for what, _ in opened.notes] == ["log_quarantined" if elr else "stray_renamed"]


def test_log_with_damaged_topic_id_recovers_once_it_has_all_durable_records() -> None:
    world = with_records()
    (log,) = world.publisher.logs_not_led()
    for _ in range(2):  # First the log, then the recovery point.
        log.close_cleanly()
        log.mark_synced(log.sync_point())
    other = TopicImage("t", ALMOST, (replace(FOLLOWED, isr=(2,), elr=(1,)),))
    (again,) = started(world, MetadataImage(topics={"t": other})).publisher.logs_not_led()
    assert again.quarantine is not None
    assert again.quarantine.until == 3


def test_directory_of_deleted_topic_is_not_quarantined() -> None:
    world = with_records()
    write_partition_metadata(world.disk, "t-0", ALMOST)
    again = PublisherWorld(world.disk)
    delta = MetadataDelta(world.image)
    delta.topics = (TopicChange(TopicImage("t", ALMOST, (LED,)), None),)
    again.publisher.note_deletions(delta)
    for _ in again.publisher.start(MetadataImage(topics={"t": TopicImage("t", TOPIC_ID, (LED,))}), True):
        """Opening."""
    assert again.notes == []
    assert again.partitions.by_name["t", 0].log.log_end_offset == 0


def damaged(*states: PartitionImage) -> tuple[PublisherWorld, bytes]:
    """Return a node whose only log was found damaged at its start, and the records of that log."""
    world = with_records()
    (log,) = world.publisher.logs_not_led()
    for _ in range(2):  # First the log, then the recovery point.
        log.close_cleanly()
        log.mark_synced(log.sync_point())
    records = bytes(world.disk.files["t-0/00000000000000000000.log"])
    world.disk.files["t-0/00000000000000000000.log"][16] ^= 1
    return started(world, replace(world.image, topics={"t": TopicImage("t", TOPIC_ID, states)})), records


LEADERLESS = replace(LED, isr=(), leader=-1, elr=(1, 2), directories=(bytes(15) + b"h", bytes(15) + b"i"))


@pytest.mark.parametrize("state", [LED, LEADERLESS], ids=["leader", "no leader"])
def test_damaged_log_is_not_led_and_is_refilled_by_leader(state: PartitionImage) -> None:
    again, records = damaged(state)
    assert [what for what, _ in again.notes] == ["log_quarantined"]
    assert again.partitions.offline == {(TOPIC_ID, 0): None}
    assert not again.partitions.by_id
    assert again.publisher.misplaced() == {(TOPIC_ID, 0): True}
    assert again.publish(replace(FOLLOWED, isr=(2,), elr=(1,))) == ["follows 2 in 1"]
    assert not again.partitions.offline
    (log,) = again.publisher.logs_not_led()
    assert log.quarantine is not None, "it may still be elected for what it held before"
    log.append_replicated(Now(0, 0), records)
    assert log.release(3)
    assert again.publish(replace(LED, leader_epoch=2)) == ["stops_following 0", "leads 0 in 2.0"]


@pytest.mark.parametrize("state", [LED, LEADERLESS], ids=["leader", "no leader"])
def test_damaged_log_serves_no_consumer_when_elected(state: PartitionImage) -> None:
    again, _ = damaged(LEADERLESS)
    again.publish(replace(FOLLOWED, isr=(2,), elr=(1,)))
    followed = again.partitions.followed[TOPIC_ID, 0]
    again.publish(replace(state, leader_epoch=2))
    assert again.partitions.offline == {(TOPIC_ID, 0): None}
    assert (again.partitions.followed, followed.is_removed) == ({}, True)


def test_damaged_log_of_idle_topic_is_led_again_once_in_sync() -> None:
    """The log's last records were perhaps never committed, so the leader need not have them."""
    again, _ = damaged(LEADERLESS)
    (log,) = again.publisher.logs_not_led()
    assert log.quarantine is not None
    assert log.quarantine.until > 0
    assert again.publish(replace(FOLLOWED, isr=(2,), elr=(1,))) == ["follows 2 in 1"]
    assert log.quarantine is not None
    assert again.publish(replace(FOLLOWED, partition_epoch=2)) == ["follows 2 in 1"]
    assert log.quarantine is None
    assert [what for what, _ in again.notes] == ["log_quarantined", "quarantine_ended"]
    assert again.publish(replace(LED, leader_epoch=2, partition_epoch=3)) == ["stops_following 0", "leads 0 in 2.3"]


def test_damaged_log_joins_isr_and_is_elected_in_one_publication() -> None:
    again, _ = damaged(LEADERLESS)
    homes = LEADERLESS.directories
    followed = replace(FOLLOWED, isr=(2,), elr=(1,), directories=(LOST_DIRECTORY, homes[1]))
    assert again.publish(followed) == ["follows 2 in 1"]
    elected = replace(LED, leader_epoch=2, partition_epoch=3, directories=homes)
    assert again.publish(elected) == ["stops_following 0", "leads 0 in 2.3"]


def test_controller_is_notified_of_recovered_replica() -> None:
    world = with_records()
    lost = replace(LED, isr=(), leader=-1, elr=(1,), directories=(LOST_DIRECTORY, bytes(15) + b"i"))
    world, _ = damaged(lost)
    assert world.publisher.misplaced() == {}, "the controller knows"
    (log,) = world.publisher.logs_not_led()
    log.end_quarantine()
    again = started(world, world.image)
    assert again.publisher.misplaced() == {(TOPIC_ID, 0): False}
    assert again.publisher.misplaced() == {}


@pytest.mark.clause("E-6")
@pytest.mark.parametrize("files", [with_records, PublisherWorld], ids=["other files", "an empty disk"])
def test_replica_on_replaced_disk_is_not_recovered(files: Callable[[], PublisherWorld]) -> None:
    """Reported as whole, it would be elected as the last known leader, without the records that it had."""
    lost = replace(LED, isr=(), leader=-1, last_known_elr=(1,), directories=(LOST_DIRECTORY, bytes(15) + b"i"))
    world = files()
    again = started(world, replace(world.image, topics={"t": TopicImage("t", TOPIC_ID, (lost,))}))
    assert again.publisher.misplaced() == {}


@pytest.mark.clause("E-8")
def test_cluster_default_min_insync_replicas_applies_not_the_nodes() -> None:
    world = PublisherWorld()
    world.publish(LED)
    for value, calls in (("3", ["reconfigured 0 3"]), ("2", ["reconfigured 0 2"])):
        configs = {CLUSTER: {"min.insync.replicas": value}}
        delta = MetadataDelta(world.image)
        delta.configs.update(configs)
        world.image = replace(world.image, configs=configs)
        assert world.calls_of(partial(world.publisher.publish, delta, world.image)) == calls
    for own, expected in (({}, 2), ({"min.insync.replicas": "1"}, 1)):
        world = PublisherWorld()
        world.image = replace(world.image, configs={**configs, (TOPIC_RESOURCE, "t"): own})
        world.publish(LED)
        assert world.partitions.by_name["t", 0].log.config.min_insync_replicas == expected


@pytest.mark.clause("E-2")
@pytest.mark.parametrize("resource", [CLUSTER, (TOPIC_RESOURCE, "t")])
@pytest.mark.parametrize("now_led", [replace(LED, isr=(1,), partition_epoch=1), FOLLOWED])
def test_min_insync_replicas_applies_with_isr_of_same_image(resource: tuple[int, str], now_led: PartitionImage) -> None:
    """Applied earlier, the new ISR would use the old minimum. A lower minimum before the new ISR would let a former
    leader
    commit."""
    world = PublisherWorld()
    world.publish(LED, LED)
    before = world.image.topics["t"]
    after = replace(before, partitions=(now_led, LED))
    configs = {resource: {"min.insync.replicas": "2"}}
    world.image = replace(world.image, topics={"t": after}, configs=configs)
    delta = MetadataDelta(world.image)
    delta.topics = (TopicChange(before, after, (0,)),)
    delta.configs.update(configs)
    leads = now_led is not FOLLOWED
    calls = ["leads 0 in 0.1", "reconfigured 0 2"] if leads else ["stops_leading 0", "follows 2 in 1"]
    assert world.calls_of(lambda: world.publisher.publish(delta, world.image)) == [*calls, "reconfigured 1 2"]
    assert world.roles.minimums == [1, 1, *([2] if leads else [])]
