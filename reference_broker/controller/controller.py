"""The active controller: what it knows, and what it is asked for. All that changes the metadata goes through here.

There are two images. ``image`` is what this node publishes; ``latest`` also holds what is on its way. Each verb makes a
change out of the request (``planning/``) and queues it. Changes are planned and written one at a time (``reign.py``),
for as long as this node is the active controller (``succession.py``). An answer waits until the records are committed
and published here. What is published comes from the committed log through the loader, as on every node.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation import Endpoint
from reference_broker.controller.broker_heartbeats import BrokerHeartbeats, Heartbeat, HeartbeatAnswer
from reference_broker.controller.leader_balance import LeaderBalance
from reference_broker.controller.metadata_broadcast import MetadataBroadcast
from reference_broker.controller.operations import Answered, Operation, Plan
from reference_broker.controller.planning.change import Change, Situation
from reference_broker.controller.planning.config_changes import ConfigChange, ConfigOutcomes, WantedConfigs
from reference_broker.controller.planning.feature_updates import FeatureOutcomes, FeatureUpdates, WantedLevel
from reference_broker.controller.planning.isr_changes import IsrChange, IsrOutcomes, WantedIsrs
from reference_broker.controller.planning.leader_election import Election
from reference_broker.controller.planning.partition_growth import GrowthOutcomes, PartitionGrowth, WantedGrowth
from reference_broker.controller.planning.producer_id_blocks import ProducerIdBlock
from reference_broker.controller.planning.registration import BrokerRegistration, Registration, Restart, Unregistration
from reference_broker.controller.planning.requested_elections import (
    ElectionOutcomes,
    RequestedElections,
    WantedPartitions,
)
from reference_broker.controller.planning.topic_creation import TopicCreation, TopicOutcomes, WantedTopic
from reference_broker.controller.planning.topic_deletion import DeletionOutcomes, NamedTopic, TopicDeletion
from reference_broker.controller.refusal import NOT_CONTROLLER, Refusal
from reference_broker.controller.reign import Leadership, Reign
from reference_broker.controller.succession import Succession
from reference_broker.metadata.features import supported_features
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import Listener, MetadataLoader
from reference_broker.ports.chance import RandomSource
from reference_broker.ports.node_ports import Surroundings

NO_CONTROLLER = -1

OutcomeT = TypeVar("OutcomeT")


class Controller:
    """Every node has one; it is active on the quorum's leader, once it has all that was committed before.

    ``endpoint``: what clients are told to connect to. ``cluster_id``: of this cluster, text. ``on_activated``: told
    when this node becomes active, so that its own broker asks it at once. ``for_placement``: the chance by which new
    replicas are placed.
    """

    __slots__ = (
        "_config",
        "_for_placement",
        "_loader",
        "_quorum",
        "_succession",
        "_surroundings",
        "balance",
        "broadcast",
        "cluster_id",
        "endpoint",
        "heartbeats",
        "node_id",
        "on_activated",
    )

    def __init__(
        self,
        surroundings: Surroundings,
        config: BrokerConfig,
        cluster_id: str,
        loader: MetadataLoader,
        quorum: Leadership,
        endpoint: Endpoint,
        for_placement: RandomSource,
    ) -> None:
        self.node_id = surroundings.node_id
        self.cluster_id = cluster_id
        self.endpoint = endpoint
        self.on_activated: Callable[[], None] = _nothing
        self._surroundings = surroundings
        self._config = config
        self._for_placement = for_placement
        self._loader = loader
        self._quorum = quorum
        self.heartbeats = BrokerHeartbeats(surroundings, config, self)
        self.balance = LeaderBalance(surroundings, config, self)
        self.broadcast = MetadataBroadcast(surroundings, config, self)
        self._succession = Succession(
            surroundings,
            config,
            loader,
            quorum,
            upkeep=(self.heartbeats, self.balance, self.broadcast),
            activated=lambda: self.on_activated(),
        )
        loader.subscribe(self.broadcast.published)
        loader.on_progress(self._progressed)

    # What is known

    @property
    def _reign(self) -> Reign | None:
        return self._succession.reign

    @property
    def is_active(self) -> bool:
        """It plans and writes changes. A leader is not active before its epoch's start is committed and loaded."""
        return self._reign is not None

    @property
    def leader_id(self) -> int:
        """The quorum's leader as far as this node knows, active or not; -1: none."""
        return self._quorum.leader_id

    @property
    def epoch(self) -> int:
        """The quorum's, as far as this node knows."""
        return self._quorum.epoch

    @property
    def image(self) -> MetadataImage:
        """Published on this node."""
        return self._loader.image

    @property
    def latest(self) -> MetadataImage:
        """Also with what is on its way: what plans are judged by. Only while active."""
        assert self._reign is not None, "what is on its way is known to the active controller only"
        return self._reign.latest

    @property
    def is_writing_transaction(self) -> bool:
        """A metadata transaction of this controller is open: its End or Abort is not written yet."""
        return self._reign is not None and self._reign.in_transaction

    @property
    def broker_epoch(self) -> int:
        """Of this node's registration; -1 before it is published."""
        broker = self.image.brokers.get(self.node_id)
        return -1 if broker is None else broker.broker_epoch

    @property
    def finalized_features_epoch(self) -> int:
        """Grows with the metadata log."""
        return self.image.provenance.offset

    def supported_features(self) -> tuple[tuple[str, int, int], ...]:
        """(name, lowest level, highest level)."""
        return supported_features(self._config)

    def finalized_features(self) -> tuple[tuple[str, int], ...]:
        return tuple(self.image.features.items())

    def subscribe(self, listener: Listener) -> None:
        """``listener`` gets every published delta and the image after it, from the next one on."""
        self._loader.subscribe(listener)

    # What it is asked for: each verb is one change, and its answer follows when the change is published or refused

    def create_topics(
        self, wanted: Sequence[WantedTopic], validate_only: bool, answer: Callable[[TopicOutcomes], None]
    ) -> None:
        self._propose("create topics", TopicCreation(wanted, validate_only), answer)

    def create_partitions(
        self, wanted: Sequence[WantedGrowth], validate_only: bool, answer: Callable[[GrowthOutcomes], None]
    ) -> None:
        self._propose("create partitions", PartitionGrowth(wanted, validate_only), answer)

    def delete_topics(self, named: Sequence[NamedTopic], answer: Callable[[DeletionOutcomes], None]) -> None:
        self._propose("delete topics", TopicDeletion(named), answer)

    def change_configs(
        self, wanted: Sequence[WantedConfigs], validate_only: bool, answer: Callable[[ConfigOutcomes], None]
    ) -> None:
        self._propose("alter configs", ConfigChange(wanted, validate_only), answer)

    def elect_leaders(
        self,
        election: Election,
        wanted: WantedPartitions | None,
        answer: Callable[[ElectionOutcomes | Refusal], None],
    ) -> None:
        """``wanted`` None: all partitions."""
        self._propose("elect leaders", RequestedElections(election, wanted), answer, atomic=False)

    def change_isrs(
        self, leader_id: int, broker_epoch: int, wanted: WantedIsrs, answer: Callable[[IsrOutcomes | Refusal], None]
    ) -> None:
        """``leader_id`` and ``broker_epoch``: of the broker that asks."""
        self._propose("alter partitions", IsrChange(leader_id, broker_epoch, wanted), answer, atomic=False)

    def update_features(
        self, wanted: Sequence[WantedLevel], validate_only: bool, answer: Callable[[FeatureOutcomes | Refusal], None]
    ) -> None:
        self._propose("update features", FeatureUpdates(wanted, validate_only), answer)

    def register_broker(self, wanted: Registration, answer: Callable[[int | Refusal], None]) -> None:
        """Two changes, one right after the other. The answer is the broker epoch."""
        restart = Restart(wanted, self.cluster_id, self.heartbeats)
        self._propose("a broker has restarted", restart, _nobody_waits, atomic=False)
        self._propose("register a broker", BrokerRegistration(restart), answer)

    def unregister_broker(self, broker_id: int, answer: Callable[[Refusal | None], None]) -> None:
        self._propose("unregister a broker", Unregistration(broker_id, self.heartbeats), answer)

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int, answer: Callable[[int | Refusal], None]) -> None:
        """The answer is the first of ``producer_id_blocks.BLOCK_SIZE`` IDs."""
        self._propose("allocate producer IDs", ProducerIdBlock(broker_id, broker_epoch), answer)

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer | Refusal:
        """Answered at once, whatever the controller works on."""
        return self.heartbeats.heartbeat(beat)

    # How a change is made

    def submit(self, plan: Plan, answered: Answered, *, name: str = "change", atomic: bool = True) -> None:
        """Queues a change. ``answered(None)``: its records are committed and published here (without records: all that
        was on its way before is). Else why nothing is written, or NOT_CONTROLLER: then nobody knows.

        ``name`` tells people what a transaction was for. Not ``atomic``: the change may go out in several plain batches
        where the metadata.version knows no transactions.
        """
        reign = self._reign
        if reign is None:
            answered(NOT_CONTROLLER)
            return
        reign.submit(Operation(name, plan, answered, atomic))

    def situation(self) -> Situation:
        """For a plan whose turn has come."""
        assert self._reign is not None, "plans run on the active controller only"
        return Situation(
            latest=self._reign.latest,
            published=self.image,
            config=self._config,
            spend=self._reign.work.spend,
            next_offset=self._loader.end_offset,
            for_topic_ids=self._surroundings.random,
            for_placement=self._for_placement,
        )

    def _propose(
        self, name: str, change: Change[OutcomeT], answer: Callable[[OutcomeT], None], *, atomic: bool = True
    ) -> None:
        self.submit(
            lambda: change.plan(self.situation()),
            lambda refused: answer(change.outcome(refused)),
            name=name,
            atomic=atomic,
        )

    # The quorum's news

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        self._succession.leader_changed(leader_id, epoch)

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        self._succession.leadership_won(epoch, start_offset)

    def leadership_lost(self, epoch: int) -> None:
        self._succession.leadership_lost(epoch)

    def _progressed(self) -> None:
        self._succession.progressed()
        if self._reign is not None:
            self._reign.answer_published()
            self.broadcast.progressed()


def _nothing() -> None:
    """Nobody waits for this node to become active."""


def _nobody_waits(_outcome: None) -> None:
    """The broker waits for the second change of its registration."""
