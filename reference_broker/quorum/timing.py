"""The waiting times of the quorum. They are random where nodes must not act at the same moment."""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.chance import RandomSource

GONE_DELAY_US = 50_000
"""A follower that notices the end of its leader seeks an election after a random delay of at most this much, because
all followers notice at once."""
FIRST_BACKOFF_US = 50_000
START_DELAY_US = (20_000, 100_000)
"""A voter seeks its first election after a random delay between these two. A live leader is found before, and voters
that start together do not compete."""
LONGEST_WAIT_MS = 1000
"""How long one fetch waits at the leader. (KafkaRaftClient.fetchMaxWaitMs is 500, which causes twice as many empty
fetches.)"""


class QuorumTiming:
    """``check_quorum_us`` is 1.5 fetch timeouts (LeaderState.CHECK_QUORUM_TIMEOUT_FACTOR).

    ``fetch_wait_ms`` is how long a fetch waits at the leader. It is at most half the fetch timeout, so that one late
    answer does not count as a lost leader, and half the request timeout, so that the answer of a quiet leader comes
    before its follower gives the request up.
    """

    def __init__(self, config: BrokerConfig, random: RandomSource) -> None:
        self._random = random
        self._backoff_max_us = config.controller_quorum_election_backoff_max_ms * 1000
        self.election_timeout_ms = config.controller_quorum_election_timeout_ms
        self.request_timeout_ms = config.controller_quorum_request_timeout_ms
        self.fetch_timeout_us = config.controller_quorum_fetch_timeout_ms * 1000
        shortest_ms = min(config.controller_quorum_fetch_timeout_ms, config.controller_quorum_request_timeout_ms)
        self.fetch_wait_ms = min(LONGEST_WAIT_MS, max(1, shortest_ms // 2))
        self.check_quorum_us = self.fetch_timeout_us * 3 // 2

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
