"""The group coordinator of one node: which partitions of ``__consumer_offsets`` it leads, and what becomes of them.

A partition that this node begins to lead is loaded in slices; until then its groups are told
COORDINATOR_LOAD_IN_PROGRESS. One that it leads no more is dropped at once. Members and generations are
``membership``'s; committed offsets are asked for through ``commits``.
"""

from collections.abc import Callable, Iterable

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.group_metrics import GroupMetrics
from reference_broker.groups.membership.membership import Membership
from reference_broker.groups.offsets.cleaning import Cleaning
from reference_broker.groups.offsets.commits import Commits
from reference_broker.groups.offsets.loading import Loading
from reference_broker.groups.offsets.offsets_log import OffsetsLog
from reference_broker.groups.offsets.offsets_partition import OffsetsPartition
from reference_broker.groups.offsets.offsets_topic import OFFSETS_TOPIC, partition_count, partition_of
from reference_broker.groups.offsets.record_fields import fits
from reference_broker.groups.offsets.retention import Retention
from reference_broker.groups.offsets.slices import SliceQueue
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.chance import RandomSource
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error


class GroupCoordinator:
    """``image``: the metadata as this node knows it. Implements ``group_store.GroupStore``.

    ``is_creating``: the offsets topic has been asked for, and no answer has come.
    """

    __slots__ = (
        "_cleaning",
        "_config",
        "_image",
        "_leaders",
        "_led",
        "_loads",
        "_metrics",
        "_ports",
        "commits",
        "is_creating",
        "membership",
    )

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
        self._metrics = GroupMetrics(metrics)
        self._led: dict[int, OffsetsPartition] = {}
        self._loads = SliceQueue(ports)
        self.membership = Membership(ports, config, self, random)
        self._cleaning = Cleaning(ports, config, self, self.membership, self._metrics)
        self.commits = Commits(ports, config, self, self.membership, image, self._metrics)
        self.is_creating = False
        metrics.before_reading.append(lambda: self._metrics.take(self.membership.counts))

    def start(self) -> None:
        """Once, when the node serves: offsets that are too old are looked for from now on."""
        self._cleaning.start()

    # --- what is coordinated here -----------------------------------------------------------------------------------

    def find(self, group_id: str) -> OffsetsPartition | Error:
        """NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; INVALID_GROUP_ID for one that no record can hold."""
        if not fits(group_id):
            return Error.INVALID_GROUP_ID
        found = self._led.get(partition_of(group_id, partition_count(self._image(), self._config)))
        if found is None:
            return Error.NOT_COORDINATOR
        return found if found.is_loaded else Error.COORDINATOR_LOAD_IN_PROGRESS

    def active(self) -> Iterable[OffsetsPartition]:
        """Every loaded partition, by index."""
        return [self._led[index] for index in sorted(self._led) if self._led[index].is_loaded]

    def loading(self) -> bool:
        """Whether a partition that is led here is not loaded yet."""
        return any(not each.is_loaded for each in self._led.values())

    # --- roles ------------------------------------------------------------------------------------------------------

    def leads(self, partition: Partition) -> None:
        """Repeated with each newer state. A new epoch of the same leader changes nothing: only it has written."""
        if partition.topic != OFFSETS_TOPIC:
            return
        known = self._led.get(partition.index)
        if known is not None and known.led is partition:
            return
        if known is not None:
            self._drop(known)
        log = OffsetsLog(self._ports, self._config, self._leaders, partition)
        found = OffsetsPartition(self._ports, log, Retention(self._config.offsets_retention_minutes), self._metrics)
        self._led[partition.index] = found
        if partition.log.log_end_offset == partition.log.log_start_offset:
            self._serve(found, 0)
            return
        self._metrics.loading.value += 1
        began_us = self._ports.now().mono_us
        self._loads.add(Loading(self._ports, found, lambda records: self._loaded(found, records, began_us)).run())

    def resigns(self, partition: Partition) -> None:
        """It is led here no more; those who waited for a record of it have been told already."""
        known = self._led.get(partition.index) if partition.topic == OFFSETS_TOPIC else None
        if known is not None and known.led is partition:
            del self._led[partition.index]
            self._drop(known)

    def image_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:  # noqa: ARG002 - the listener's form
        """Offsets of deleted topics go."""
        gone = [
            change.before.name
            for change in delta.topics
            if change.before is not None and (change.after is None or change.after.topic_id != change.before.topic_id)
        ]
        if gone and self._led:
            self._cleaning.forget_topics(gone)

    def _loaded(self, found: OffsetsPartition, records: int, began_us: int) -> None:
        self._metrics.loading.value -= 1
        self._metrics.load_time_ms.record((self._ports.now().mono_us - began_us) // 1000)
        self._serve(found, records)
        missing = [topic for topic in found.offsets.topics() if topic not in self._image().topics]
        if missing:  # Deleted before its coordinator could say so.
            self._cleaning.forget_topics(missing)

    def _serve(self, found: OffsetsPartition, records: int) -> None:
        found.is_loaded = True
        self._ports.note("coordinator_loaded", ("partition", found.partition), ("records", records))
        self.membership.loaded(found)

    def _drop(self, known: OffsetsPartition) -> None:
        was_loaded = known.is_loaded
        known.close()
        if was_loaded:
            self.membership.unloaded(known)
        else:
            self._metrics.loading.value -= 1
        self._ports.note("coordinator_unloaded", ("partition", known.partition))
