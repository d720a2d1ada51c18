"""The roles without a leader: unattached and resigned.

An unattached node discovers the leader: it sends a Fetch to one voter after the other, and each responds with the
leader's ID and epoch (KIP-595). A voter that finds no leader in time becomes PROSPECTIVE.
"""

from collections.abc import Callable

from reference_broker.quorum.messages import RaftResponse, build_end_quorum_epoch_request, read_quorum_epoch_response
from reference_broker.quorum.roles import ElectionState, EpochState, Role, RoleContext
from reference_broker.quorum.values import NO_NODE
from reference_broker.wire.apis import ApiKey

FIRST_DISCOVERY_DELAY_US = 20_000
LONGEST_DISCOVERY_DELAY_US = 500_000


class LeaderDiscovery:
    """Discovery of the leader by Fetch requests to one voter after the other.

    It ends with the role that began it. The delay between two requests doubles while no voter knows a leader.
    """

    def __init__(self, state: EpochState) -> None:
        self._state = state
        self._others = state.context.others
        self._position = state.context.node.random.randrange(len(self._others)) if self._others else 0
        self._delay_us = FIRST_DISCOVERY_DELAY_US

    def start(self) -> None:
        """Send the first Fetch after a short delay, because a leader usually sends a BeginQuorumEpoch first."""
        if self._others:
            self._state.after(self._delay_us, lambda: self._state.when_synced(self._fetch))

    def _fetch(self) -> None:
        """Send a Fetch to the next voter. It may be the leader, which counts the offset of the fetch towards the high
        watermark, so this is called only when the log is synced."""
        self._position = (self._position + 1) % len(self._others)
        end = self._state.context.log.end
        self._state.fetch_log(self._others[self._position], end, 0, self._handle_response, self._retry_later)

    def _handle_response(self, _response: RaftResponse) -> None:
        """Try the next voter. This one knows no leader: otherwise its response would have ended the role."""
        self._retry_later()

    def _retry_later(self) -> None:
        self._delay_us = min(2 * self._delay_us, LONGEST_DISCOVERY_DELAY_US)
        self._state.after(self._delay_us, lambda: self._state.when_synced(self._fetch))


END_QUORUM_EPOCH_RETRY_US = 100_000
"""The pause after an EndQuorumEpoch that failed."""


class UnattachedState(EpochState):
    """A node that knows no leader of its epoch (Kafka's UnattachedState). It may have voted for another node. An
    observer without a leader is always in this role.
    """

    role = Role.UNATTACHED

    def __init__(self, context: RoleContext, election: ElectionState, starting: bool = False) -> None:
        super().__init__(context, election)
        self.starting = starting
        """Whether the node has just started. Then its first election begins soon, and waits for the responses of all
        voters (``ProspectiveState.may_win``). In Kafka, each start of a cluster waits for an election timeout."""
        self._discovery = LeaderDiscovery(self)

    def start(self) -> None:
        if self.context.is_voter:
            timing = self.context.timing
            self.after(
                timing.first_election_delay_us() if self.starting else timing.random_election_timeout_us(),
                lambda: Role.PROSPECTIVE,
            )
        self._discovery.start()

    def can_grant_vote(self, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool) -> bool:
        if pre_vote or self.election.voted_id == NO_NODE:  # Decision unattached-grants
            return is_log_up_to_date
        return self.election.voted_id == candidate_id


class ResignedState(EpochState):
    """A node that led this epoch and has resigned (Kafka's ResignedState). It sends EndQuorumEpoch to the other voters,
    and waits for a new leader.

    If no new epoch begins within one election timeout, the node becomes PROSPECTIVE, unless it is shutting down.
    """

    role = Role.RESIGNED

    def __init__(
        self,
        context: RoleContext,
        election: ElectionState,
        preferred_successors: tuple[int, ...],
        is_shutting_down: bool,
        all_responded: Callable[[], None],
    ) -> None:
        super().__init__(context, election)
        self.preferred_successors = preferred_successors
        """The other voters, the longest log first."""
        self._is_shutting_down = is_shutting_down
        self._all_responded = all_responded
        """Called when each EndQuorumEpoch has a response or has failed."""
        self._without_response = dict.fromkeys(context.others)
        """The voters whose first EndQuorumEpoch is in flight."""

    def start(self) -> None:
        for peer in self.context.others:
            self._send_end_quorum_epoch(peer)
        if not self._is_shutting_down:
            self.after(self.context.timing.random_election_timeout_us(), lambda: Role.PROSPECTIVE)

    def can_grant_vote(self, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool) -> bool:  # noqa: ARG002 - EpochState's
        """Grant pre-votes only, because the node voted for itself in this epoch."""
        return pre_vote and is_log_up_to_date  # Decision resigned-grants-pre-vote

    def _send_end_quorum_epoch(self, peer: int) -> None:
        context = self.context
        self.send_request(
            peer,
            ApiKey.END_QUORUM_EPOCH,
            build_end_quorum_epoch_request(
                context.cluster_id, context.node_id, self.election.epoch, self.preferred_successors
            ),
            read_quorum_epoch_response,
            lambda _: self._responded(peer),
            lambda: self._request_failed(peer),
        )

    def _request_failed(self, peer: int) -> None:
        """Resend the request later. A shutdown does not wait for that."""
        self.after(END_QUORUM_EPOCH_RETRY_US, lambda: self._send_end_quorum_epoch(peer))
        self._responded(peer)

    def _responded(self, peer: int) -> None:
        """Note that the first request to the peer has a response or has failed."""
        self._without_response.pop(peer, None)
        if not self._without_response:  # Decision resignation-known
            self._all_responded()
