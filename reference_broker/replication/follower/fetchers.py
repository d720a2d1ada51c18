"""The partitions that this node follows, with one fetcher for each leader, made for the first partition of it."""

from collections.abc import Callable

from reference_broker.client.partitions import TopicPartition
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.partition_log import PartitionLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.follower.fetch_lag import FetchLag
from reference_broker.replication.follower.fetcher import Fetcher, FetcherSetting
from reference_broker.replication.follower.followed import Followed
from reference_broker.replication.follower.intake import Intake
from reference_broker.replication.follower.tier_starts import Tier


class Fetchers:
    """``broker_epoch()`` is that of this node's registration, -1 before it.

    ``high_watermark_moved`` is told of each log whose high watermark followed its leader's, and ``changed`` of each
    partition of which consumers may hear something else now. Nothing is asked of other nodes before ``start`` and after
    ``halt``.
    """

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: BrokerConfig,
        broker_epoch: Callable[[], int],
        high_watermark_moved: Callable[[PartitionLog], None],
        lag: FetchLag,
        changed: Callable[[Followed], None] = lambda _: None,
    ) -> None:
        intake = Intake(ports, high_watermark_moved, changed)
        self.tier: Tier | None = None
        """What tells replicas how to begin behind records that are in the remote tier, if there is such a tier."""
        self._setting = FetcherSetting(node_id, config, ports, broker_epoch, intake, lag, lambda: self.tier)
        self._fetchers: dict[int, Fetcher] = {}
        """By leader. A fetcher without partitions stays and costs nothing."""
        self._followed: dict[tuple[bytes, int], Followed] = {}
        self._halted = False

    @property
    def followed(self) -> int:
        """The number of followed partitions."""
        return len(self._followed)

    def halt(self) -> None:
        """Nothing is asked or appended any more."""
        self._halted = True
        for fetcher in self._fetchers.values():
            fetcher.end()

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: PartitionLog) -> None:
        """The partition follows ``state.leader`` from now on. The call is repeated with each newer ``state``."""
        key = (topic.topic_id, index)
        known = self._followed.get(key)
        if known is not None and known.leader_id == state.leader:
            if known.leader_epoch != state.leader_epoch:
                known.leader_epoch = state.leader_epoch
                self._fetchers[known.leader_id].follow(known)
            return
        self.rests(*key)
        if self._halted:
            return
        log.forget_empty_epochs()
        self.await_marker(log)
        name = TopicPartition(topic.name, index)
        one = self._followed[key] = Followed(name, topic.topic_id, log, state.leader, state.leader_epoch)
        self._fetcher(state.leader).follow(one)

    def await_marker(self, log: PartitionLog) -> None:
        """Let the cleaner keep all tombstones of a log that is led elsewhere, or not at all, until a leader sends its
        marker (H-2)."""
        if self._setting.config.crucible_tombstone_horizon_enable:
            log.horizon.follow()

    def rests(self, topic_id: bytes, index: int) -> None:
        """The partition follows nobody from now on. An unknown partition is no error."""
        one = self._followed.pop((topic_id, index), None)
        if one is not None:
            self._fetchers[one.leader_id].drop(one)
            self._setting.lag.drop(one)

    def _fetcher(self, leader_id: int) -> Fetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = Fetcher(leader_id, self._setting)
        return fetcher
