"""Places new replicas, striped over racks and brokers as Kafka's StripedReplicaPlacer does it.

The leaders (first replicas) go to one rack after the other, and in each rack to one unfenced broker after the other.
The other replicas of a partition come from the following racks, unfenced brokers before fenced ones. After as many
partitions as there are unfenced brokers everything is shuffled, so that a broker does not always have the same
companions. New partitions of a topic continue after its last one (KAFKA-19577).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reference_broker.controller.write_operations import ApiError
from reference_broker.metadata.image import MetadataImage, PartitionImage
from reference_broker.ports.node_ports import RandomSource
from reference_broker.wire.errors import ErrorCode

_NOBODY = -1


@dataclass(slots=True)
class _Turns:
    """Brokers that take turns. In each epoch (one partition) each has one turn, and the first turn moves on by one."""

    brokers: list[int]
    offset: int = 0
    _epoch: int = 0
    _index: int = 0

    def next(self, epoch: int) -> int:
        """Return -1 if every broker had its turn in this epoch."""
        count = len(self.brokers)
        if not count:
            return _NOBODY
        if self._epoch != epoch:
            self._epoch, self._index, self.offset = epoch, 0, (self.offset + 1) % count
        if self._index >= count:
            return _NOBODY
        self._index += 1
        return self.brokers[(self._index - 1 + self.offset) % count]

    def begin(self, offset: int) -> None:
        self._epoch, self._index, self.offset = 0, 0, offset

    def begin_somewhere(self, random: RandomSource) -> None:
        self.begin(random.randrange(len(self.brokers)) if self.brokers else 0)


@dataclass(slots=True)
class _Rack:
    name: str | None
    fenced: _Turns = field(default_factory=lambda: _Turns([]))
    unfenced: _Turns = field(default_factory=lambda: _Turns([]))

    def next(self, epoch: int) -> int:
        broker = self.unfenced.next(epoch)
        return broker if broker != _NOBODY else self.fenced.next(epoch)


@dataclass(slots=True)
class _Racks:
    """The racks in the order in which replicas are placed."""

    random: RandomSource
    racks: list[_Rack]
    unfenced: int
    offset: int
    """The index of the rack that gets the next leader."""
    epoch: int = 0

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """Return the replicas of one partition. There must be at least ``replication_factor`` brokers, one of them
        unfenced."""
        if self.epoch and self.unfenced > 1 and self.epoch % self.unfenced == 0:
            self._shuffle()  # Kafka also starts the epochs at 0 again, and then skips brokers by mistake.
        if self.offset == len(self.racks):
            self.offset = 0
        first_rack, leader = self._leader()
        replicas, rack = [leader], self.offset
        while len(replicas) < replication_factor:
            broker = _NOBODY
            if rack == first_rack:
                first_rack = _NOBODY  # The leader's rack is passed over once, so that other racks come first.
            else:
                broker = self.racks[rack].next(self.epoch)
            rack = (rack + 1) % len(self.racks)
            if broker != _NOBODY:
                replicas.append(broker)
        self.epoch += 1
        self.offset += 1
        return tuple(replicas)

    def _leader(self) -> tuple[int, int]:
        rack = self.offset
        while (broker := self.racks[rack].unfenced.next(self.epoch)) == _NOBODY:
            rack = (rack + 1) % len(self.racks)
        return rack, broker

    def _shuffle(self) -> None:
        self.random.shuffle(self.racks)
        for rack in self.racks:
            self.random.shuffle(rack.fenced.brokers)
            self.random.shuffle(rack.unfenced.brokers)


def placement(
    image: MetadataImage, replication_factor: int, random: RandomSource, existing: Sequence[PartitionImage] = ()
) -> Iterator[tuple[int, ...]] | ApiError:
    """Yield the replicas of each new partition, without end. ``existing`` holds the topic's partitions so far.

    Refuses with INVALID_REPLICATION_FACTOR if too few brokers are registered or all are fenced. Brokers in controlled
    shutdown do not count.
    """
    usable = [broker for broker in image.brokers.values() if not broker.in_controlled_shutdown]
    unfenced = sum(not broker.fenced for broker in usable)
    problem = None
    if replication_factor <= 0:
        problem = f"Invalid replication factor {replication_factor}: the replication factor must be positive."
    elif not unfenced:
        problem = "All brokers are currently fenced."
    elif replication_factor > len(usable):
        problem = (
            f"The target replication factor of {replication_factor} cannot be reached because only {len(usable)} "
            "broker(s) are registered."
        )
    if problem is not None:
        return ApiError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): {problem}",
        )
    return _endless(_racks(image, random, existing), replication_factor)


def _endless(racks: _Racks, replication_factor: int) -> Iterator[tuple[int, ...]]:
    """Yield the replicas of one partition after the other. Equal tuples are one object, because topics keep tens of
    thousands of them."""
    interned: dict[tuple[int, ...], tuple[int, ...]] = {}
    while True:
        replicas = racks.place(replication_factor)
        yield interned.setdefault(replicas, replicas)


def _racks(image: MetadataImage, random: RandomSource, existing: Sequence[PartitionImage]) -> _Racks:
    by_name: dict[str | None, _Rack] = {}
    rack_of: dict[int, str | None] = {}
    unfenced = 0
    for broker_id in sorted(image.brokers):
        broker = image.brokers[broker_id]
        if broker.in_controlled_shutdown:
            continue
        rack = by_name.setdefault(broker.rack, _Rack(broker.rack))
        (rack.fenced if broker.fenced else rack.unfenced).brokers.append(broker_id)
        rack_of[broker_id] = broker.rack
        unfenced += not broker.fenced
    racks = [by_name[name] for name in sorted(by_name, key=lambda name: (name is not None, name or ""))]
    for rack in racks:
        rack.fenced.begin_somewhere(random)
        previous = _last_in_rack(existing, rack, rack_of)
        if previous is None:
            rack.unfenced.begin_somewhere(random)
        else:
            rack.unfenced.begin((previous + 1) % len(rack.unfenced.brokers))
    last = existing[-1].replicas[0] if existing else _NOBODY
    if last in rack_of:
        offset = ([rack.name for rack in racks].index(rack_of[last]) + 1) % len(racks)
    else:
        offset = random.randrange(len(racks))
    return _Racks(random, racks, unfenced, offset)


def _last_in_rack(existing: Sequence[PartitionImage], rack: _Rack, rack_of: dict[int, str | None]) -> int | None:
    """Return the broker of the rack that the topic used last, as its index among the rack's unfenced brokers, or
    None."""
    for partition in reversed(existing):
        for broker in partition.replicas:
            if broker in rack_of and rack_of[broker] == rack.name:
                unfenced = rack.unfenced.brokers
                return unfenced.index(broker) if broker in unfenced else None
    return None
