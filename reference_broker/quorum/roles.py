"""The table of role changes, waiting times, and the base class of the roles.

The roles and the table are those of Kafka's QuorumState (KIP-595, and KIP-996 for PROSPECTIVE). Each stay in a role is
an object with timers and requests of its own, which lose their effect when the role ends. A role does not know the
``Quorum`` that it belongs to: it has a ``RoleContext``, and each of its steps returns the role that must follow, if
any. ``Quorum`` makes that change.

An election, with the functions that return the next role:

* FOLLOWER to PROSPECTIVE: the leader is gone (``Follower._leave_if_leader_gone``).
* PROSPECTIVE to CANDIDATE, in the next epoch: a majority has granted pre-votes (``Prospective.won``).
* CANDIDATE to LEADER: a majority has granted votes (``Candidate.won``).
* Other voters grant votes, and follow the new leader, when they serve its requests (``requests.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.node_ports import Channel, NodeContext, Ports, RandomSource
from reference_broker.quorum.messages import RaftResponse, fetch, read_fetched
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


GONE_DELAY_US = 50_000
"""A follower that notices the end of its leader seeks an election after a random delay of at most this much, because
all followers notice at once."""
FIRST_BACKOFF_US = 50_000
START_DELAY_US = (20_000, 100_000)
"""A voter seeks its first election after a random delay between these two. A live leader is found before, and voters
that start together do not compete."""
MAX_FETCH_WAIT_MS = 1000
"""The longest time that one fetch is parked at the leader. (KafkaRaftClient.fetchMaxWaitMs is 500, which causes twice
as many empty fetches.)"""


class QuorumTiming:
    """The waiting times of the quorum. They are random where nodes must not act at the same moment."""

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
        self.attempts = 0
        """The number of elections that this node sought since its last contact with a leader."""

    def count_attempt(self) -> None:
        self.attempts += 1

    def note_contact(self) -> None:
        """Note that there is a leader, so the next election is the first attempt again."""
        self.attempts = 0

    def election_us(self) -> int:
        """The duration of one election, and of the wait for somebody else's: between one and two election timeouts."""
        timeout_us = self.election_timeout_ms * 1000
        return timeout_us + self._random.randrange(timeout_us)

    def start_us(self) -> int:
        """The delay before the first election of a voter that starts without a leader."""
        return self._random.randrange(*START_DELAY_US)

    def backoff_us(self) -> int:
        """The delay after an election without a winner. Its limit doubles with each attempt."""
        return 1 + self._random.randrange(min(FIRST_BACKOFF_US << min(self.attempts, 10), self._backoff_max_us))

    def gone_us(self) -> int:
        """The delay before an election because the leader is gone. Its limit doubles with each attempt."""
        return 1 + self._random.randrange(min(GONE_DELAY_US << min(self.attempts, 10), self.fetch_timeout_us))


class ElectionState(NamedTuple):
    """Leader and vote of an epoch, as far as known (Kafka's ElectionState). The IDs are -1 if there is none."""

    epoch: int
    leader_id: int
    voted_id: int
    """The node that got this node's vote."""


Step: TypeAlias = Callable[[], Role | None]
"""A step of a role. It returns the role that must follow within the epoch (CANDIDATE: in the next one), or None."""


@dataclass(frozen=True, slots=True)
class RoleContext:
    """The part of the node that a role uses. Only ``Quorum`` changes the role, the epoch and the vote."""

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
    run: Callable[[Step], None]
    """Runs a step after all inputs that came before, and then makes the change of role that it returns."""
    learn_leader: Callable[[int, int], bool]
    """Passes on the leader and the epoch that a response names, which may end the role. Returns False for an epoch that
    is older than this node's, or that no node can have."""

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


class RoleState:
    """One stay in one role of one epoch.

    The quorum creates it when it decides on the role, and calls ``start`` once that decision is synced to disk. It
    calls ``stop`` when it decides on another role.
    """

    role: ClassVar[Role] = Role.UNATTACHED

    def __init__(self, context: RoleContext, election: ElectionState) -> None:
        self.context = context
        self.election = election
        self.live = True
        """Whether the node is still in this role, or about to start it."""
        self._timers: dict[int, None] = {}

    @property
    def now_us(self) -> int:
        return self.context.node.now_us

    def start(self) -> Role | None:
        """Begin to act: the role is synced to disk now."""

    def stop(self) -> None:
        """End everything that this role began: cancel its timers, and ignore late responses."""
        self.live = False
        for timer in self._timers:
            self.context.ports.cancel_timer(timer)
        self._timers.clear()

    def take_parked(self) -> list[Callable[[FetchResponse], None]]:
        """Take the fetches that this role has parked, for a last response, and return what responds to them."""
        return []

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        """Return whether ``candidate_id`` gets this node's vote in the epoch of this role.

        ``up_to_date`` says that the candidate's log ends at or beyond this node's.
        """
        raise AssertionError(f"{self.role} neither votes nor refuses ({candidate_id}, {up_to_date}, {pre_vote})")

    def after(self, delay_us: int, fire: Step) -> None:
        """Run ``fire`` after the delay, unless the role has ended by then."""
        self.at(self.now_us + delay_us, fire)

    def at(self, deadline_us: int, fire: Step) -> None:
        guarded = self.while_live(fire)

        def fired() -> None:
            self._timers.pop(timer, None)
            guarded()

        timer = self.context.ports.set_timer(deadline_us, fired)
        self._timers[timer] = None

    def when_synced(self, done: Step) -> None:
        """Run ``done`` when everything that is in the log now is synced, unless the role has ended by then."""
        self.context.log_sync.request(self.while_live(done))

    def while_live(self, step: Step) -> Callable[[], None]:
        """Return a callback that runs ``step`` in its turn, unless the role has ended by then."""
        return lambda: self.context.run(lambda: step() if self.live else None)

    def fetch_log(
        self,
        peer: int,
        end: OffsetAndEpoch,
        wait_ms: int,
        replied: Callable[[RaftResponse], Role | None],
        failed: Step,
    ) -> None:
        """Fetch from ``peer`` what follows ``end`` in its log, with the same callbacks as ``send_request``."""
        context = self.context
        request = fetch(
            context.cluster_id,
            context.node_id,
            self.election.epoch,
            end,
            context.log.start_offset,
            context.high_watermark.offset,
            wait_ms,
        )
        self.send_request(peer, ApiKey.FETCH, request, read_fetched, replied, failed)

    def send_request(
        self,
        peer: int,
        api_key: ApiKey,
        body: object,
        read: Callable[[object], RaftResponse | None],
        replied: Callable[[RaftResponse], Role | None],
        failed: Step,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request to ``peer`` and run ``replied`` or ``failed``. The timeout is that of the quorum's requests
        if none is given.

        Neither is run after the role has ended, nor for a response that makes the node leave the role. ``failed`` is
        also run for a response that cannot be read, that is of an older epoch than the role's, or whose epoch no node
        can have.
        """
        context = self.context

        def handle(response: RaftResponse | None) -> Role | None:
            # Decision raft-response-usable
            if response is None or not context.learn_leader(response.leader_id, response.epoch):
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
