"""Who gets which partition: what the leader of a group works out. Names and results as Kafka's assignors.

``range``: topic by topic, neighbours to one member (RangeAssignor, without racks). ``roundrobin``: all partitions in
turn (RoundRobinAssignor). ``cooperative-sticky`` (KIP-429): as even as subscriptions allow, everybody keeps what it
can, and a partition that changes hands is given to nobody until its owner has let it go. The sticky result is as
balanced
as Kafka's, though not always member for member the same.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from reference_broker.client.consumer_protocol import Subscription
from reference_broker.client.partitions import TopicPartition

Given = dict[str, list[TopicPartition]]
"""Partitions by member ID; every member has an entry."""
Owners = dict[TopicPartition, str]


class Assignor(Protocol):
    """``counts``: numbers of partitions by topic, 0 for one that does not exist. ``order``: the members in turn."""

    def __call__(self, counts: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]) -> Given: ...


def assign(
    name: str,
    counts: Mapping[str, int],
    members: Mapping[str, Subscription],
    instance_ids: Mapping[str, str] | None = None,
) -> Given:
    """By the assignor of that name; static members, by their ``instance_ids``, come first, so that a new member ID
    after a restart changes nothing.

    :raises KeyError: there is no such assignor.
    """
    known = instance_ids or {}
    order = sorted(members, key=lambda each: (each not in known, known.get(each, each)))
    return ASSIGNORS[name](counts, members, order)


def _partitions(topic: str, counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(counts.get(topic, 0))]


def range_assignor(counts: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]) -> Given:
    """Of each topic the same share in a row; the first members in order get one more."""
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
    """All partitions in order of topic and number, one each in turn, passing over members that do not subscribe."""
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
    """Balanced and sticky; what moves is withheld in this round."""
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
        member: sorted(each for each in partitions if claimed.get(each, [member]) == [member])
        for member, partitions in given.items()
    }


def _claims(members: Mapping[str, Subscription], order: list[str]) -> dict[TopicPartition, list[str]]:
    """Who says that it owns a partition, in the newest generation in which anybody says so."""
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
    """What members keep to begin with: what exists, what they subscribe to, what one alone claims."""
    return {
        partition: claimants[0]
        for partition, claimants in sorted(_claims(members, order).items())
        if len(claimants) == 1
        and 0 <= partition.partition < counts.get(partition.topic, 0)
        and partition.topic in members[claimants[0]].topics
    }


def _least_loaded(given: Given, candidates: list[str]) -> str:
    return min(candidates, key=lambda each: len(given[each]))


def _balance(given: Given, interested: Mapping[str, list[str]], order: list[str]) -> None:
    """Move partitions from members with more to those with at least two fewer until there are none. Ends, since each
    move lowers the sum of the squares of their numbers."""
    moved = True
    while moved:
        moved = False
        for member in sorted(order, key=lambda each: -len(given[each])):
            for partition in list(reversed(given[member])):
                least = _least_loaded(given, interested[partition.topic])
                if len(given[member]) > len(given[least]) + 1:
                    given[member].remove(partition)
                    given[least].append(partition)
                    moved = True


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}
"""By the name under which members announce them."""
