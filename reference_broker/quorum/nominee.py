"""The two roles that seek votes.

A PROSPECTIVE node requests pre-votes, by which voters promise nothing (KIP-996). A CANDIDATE requests binding votes.
"""

from typing import TYPE_CHECKING

from reference_broker.quorum.messages import RaftResponse, Vote, read_voted, vote
from reference_broker.quorum.roles import Role, RoleState
from reference_broker.quorum.values import MAX_EPOCH, NO_NODE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from reference_broker.quorum.quorum import Quorum

RETRY_US = 50_000
"""A request to a voter that could not be reached is resent after this delay, which doubles each time."""
LONGEST_RETRY_US = 400_000


class Nominee(RoleState):
    """Requests the vote of every voter and counts the responses.

    The election is lost early in two cases: a majority rejects, or one voter rejects and every other one has responded
    or cannot be reached.
    """

    pre_vote = True

    def __init__(self, quorum: "Quorum") -> None:
        super().__init__(quorum)
        self.granted = {quorum.node_id: True}
        self.rejected: dict[int, bool] = {}
        self.failed: dict[int, int] = {}
        """How often in a row the request to a voter failed, by voter. It is resent until the election ends."""

    def start(self) -> None:
        quorum = self.quorum
        if len(self.granted) >= quorum.majority:
            self.won()
            return
        self.after(quorum.timing.election_us(), self.timed_out)
        for peer in quorum.others:
            self._request_vote(peer)

    @property
    def known(self) -> int:
        """The number of voters that have responded or could not be reached."""
        return len(self.granted) + len(self.rejected) + len(self.failed)

    def won(self) -> None:
        """Called when a majority has granted its votes."""

    @property
    def may_win(self) -> bool:
        """Whether the grants of a majority are enough to win."""
        return True

    def lost(self) -> None:
        """Called when a majority can no longer be expected."""

    def timed_out(self) -> None:
        """Called when not enough responses came within the election timeout."""

    def _request_vote(self, peer: int) -> None:
        quorum = self.quorum
        request = Vote(quorum.cluster_id, peer, quorum.node_id, quorum.epoch, quorum.log.end, self.pre_vote)
        self.send_request(
            peer,
            ApiKey.VOTE,
            vote(request),
            read_voted,
            lambda response: self._responded(peer, response),
            lambda: self._unreachable(peer),
            quorum.timing.election_timeout_ms,
        )

    def _responded(self, peer: int, response: RaftResponse) -> None:
        if response.error is not ErrorCode.none:
            self._unreachable(peer)
            return
        self.failed.pop(peer, None)
        (self.granted if response.granted else self.rejected)[peer] = True
        self._count_votes()

    def _unreachable(self, peer: int) -> None:
        times = self.failed[peer] = self.failed.get(peer, 0) + 1
        self.after(min(RETRY_US << min(times - 1, 4), LONGEST_RETRY_US), lambda: self._request_vote(peer))
        self._count_votes()

    def _count_votes(self) -> None:
        voters, known = len(self.quorum.others) + 1, self.known
        if len(self.granted) >= self.quorum.majority:
            if self.may_win:
                self.won()
        elif len(self.rejected) > voters - self.quorum.majority or (self.rejected and known == voters):
            self.lost()


class Prospective(Nominee):
    """Requests votes that are not binding. So a node that has lost its leader does not disturb the others if they still
    have one. The node still knows the leader that it has lost.
    """

    role = Role.PROSPECTIVE

    def __init__(self, quorum: "Quorum", starting: bool = False) -> None:
        super().__init__(quorum)
        self._starting = starting
        """The node has just started and has not looked for a leader for long. Other voters that have just started would
        grant a pre-vote, while those that fetch from a leader would reject it. So the node waits until every voter has
        responded or could not be reached: a leader among them would report itself. In epoch 0 a majority is enough,
        because a leader needs the votes of a majority, and those would be in a later epoch."""

    @property
    def may_win(self) -> bool:
        return not self._starting or self.quorum.epoch == 0 or self.known > len(self.quorum.others)

    def won(self) -> None:
        """Seek the next epoch. If all epochs are used up, no node is elected any more, but this one goes on."""
        quorum = self.quorum
        if quorum.epoch >= MAX_EPOCH:
            quorum.ports.note("epochs_used_up", ("epoch", quorum.epoch))
            self.lost()
        else:
            quorum.become_candidate()

    def lost(self) -> None:
        """Return to the role from before, because the others have a leader or a longer log."""
        quorum = self.quorum
        if quorum.leader_id == NO_NODE:
            quorum.become_unattached(quorum.epoch, voted_id=quorum.voted_id)
        else:
            quorum.become_follower(quorum.epoch, quorum.leader_id)

    def timed_out(self) -> None:
        self.lost()

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        quorum = self.quorum
        if pre_vote:
            return up_to_date
        if quorum.leader_id != NO_NODE:
            return False
        return up_to_date if quorum.voted_id == NO_NODE else quorum.voted_id == candidate_id


class Candidate(Nominee):
    """Seeks binding votes in a new epoch. Its vote for itself is durable."""

    role = Role.CANDIDATE
    pre_vote = False

    def __init__(self, quorum: "Quorum") -> None:
        super().__init__(quorum)
        self._over = False

    def won(self) -> None:
        self.quorum.become_leader()

    def lost(self) -> None:
        """Seek a new election after a random delay, so that rival candidates do not collide again."""
        if not self._over:
            self._over = True
            quorum = self.quorum
            quorum.attempts += 1
            self.after(quorum.timing.backoff_us(quorum.attempts), quorum.become_prospective)

    def timed_out(self) -> None:
        self.quorum.become_prospective()

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        return up_to_date if pre_vote else candidate_id == self.quorum.node_id
