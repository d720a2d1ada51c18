"""The roles that request votes: prospective and candidate.

A PROSPECTIVE node requests pre-votes, by which voters promise nothing (KIP-996). A CANDIDATE requests binding votes.
"""

from reference_broker.quorum.messages import RaftResponse, Vote, read_voted, vote
from reference_broker.quorum.roles import ElectionState, Role, RoleContext, RoleState
from reference_broker.quorum.values import MAX_EPOCH, NO_NODE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

RETRY_US = 50_000
"""A request to a voter that could not be reached is resent after this delay, which doubles each time."""
LONGEST_RETRY_US = 400_000


class Nominee(RoleState):
    """Requests the vote of every voter and counts the responses.

    The election is lost early in two cases: a majority rejects, or one voter rejects and every other one has responded
    or cannot be reached.
    """

    pre_vote = True

    def __init__(self, context: RoleContext, election: ElectionState) -> None:
        super().__init__(context, election)
        self.granted = {context.node_id: True}
        self.rejected: dict[int, bool] = {}
        self.failed: dict[int, int] = {}
        """Number of failed requests in a row, by voter. It is resent until the election ends."""

    def start(self) -> Role | None:
        if len(self.granted) >= self.context.majority:
            return self.won()
        self.after(self.context.timing.election_us(), self.timed_out)
        for peer in self.context.others:
            self._request_vote(peer)
        return None

    @property
    def known(self) -> int:
        """The number of voters that have responded or could not be reached."""
        return len(self.granted) + len(self.rejected) + len(self.failed)

    def won(self) -> Role | None:
        """Called when a majority has granted its votes."""

    @property
    def may_win(self) -> bool:
        """Whether the grants of a majority are enough to win."""
        return True

    def lost(self) -> Role | None:
        """Called when a majority can no longer be expected."""

    def timed_out(self) -> Role | None:
        """Called when not enough responses came within the election timeout."""

    def _request_vote(self, peer: int) -> None:
        context = self.context
        epoch = self.election.epoch
        request = Vote(context.cluster_id, peer, context.node_id, epoch, context.log.end, self.pre_vote)
        self.send_request(
            peer,
            ApiKey.VOTE,
            vote(request),
            read_voted,
            lambda response: self._responded(peer, response),
            lambda: self._unreachable(peer),
            context.timing.election_timeout_ms,
        )

    def _responded(self, peer: int, response: RaftResponse) -> Role | None:
        if response.error is not ErrorCode.none:  # Decision vote-response
            return self._unreachable(peer)
        self.failed.pop(peer, None)
        (self.granted if response.granted else self.rejected)[peer] = True
        return self._count_votes()

    def _unreachable(self, peer: int) -> Role | None:
        times = self.failed[peer] = self.failed.get(peer, 0) + 1
        self.after(min(RETRY_US << min(times - 1, 4), LONGEST_RETRY_US), lambda: self._request_vote(peer))
        return self._count_votes()

    def _count_votes(self) -> Role | None:
        voters, majority = len(self.context.voters), self.context.majority
        if len(self.granted) >= majority:  # Decision vote-majority
            return self.won() if self.may_win else None
        if len(self.rejected) > voters - majority or (self.rejected and self.known == voters):  # Decision election-lost
            return self.lost()
        return None


class Prospective(Nominee):
    """Requests votes that are not binding. So a node that has lost its leader does not disturb the others if they still
    have one. The node still knows the leader that it has lost.
    """

    role = Role.PROSPECTIVE

    def __init__(self, context: RoleContext, election: ElectionState, starting: bool = False) -> None:
        super().__init__(context, election)
        self._starting = starting
        """The node has just started and has not looked for a leader for long. Other voters that have just started would
        grant a pre-vote, while those that fetch from a leader would reject it. So the node waits until every voter has
        responded or could not be reached: a leader among them would report itself. In epoch 0 a majority is enough,
        because a leader needs the votes of a majority, and those would be in a later epoch."""

    @property
    def may_win(self) -> bool:
        # Decision pre-vote-wins
        return not self._starting or self.election.epoch == 0 or self.known > len(self.context.others)

    def won(self) -> Role:
        """Seek the next epoch. If all epochs are used up, no node is elected any more, but this one goes on."""
        epoch = self.election.epoch
        if epoch < MAX_EPOCH:
            return Role.CANDIDATE
        self.context.ports.note("epochs_used_up", ("epoch", epoch))
        return self.lost()

    def lost(self) -> Role:
        """Return to the role from before, because the others have a leader or a longer log."""
        return Role.UNATTACHED if self.election.leader_id == NO_NODE else Role.FOLLOWER  # Decision after-lost-pre-vote

    def timed_out(self) -> Role:
        return self.lost()

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        _epoch, leader_id, voted_id = self.election
        if pre_vote:
            return up_to_date
        if leader_id != NO_NODE:
            return False
        return up_to_date if voted_id == NO_NODE else voted_id == candidate_id


class Candidate(Nominee):
    """Seeks binding votes in a new epoch. Its vote for itself is synced to disk."""

    role = Role.CANDIDATE
    pre_vote = False

    def __init__(self, context: RoleContext, election: ElectionState) -> None:
        super().__init__(context, election)
        self._over = False

    def won(self) -> Role:
        return Role.LEADER

    def lost(self) -> None:
        """Seek a new election after a random delay, so that rival candidates do not collide again."""
        if not self._over:
            self._over = True
            timing = self.context.timing
            timing.count_attempt()
            self.after(timing.backoff_us(), lambda: Role.PROSPECTIVE)

    def timed_out(self) -> Role:
        return Role.PROSPECTIVE

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        return up_to_date if pre_vote else candidate_id == self.context.node_id
