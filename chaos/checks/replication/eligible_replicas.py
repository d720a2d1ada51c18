"""Which replicas keep committed records (KIP-966).

They are derived from clauses E-1, E-4, E-5 and E-7, without the broker's own lists. All members of the current ISR keep
a record that is acknowledged with acks=all. A member that leaves the ISR counts until the ISR is large enough again:
then E-1 clears the ELR, and it may not be elected any more. A change of min.insync.replicas clears it, too, unless the
ISR is empty (E-8). A member no longer counts when it restarts after an unclean shutdown (E-4, E-7).

A loss is excused only if both hold when a leader is elected:
- No member keeps the records any more (E-7), as E-1 and E-4 count them. E-5 then elects the last leader. A member whose
  files were damaged while it was down counts like one that lost its directory.
- That leader has lost unsynced bytes with its power. A killed process loses nothing, because the page cache stays.

A leader whose directory was replaced is never excused, since E-6 forbids to elect it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage

MIN_ISR = "min.insync.replicas"


class HasBrokers(Protocol):
    """A metadata image, or the part of it that changed."""

    @property
    def brokers(self) -> Mapping[int, BrokerImage | None]: ...


def min_isr_of(image: MetadataImage, topic: str, otherwise: int) -> int:
    """The topic's own min.insync.replicas, or else that of its brokers."""
    return int(image.topic_configs(topic).get(MIN_ISR, otherwise))


@dataclass(slots=True)
class Eligible:
    """The replicas that may keep the committed records of one partition.

    Changes that were committed together are published together. If the ISR shrank in such a jump, it may have had just
    the minimum in between, or the minimum may have changed after that. In both cases other members are cleared.
    """

    members: dict[int, None]
    """the ISR and all that were in it since it last had the minimum"""
    min_isr: int
    tainted: dict[int, int] = field(default_factory=dict)
    """replicas that lost unsynced bytes, each with the end of its log at that moment; one that is no member any more
    stays here until it registers (E-4)"""
    unclean: dict[int, None] = field(default_factory=dict)
    """replicas that came back after an unclean shutdown or with damaged files"""
    damaged: dict[int, None] = field(default_factory=dict)
    """those of them with damaged files"""
    registered: dict[int, None] = field(default_factory=dict)
    """those of them that the metadata shows; one that joins the ISR after that has copied everything again"""
    uncertain: int = 0
    """number of members that such jumps may have cleared; nobody knows which"""

    @staticmethod
    def of(state: PartitionImage, min_isr: int) -> "Eligible":
        return Eligible(dict.fromkeys(state.isr), min(min_isr, len(state.replicas)))

    @property
    def are_all_gone(self) -> bool:
        """Return whether no member keeps the records any more."""
        return sum(member not in self.unclean for member in self.members) <= self.uncertain

    def lost_bytes(self, node_id: int, end_offset: int) -> None:
        """Record that a replica lost its power when its log ended at ``end_offset``. It may be joining the ISR."""
        known = 0 if node_id in self.registered else self.tainted.get(node_id, 0)
        self.tainted[node_id] = max(known, end_offset)
        self.registered.pop(node_id, None)

    def had(self, node_id: int, end_offset: int) -> bool:
        """Return whether the node had all records below ``end_offset`` until it lost its power.

        Physical: a leader may count a member whose unsynced bytes are gone, because the member held them when it
        reported how far it was. The loss is not known before the member registers (E-4).
        """
        return self.tainted.get(node_id, -1) >= end_offset

    def came_back_uncleanly(self, node_id: int) -> None:
        if node_id in self.members or node_id in self.tainted:
            self.unclean[node_id] = None

    def came_back_damaged(self, node_id: int) -> None:
        """Record that files of the replica were damaged. E-7: its directory no longer has the records."""
        if node_id in self.members:
            self.unclean[node_id] = self.damaged[node_id] = None

    def registered_uncleanly(self, node_id: int) -> None:
        if node_id in self.unclean:
            self.registered[node_id] = None

    def minimum_changed(self, state: PartitionImage, min_isr: int) -> None:
        """Note another min.insync.replicas, which came into force while ``state`` held or in the jump that follows."""
        self.min_isr = min(min_isr, len(state.replicas))
        if state.isr:
            self._keep_only(state.isr)

    def follow(self, before: PartitionImage, now: PartitionImage, min_isr: int, minimum_changed: bool = False) -> bool:
        """Follow a newer state. ``minimum_changed`` says that another min.insync.replicas came with it. Returns
        whether its leader is one that may lack committed records."""
        self.min_isr = min(min_isr, len(now.replicas))
        if minimum_changed and now.isr:
            self.uncertain = max(self.uncertain, sum(member not in now.isr for member in self.members))
        if now.partition_epoch > before.partition_epoch + 1:
            self.uncertain = max(self.uncertain, len(self.members) - max(self.min_isr, len(now.isr)))
        is_new_leader = now.leader != NO_LEADER and now.leader_epoch > before.leader_epoch
        excuses = is_new_leader and now.leader in self.tainted and self.are_all_gone
        for member in now.isr:
            # E-4: a replica that lost its power while it joined is a member until it registers, but its records are
            # gone.
            if member not in before.isr and (excuses or member not in self.tainted or member in self.registered):
                self._forget(member)
            self.members[member] = None
        if len(now.isr) >= self.min_isr or excuses:
            self._keep_only(now.isr)
        return excuses

    def _keep_only(self, isr: tuple[int, ...]) -> None:
        for member in [each for each in self.members if each not in isr]:
            del self.members[member]
            # E-4: a loss is not known before the replica registers, so a late proposal may make it a member again.
            if member not in self.tainted or member in self.registered:
                self._forget(member)
        self.uncertain = 0

    def _forget(self, member: int) -> None:
        for marks in (self.tainted, self.unclean, self.damaged, self.registered):
            marks.pop(member, None)


@dataclass(slots=True)
class UncleanEnds:
    """Starts and registrations after an unclean shutdown, by the contents of the nodes' disks.

    A node registers some time after its start. The controller acts on that before the metadata shows the registration,
    so both moments are reported.
    """

    _epochs: dict[int, int] = field(default_factory=dict)
    """The newest broker epoch of each node that any image showed."""
    _ended: dict[int, None] = field(default_factory=dict)
    _started: dict[int, None] = field(default_factory=dict)

    def ended(self, node_id: int, clean: bool) -> None:
        self._started.pop(node_id, None)
        if clean:
            self._ended.pop(node_id, None)
        else:
            self._ended[node_id] = None

    def started(self, node_id: int) -> bool:
        """Return whether the node starts after an unclean shutdown."""
        if node_id not in self._ended:
            return False
        self._started[node_id] = None
        return True

    def registered(self, news: HasBrokers) -> Iterator[int]:
        """Yield the brokers that have registered since such a start."""
        for broker_id, broker in news.brokers.items():
            if broker is None or broker.broker_epoch <= self._epochs.get(broker_id, -1):
                continue
            self._epochs[broker_id] = broker.broker_epoch
            if broker_id in self._started:
                del self._started[broker_id], self._ended[broker_id]
                yield broker_id
