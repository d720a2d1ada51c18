"""Each check of replicated partitions is silent on a right history and speaks on one that breaks its guarantee."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.all_checks import check_kinds
from chaos.checks.no_acked_lost import NoAckedLost
from chaos.checks.quorum_view import QuorumView
from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import ReplicaView
from chaos.checks.replicas_converge import ReplicasConverge
from chaos.checks.surroundings import Settings, Surroundings
from chaos.checks.trouble import Trouble
from reference_broker.core.effects import Reply
from reference_broker.core.events import Request
from reference_broker.log.config import LogConfig
from reference_broker.metadata.delta import TopicChange
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.records.builder import build
from reference_broker.records.reader import Record
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from reference_broker.wire.tags import Tag

TOPIC_ID = b"\x01" * 16
KEY = (TOPIC_ID, 0)
SECOND_US = 1_000_000
IN_SYNC_US = 10 * SECOND_US


def batch(offset: int, epoch: int, value: bytes = b"v") -> bytes:
    made = bytes(build([Record(timestamp_ms=0, value=value)], leader_epoch=epoch))
    return offset.to_bytes(8, "big") + made[8:]


@dataclass
class Log:
    """Batch n stands at offset n."""

    topic_id: bytes = TOPIC_ID
    directory: str = "t-0"
    high_watermark: int = 0
    log_start_offset: int = 0
    cleaned_offset: int = 0
    held: list[bytes] = field(default_factory=list)
    config: LogConfig = field(default_factory=LogConfig)
    bases: list[int] = field(default_factory=lambda: [0])

    @property
    def log_end_offset(self) -> int:
        return len(self.held)

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:  # noqa: ARG002
        return b"".join(self.held[offset:end])


class Cluster:
    """Three replicas of one partition, as the view looks at them."""

    def __init__(self) -> None:
        self.view = ReplicaView(Trouble(), min_insync=2)
        settings = Settings(in_sync_us=IN_SYNC_US)
        around = Surroundings(settings, QuorumView(3, 0, Trouble()), self.view)
        self.checks = [each(around) for each in check_kinds() if issubclass(each, ReplicaCheck)]
        (self.acked,) = (each for each in self.checks if isinstance(each, NoAckedLost))
        self.logs = [Log() for _ in range(3)]
        self.incarnations = [0, 0, 0]
        self.epochs = [0, -1, -1]
        self.now_us = 100 * SECOND_US
        self.state = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0)
        self.view.image(self.now_us, 0, None, self.image())

    def image(self) -> MetadataImage:
        return MetadataImage(topics={"t": TopicImage("t", TOPIC_ID, (self.state,))})

    def change(self, **fields: Any) -> None:
        """The metadata has a newer state of the partition."""
        before = self.image().topics["t"]
        self.state = replace(self.state, partition_epoch=self.state.partition_epoch + 1, **fields)
        after = self.image()
        delta: Any = SimpleNamespace(topics=[TopicChange(before, after.topics["t"], (0,))], brokers={})
        self.view.image(self.now_us, 0, delta, after)

    def node(self, number: int) -> Any:
        led = SimpleNamespace(leader_epoch=self.epochs[number], log=self.logs[number])
        leads = self.epochs[number] >= 0
        partitions = SimpleNamespace(by_id={KEY: led} if leads else {}, topic_ids={"t": TOPIC_ID})
        publisher = SimpleNamespace(
            resting_logs=lambda: [] if leads else [self.logs[number]], log_of=lambda _: self.logs[number]
        )
        broker = SimpleNamespace(node_id=number, partitions=partitions)
        return SimpleNamespace(broker=broker, _publisher=publisher, ready=False)

    def look(self, *numbers: int) -> None:
        for number in numbers or (0, 1, 2):
            self.now_us += 1
            self.view.look(self.now_us, self.incarnations[number], self.node(number))

    def append(self, *batches: bytes, to: tuple[int, ...] = (0, 1, 2)) -> None:
        for number in to:
            self.logs[number].held += batches
        self.look(*to)

    def commit(self, offset: int, *numbers: int) -> None:
        for number in numbers or (0, 1, 2):
            self.logs[number].high_watermark = offset
            self.look(number)

    def acknowledge(self, offset: int, acks: int = -1, by: int = 0) -> None:
        node, tag = self.node(by), Tag(0, 9, "p")
        answer = ProduceResponse([ProduceTopicResponse("t", b"", [ProducePartitionResponse(0, 0, offset)])])
        request = Request(1, 7, 0, 9, "p", ProduceRequest(acks, 1000, []), tag)
        self.acked.acted(self.now_us, node, request, [Reply(1, 7, 0, 9, answer, tag)])
        self.look(by)
        self.acked.viewed(self.now_us, node)

    def restart(self, number: int) -> None:
        self.view.gone(number)
        self.logs[number] = replace(self.logs[number], held=list(self.logs[number].held))
        self.incarnations[number] += 1

    def lead(self, number: int, epoch: int) -> None:
        self.epochs = [epoch if each == number else -1 for each in range(3)]

    def broken(self) -> list[str]:
        for each in self.checks:
            each.quiet(self.now_us)
        return [check.guarantee for check in self.checks if check.violations]


@pytest.fixture
def cluster() -> Cluster:
    """Node 0 leads epoch 0; three batches are committed everywhere."""
    made = Cluster()
    made.append(*(batch(each, 0) for each in range(3)))
    made.commit(3)
    return made


def test_a_right_history_breaks_nothing(cluster: Cluster) -> None:
    cluster.acknowledge(2)
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.view.trouble.node(0, cluster.now_us)
    cluster.restart(0)
    cluster.change(isr=(1, 2), leader=1, leader_epoch=1)
    cluster.lead(1, 1)
    cluster.look(1)
    cluster.logs[0].held = cluster.logs[1].held[:]
    cluster.look(0)
    cluster.append(batch(3, 0), to=(2,))
    cluster.append(batch(4, 1))
    cluster.commit(5)
    cluster.change(isr=(1, 2, 0))
    cluster.acknowledge(4, by=1)
    assert cluster.broken() == []


def test_a_replica_with_other_bytes(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 2))
    cluster.append(batch(3, 0, b"other"), to=(1,))
    cluster.commit(4, 0)
    assert cluster.broken() == []
    cluster.commit(4, 1)
    assert cluster.broken() == ["replicas-equal"]


def test_a_leader_without_what_is_committed(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    cluster.lead(2, 1)
    cluster.change(leader=2, leader_epoch=1)
    cluster.look(2)
    assert "replicas-equal" in cluster.broken()


def test_replicas_that_do_not_come_together(cluster: Cluster) -> None:
    (converge,) = (each for each in cluster.checks if isinstance(each, ReplicasConverge))
    assert converge.reached()
    cluster.append(batch(3, 0), to=(0,))
    assert not converge.reached()
    converge.overdue(cluster.now_us, SECOND_US)
    assert cluster.broken() == ["replicas-converge"]
    cluster.append(batch(3, 0), to=(1, 2))
    cluster.commit(4)
    assert converge.reached()
    cluster.view.trouble.node(1, cluster.now_us)
    cluster.change(isr=(0, 2))
    assert not converge.reached()


def test_a_leader_that_comes_back_with_less(cluster: Cluster) -> None:
    cluster.restart(0)
    del cluster.logs[0].held[2:]
    cluster.logs[0].high_watermark = 0
    cluster.look(0)
    assert "replicas-equal" in cluster.broken()


def test_a_high_watermark_that_goes_back(cluster: Cluster) -> None:
    cluster.commit(2, 1)
    assert cluster.broken() == ["high-watermark-monotonic"]


def test_a_new_process_may_know_less(cluster: Cluster) -> None:
    cluster.restart(1)
    cluster.commit(2, 1)
    assert cluster.broken() == []


def test_a_high_watermark_beyond_the_log(cluster: Cluster) -> None:
    cluster.commit(4, 1)
    assert cluster.broken() == ["high-watermark-monotonic"]


def test_two_leaders_in_one_epoch(cluster: Cluster) -> None:
    cluster.epochs[2] = 0
    cluster.look(2)
    assert cluster.broken() == ["one-partition-leader-per-epoch"]


def test_a_high_watermark_that_an_in_sync_replica_has_not_reached(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == ["isr-honest"]


def test_a_replica_that_joins_too_early(cluster: Cluster) -> None:
    cluster.view.trouble.node(2, cluster.now_us)
    cluster.change(isr=(0, 1))
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == []
    cluster.change(isr=(0, 1, 2))
    assert cluster.broken() == ["isr-honest"]


@pytest.mark.clause("F-22")
def test_a_replica_that_leaves_without_a_reason(cluster: Cluster) -> None:
    cluster.change(isr=(0, 1))
    assert cluster.broken() == ["stable-isr"]


@pytest.mark.parametrize("touched", ["member", "leader", "link", "another replica"])
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
def test_a_replica_may_leave_when_something_happened(cluster: Cluster, touched: str, too_long_ago_us: int) -> None:
    trouble, until_us = cluster.view.trouble, cluster.now_us - IN_SYNC_US - too_long_ago_us
    if touched == "link":
        trouble.link(2, 0, until_us)
    else:
        trouble.node({"member": 2, "leader": 0, "another replica": 1}[touched], until_us)
    cluster.change(isr=(0, 1))
    is_excused = touched != "another replica" and not too_long_ago_us
    assert cluster.broken() == ([] if is_excused else ["stable-isr"])


def test_an_acknowledgement_before_it_is_committed(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0,))
    cluster.acknowledge(3, acks=1)
    assert cluster.broken() == []
    cluster.acknowledge(3)
    assert cluster.broken() == ["no-acked-lost"]


def test_what_a_node_meant_to_answer_when_it_died_was_never_said(cluster: Cluster) -> None:
    cluster.append(batch(3, 0), to=(0,))
    node, tag = cluster.node(0), Tag(0, 9, "p")
    answer = ProduceResponse([ProduceTopicResponse("t", b"", [ProducePartitionResponse(0, 0, 3)])])
    request = Request(1, 7, 0, 9, "p", ProduceRequest(-1, 1000, []), tag)
    cluster.acked.acted(cluster.now_us, node, request, [Reply(1, 7, 0, 9, answer, tag)])
    cluster.acked.acted(cluster.now_us, cluster.node(1), None, [])
    cluster.acked.viewed(cluster.now_us, cluster.node(1))
    assert cluster.broken() == []


def test_an_acknowledgement_that_too_few_hold(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.view.trouble.node(number, cluster.now_us)
    cluster.change(isr=(0,))
    cluster.append(batch(3, 0), to=(0,))
    cluster.commit(4, 0)
    cluster.acknowledge(3)
    assert cluster.broken() == ["no-acked-lost"]


def test_only_partitions_whose_records_were_lost_with_a_failed_sync_are_excused(cluster: Cluster) -> None:
    cluster.append(batch(3, 0))
    (partition,) = cluster.view.partitions.values()
    cluster.view.bytes_lost(1, ["t-1/00000000000000000000.log", "t-0/00000000000000000000.index"])
    assert not partition.eligible.tainted
    cluster.view.bytes_lost(1, ["t-0/00000000000000000000.log"])
    assert partition.eligible.tainted == {1: 4}


@pytest.mark.parametrize("had_it", [True, False])
def test_a_member_without_power_counts_only_for_what_it_had(cluster: Cluster, had_it: bool) -> None:
    for number in (1, 2):
        cluster.view.trouble.node(number, cluster.now_us)
    cluster.change(isr=(0, 1))
    cluster.append(batch(3, 0), to=(0, 1) if had_it else (0,))
    cluster.restart(1)
    cluster.view.power_lost(1)
    del cluster.logs[1].held[1:]
    cluster.logs[1].high_watermark = 0
    cluster.look(1)
    cluster.commit(4, 0)
    cluster.acknowledge(3)
    assert cluster.broken() == ([] if had_it else ["no-acked-lost", "isr-honest"])


def test_an_in_sync_replica_without_a_log_holds_nothing(cluster: Cluster) -> None:
    partition = cluster.view.partitions[KEY]
    del partition.copies[2]
    cluster.append(batch(3, 0), to=(0, 1))
    cluster.commit(4, 0)
    assert cluster.broken() == ["isr-honest"]


def test_acknowledged_batches_that_the_last_leader_lacks(cluster: Cluster) -> None:
    cluster.acknowledge(2)
    for log in cluster.logs:
        del log.held[2:]
        log.high_watermark = 2
    cluster.lead(1, 1)
    cluster.look(1)
    assert "no-acked-lost" in cluster.broken()


def lost_by_all(cluster: Cluster, start_offset: int = 0) -> None:
    """All that were in sync lose their power and all but one batch, and node 1 is elected, whose log begins at
    ``start_offset`` then. Node 0 follows it."""
    cluster.view.trouble.node(2, cluster.now_us)
    cluster.change(isr=(0, 1))
    for number in (0, 1):
        cluster.view.trouble.node(number, cluster.now_us)
        cluster.restart(number)
        cluster.view.power_lost(number)
        cluster.view.started(number)
        del cluster.logs[number].held[1:]
        cluster.logs[number].high_watermark = 0
    cluster.change(isr=(), leader=-1, leader_epoch=1)
    assert list(cluster.view.excused) == []
    cluster.change(isr=(1,), leader=1, leader_epoch=2)
    cluster.lead(1, 2)
    cluster.logs[1].log_start_offset = cluster.logs[1].high_watermark = start_offset
    cluster.look(1)
    del cluster.logs[2].held[1:]
    cluster.logs[2].high_watermark = 1
    cluster.look(0, 2)
    cluster.append(batch(1, 2))
    cluster.change(isr=(1, 0, 2))
    cluster.commit(2)


def test_what_nobody_keeps_any_more_is_excused_once_one_that_lost_it_leads(cluster: Cluster) -> None:
    cluster.acknowledge(2)
    lost_by_all(cluster)
    assert list(cluster.view.excused) == [("t", 0)]
    assert cluster.broken() == []


@pytest.mark.clause("E-7")
def test_what_follows_an_excused_loss_is_judged_again(cluster: Cluster) -> None:
    lost_by_all(cluster)
    cluster.acknowledge(1, by=1)
    assert cluster.broken() == []
    cluster.append(batch(2, 2), to=(1,))
    cluster.acknowledge(2, by=1)
    assert cluster.broken() == ["no-acked-lost"]


@pytest.mark.clause("E-7")
def test_after_an_excused_loss_only_a_follower_goes_back(cluster: Cluster) -> None:
    lost_by_all(cluster)
    cluster.commit(1, 0)
    assert cluster.broken() == []
    cluster.commit(1, 1)
    assert cluster.broken() == ["high-watermark-monotonic"]


@pytest.mark.clause("E-7")
def test_after_an_excused_loss_all_replicas_are_alike_in_the_end(cluster: Cluster) -> None:
    lost_by_all(cluster)
    cluster.restart(2)
    cluster.logs[2].held[1] = batch(1, 2, b"other")
    cluster.look(2)
    assert cluster.broken() == ["replicas-equal"]


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(("start_offset", "broken"), [(1, []), (0, ["replicas-equal"])])
def test_what_lies_below_the_log_of_the_leader_after_a_loss_is_not_known(
    cluster: Cluster, start_offset: int, broken: list[str]
) -> None:
    """The leader's first segment was damaged. Another replica still has what was in it."""
    lost_by_all(cluster, start_offset)
    cluster.restart(0)
    cluster.logs[0].held[0] = batch(0, 1, b"older")
    cluster.look(0)
    assert cluster.broken() == broken


@pytest.mark.clause("E-7")
def test_acknowledged_batches_are_gone_after_an_excused_loss(cluster: Cluster) -> None:
    lost_by_all(cluster)
    cluster.acknowledge(1, by=1)
    del cluster.logs[1].held[1:]
    cluster.logs[1].high_watermark = 1
    cluster.look(1)
    assert "no-acked-lost" in cluster.broken()


@pytest.mark.clause("E-7")
def test_a_loss_that_a_holder_out_of_sync_survives_is_not_excused(cluster: Cluster) -> None:
    """The history of the finding: in sync are 0 and 1, then 1 is away, 0 loses its power and leads again."""
    cluster.view.trouble.node(2, cluster.now_us)
    cluster.change(isr=(0, 1))
    cluster.acknowledge(2)
    cluster.view.trouble.node(1, cluster.now_us)
    cluster.change(isr=(0,))
    cluster.restart(0)
    cluster.view.power_lost(0)
    cluster.view.started(0)
    del cluster.logs[0].held[2:]
    cluster.logs[0].high_watermark = 2
    cluster.change(leader=0, leader_epoch=1)
    cluster.lead(0, 1)
    cluster.look(0)
    assert list(cluster.view.excused) == []
    assert {"replicas-equal", "no-acked-lost"} <= {*cluster.broken()}


@pytest.mark.clause("E-2")
@pytest.mark.clause("E-4")
def test_an_eligible_leader_that_lacks_records_or_registered_uncleanly(cluster: Cluster) -> None:
    cluster.view.trouble.node(1, cluster.now_us)
    cluster.view.trouble.node(2, cluster.now_us)
    cluster.change(isr=(0,), elr=(1, 2))
    assert cluster.broken() == []
    cluster.append(batch(3, 0), to=(0,))
    cluster.commit(4, 0)
    (check,) = (each for each in cluster.checks if each.guarantee == "isr-honest")
    assert [each.story.split(" ends")[0] for each in check.violations] == ["t-0: 1", "t-0: 2"]
    check.violations.clear()
    cluster.restart(1)
    cluster.view.started(1)
    news: Any = SimpleNamespace(topics=[], brokers={1: BrokerImage(1, 9, bytes(16), "h", 1, True)})
    cluster.view.image(cluster.now_us, 0, news, cluster.image())
    cluster.change()
    assert "registered after an unclean shutdown" in check.violations[0].story


def test_a_node_that_starts_tells_old_news_of_a_deleted_topic(cluster: Cluster) -> None:
    old, before = cluster.image(), cluster.state
    gone: Any = SimpleNamespace(topics=[TopicChange(old.topics["t"], None, ())], brokers={})
    cluster.view.image(cluster.now_us, 0, gone, MetadataImage())
    cluster.view.image(cluster.now_us, 0, None, old)
    cluster.change(isr=(0, 1))
    assert before.isr == (0, 1, 2)
    assert not cluster.view.partitions
    assert cluster.broken() == []


# Compacted partitions


COMPACTED = LogConfig(cleanup_policy="compact", delete_retention_ms=1000)


def keyed(offset: int, key: bytes, value: bytes | None = b"v") -> bytes:
    made = bytes(build([Record(timestamp_ms=0, key=key, value=value)], leader_epoch=0))
    return offset.to_bytes(8, "big") + made[8:]


@dataclass
class CompactedLog(Log):
    """Cleaned where ``gone`` says so. Its last record stands in the active segment."""

    config: LogConfig = COMPACTED
    gone: dict[int, None] = field(default_factory=dict)

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:  # noqa: ARG002
        return b"".join(self.held[each] for each in range(offset, end) if each not in self.gone)

    def clean(self, *gone: int) -> None:
        self.gone.update(dict.fromkeys(gone))
        self.cleaned_offset = self.bases[-1]


@pytest.fixture
def compacted() -> Cluster:
    """Keys a, b, a, b (deleted), then c in the active segment; all committed everywhere."""
    made = Cluster()
    made.logs = [CompactedLog() for _ in range(3)]
    made.append(keyed(0, b"a"), keyed(1, b"b"), keyed(2, b"a"), keyed(3, b"b", None), keyed(4, b"c"))
    for log in made.logs:
        log.bases = [0, 4]
    made.commit(5)
    return made


def test_a_replica_lacks_what_is_superseded(compacted: Cluster) -> None:
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(0, 1)
    compacted.look(1)
    late = compacted.logs[2]  # It copies what the other has cleaned, and has cleaned nothing itself.
    assert isinstance(late, CompactedLog)
    compacted.restart(2)
    compacted.logs[2] = CompactedLog(held=late.held, gone={0: None, 1: None}, high_watermark=5, bases=[0])
    compacted.look(2)
    compacted.append(keyed(5, b"b"), to=(0, 1, 2))
    for log, base in zip(compacted.logs, (5, 6, 6), strict=True):
        log.bases = [0, base]
    compacted.commit(6)
    behind = compacted.logs[0]  # It had offset 1 itself, and what was to supersede it is no more where it copies.
    assert isinstance(behind, CompactedLog)
    behind.clean(0, 3)
    compacted.look(0)
    assert compacted.broken() == []
    partition = compacted.view.partitions[KEY]
    assert partition.compacted is not None
    assert partition.compacted.cleanings == 2


@pytest.mark.parametrize(
    ("gone", "story"),
    [
        ((0, 1, 2), "lacks the record at offset 2, which is the newest of its key"),
        ((0, 1, 3), "lacks the record at offset 3, which is the newest of its key"),
        ((0,), "is cleaned up to 4, and has offset 1, which 3 supersedes"),
        ((0, 1, 4), "lacks the record at offset 4, which is the newest of its key"),
    ],
)
def test_a_replica_that_is_cleaned_wrongly(compacted: Cluster, gone: tuple[int, ...], story: str) -> None:
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(*gone)
    compacted.look(1)
    assert compacted.broken() == ["replicas-equal"]
    (found,) = {each.story for check in compacted.checks for each in check.violations}
    assert story in found


def test_a_tombstone_goes_when_its_time_is_over(compacted: Cluster) -> None:
    compacted.now_us += 2 * SECOND_US
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(0, 1, 3)
    compacted.look(1)
    assert compacted.broken() == []


def test_another_record_at_an_offset_of_a_compacted_partition(compacted: Cluster) -> None:
    compacted.restart(1)
    compacted.logs[1].held[2] = keyed(2, b"a", b"other")
    compacted.look(1)
    assert compacted.broken() == ["replicas-equal"]


def test_what_is_cleaned_is_committed(compacted: Cluster) -> None:
    compacted.append(keyed(5, b"c"), keyed(6, b"d"), to=(0, 1, 2))
    cleaned = compacted.logs[0]
    assert isinstance(cleaned, CompactedLog)
    cleaned.bases = [0, 4, 6]
    cleaned.clean(0, 1, 4)
    compacted.look(0)
    assert compacted.broken() == ["replicas-equal"]
    stories = [each.story for check in compacted.checks for each in check.violations]
    assert any("was cleaned up to 6; what is below 5 is committed" in each for each in stories)
