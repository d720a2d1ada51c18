"""Which protocol a generation uses: members vote among those that all of them know."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from reference_broker.groups.membership.member import Member, MemberProtocol


@dataclass(slots=True)
class SupportedProtocols:
    """Counts, so that nobody walks over all members to let one more in."""

    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, protocols: tuple[MemberProtocol, ...]) -> None:
        for each in protocols:
            self._counts[each.name] = self._counts.get(each.name, 0) + 1

    def remove(self, protocols: tuple[MemberProtocol, ...]) -> None:
        for each in protocols:
            left = self._counts[each.name] - 1
            if left:
                self._counts[each.name] = left
            else:
                del self._counts[each.name]

    def known_by(self, name: str) -> int:
        """How many members know it."""
        return self._counts.get(name, 0)

    def select(self, members: Iterable[Member]) -> str:
        """Each member votes for the first of its own that all know; most votes win, of equals the first voted for."""
        voters = list(members)
        candidates = {name: count for name, count in self._counts.items() if count == len(voters)}
        assert candidates, "a protocol is selected where members share none"
        votes: dict[str, int] = {}
        for member in voters:
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])
