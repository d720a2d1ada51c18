"""Elects the leader of a partition by Kafka's rules (PartitionChangeBuilder, KIP-460, KIP-704, KIP-966)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from reference_broker.metadata.directories import directory_of, is_online
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from reference_broker.metadata.uuids import LOST_DIRECTORY

Directories: TypeAlias = tuple[bytes, ...]
"""The log directories of a broker. None are known of brokers below metadata.version 17."""


class Election(IntEnum):
    PREFERRED = 0
    """The first replica if it is in sync, or else any leader that keeps the partition online."""
    ONLINE = 1
    """Any replica in sync. The leader stays if it can."""
    UNCLEAN = 2
    """As ONLINE, but if no replica in sync can lead, a replica that may lack records does."""
    GIVING_UP = 3
    """As UNCLEAN, but if no such replica can lead either, one that is in no directory does, with what is left of it."""


@dataclass(frozen=True, slots=True)
class Elected:
    """``leader`` is -1 if nobody can lead. ``unclean`` says that it may lack committed records."""

    leader: int
    unclean: bool = False


def elect(
    partition: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    live: Mapping[int, Directories],
    election: Election,
) -> Elected:
    """``isr`` and ``elr`` are the in-sync and the eligible leader replicas as they will be. ``live`` holds the brokers
    that may lead. The first replica is the preferred leader.

    The ELR counts only when the ISR is empty (E-3). When both are, the sole last known leader is elected, because no
    replica is known to hold more than it (E-5). Each of these must have the replica's directory (E-6). Nobody leads a
    replica that its broker has told to be in no directory, unless its records are given up.
    """
    eligible = isr or elr

    def may_lead(replica: int) -> bool:
        return replica in eligible and replica in live and has_directory(partition, replica, live[replica])

    preferred = partition.replicas[0]
    if election is Election.PREFERRED and may_lead(preferred):
        return Elected(preferred)
    if may_lead(partition.leader):
        return Elected(partition.leader)
    for replica in partition.replicas:
        if may_lead(replica):
            return Elected(replica)
    if not eligible and len(partition.last_known_elr) == 1:
        last = partition.last_known_elr[0]
        if last in live and has_directory(partition, last, live[last]):
            return Elected(last, unclean=True)
    if election in (Election.UNCLEAN, Election.GIVING_UP):
        for replica in partition.replicas:
            if replica in live and directory_of(partition, replica) != LOST_DIRECTORY:
                return Elected(replica, unclean=True)
    if election is Election.GIVING_UP:
        for replica in partition.replicas:
            if replica in live:
                return Elected(replica, unclean=True)
    return Elected(NO_LEADER)


def has_directory(partition: PartitionImage, replica: int, directories: Directories) -> bool:
    """Whether a broker with these directories has that replica's. A directory that was never told counts as there."""
    return is_online(directory_of(partition, replica), directories)


def is_active(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker is registered, not fenced and not shutting down."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def active_brokers(image: MetadataImage, without: int = NO_LEADER, and_with: int = NO_LEADER) -> dict[int, Directories]:
    """The brokers that may lead, when ``without`` is about to leave or ``and_with`` to come, with their directories. It
    is a dict because it is asked for each partition."""
    found = {
        broker_id: broker.log_dirs
        for broker_id, broker in image.brokers.items()
        if broker_id != without and is_active(image, broker_id)
    }
    if and_with != NO_LEADER:
        found[and_with] = image.brokers[and_with].log_dirs
    return found


def only_directories(image: MetadataImage) -> dict[int, bytes]:
    """The directory of each registered broker that has exactly one, by broker ID."""
    return {broker_id: broker.log_dirs[0] for broker_id, broker in image.brokers.items() if len(broker.log_dirs) == 1}
