"""What the roles have in common: which may follow which, their waiting times, and their base class.

The roles and the table of changes are those of Kafka's QuorumState (KIP-595, and KIP-996 for PROSPECTIVE). Each stay in
a role is an object with timers and requests of its own, which lose their effect when the role ends.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.node_ports import Channel, RandomSource
from reference_broker.quorum.messages import RaftResponse, fetch, fetched, read_fetched
from reference_broker.quorum.values import MAX_EPOCH, OffsetAndEpoch
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import FetchResponse

if TYPE_CHECKING:
    from reference_broker.quorum.quorum import Quorum


class Role(Enum):
    """The names are those of Kafka's QuorumState (KIP-595, and KIP-996 for PROSPECTIVE). An observer is always
    UNATTACHED or FOLLOWER."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"


IN_A_NEWER_EPOCH = (Role.UNATTACHED, Role.FOLLOWER)
"""Every role ends in one of these when the node learns of a newer epoch."""

OF_A_VOTER: Mapping[Role, tuple[Role, ...]] = {
    Role.UNATTACHED: (Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE),
    Role.FOLLOWER: (Role.PROSPECTIVE,),
    Role.PROSPECTIVE: (Role.UNATTACHED, Role.FOLLOWER),
    Role.CANDIDATE: (Role.FOLLOWER, Role.PROSPECTIVE, Role.LEADER),
    Role.LEADER: (Role.RESIGNED,),
    Role.RESIGNED: (Role.PROSPECTIVE,),
}
"""The changes within one epoch. An unattached voter stays unattached when it grants its vote."""

OF_AN_OBSERVER: Mapping[Role, tuple[Role, ...]] = {
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
        return after in IN_A_NEWER_EPOCH
    return epochs == 0 and after in (OF_A_VOTER if is_voter else OF_AN_OBSERVER).get(before, ())


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
        """How long a fetch is parked at the leader. It is at most half the fetch timeout, so that one late response
        does not count as a lost leader, and half the request timeout, so that the response of a quiet leader comes
        before its follower's request times out."""
        self.check_quorum_us = self.fetch_timeout_us * 3 // 2
        """LeaderState.CHECK_QUORUM_TIMEOUT_FACTOR is 1.5."""

    def election_us(self) -> int:
        """The duration of one election, and of the wait for somebody else's: between one and two election timeouts."""
        timeout_us = self.election_timeout_ms * 1000
        return timeout_us + self._random.randrange(timeout_us)

    def start_us(self) -> int:
        """The delay before the first election of a voter that starts without a leader."""
        return self._random.randrange(*START_DELAY_US)

    def backoff_us(self, attempts: int) -> int:
        """The delay after an election without a winner. Its limit doubles with each attempt."""
        return 1 + self._random.randrange(min(FIRST_BACKOFF_US << min(attempts, 10), self._backoff_max_us))

    def gone_us(self, attempts: int) -> int:
        """The delay before an election because the leader is gone. Its limit doubles with each attempt."""
        return 1 + self._random.randrange(min(GONE_DELAY_US << min(attempts, 10), self.fetch_timeout_us))


class RoleState:
    """One stay in one role of one epoch.

    The quorum creates it when it decides on the role, and calls ``start`` once that decision is durable. It calls
    ``stop`` when it decides on another role, and ``depart`` once that other role is durable.
    """

    role: ClassVar[Role] = Role.UNATTACHED

    def __init__(self, quorum: "Quorum") -> None:
        self.quorum = quorum
        self.live = True
        """Whether the node is still in this role, or about to start it."""
        self._timers: dict[int, None] = {}

    @property
    def now_us(self) -> int:
        return self.quorum.ports.now().mono_us

    def start(self) -> None:
        """Begin to act: the role is durable now."""

    def stop(self) -> None:
        """End everything that this role began: cancel its timers, and ignore late responses."""
        self.live = False
        for timer in self._timers:
            self.quorum.ports.cancel_timer(timer)
        self._timers.clear()

    def depart(self) -> None:
        """Respond to the requests that this role has parked. The epoch that follows is durable by now."""

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        """Return whether ``candidate_id`` gets this node's vote in the epoch of this role.

        ``up_to_date`` says that the candidate's log ends at or beyond this node's.
        """
        raise AssertionError(f"{self.role} neither votes nor refuses ({candidate_id}, {up_to_date}, {pre_vote})")

    def after(self, delay_us: int, fire: Callable[[], None]) -> None:
        """Call ``fire`` after the delay, unless the role has ended by then."""
        self.at(self.now_us + delay_us, fire)

    def at(self, deadline_us: int, fire: Callable[[], None]) -> None:
        guarded = self.while_live(fire)

        def fired() -> None:
            self._timers.pop(timer, None)
            guarded()

        timer = self.quorum.ports.set_timer(deadline_us, fired)
        self._timers[timer] = None

    def when_synced(self, done: Callable[[], None]) -> None:
        """Call ``done`` when everything that is in the log now is durable, unless the role has ended by then."""
        self.quorum.log_sync.request(self.while_live(done))

    def while_live(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return a callback that runs ``action`` in its turn, unless the role has ended by then."""
        return lambda: self.quorum.gate.run(lambda: action() if self.live else None)

    def fetch_log(
        self,
        peer: int,
        end: OffsetAndEpoch,
        wait_ms: int,
        replied: Callable[[RaftResponse], None],
        failed: Callable[[], None],
    ) -> None:
        """Fetch from ``peer`` what follows ``end`` in its log, with the same callbacks as ``send_request``."""
        quorum = self.quorum
        request = fetch(
            quorum.cluster_id,
            quorum.node_id,
            quorum.epoch,
            end,
            quorum.log.start_offset,
            quorum.high_watermark,
            wait_ms,
        )
        self.send_request(peer, ApiKey.FETCH, request, read_fetched, replied, failed)

    def fetch_refused(self, error: Error) -> FetchResponse:
        """Return the response to a fetch of the metadata log that has an error."""
        quorum = self.quorum
        return fetched(error, quorum.leader_id, quorum.epoch, quorum.high_watermark, quorum.log.start_offset)

    def send_request(
        self,
        peer: int,
        api_key: ApiKey,
        body: object,
        read: Callable[[object], RaftResponse | None],
        replied: Callable[[RaftResponse], None],
        failed: Callable[[], None],
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request to ``peer`` and call ``replied`` or ``failed``. The timeout is that of the quorum's requests
        if none is given.

        Neither is called after the role has ended, nor for a response that makes the node leave the role. ``failed`` is
        also called for a response that cannot be read, that is of an older epoch than the role's, or whose epoch no
        node can have.
        """

        def handle(response: RaftResponse | None) -> None:
            if response is None or not self.quorum.epoch <= response.epoch <= MAX_EPOCH:
                if self.live:
                    failed()
            elif not self.quorum.learn_leader(response.leader_id, response.epoch) and self.live:
                replied(response)

        self.quorum.ports.send(
            peer,
            Channel.RAFT,
            api_key,
            VERSIONS[api_key][1],
            body,
            timeout_ms or self.quorum.timing.request_timeout_ms,
            lambda body: self.quorum.gate.run(lambda: handle(read(body))),
            self.while_live(failed),
        )
