"""Which protocol a generation uses: the members vote among those that all of them know."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from reference_broker.groups.state.member import Member, MemberProtocol


@dataclass(slots=True)
class SupportedProtocols:
    """How many members know each protocol. The counts are kept, so that nobody has to look at all members to let one
    more in. A member that names a protocol twice is counted once."""

    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, protocols: tuple[MemberProtocol, ...]) -> None:
        for name in {each.name: None for each in protocols}:
            self._counts[name] = self._counts.get(name, 0) + 1

    def remove(self, protocols: tuple[MemberProtocol, ...]) -> None:
        for name in {each.name: None for each in protocols}:
            left = self._counts[name] - 1
            if left:
                self._counts[name] = left
            else:
                del self._counts[name]

    def known_by(self, name: str) -> int:
        """How many members know this protocol."""
        return self._counts.get(name, 0)

    def select(self, members: Iterable[Member]) -> str:
        """Each member votes for the first of its own protocols that all members know. The one with the most votes wins;
        of equals it is the one that was voted for first."""
        voters = list(members)
        candidates = {name: count for name, count in self._counts.items() if count == len(voters)}
        assert candidates, "a protocol is selected where members share none"
        votes: dict[str, int] = {}
        for member in voters:
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])
