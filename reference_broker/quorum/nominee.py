"""The roles that request votes (Kafka's NomineeState): prospective and candidate.

A PROSPECTIVE node requests pre-votes, which do not bind a voter (KIP-996). A CANDIDATE requests binding votes.
"""

from reference_broker.quorum.messages import RaftResponse, VoteRequest, build_vote_request, read_vote_response
from reference_broker.quorum.roles import ElectionState, EpochState, Role, RoleContext
from reference_broker.quorum.values import MAX_EPOCH, NO_NODE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

RETRY_US = 50_000
"""The delay after which a failed request to a voter is resent. It doubles each time."""
LONGEST_RETRY_US = 400_000


class NomineeState(EpochState):
    """Requests the vote of every voter and counts the responses.

    The election is lost before its timeout in two cases: a majority rejects, or one voter rejects and every other one
    has responded or cannot be reached.
    """

    pre_vote = True

    def __init__(self, context: RoleContext, election: ElectionState) -> None:
        super().__init__(context, election)
        self.granted = {context.node_id: True}
        """The voters that have granted their votes, this node included."""
        self.rejected: dict[int, bool] = {}
        """The voters that have rejected the request."""
        self.failed: dict[int, int] = {}
        """Number of failed requests in a row, by voter. The request is resent until the election ends."""

    def start(self) -> Role | None:
        if len(self.granted) >= self.context.majority:
            return self.won()
        self.after(self.context.timing.random_election_timeout_us(), self.timed_out)
        for peer in self.context.others:
            self._request_vote(peer)
        return None

    @property
    def settled(self) -> int:
        """Number of voters that have responded or could not be reached."""
        return len(self.granted) + len(self.rejected) + len(self.failed)

    def won(self) -> Role | None:
        """Return the next role after a majority has granted its votes, or None to stay."""

    @property
    def may_win(self) -> bool:
        """Whether the grants of a majority win the election now."""
        return True

    def lost(self) -> Role | None:
        """Return the next role when a majority can no longer be expected, or None to stay."""

    def timed_out(self) -> Role | None:
        """Return the next role after the election timeout."""

    def _request_vote(self, peer: int) -> None:
        context = self.context
        epoch = self.election.epoch
        request = VoteRequest(context.cluster_id, peer, context.node_id, epoch, context.log.end, self.pre_vote)
        self.send_request(
            peer,
            ApiKey.VOTE,
            build_vote_request(request),
            read_vote_response,
            lambda response: self._handle_vote_response(peer, response),
            lambda: self._request_failed(peer),
            context.timing.election_timeout_ms,
        )

    def _handle_vote_response(self, peer: int, response: RaftResponse) -> Role | None:
        if response.error is not ErrorCode.none:  # Decision vote-response
            return self._request_failed(peer)
        self.failed.pop(peer, None)
        (self.granted if response.granted else self.rejected)[peer] = True
        return self._count_votes()

    def _request_failed(self, peer: int) -> Role | None:
        times = self.failed[peer] = self.failed.get(peer, 0) + 1
        self.after(min(RETRY_US << min(times - 1, 4), LONGEST_RETRY_US), lambda: self._request_vote(peer))
        return self._count_votes()

    def _count_votes(self) -> Role | None:
        voters, majority = len(self.context.voters), self.context.majority
        if len(self.granted) >= majority:  # Decision vote-majority
            return self.won() if self.may_win else None
        # Decision election-lost
        if len(self.rejected) > voters - majority or (self.rejected and self.settled == voters):
            return self.lost()
        return None


class ProspectiveState(NomineeState):
    """Requests pre-votes, so that a node that has lost its leader does not raise the epoch while the others still have
    one. The role keeps the leader that it has lost.
    """

    role = Role.PROSPECTIVE

    def __init__(self, context: RoleContext, election: ElectionState, starting: bool = False) -> None:
        super().__init__(context, election)
        self._starting = starting
        """Whether the node has just started, so that there may be a leader that it has not found yet. Voters that have
        just started, too, grant the pre-vote, and those that fetch from a leader reject it. So the node wins only when
        every voter has responded or could not be reached. In epoch 0 a majority is enough, because the voters of a
        leader would be in a later epoch."""

    @property
    def may_win(self) -> bool:
        # Decision pre-vote-wins
        return not self._starting or self.election.epoch == 0 or self.settled > len(self.context.others)

    def won(self) -> Role:
        """Become a candidate in the next epoch. After MAX_EPOCH no node is elected any more, but this one goes on."""
        epoch = self.election.epoch
        if epoch < MAX_EPOCH:
            return Role.CANDIDATE
        self.context.ports.note("epochs_used_up", ("epoch", epoch))
        return self.lost()

    def lost(self) -> Role:
        """Return to the former role, because the others have a leader or a longer log."""
        return Role.UNATTACHED if self.election.leader_id == NO_NODE else Role.FOLLOWER  # Decision after-lost-pre-vote

    def timed_out(self) -> Role:
        return self.lost()

    def can_grant_vote(self, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool) -> bool:
        _epoch, leader_id, voted_id = self.election
        if pre_vote:
            return is_log_up_to_date
        if leader_id != NO_NODE:
            return False
        return is_log_up_to_date if voted_id == NO_NODE else voted_id == candidate_id


class CandidateState(NomineeState):
    """Requests binding votes in a new epoch. Its vote for itself is synced to disk."""

    role = Role.CANDIDATE
    pre_vote = False

    def __init__(self, context: RoleContext, election: ElectionState) -> None:
        super().__init__(context, election)
        self._is_backing_off = False
        """Whether the election is lost, and the next one is planned."""

    def won(self) -> Role:
        return Role.LEADER

    def lost(self) -> None:
        """Begin a new election after a random delay, so that rival candidates do not collide again."""
        if not self._is_backing_off:
            self._is_backing_off = True
            timing = self.context.timing
            timing.count_election()
            self.after(timing.election_backoff_us(), lambda: Role.PROSPECTIVE)

    def timed_out(self) -> Role:
        return Role.PROSPECTIVE

    def can_grant_vote(self, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool) -> bool:
        return is_log_up_to_date if pre_vote else candidate_id == self.context.node_id
