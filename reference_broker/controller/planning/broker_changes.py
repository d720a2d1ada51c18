"""The records of a broker's life after its registration: fencing, unfencing, controlled shutdown, removal.

A broker that goes leaves every ISR, and leads nothing. Another live member leads, or an eligible leader replica, or
nobody. A broker that registers anew goes first. If its last shutdown was unclean, it may have lost what it had
acknowledged, so that it is no eligible leader either (KIP-966).

Without eligible leader replicas the last member stays in the ISR. A partition without other replicas then names a
broker that restarts as its leader until it is unfenced. Clients are not sent to a fenced broker.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from reference_broker.controller.planning.change import Situation
from reference_broker.controller.planning.leader_election import Election
from reference_broker.controller.planning.partition_changes import PartitionChanges, election_of
from reference_broker.metadata.features import keeps_eligible_leaders
from reference_broker.metadata.image import BrokerImage, TopicImage
from reference_broker.metadata.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    UnregisterBrokerRecord,
)

FENCED, UNFENCED, NO_CHANGE = 1, -1, 0
"""BrokerRegistrationChangeRecord.Fenced."""

PARTITIONS_PER_UNIT = 50
CHANGES_PER_UNIT = 2
"""The number of partitions that a plan can look at, and the number that it can change, in about 10 us."""

PARTITIONS_PER_LOOK = 250
"""After so many partitions of one topic the plan checks the event's time. Changing all of them takes 1.3 ms."""

RecordSlices: TypeAlias = Generator[None, None, list[MetadataRecord]]


BrokerChange: TypeAlias = Callable[[Situation, BrokerImage], RecordSlices]


def restarting(situation: Situation, broker_id: int, uncleanly: bool) -> RecordSlices:
    """Passes on what the broker holds, before a new incarnation of it is registered. After an unclean shutdown it is
    no eligible leader either (E-4)."""
    known = situation.latest.brokers.get(broker_id)
    if not keeps_eligible_leaders(situation.latest):
        if known is None or known.fenced:
            return []
        return (yield from _passing_on(situation, broker_id, single_stay=True))
    if known is not None and known.fenced and not uncleanly:
        return []
    return (yield from _passing_on(situation, broker_id, uncleanly=uncleanly))


def fencing(situation: Situation, broker: BrokerImage) -> RecordSlices:
    """Returns no records for a broker that is fenced."""
    if broker.fenced:
        return []
    records = yield from _passing_on(situation, broker.broker_id)
    records.append(_change(broker, FENCED, 0))
    return records


def leaving(situation: Situation, broker: BrokerImage) -> RecordSlices:
    """Begins a controlled shutdown. The broker leads nothing and is in no ISR, but it is not fenced yet, so that it can
    still answer clients that have not heard of this. Returns no records for a broker that is fenced or leaves
    already."""
    if broker.fenced or broker.in_controlled_shutdown:
        return []
    return [_change(broker, NO_CHANGE, 1), *(yield from _passing_on(situation, broker.broker_id))]


def shutting_down(situation: Situation, broker: BrokerImage) -> RecordSlices:
    """Ends a controlled shutdown: the broker is fenced, and the record says that it wanted this."""
    if is_shut_down(broker, broker.broker_epoch):
        return []
    records = [] if broker.fenced else (yield from _passing_on(situation, broker.broker_id))
    records.append(_change(broker, NO_CHANGE if broker.fenced else FENCED, 1))
    return records


def unfencing(situation: Situation, broker: BrokerImage) -> RecordSlices:
    """Lets the broker lead again, and elects leaders for partitions without one. Returns no records for a broker that
    is not fenced or has shut down."""
    if not broker.fenced or broker.in_controlled_shutdown:
        return []
    changes = PartitionChanges.of(situation.latest, and_with=broker.broker_id)
    records = yield from _changes(situation, partial(changes.coming, broker_id=broker.broker_id))
    return [_change(broker, UNFENCED, 0), *records]


def unregistering(situation: Situation, broker: BrokerImage) -> RecordSlices:
    """Removes the broker. Others lead what it led."""
    records = [] if broker.fenced else (yield from _passing_on(situation, broker.broker_id))
    records.append(UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))
    return records


def is_shut_down(broker: BrokerImage | None, broker_epoch: int) -> bool:
    """Whether this registration was ended by a controlled shutdown or by a later registration."""
    return broker is not None and (
        broker.broker_epoch > broker_epoch
        or (broker.broker_epoch == broker_epoch and broker.fenced and broker.in_controlled_shutdown)
    )


def _passing_on(
    situation: Situation, broker_id: int, *, uncleanly: bool = False, single_stay: bool = False
) -> RecordSlices:
    """The records by which partitions go on without the broker. A fenced broker is in no ISR that has another
    member."""
    changes = PartitionChanges.of(situation.latest, without=broker_id)
    without = partial(changes.leaving, broker_id=broker_id, uncleanly=uncleanly, single_stay=single_stay)
    return (yield from _changes(situation, without))


def _changes(
    situation: Situation, changed: Callable[[TopicImage, range, Election], Iterable[MetadataRecord]]
) -> RecordSlices:
    """Returns the records that ``changed`` makes for all topics. It gets a part of one topic at a time."""
    records: list[MetadataRecord] = []
    for topic in situation.latest.topics.values():
        election = election_of(situation.latest, situation.config, topic.name)
        for indexes in looks(topic):
            found = list(changed(topic, indexes, election))
            records += found
            if situation.spend(cost_of(indexes, found)):
                yield
    return records


def looks(topic: TopicImage) -> Iterator[range]:
    """Yields the partitions of a topic in parts."""
    count = len(topic.partitions)
    for first in range(0, count, PARTITIONS_PER_LOOK):
        yield range(first, min(first + PARTITIONS_PER_LOOK, count))


def cost_of(indexes: range, changed: Sequence[object]) -> int:
    """The cost of such a part, in units of about 10 us."""
    return 1 + len(indexes) // PARTITIONS_PER_UNIT + len(changed) // CHANGES_PER_UNIT


def _change(broker: BrokerImage, fenced: int, in_controlled_shutdown: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )
