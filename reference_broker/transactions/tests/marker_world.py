"""A marker writer on a real leader (``leader_world``): node 1 leads ``events`` and the offsets topic."""

from typing import Any

from reference_broker.log.opening import open_log
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TopicPartition
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import BatchHeader, iterate
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.replication.tests.leader_world import TOPIC_ID, LeaderWorld
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.transactions.markers import Marker, MarkerWriter
from reference_broker.wire.errors import Error

OFFSETS_TOPIC_ID = b"o" * 16
PRODUCER = 7


class MarkerWorld(LeaderWorld):
    """``partitions``: of ``events``, led here, with these replicas. ``appended``: the markers that the offsets were
    notified of, as (index, producer ID, epoch, offset, is a commit). ``loading``: offsets partitions that are not
    loaded."""

    def __init__(self, partitions: int = 1, replicas: tuple[int, ...] = (1,), min_isr: int = 1) -> None:
        super().__init__(min_isr)
        self.partitions = Partitions()
        self.led = [self.lead(index, replicas, replicas) for index in range(partitions)]
        for partition in self.led:
            self.partitions.add(partition)
        state = PartitionImage(replicas, replicas, 1, 0, 0)
        self.controller.image = MetadataImage(
            brokers=self.controller.image.brokers,
            topics={"events": TopicImage("events", TOPIC_ID, (state,) * (partitions + 1))},
            topic_names={TOPIC_ID: "events"},
        )
        self.appended: list[tuple[int, int, int, int, bool]] = []
        self.loading: list[int] = []
        ports: Any = self
        self.writer = MarkerWriter(ports, self.partitions, self.leaders, lambda: self.controller.image, 30_000, self)

    def refuses_markers(self, index: int) -> bool:
        return index in self.loading

    def marker_appended(self, index: int, producer_id: int, producer_epoch: int, offset: int, is_commit: bool) -> None:
        self.appended.append((index, producer_id, producer_epoch, offset, is_commit))

    def lead_offsets(self, index: int) -> Partition:
        log = run_to_end(open_log(self.disk, f"{OFFSETS_TOPIC}-{index}", self.led[0].log.config, self.now(), True))
        partition = Partition(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, index, 0, log)
        self.partitions.add(partition)
        return partition

    def lose(self, index: int) -> None:
        """Make another node the leader."""
        partition = self.led[index]
        self.partitions.remove(partition)
        self.leaders.stops_leading(partition)

    def restart(self, index: int) -> None:
        """Open the log from the disk, as after a crash."""
        partition = self.led[index]
        partition.log = run_to_end(
            open_log(self.disk, partition.log.directory, partition.log.config, self.now(), clean=False)
        )
        partition.log.advance_high_watermark(partition.log.log_end_offset)

    def open(
        self, index: int = 0, *, epoch: int = 0, sequence: int = 0, count: int = 1, producer: int = PRODUCER
    ) -> None:
        """Append a transactional batch of the producer."""
        records = [Record(timestamp_ms=START_MS, key=None, value=b"v")] * count
        batch = build(
            records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
        )
        partition = self.led[index]
        partition.log.append(self.now(), batch, partition.leader_epoch)
        self.leaders.appended(partition)

    def end(self, *keys: TopicPartition, **how: Any) -> list[dict[TopicPartition, Error]]:
        """Write a marker. The returned list gets the response once it is sent."""
        responses: list[dict[TopicPartition, Error]] = []
        self.writer.write(marker(**how), keys or (("events", 0),), responses.append)
        return responses

    def errors(self, *keys: TopicPartition, **how: Any) -> list[Error]:
        """Return the immediate errors of the partitions, in their order."""
        (response,) = self.end(*keys, **how)
        return list(response.values())

    def batches(self, index: int = 0) -> list[BatchHeader]:
        log = self.led[index].log
        return [header for _, header in iterate(log.read(0, 1 << 20, log.log_end_offset))]


def marker(
    epoch: int = 0, coordinator: int = 0, commit: bool = True, version: int = 0, producer: int = PRODUCER
) -> Marker:
    return Marker(producer, epoch, coordinator, commit, version)
