"""The group leader's part of a rebalance.

Names and results of the assignors are Kafka's:

- ``range`` goes topic by topic and gives neighbouring partitions to one member (RangeAssignor, without racks).
- ``roundrobin`` deals all partitions in turn (RoundRobinAssignor).
- ``cooperative-sticky`` (KIP-429) is as even as subscriptions allow, and every member keeps what it can. A partition
  that changes hands goes to nobody until its owner has released it. The result is as balanced as Kafka's, though
  single members may get other partitions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from reference_broker.client.consumer_protocol import (
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from reference_broker.client.group_requests import Joined
from reference_broker.client.partitions import TopicPartition

Given = dict[str, list[TopicPartition]]
"""The partitions given to each member, by member ID. Every member has an entry."""
Owners = dict[TopicPartition, str]


Assignor: TypeAlias = Callable[[Mapping[str, int], Mapping[str, Subscription], list[str]], Given]
"""An assignor takes three arguments: the number of partitions of each topic (0 if it does not exist), the subscription
of each member, and the members' IDs in the order in which they are served."""


def assign(
    name: str,
    counts: Mapping[str, int],
    members: Mapping[str, Subscription],
    instance_ids: Mapping[str, str] | None = None,
) -> Given:
    """Assign with the assignor of that name. Static members come first, ordered by their ``instance_ids``, so that a
    new member ID after a restart changes nothing.

    :raises KeyError: there is no such assignor.
    """
    known = instance_ids or {}
    order = sorted(members, key=lambda each: (each not in known, known.get(each, each)))
    return ASSIGNORS[name](counts, members, order)


def _partitions(topic: str, counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(counts.get(topic, 0))]


def range_assignor(counts: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]) -> Given:
    """Give each member an equal run of neighbouring partitions of each topic. The first members get one more."""
    given: Given = {each: [] for each in order}
    for topic in sorted(counts):
        interested = [each for each in order if topic in members[each].topics]
        if not interested:
            continue
        share, more = divmod(counts[topic], len(interested))
        partitions = _partitions(topic, counts)
        start = 0
        for place, member in enumerate(interested):
            end = start + share + (place < more)
            given[member] += partitions[start:end]
            start = end
    return given


def round_robin_assignor(counts: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]) -> Given:
    """Deal all partitions, ordered by topic and number, to the members in turn. It skips members that do not
    subscribe to the topic."""
    given: Given = {each: [] for each in order}
    place = 0
    for topic in sorted(counts):
        if not any(topic in members[each].topics for each in order):
            continue
        for partition in _partitions(topic, counts):
            while topic not in members[order[place % len(order)]].topics:
                place += 1
            given[order[place % len(order)]].append(partition)
            place += 1
    return given


def cooperative_sticky_assignor(
    counts: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]
) -> Given:
    """Balance the partitions and let members keep theirs. A partition that moves goes to nobody in this round."""
    owners = _valid_owners(counts, members, order)
    given: Given = {each: [] for each in order}
    for partition, member in owners.items():
        given[member].append(partition)
    interested = {topic: [each for each in order if topic in members[each].topics] for topic in sorted(counts)}
    for topic, candidates in interested.items():
        for partition in _partitions(topic, counts):
            if partition not in owners and candidates:
                given[_least_loaded(given, candidates)].append(partition)
    _balance(given, interested, order)
    claimed = _claims(members, order)
    return {
        member: sorted(
            topic_partition for topic_partition in partitions if claimed.get(topic_partition, [member]) == [member]
        )
        for member, partitions in given.items()
    }


def _claims(members: Mapping[str, Subscription], order: list[str]) -> dict[TopicPartition, list[str]]:
    """The members that claim to own each partition, in the newest generation in which any member claims it."""
    newest: dict[TopicPartition, int] = {}
    claims: dict[TopicPartition, list[str]] = {}
    for member in order:
        generation = members[member].generation_id
        for partition in members[member].owned:
            if generation > newest.get(partition, -2):
                newest[partition] = generation
                claims[partition] = [member]
            elif partition in newest and generation == newest[partition]:
                claims[partition].append(member)
    return claims


def _valid_owners(counts: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]) -> Owners:
    """Return what members keep before balancing. A partition has a valid owner if it exists, exactly one member claims
    it, and that member subscribes to its topic."""
    return {
        partition: claimants[0]
        for partition, claimants in sorted(_claims(members, order).items())
        if len(claimants) == 1
        and 0 <= partition.partition < counts.get(partition.topic, 0)
        and partition.topic in members[claimants[0]].topics
    }


def _least_loaded(assigned: Given, candidates: list[str]) -> str:
    return min(candidates, key=lambda each: len(assigned[each]))


def _balance(assigned: Given, interested: Mapping[str, list[str]], order: list[str]) -> None:
    """Move partitions from members with more to members with at least two fewer, until no such pair is left. It ends
    because each move lowers the sum of the squares of the members' numbers of partitions."""
    moved = True
    while moved:
        moved = False
        for member in sorted(order, key=lambda each: -len(assigned[each])):
            for partition in list(reversed(assigned[member])):
                least = _least_loaded(assigned, interested[partition.topic])
                if len(assigned[member]) > len(assigned[least]) + 1:
                    assigned[member].remove(partition)
                    assigned[least].append(partition)
                    moved = True


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}
"""The assignors, by the names under which members announce them in JoinGroup."""


@dataclass(slots=True)
class GroupLeader:
    """The knowledge of a member as the leader of its group."""

    counts: dict[str, int] = field(default_factory=dict)
    """The number of partitions of each topic, as last known."""
    assigned_by: dict[str, int] = field(default_factory=dict)
    """The numbers that the last assignment was made from, 0 for a topic that did not exist."""
    wanted_topics: tuple[str, ...] = ()
    """The topics whose numbers must be known before partitions can be assigned."""

    def learn(self, counts: Mapping[str, int]) -> None:
        """Learn numbers of partitions. A wanted topic that is missing in ``counts`` does not exist."""
        self.counts.update(counts)
        for topic in self.wanted_topics:
            if topic not in counts:
                self.counts.pop(topic, None)
        self.wanted_topics = ()

    @property
    def is_outdated(self) -> bool:
        """Whether a topic of the last assignment has another number of partitions now."""
        return any(self.counts.get(topic, 0) != count for topic, count in self.assigned_by.items())

    def begin(self, joined: Joined) -> None:
        """Begin to lead the generation of this JoinGroup response.

        :raises ProtocolError: a member's subscription cannot be read.
        """
        topics: dict[str, None] = {}
        for data in joined.members.values():
            topics.update(dict.fromkeys(decode_subscription(data).topics))
        self.wanted_topics = tuple(topic for topic in topics if topic not in self.counts)

    def assignments(self, joined: Joined) -> dict[str, bytes]:
        """Assign the partitions. Return each member's assignment, encoded, by member ID."""
        members = {member_id: decode_subscription(data) for member_id, data in joined.members.items()}
        topics = dict.fromkeys(topic for member in members.values() for topic in member.topics)
        self.assigned_by = {topic: self.counts.get(topic, 0) for topic in topics}
        given = assign(joined.protocol or "", self.assigned_by, members, joined.instance_ids)
        return {member_id: encode_assignment(Assignment(tuple(given[member_id]))) for member_id in members}
