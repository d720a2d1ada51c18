"""The leader's part of a rebalance: which topics it must know, who gets what, and when the assignment is outdated."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_broker.client.assignors import assign
from reference_broker.client.consumer_protocol import (
    Assignment,
    decode_subscription,
    encode_assignment,
)
from reference_broker.client.group_requests import Joined


@dataclass(slots=True)
class GroupLeader:
    """What a member knows as the leader of its group.

    ``counts`` holds the number of partitions of each topic as last learnt. ``assigned_by`` holds the numbers that the
    last assignment was made from, 0 for a topic that did not exist. The numbers of ``wanted_topics`` must be learnt
    before partitions can be assigned.
    """

    counts: dict[str, int] = field(default_factory=dict)
    assigned_by: dict[str, int] = field(default_factory=dict)
    wanted_topics: tuple[str, ...] = ()

    def learn(self, counts: Mapping[str, int]) -> None:
        """Learns numbers of partitions. A wanted topic that is missing in ``counts`` does not exist."""
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
        """Begins to lead the generation of this JoinGroup answer.

        :raises ProtocolError: a member's subscription cannot be read.
        """
        topics: dict[str, None] = {}
        for data in joined.members.values():
            topics.update(dict.fromkeys(decode_subscription(data).topics))
        self.wanted_topics = tuple(each for each in topics if each not in self.counts)

    def assignments(self, joined: Joined) -> dict[str, bytes]:
        """Assigns the partitions. Returns each member's assignment, encoded, by member ID."""
        members = {member_id: decode_subscription(data) for member_id, data in joined.members.items()}
        topics = dict.fromkeys(topic for each in members.values() for topic in each.topics)
        self.assigned_by = {topic: self.counts.get(topic, 0) for topic in topics}
        given = assign(joined.protocol or "", self.assigned_by, members, joined.instance_ids)
        return {member_id: encode_assignment(Assignment(tuple(given[member_id]))) for member_id in members}
