"""Elects the leader of a partition by Kafka's rules (PartitionChangeBuilder, KIP-460, KIP-704)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage

Acceptable: TypeAlias = Callable[[int], bool]
"""Whether a broker may lead at all, which means that it is live and not shutting down."""


class Election(IntEnum):
    PREFERRED = 0
    """The first replica if it is in sync, or else any leader that keeps the partition online."""
    ONLINE = 1
    """Any replica in sync. The leader stays if it can."""
    UNCLEAN = 2
    """As ONLINE, but if no replica in sync can lead, a replica that may lack records does."""


@dataclass(frozen=True, slots=True)
class Elected:
    """``leader`` is -1 if nobody can lead. ``unclean`` says that it may lack committed records."""

    leader: int
    unclean: bool = False


def elect(partition: PartitionImage, isr: tuple[int, ...], acceptable: Acceptable, election: Election) -> Elected:
    """``isr`` is the ISR as it will be. The first replica is the preferred leader."""
    preferred = partition.replicas[0]
    if election is Election.PREFERRED and preferred in isr and acceptable(preferred):
        return Elected(preferred)
    if partition.leader in isr and acceptable(partition.leader):
        return Elected(partition.leader)
    for replica in partition.replicas:
        if replica in isr and acceptable(replica):
            return Elected(replica)
    if election is Election.UNCLEAN:
        for replica in partition.replicas:
            if acceptable(replica):
                return Elected(replica, unclean=True)
    return Elected(NO_LEADER)


def is_active(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker is registered, not fenced and not shutting down."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def active_brokers(image: MetadataImage, without: int = NO_LEADER, and_with: int = NO_LEADER) -> dict[int, None]:
    """The brokers that may lead, when ``without`` is about to leave or ``and_with`` to come. It is a dict because it is
    asked for each partition."""
    found = {broker_id: None for broker_id in image.brokers if broker_id != without and is_active(image, broker_id)}
    if and_with != NO_LEADER:
        found[and_with] = None
    return found
