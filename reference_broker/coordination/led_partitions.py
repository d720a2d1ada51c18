"""Which partitions of one coordinator's topic this node leads, and what becomes of them.

A partition that this node begins to lead is loaded in slices. Until that is done its clients are told
COORDINATOR_LOAD_IN_PROGRESS. A partition that this node leads no more is dropped at once.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from reference_broker.coordination.led_partition import LedPartition
from reference_broker.coordination.loading import Loading, Taker
from reference_broker.coordination.slices import SliceQueue
from reference_broker.metrics.metrics import Gauge, Histogram
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import later
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

LOAD_AGAIN_US = 1_000_000
"""A partition whose load an error of the disk ended is loaded anew after this time."""

P = TypeVar("P", bound=LedPartition)


class Keeper(Protocol[P]):
    """The coordinator whose partitions these are."""

    def begin(self, partition: Partition) -> P:
        """Returns what is kept of a partition that this node begins to lead, with nothing loaded."""
        ...

    def taker(self, found: P) -> Taker:
        """Returns what takes the records when the partition is loaded."""
        ...

    def loaded(self, found: P) -> None:
        """The partition is served from now on."""
        ...

    def unloaded(self, found: P) -> None:
        """The partition, which was served, is closed."""
        ...


class LedPartitions(Generic[P]):
    """Implements ``replication.partition_roles.LeadershipListener`` for the partitions of ``topic``."""

    def __init__(
        self, ports: Ports, topic: str, keeper: Keeper[P], loading: Gauge, load_time_ms: Histogram, prefix: str
    ) -> None:
        self._ports = ports
        self._topic = topic
        self._keeper = keeper
        self._by_index: dict[int, P] = {}
        self._loads = SliceQueue(ports)
        self._loading = loading
        """How many partitions are being loaded."""
        self._load_time_ms = load_time_ms
        self._prefix = prefix
        """With which the names of the notes begin."""

    # --- what is led ------------------------------------------------------------------------------------------------

    def find(self, index: int) -> P | Error:
        """Returns the partition, or NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        found = self._by_index.get(index)
        if found is None or found.is_refused:
            return ErrorCode.not_coordinator
        return found if found.is_loaded else ErrorCode.coordinator_load_in_progress

    def active(self) -> Sequence[P]:
        """Returns every loaded partition, by index."""
        return [self._by_index[index] for index in sorted(self._by_index) if self._by_index[index].is_loaded]

    def is_loading(self) -> bool:
        """Says whether a partition that is led here is not loaded yet."""
        return any(not each.is_loaded and not each.is_refused for each in self._by_index.values())

    def __bool__(self) -> bool:
        return bool(self._by_index)

    def validate(self) -> None:
        """Asserts what is true after each event. It looks at all that is kept, so only tests and the simulator ask."""
        for index, each in self._by_index.items():
            assert each.index == index, f"partition {each.index} is led as {index}"
            assert each.is_led, f"partition {index} is led and closed"
            each.validate()

    # --- roles ------------------------------------------------------------------------------------------------------

    def leads(self, partition: Partition) -> None:
        """Told again with each newer state. A new epoch of the same leader changes nothing: only it has written."""
        if partition.topic != self._topic:
            return
        known = self._by_index.get(partition.index)
        if known is not None and known.led is partition:
            return
        if known is not None:
            self._drop(known)
        self._begin(partition)

    def resigns(self, partition: Partition) -> None:
        """Another node leads it. Those who waited for a record of it have been told already."""
        known = self._by_index.get(partition.index) if partition.topic == self._topic else None
        if known is not None and known.led is partition:
            del self._by_index[partition.index]
            self._drop(known)

    def _begin(self, partition: Partition) -> None:
        found = self._keeper.begin(partition)
        self._by_index[partition.index] = found
        if partition.log.log_end_offset == partition.log.log_start_offset:
            self._serve(found, 0)
            return
        self._loading.value += 1
        began_us = self._ports.now().mono_us
        loading = Loading(
            self._ports,
            found,
            self._keeper.taker(found),
            lambda records: self._loaded(found, records, began_us),
            lambda reason: self._refused(found, reason),
            lambda reason: self._disk_failed(found, reason),
        )
        self._loads.add(loading.run())

    def _loaded(self, found: P, records: int, began_us: int) -> None:
        self._loading.value -= 1
        self._load_time_ms.record((self._ports.now().mono_us - began_us) // 1000)
        self._serve(found, records)

    def _refused(self, found: P, reason: str) -> None:
        """Its clients are told NOT_COORDINATOR, as in Kafka. They find it again once another replica leads it."""
        found.is_refused = True
        self._loading.value -= 1
        self._load_failed(found, reason)

    def _disk_failed(self, found: P, reason: str) -> None:
        """The error may pass: there was no free descriptor, say. Until then clients are told that it loads.

        Deliberately unlike Kafka, which serves the partition only after the next change of leaders.
        """
        self._load_failed(found, reason)
        later(self._ports, LOAD_AGAIN_US, lambda: self._load_again(found))

    def _load_failed(self, found: P, reason: str) -> None:
        self._ports.note("coordinator_load_failed", ("partition", found.led.log.directory), ("reason", reason))

    def _load_again(self, found: P) -> None:
        if self._by_index.get(found.index) is found:
            self._drop(found)
            self._begin(found.led)

    def _serve(self, found: P, records: int) -> None:
        found.is_loaded = True
        self._ports.note(f"{self._prefix}_loaded", ("partition", found.index), ("records", records))
        self._keeper.loaded(found)

    def _drop(self, known: P) -> None:
        was_loaded = known.is_loaded
        known.close()
        if was_loaded:
            self._keeper.unloaded(known)
        elif not known.is_refused:
            self._loading.value -= 1
        self._ports.note(f"{self._prefix}_unloaded", ("partition", known.index))
