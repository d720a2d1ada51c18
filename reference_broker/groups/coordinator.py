"""The group coordinator of one node: which partitions of ``__consumer_offsets`` it leads, and what becomes of them.

A partition that this node begins to lead is loaded in slices. Until that is done its groups are told
COORDINATOR_LOAD_IN_PROGRESS. A partition that this node leads no more is dropped at once. Members and generations are
asked for through ``membership``, committed offsets through ``commits``.
"""

from collections.abc import Callable, Iterable

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.membership.membership import Membership
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.offsets.cleaning import Cleaning
from reference_broker.groups.offsets.commits import Commits
from reference_broker.groups.slices import SliceQueue
from reference_broker.groups.storage.loading import Loading
from reference_broker.groups.storage.log import OffsetsLog
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.groups.storage.record_fields import fits
from reference_broker.groups.storage.retention import Retention
from reference_broker.groups.storage.topic import OFFSETS_TOPIC, partition_count, partition_of
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.chance import RandomSource
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import later
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

LOAD_AGAIN_US = 1_000_000
"""A partition whose load an error of the disk ended is loaded anew after this time."""


class GroupCoordinator:
    """``image`` returns the metadata as this node knows it."""

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        leaders: Leaders,
        image: Callable[[], MetadataImage],
        metrics: Metrics,
        random: RandomSource,
    ) -> None:
        self._ports = ports
        self._config = config
        self._leaders = leaders
        self._image = image
        self._led: dict[int, OffsetsPartition] = {}
        self._loads = SliceQueue(ports)
        self.metrics = GroupMetrics(metrics)
        self.membership = Membership(ports, config, self.find, self.metrics, random)
        self.commits = Commits(ports, config, self.find, self.membership, image, self.metrics)
        self._cleaning = Cleaning(ports, config, self.active, self.membership, self.metrics)
        self.is_creating = False
        """The offsets topic has been asked for, and no answer has come."""

    def start(self) -> None:
        """Begins to look for offsets that are too old. The node calls it once, when it serves."""
        self._cleaning.start()

    # --- what is coordinated here -----------------------------------------------------------------------------------

    def find(self, group_id: str) -> OffsetsPartition | Error:
        """Returns the partition that keeps the group, or NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or
        INVALID_GROUP_ID for an ID that no record can hold. Where Kafka refuses the empty ID, the caller does."""
        if not fits(group_id):
            return ErrorCode.invalid_group_id
        found = self._led.get(partition_of(group_id, partition_count(self._image(), self._config)))
        if found is None or found.is_refused:
            return ErrorCode.not_coordinator
        return found if found.is_loaded else ErrorCode.coordinator_load_in_progress

    def active(self) -> Iterable[OffsetsPartition]:
        """Returns every loaded partition, by index."""
        return [self._led[index] for index in sorted(self._led) if self._led[index].is_loaded]

    def loading(self) -> bool:
        """Says whether a partition that is led here is not loaded yet."""
        return any(not each.is_loaded and not each.is_refused for each in self._led.values())

    def validate(self) -> None:
        """Asserts what is true after each event. It looks at all groups, so only tests and the simulator ask."""
        for index, each in self._led.items():
            assert each.index == index, f"partition {each.index} is led as {index}"
            assert each.is_led, f"partition {index} is led and closed"
            each.validate()
        self.membership.validate()

    # --- roles ------------------------------------------------------------------------------------------------------

    def leads(self, partition: Partition) -> None:
        """Told again with each newer state. A new epoch of the same leader changes nothing: only it has written."""
        if partition.topic != OFFSETS_TOPIC:
            return
        known = self._led.get(partition.index)
        if known is not None and known.led is partition:
            return
        if known is not None:
            self._drop(known)
        self._begin(partition)

    def _begin(self, partition: Partition) -> None:
        log = OffsetsLog(self._ports, self._config, self._leaders, partition)
        found = OffsetsPartition(self._ports, log, Retention(self._config.offsets_retention_minutes), self.metrics)
        self._led[partition.index] = found
        if partition.log.log_end_offset == partition.log.log_start_offset:
            self._serve(found, 0)
            return
        self.metrics.loading.value += 1
        began_us = self._ports.now().mono_us
        loading = Loading(
            self._ports,
            found,
            lambda records: self._loaded(found, records, began_us),
            lambda reason: self._refused(found, reason),
            lambda reason: self._disk_failed(found, reason),
        )
        self._loads.add(loading.run())

    def resigns(self, partition: Partition) -> None:
        """Another node leads it. Those who waited for a record of it have been told already."""
        known = self._led.get(partition.index) if partition.topic == OFFSETS_TOPIC else None
        if known is not None and known.led is partition:
            del self._led[partition.index]
            self._drop(known)

    def image_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:  # noqa: ARG002 - the listener's form
        """Removes the offsets of deleted topics."""
        gone = [
            change.before.name
            for change in delta.topics
            if change.before is not None and (change.after is None or change.after.topic_id != change.before.topic_id)
        ]
        if gone and self._led:
            self._cleaning.forget_topics(gone)

    def _loaded(self, found: OffsetsPartition, records: int, began_us: int) -> None:
        self.metrics.loading.value -= 1
        self.metrics.load_time_ms.record((self._ports.now().mono_us - began_us) // 1000)
        self._serve(found, records)
        missing = [topic for topic in found.offsets.topics() if topic not in self._image().topics]
        if missing:  # They were deleted before their coordinator could remove the offsets.
            self._cleaning.forget_topics(missing)

    def _refused(self, found: OffsetsPartition, reason: str) -> None:
        """Its clients are told NOT_COORDINATOR, as in Kafka. They find it again once another replica leads it."""
        found.is_refused = True
        self.metrics.loading.value -= 1
        self._load_failed(found, reason)

    def _disk_failed(self, found: OffsetsPartition, reason: str) -> None:
        """The error may pass: there was no free descriptor, say. Until then clients are told that the groups load.

        Deliberately unlike Kafka, which serves these groups only after the next change of leaders.
        """
        self._load_failed(found, reason)
        later(self._ports, LOAD_AGAIN_US, lambda: self._load_again(found))

    def _load_failed(self, found: OffsetsPartition, reason: str) -> None:
        self._ports.note("coordinator_load_failed", ("partition", found.led.log.directory), ("reason", reason))

    def _load_again(self, found: OffsetsPartition) -> None:
        if self._led.get(found.index) is found:
            self._drop(found)
            self._begin(found.led)

    def _serve(self, found: OffsetsPartition, records: int) -> None:
        found.is_loaded = True
        self._ports.note("coordinator_loaded", ("partition", found.index), ("records", records))
        self.membership.loaded(found)

    def _drop(self, known: OffsetsPartition) -> None:
        was_loaded = known.is_loaded
        known.close()
        if was_loaded:
            self.membership.unloaded(known)
        elif not known.is_refused:
            self.metrics.loading.value -= 1
        self._ports.note("coordinator_unloaded", ("partition", known.index))
