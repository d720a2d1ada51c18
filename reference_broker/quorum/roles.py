"""The table of role changes, the quorum's timeouts, and the base class of the roles.

The roles and the table are those of Kafka's QuorumState (KIP-595, and KIP-996 for PROSPECTIVE). Each role of one epoch
is an object with timers and requests of its own, which lose their effect when the role ends. A role has no reference to
the ``KafkaRaftClient``. It has a ``RoleContext``, and each of its actions returns the role that must follow, if any.
``KafkaRaftClient`` makes that change.

An election, with the functions that return the next role:

* FOLLOWER to PROSPECTIVE: the leader is gone (``FollowerState._leave_if_leader_gone``).
* PROSPECTIVE to CANDIDATE, in the next epoch: a majority has granted pre-votes (``ProspectiveState.won``).
* CANDIDATE to LEADER: a majority has granted votes (``CandidateState.won``).
* Other voters grant votes, and follow the new leader, when they handle its requests (``raft_handlers.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.node_ports import Channel, NodeContext, Ports, RandomSource
from reference_broker.quorum.messages import RaftResponse, build_fetch_request, read_fetch_response
from reference_broker.quorum.metadata_log import HighWatermark, LogSync, MetadataLog
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.fetch import FetchResponse


class Role(Enum):
    """The names are those of Kafka's QuorumState (KIP-595, and KIP-996 for PROSPECTIVE). An observer is always
    UNATTACHED or FOLLOWER."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"


ROLES_IN_A_NEWER_EPOCH = (Role.UNATTACHED, Role.FOLLOWER)
"""Every role ends in one of these when the node learns of a newer epoch."""

VOTER_CHANGES: Mapping[Role, tuple[Role, ...]] = {
    Role.UNATTACHED: (
        Role.UNATTACHED,  # It has granted its vote.
        Role.FOLLOWER,  # A leader has announced itself, or a voter has named one.
        Role.PROSPECTIVE,  # No leader was found in time.
    ),
    Role.FOLLOWER: (
        Role.PROSPECTIVE,  # The leader is gone: no response in time, refused connections, or it has resigned.
    ),
    Role.PROSPECTIVE: (
        Role.UNATTACHED,  # It did not get a majority of the pre-votes, and knows no leader.
        Role.FOLLOWER,  # It did not get a majority and returns to its leader, or it has found a leader.
    ),
    Role.CANDIDATE: (
        Role.FOLLOWER,  # Another candidate has won.
        Role.PROSPECTIVE,  # It has lost, or the election timeout has passed.
        Role.LEADER,  # It has the votes of a majority.
    ),
    Role.LEADER: (
        Role.RESIGNED,  # A majority is silent, the node shuts down, or the disk refuses a record.
    ),
    Role.RESIGNED: (
        Role.PROSPECTIVE,  # No new epoch has begun in time.
    ),
}
"""The changes within one epoch, and what leads to them. PROSPECTIVE to CANDIDATE is missing, because it begins the next
epoch (``may_follow``)."""

OBSERVER_CHANGES: Mapping[Role, tuple[Role, ...]] = {
    Role.UNATTACHED: (Role.UNATTACHED, Role.FOLLOWER),
    Role.FOLLOWER: (Role.UNATTACHED,),
}


def may_follow(before: Role, after: Role, epochs: int, is_voter: bool) -> bool:
    """Return whether ``after`` may follow ``before``. The epoch increases by ``epochs`` with the change.

    A node leads, resigns or seeks pre-votes only in the epoch in which it is. It becomes a candidate in the next one,
    and only after pre-votes.
    """
    if after is Role.CANDIDATE:
        return is_voter and before is Role.PROSPECTIVE and epochs == 1
    if epochs > 0:
        return after in ROLES_IN_A_NEWER_EPOCH
    return epochs == 0 and after in (VOTER_CHANGES if is_voter else OBSERVER_CHANGES).get(before, ())


ELECTION_JITTER_US = 50_000
"""Limit of the random delay between the loss of a leader and the election, because all followers lose it at once."""
FIRST_BACKOFF_US = 50_000
"""Limit of the random delay after the first election without a winner."""
START_DELAY_US = (20_000, 100_000)
"""Range of the random delay between the start of a voter and its first election. A live leader is found before, and
voters that start together do not compete."""
MAX_FETCH_WAIT_MS = 1000
"""The longest time that one fetch is parked at the leader. (KafkaRaftClient.fetchMaxWaitMs is 500, which causes twice
as many empty fetches.)"""


class QuorumTiming:
    """The timeouts and delays of the quorum. They are random where nodes must not act at the same moment."""

    def __init__(self, config: BrokerConfig, random: RandomSource) -> None:
        self._random = random
        self._backoff_max_us = config.controller_quorum_election_backoff_max_ms * 1000
        self.election_timeout_ms = config.controller_quorum_election_timeout_ms
        self.request_timeout_ms = config.controller_quorum_request_timeout_ms
        self.fetch_timeout_us = config.controller_quorum_fetch_timeout_ms * 1000
        shortest_ms = min(config.controller_quorum_fetch_timeout_ms, config.controller_quorum_request_timeout_ms)
        self.fetch_wait_ms = min(MAX_FETCH_WAIT_MS, max(1, shortest_ms // 2))
        """Time for which a fetch is parked at the leader. It is at most half the fetch timeout, so that one late
        response does not count as a lost leader, and half the request timeout, so that the response of a quiet leader
        comes before its follower's request times out."""
        self.check_quorum_us = self.fetch_timeout_us * 3 // 2
        """LeaderState.CHECK_QUORUM_TIMEOUT_FACTOR is 1.5."""
        self.elections = 0
        """Number of elections that this node has started since it last had a leader."""

    def count_election(self) -> None:
        self.elections += 1

    def leader_found(self) -> None:
        """Reset the backoff, because there is a leader."""
        self.elections = 0

    def random_election_timeout_us(self) -> int:
        """Return a time between one and two election timeouts: for one election, or for another node's election."""
        timeout_us = self.election_timeout_ms * 1000
        return timeout_us + self._random.randrange(timeout_us)

    def first_election_delay_us(self) -> int:
        """Return the delay before the first election of a voter that starts without a leader."""
        return self._random.randrange(*START_DELAY_US)

    def election_backoff_us(self) -> int:
        """Return the delay after an election without a winner. Its limit doubles with each election."""
        return 1 + self._random.randrange(min(FIRST_BACKOFF_US << min(self.elections, 10), self._backoff_max_us))

    def election_jitter_us(self) -> int:
        """Return the delay before an election for a lost leader. Its limit doubles with each election."""
        return 1 + self._random.randrange(min(ELECTION_JITTER_US << min(self.elections, 10), self.fetch_timeout_us))


class ElectionState(NamedTuple):
    """Leader and vote of an epoch, as far as known (Kafka's ElectionState). The IDs are -1 if there is none."""

    epoch: int
    leader_id: int
    voted_id: int
    """The node that got this node's vote."""


RoleAction: TypeAlias = Callable[[], Role | None]
"""A role's reaction to a timer, a response or a completed sync. It returns the role that must follow within the epoch
(CANDIDATE: in the next one), or None to stay."""


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What a role needs of its node. Only ``KafkaRaftClient`` changes the role, the epoch and the vote."""

    node: NodeContext
    cluster_id: str
    voters: tuple[int, ...]
    """Node IDs in ascending order."""
    others: tuple[int, ...]
    """The voters except this node."""
    timing: QuorumTiming
    log: MetadataLog
    log_sync: LogSync
    high_watermark: HighWatermark
    run: Callable[[RoleAction], None]
    """Runs an action after all earlier events, and then makes the change of role that it returns."""
    maybe_transition: Callable[[int, int], bool]
    """``KafkaRaftClient.maybe_transition``, with the leader and the epoch that a response names. It may end the
    role."""

    @property
    def ports(self) -> Ports:
        return self.node.ports

    @property
    def node_id(self) -> int:
        return self.node.node_id

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1


class EpochState:
    """One role of one epoch.

    ``KafkaRaftClient`` creates it, calls ``start`` once epoch and vote are synced to disk, and ``stop`` when another
    role follows.
    """

    role: ClassVar[Role] = Role.UNATTACHED

    def __init__(self, context: RoleContext, election: ElectionState) -> None:
        self.context = context
        self.election = election
        self.live = True
        """False from ``stop`` on."""
        self._timers: dict[int, None] = {}

    @property
    def now_us(self) -> int:
        return self.context.node.now_us

    def start(self) -> Role | None:
        """Begin to act. Return the role that must follow at once, or None."""

    def stop(self) -> None:
        """Cancel the timers of this role, and ignore responses and syncs that come later."""
        self.live = False
        for timer in self._timers:
            self.context.ports.cancel_timer(timer)
        self._timers.clear()

    def take_parked_fetches(self) -> list[Callable[[FetchResponse], None]]:
        """Remove the fetches that this role has parked, and return the callbacks that respond to them."""
        return []

    def can_grant_vote(self, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool) -> bool:
        """Return whether this role grants its vote of the epoch to ``candidate_id``, whose log ends at or beyond this
        node's if ``is_log_up_to_date``.
        """
        raise AssertionError(f"{self.role} neither votes nor refuses ({candidate_id}, {is_log_up_to_date}, {pre_vote})")

    def after(self, delay_us: int, fire: RoleAction) -> None:
        """Run ``fire`` after the delay, unless the role has ended by then."""
        self.at(self.now_us + delay_us, fire)

    def at(self, deadline_us: int, fire: RoleAction) -> None:
        guarded = self.while_live(fire)

        def fired() -> None:
            self._timers.pop(timer, None)
            guarded()

        timer = self.context.ports.set_timer(deadline_us, fired)
        self._timers[timer] = None

    def when_synced(self, done: RoleAction) -> None:
        """Run ``done`` when everything that is in the log now is synced, unless the role has ended by then."""
        self.context.log_sync.request(self.while_live(done))

    def while_live(self, action: RoleAction) -> Callable[[], None]:
        """Return a callback that runs ``action`` after all earlier events, unless the role has ended by then."""
        return lambda: self.context.run(lambda: action() if self.live else None)

    def fetch_log(
        self,
        peer: int,
        end: OffsetAndEpoch,
        wait_ms: int,
        replied: Callable[[RaftResponse], Role | None],
        failed: RoleAction,
    ) -> None:
        """Fetch the records from ``end`` on from ``peer``. The callbacks are those of ``send_request``."""
        context = self.context
        request = build_fetch_request(
            context.cluster_id,
            context.node_id,
            self.election.epoch,
            end,
            context.log.start_offset,
            context.high_watermark.offset,
            wait_ms,
        )
        self.send_request(peer, ApiKey.FETCH, request, read_fetch_response, replied, failed)

    def send_request(
        self,
        peer: int,
        api_key: ApiKey,
        body: object,
        read: Callable[[object], RaftResponse | None],
        replied: Callable[[RaftResponse], Role | None],
        failed: RoleAction,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request to ``peer``, then run ``replied`` with the response, or ``failed``. ``timeout_ms`` is
        ``controller.quorum.request.timeout.ms`` by default.

        Neither is run after the role has ended, nor for a response that ends the role, because it names a newer epoch
        or a leader. ``failed`` is also run for a response that cannot be read or that has an older epoch.
        """
        context = self.context

        def handle(response: RaftResponse | None) -> Role | None:
            # Decision raft-response-usable
            if response is None or not context.maybe_transition(response.leader_id, response.epoch):
                return failed() if self.live else None
            return replied(response) if self.live else None

        context.ports.send(
            peer,
            Channel.RAFT,
            api_key,
            VERSIONS[api_key][1],
            body,
            timeout_ms or context.timing.request_timeout_ms,
            lambda body: context.run(lambda: handle(read(body))),
            self.while_live(failed),
        )
