"""The roles without a leader: unattached and resigned.

An unattached node looks for a leader: it sends a Fetch to one voter after the other, and each responds with the
leader's ID and epoch (KIP-595). A voter that finds none in time seeks to become the leader itself.
"""

from collections.abc import Callable

from reference_broker.quorum.messages import RaftResponse, end_epoch, read_epoch_response
from reference_broker.quorum.roles import ElectionState, Role, RoleContext, RoleState
from reference_broker.quorum.values import NO_NODE
from reference_broker.wire.apis import ApiKey

FIRST_DISCOVERY_DELAY_US = 20_000
LONGEST_DISCOVERY_DELAY_US = 500_000


class Discovery:
    """The search for a leader: Fetch requests to one voter after the other.

    It belongs to a role and ends with it. The delay between two requests doubles while no voter knows a leader.
    """

    def __init__(self, state: RoleState) -> None:
        self._state = state
        self._others = state.context.others
        self._position = state.context.node.random.randrange(len(self._others)) if self._others else 0
        self._delay_us = FIRST_DISCOVERY_DELAY_US

    def start(self) -> None:
        """Send the first request after a short delay, because a leader usually announces itself."""
        if self._others:
            self._state.after(self._delay_us, lambda: self._state.when_synced(self._fetch))

    def _fetch(self) -> None:
        """Send a Fetch to the next voter.

        That voter may be the leader, which counts the log end that this fetch names towards the high watermark. So
        ``_fetch`` is called only when the log is synced.
        """
        self._position = (self._position + 1) % len(self._others)
        end = self._state.context.log.end
        self._state.fetch_log(self._others[self._position], end, 0, self._replied, self._again)

    def _replied(self, _response: RaftResponse) -> None:
        """The voter knows no leader. If it did, its response would have ended this role."""
        self._again()

    def _again(self) -> None:
        self._delay_us = min(2 * self._delay_us, LONGEST_DISCOVERY_DELAY_US)
        self._state.after(self._delay_us, lambda: self._state.when_synced(self._fetch))


RENOTIFY_US = 100_000
"""A voter that could not be notified of a resignation is notified again after this delay."""


class Unattached(RoleState):
    """The node knows no leader of its epoch. It may have voted for another node, and waits for a leader to announce
    itself. An observer without a leader is always in this role.
    """

    role = Role.UNATTACHED

    def __init__(self, context: RoleContext, election: ElectionState, starting: bool = False) -> None:
        super().__init__(context, election)
        self.starting = starting
        """The node has just started, so a leader may exist that it has not found yet. Its first election comes soon,
        but is careful. In Kafka, each start of a cluster waits for an election timeout."""
        self._discovery = Discovery(self)

    def start(self) -> None:
        if self.context.is_voter:
            timing = self.context.timing
            self.after(timing.start_us() if self.starting else timing.election_us(), lambda: Role.PROSPECTIVE)
        self._discovery.start()

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        if pre_vote or self.election.voted_id == NO_NODE:  # Decision unattached-grants
            return up_to_date
        return self.election.voted_id == candidate_id


class Resigned(RoleState):
    """The node led this epoch and has resigned. It notifies the other voters which of them it prefers (EndQuorumEpoch),
    and then waits for a new leader.

    If no new epoch begins within the time of one election, the node seeks votes itself, unless it is shutting down.
    """

    role = Role.RESIGNED

    def __init__(
        self,
        context: RoleContext,
        election: ElectionState,
        successors: tuple[int, ...],
        leaving: bool,
        all_notified: Callable[[], None],
    ) -> None:
        super().__init__(context, election)
        self.successors = successors
        """The other voters, the longest log first."""
        self._leaving = leaving
        """The node shuts down."""
        self._all_notified = all_notified
        self._unnotified = dict.fromkeys(context.others)

    def start(self) -> None:
        for peer in self.context.others:
            self._notify(peer)
        if not self._leaving:
            self.after(self.context.timing.election_us(), lambda: Role.PROSPECTIVE)

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:  # noqa: ARG002 - RoleState's
        """Grant pre-votes only, because the node voted for itself in this epoch."""
        return pre_vote and up_to_date  # Decision resigned-grants-pre-vote

    def _notify(self, peer: int) -> None:
        context = self.context
        self.send_request(
            peer,
            ApiKey.END_QUORUM_EPOCH,
            end_epoch(context.cluster_id, context.node_id, self.election.epoch, self.successors),
            read_epoch_response,
            lambda _: self._notified(peer),
            lambda: self._not_reached(peer),
        )

    def _not_reached(self, peer: int) -> None:
        """Notify the peer again later. A shutdown does not wait for that."""
        self.after(RENOTIFY_US, lambda: self._notify(peer))
        self._notified(peer)

    def _notified(self, peer: int) -> None:
        """Note that the peer knows of the resignation, or cannot be reached now."""
        self._unnotified.pop(peer, None)
        if not self._unnotified:  # Decision resignation-known
            self._all_notified()
