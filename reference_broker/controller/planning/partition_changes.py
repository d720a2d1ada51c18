"""Changes of one partition: the election of its leader, and the record of its new ISR and leader (Kafka's
PartitionChangeBuilder; KIP-460, KIP-704, KIP-966).

The leader epoch grows with each record that names a leader: a change of leader, and below metadata.version 12
(3.6-IV0, KAFKA-15021) also a smaller ISR under the same leader. The partition epoch grows with every record.

With eligible leader replicas (KIP-966) the ISR may become empty. A replica that leaves an ISR which is smaller than the
minimum then stays eligible, because the high watermark does not move meanwhile. It is eligible until the ISR has the
minimum again, or until its broker registers after an unclean shutdown.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.broker_settings import min_isr_of
from reference_broker.metadata.features import keeps_eligible_leaders, knows_directories, metadata_version
from reference_broker.metadata.identifiers import LOST_DIRECTORY, NO_DIRECTORY, directory_of, is_online
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import PartitionChangeRecord

Directories: TypeAlias = tuple[bytes, ...]
"""The log directories of a broker. None are known of brokers below metadata.version 17."""


class Election(IntEnum):
    PREFERRED = 0
    """The first replica if it is in sync, or else any leader that keeps the partition online."""
    ONLINE = 1
    """Any replica in sync. The leader stays if it can."""
    UNCLEAN = 2
    """As ONLINE, but if no replica in sync can lead, a replica that may lack records does."""
    UNCLEAN_WITHOUT_DIRECTORY = 3
    """As UNCLEAN, but if no such replica can lead either, a replica in no directory does, with what is left of it."""


@dataclass(frozen=True, slots=True)
class Elected:
    """The result of an election."""

    leader: int
    """-1 if no replica can lead."""
    unclean: bool = False
    """Whether the leader may lack committed records."""


def elect(
    partition: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    live: Mapping[int, Directories],
    election: Election,
) -> Elected:
    """Elect the leader. ``isr`` and ``elr`` are the in-sync and the eligible leader replicas after the change, and
    ``live`` has the brokers that may lead. The first replica is the preferred leader.

    The ELR counts only when the ISR is empty (E-3). When both are empty, the sole last known leader is elected, because
    no replica is known to have more records (E-5). The broker of each of these replicas must have the replica's
    directory (E-6). A replica that its broker has reported in no directory is elected only by
    UNCLEAN_WITHOUT_DIRECTORY.
    """
    eligible = isr or elr

    def may_lead(replica: int) -> bool:
        return replica in eligible and replica in live and has_directory(partition, replica, live[replica])

    preferred = partition.replicas[0]
    if election is Election.PREFERRED and may_lead(preferred):
        return Elected(preferred)
    if may_lead(partition.leader):  # Decision partition-leader-stays
        return Elected(partition.leader)
    for replica in partition.replicas:
        if may_lead(replica):  # Decision partition-leader-elected
            return Elected(replica)
    if not eligible and len(partition.last_known_elr) == 1:
        last = partition.last_known_elr[0]
        if last in live and has_directory(partition, last, live[last]):  # Decision last-known-elected
            return Elected(last, unclean=True)
    if election in (Election.UNCLEAN, Election.UNCLEAN_WITHOUT_DIRECTORY):
        for replica in partition.replicas:
            if replica in live and directory_of(partition, replica) != LOST_DIRECTORY:  # Decision unclean-elected
                return Elected(replica, unclean=True)
    if election is Election.UNCLEAN_WITHOUT_DIRECTORY:
        for replica in partition.replicas:
            if replica in live:
                return Elected(replica, unclean=True)
    return Elected(NO_LEADER)


def has_directory(partition: PartitionImage, replica: int, directories: Directories) -> bool:
    """Return whether a broker with these directories has the directory of the replica. A directory that was never
    reported counts as one of them."""
    return is_online(directory_of(partition, replica), directories)


def is_active(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker is registered, not fenced and not shutting down."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def active_brokers(image: MetadataImage, without: int = NO_LEADER, and_with: int = NO_LEADER) -> dict[int, Directories]:
    """Return the brokers that may lead, when ``without`` is about to leave or ``and_with`` to come, with their
    directories."""
    directories = {
        broker_id: broker.log_dirs
        for broker_id, broker in image.brokers.items()
        if broker_id != without and is_active(image, broker_id)
    }
    if and_with != NO_LEADER:
        directories[and_with] = image.brokers[and_with].log_dirs
    return directories


def only_directories(image: MetadataImage) -> dict[int, bytes]:
    """The directory of each registered broker that has exactly one, by broker ID."""
    return {broker_id: broker.log_dirs[0] for broker_id, broker in image.brokers.items() if len(broker.log_dirs) == 1}


RECOVERED, RECOVERING = 0, 1
"""LeaderRecoveryState (KIP-704): RECOVERING after an unclean election, until the new leader says otherwise."""

LEADER_CHANGE_NOT_NEEDED_FROM = 12
"""metadata.version 3.6-IV0."""

NO_LEADER_CHANGE = -2
NO_STATE_CHANGE = -1
NO_BROKER = -1

UNCLEAN_KEY = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class PartitionChangeBuilder:
    """Changes of partitions, planned by one image."""

    image: MetadataImage
    live: Mapping[int, Directories]
    """The brokers that may lead."""
    homes: Mapping[int, bytes]
    """Each broker's only directory; empty where the metadata.version has none."""
    version: int
    keeps_elr: bool
    """Whether eligible leader replicas are kept (KIP-966)."""

    @staticmethod
    def of(image: MetadataImage, without: int = NO_LEADER, and_with: int = NO_LEADER) -> "PartitionChangeBuilder":
        """Judge by the brokers of ``image``, when ``without`` is about to leave or ``and_with`` to come."""
        return PartitionChangeBuilder(
            image=image,
            live=active_brokers(image, without, and_with),
            homes=only_directories(image) if knows_directories(image) else {},
            version=metadata_version(image),
            keeps_elr=keeps_eligible_leaders(image),
        )

    def change(
        self,
        topic: TopicImage,
        index: int,
        *,
        isr: tuple[int, ...] | None = None,
        election: Election = Election.ONLINE,
        recovery_state: int | None = None,
        unclean: int = NO_BROKER,
        home: tuple[int, bytes] | None = None,
    ) -> PartitionChangeRecord | None:
        """Return the record that changes one partition, with a new leader if an election is needed, or None if nothing
        changes.

        ``isr`` is the new ISR, or None if it stays. ``unclean`` is a broker that has shut down uncleanly, so that it is
        not eligible. ``home`` is a broker and the directory in which its replica is now. Without eligible leader
        replicas an empty ISR keeps its last member, and the partition has no leader.
        """
        partition = topic.partitions[index] if home is None else _at_home(topic.partitions[index], *home)
        target = partition.isr if isr is None else isr
        elr = self._eligible_leader_replicas(topic, partition, target, unclean)
        elected = elect(partition, target, elr, self.live, election)
        leader = NO_LEADER_CHANGE if elected.leader == partition.leader else elected.leader
        state = partition.leader_recovery_state if recovery_state is None else recovery_state
        if elected.unclean and leader != NO_LEADER_CHANGE:
            target, elr = (leader,), ()
            state = RECOVERING
        elif elected.leader in elr and not target:  # Decision elected-from-elr
            target, elr = (elected.leader,), tuple(replica for replica in elr if replica != elected.leader)
        new_isr = target if target != partition.isr and (target or self.keeps_elr) else None
        if leader == NO_LEADER_CHANGE and new_isr is not None and self._must_bump_leader_epoch(partition.isr, new_isr):
            leader = partition.leader
        record = PartitionChangeRecord(
            partition_id=index,
            topic_id=topic.topic_id,
            isr=new_isr,
            leader=leader,
            leader_recovery_state=NO_STATE_CHANGE if state == partition.leader_recovery_state else state,
            eligible_leader_replicas=None if elr == partition.elr else elr,
            last_known_elr=self._last_known_elr(partition, target, elected.leader),
            directories=self._directories(partition, target, topic.partitions[index].directories, elected),
        )
        return None if record == PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id) else record

    def without_broker(
        self,
        topic: TopicImage,
        indexes: range,
        election: Election,
        broker_id: int,
        *,
        uncleanly: bool = False,
        single_stay: bool = False,
    ) -> Iterator[PartitionChangeRecord]:
        """Yield the records that remove a broker from the ISR and the leadership of these partitions, and after an
        unclean shutdown from the eligible leader replicas, too (E-4). With ``single_stay``, partitions without other
        replicas are not changed."""
        unclean = broker_id if uncleanly else NO_BROKER
        for index in indexes:
            partition = topic.partitions[index]
            if single_stay and len(partition.replicas) == 1:
                continue
            # Decision replica-leaves
            if (
                broker_id in partition.isr
                or (uncleanly and broker_id in partition.elr)
                or (broker_id in partition.replicas and self.lacks_directories(partition))
            ):
                isr = tuple(replica for replica in partition.isr if replica != broker_id)
                record = self.change(topic, index, isr=isr, election=election, unclean=unclean)
                if record is not None:
                    yield record

    def with_broker(
        self, topic: TopicImage, indexes: range, election: Election, broker_id: int
    ) -> Iterator[PartitionChangeRecord]:
        """Yield the records that elect leaders for partitions without one, because the broker is unfenced. A partition
        that it still leads, because there are no other replicas, begins a new leader epoch: the broker may have lost
        records that were read."""
        for index in indexes:
            partition = topic.partitions[index]
            if partition.leader == broker_id:
                yield PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=broker_id)
            elif partition.leader == NO_LEADER or self.lacks_directories(partition):  # Decision leaderless-on-return
                record = self.change(topic, index, election=election)
                if record is not None:
                    yield record

    def _eligible_leader_replicas(
        self, topic: TopicImage, partition: PartitionImage, isr: tuple[int, ...], unclean: int
    ) -> tuple[int, ...]:
        """Return the eligible leader replicas beside ``isr`` (E-1). An empty ISR never clears the eligible replicas,
        since only they can lead without loss."""
        if isr and (not self.keeps_elr or self._has_min_isr(topic, partition, isr)):  # Decision elr-cleared
            return ()
        before = (*partition.elr, *partition.isr) if self.keeps_elr else partition.elr
        return tuple(replica for replica in dict.fromkeys(before) if replica not in isr and replica != unclean)

    def _has_min_isr(self, topic: TopicImage, partition: PartitionImage, isr: tuple[int, ...]) -> bool:
        count = len(isr)
        return count >= len(partition.replicas) or count >= min_isr_of(self.image, topic.name)

    def _last_known_elr(self, partition: PartitionImage, isr: tuple[int, ...], leader: int) -> tuple[int, ...] | None:
        """Return the new LastKnownElr: the last leader once the ISR is empty, no replica once there is a leader, or
        None for no change."""
        before = partition.last_known_elr
        if leader != NO_LEADER:
            return () if before else None
        if isr or not self.keeps_elr:
            return None
        last = (partition.leader,) if partition.leader != NO_LEADER else partition.isr
        return last if len(last) == 1 and last != before else None

    def lacks_directories(self, partition: PartitionImage) -> bool:
        """Whether the directory of some replica was never reported, although the metadata.version has directories."""
        return bool(self.homes) and NO_DIRECTORY in (partition.directories or (NO_DIRECTORY,))

    def _directories(
        self, partition: PartitionImage, isr: tuple[int, ...], written: tuple[bytes, ...], elected: Elected
    ) -> tuple[bytes, ...] | None:
        """The directories of the replicas, None if they stay as they are ``written`` (E-6).

        A replica gets its broker's directory when it joins the ISR, because it has caught up there. So does a leader
        after an unclean election, because its records are the partition's from now on, and a replica whose directory
        was never reported.
        """
        if not self.homes:
            return None
        before = partition.directories or (NO_DIRECTORY,) * len(partition.replicas)
        moved = tuple(
            replica
            for replica in isr
            if replica not in partition.isr or (elected.unclean and replica == elected.leader)
        )
        after = tuple(
            self.homes.get(replica, directory) if directory == NO_DIRECTORY or replica in moved else directory
            for replica, directory in zip(partition.replicas, before, strict=True)
        )
        return None if after == written else after

    def _must_bump_leader_epoch(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return self.version < LEADER_CHANGE_NOT_NEEDED_FROM and any(replica not in after for replica in before)


def _at_home(partition: PartitionImage, broker_id: int, directory: bytes) -> PartitionImage:
    before = partition.directories or (NO_DIRECTORY,) * len(partition.replicas)
    after = (
        directory if replica == broker_id else earlier
        for replica, earlier in zip(partition.replicas, before, strict=True)
    )
    return replace(partition, directories=tuple(after))


def election_of(image: MetadataImage, config: BrokerConfig, topic: str) -> Election:
    """Return the election that is allowed when all in-sync replicas are gone, by the topic's setting or else by the
    controller's."""
    own = image.topic_configs(topic).get(UNCLEAN_KEY)
    unclean = config.unclean_leader_election_enable if own is None else own.strip().lower() == "true"
    return Election.UNCLEAN if unclean else Election.ONLINE
