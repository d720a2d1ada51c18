"""The active controller: orders changes of the metadata, writes them to the quorum's log, answers when they are seen.

Two images: ``image`` is published on this node; ``latest`` also holds what is on its way. Operations run one at a time,
each planned against ``latest`` when its turn comes, in slices of one event (below 5 ms). A set of records larger than
a batch goes out as a transaction: Begin, batches, End, one batch an event, nothing between. Answers wait until the
records are committed and published here; whoever is on the way when leadership is lost gets NOT_CONTROLLER, and
``latest`` is dropped. What is published comes from the committed log through the loader, as on every node.
"""

from collections.abc import Callable

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation import Activation, Endpoint, activation
from reference_broker.controller.broker_heartbeats import BrokerHeartbeats
from reference_broker.controller.leader_balance import LeaderBalance
from reference_broker.controller.metadata_broadcast import MetadataBroadcast
from reference_broker.controller.operations import Answered, Operation, Plan
from reference_broker.controller.refusal import NOT_CONTROLLER
from reference_broker.controller.reign import Leadership, Reign
from reference_broker.metadata.features import check_levels, supported_features
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import Listener, MetadataLoader
from reference_broker.metadata.uuids import random_uuid
from reference_broker.ports.node_ports import Surroundings

NO_CONTROLLER = -1


class Controller:
    """Every node has one; it is active on the quorum's leader, once it has all that was committed before.

    ``endpoint``: what clients are told to connect to. ``cluster_id``: of this cluster, text. ``on_activated``: told
    when this node becomes active, so that its own broker asks it at once.
    """

    __slots__ = (
        "_claim",
        "_config",
        "_loader",
        "_quorum",
        "_reign",
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
    ) -> None:
        self.node_id = surroundings.node_id
        self.cluster_id = cluster_id
        self.endpoint = endpoint
        self.on_activated: Callable[[], None] = _nothing
        self._surroundings = surroundings
        self._config = config
        self._loader = loader
        self._quorum = quorum
        self._reign: Reign | None = None
        self._claim: tuple[int, int] | None = None
        self.heartbeats = BrokerHeartbeats(surroundings, config, self)
        self.balance = LeaderBalance(surroundings, config, self)
        self.broadcast = MetadataBroadcast(surroundings, config, self)
        loader.subscribe(self.broadcast.published)
        loader.on_progress(self._progressed)

    # What is known

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
    def next_offset(self) -> int:
        """Where the first record of the operation being planned will stand, if it fits one batch."""
        return self._loader.end_offset

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

    # Changing the metadata

    def submit(self, plan: Plan, answered: Answered, *, name: str = "change", atomic: bool = True) -> None:
        """Queues a change. ``answered(None)``: its records are committed and published here (without records: all that
        was on its way before is). Else why nothing is written, or NOT_CONTROLLER: then nobody knows.

        ``name`` tells people what a transaction was for. Not ``atomic``: the controller's own upkeep, which may go out
        in several plain batches where the metadata.version knows no transactions.
        """
        reign = self._reign
        if reign is None:
            answered(NOT_CONTROLLER)
            return
        reign.submit(Operation(name, plan, answered, atomic))

    def spend(self, units: int) -> bool:
        """For plans: whether the event's time is used up by ``units`` (of about 10 us) more, so that they yield."""
        assert self._reign is not None, "plans run on the active controller only"
        return self._reign.work.spend(units)

    def allocate_topic_id(self) -> bytes:
        """A topic ID that no topic has."""
        while True:
            topic_id = random_uuid(self._surroundings.random)
            if topic_id not in self.latest.topic_names:
                return topic_id

    # The quorum's news

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """A leader that is not this node ends a claim that was never made good."""
        if leader_id != self.node_id and self._claim is not None and epoch > self._claim[0]:
            self._claim = None

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        """Becomes active once the record at ``start_offset``, the epoch's first, is committed and loaded."""
        assert self._reign is None, "leadership is won again before it was lost"
        self._claim = (epoch, start_offset)
        self._claim_if_loaded()

    def leadership_lost(self, epoch: int) -> None:  # noqa: ARG002 - the listener's signature
        """Nothing that is on its way will be known here: everyone who waits is told NOT_CONTROLLER."""
        self._claim = None
        reign, self._reign = self._reign, None
        if reign is None:
            return
        self.heartbeats.deactivated()
        self.balance.deactivated()
        self.broadcast.deactivated()
        self._loader.split_at_epochs(False)
        waiting = reign.end()
        for answered in waiting:
            answered(NOT_CONTROLLER)

    def _progressed(self) -> None:
        self._claim_if_loaded()
        if self._reign is not None:
            self._reign.answer_published()
            self.broadcast.progressed()

    def _claim_if_loaded(self) -> None:
        if self._claim is None or self._loader.last_offset < self._claim[1]:
            return
        epoch, start_offset = self._claim
        self._claim = None
        image, in_transaction = self._loader.image, self._loader.in_transaction
        first = self._first(image, in_transaction)
        reign = self._reign = Reign(
            self._surroundings, self._config, self._loader, self._quorum, image, lambda: self.leadership_lost(epoch)
        )
        self._surroundings.ports.note("controller_activated", ("epoch", epoch), ("offset", start_offset))
        self.heartbeats.activated()
        self.balance.activated()
        self._loader.split_at_epochs(True)
        self.broadcast.activated()
        reign.begin(first)
        self.on_activated()

    def _first(self, image: MetadataImage, in_transaction: bool) -> Activation:
        """What it writes before it serves. Raises MetadataFault where this node cannot be what the others rely on."""
        config = self._config
        check_levels(image, config)
        epoch_level = config.crucible_bootstrap_metadata_epoch if config.crucible_metadata_epoch_enable else 0
        return activation(image, in_transaction, config.crucible_bootstrap_metadata_version, epoch_level)


def _nothing() -> None:
    """Nobody waits for this node to become active."""
