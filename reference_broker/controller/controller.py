"""The active controller (Kafka's QuorumController), and the channel on which a broker reaches it. Every change of the
metadata goes through it.

There are two images. ``image`` is what this node publishes. ``latest`` also has the changes that are written but not
committed. ``append_write_event`` queues a write operation (``planning/``). Operations are planned and written one at a
time while this node is the active controller (``controller_term.py``). The caller gets the outcome when the records are
committed and published here. Images are published by the loader from the committed log, as on every node.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.broker_heartbeats import BrokerHeartbeatManager
from reference_broker.controller.controller_activation import ControllerActivation
from reference_broker.controller.controller_term import ControllerTerm, Leadership
from reference_broker.controller.leader_balance import LeaderBalancer
from reference_broker.controller.metadata_broadcast import MetadataBroadcast
from reference_broker.controller.planning.brokers import (
    BrokerRegistration,
    Incarnation,
    IncarnationReplacement,
    Registration,
)
from reference_broker.controller.write_operations import (
    NOT_CONTROLLER,
    ApiError,
    ControllerWriteEvent,
    ControllerWriteOperation,
    OnBug,
    PlanContext,
    ServeLocally,
    raise_bug,
)
from reference_broker.metadata.broker_settings import LiveConfig
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import Listener, MetadataLoader
from reference_broker.ports.node_ports import Channel, NodeContext, RandomSource
from reference_broker.wire.apis import ApiKey

NO_CONTROLLER = -1

OutcomeT = TypeVar("OutcomeT")


def _no_apis_yet(_api_key: int, _body: object, _respond: Callable[[object], None]) -> None:
    raise AssertionError("a node sends itself a request before its APIs exist")


@dataclass(slots=True, eq=False)
class QuorumController:
    """The controller of a node. It is active on the quorum's leader, once that node has loaded all records that were
    committed before."""

    _node: NodeContext
    _config: BrokerConfig
    cluster_id: str
    """Base64 text."""
    _loader: MetadataLoader
    _quorum: Leadership
    _for_placement: RandomSource
    """Places new replicas."""
    on_activated: Callable[[], None] = lambda: None
    """Called when this node becomes active, so that this node's own broker sends its request at once."""
    serve_locally: ServeLocally = _no_apis_yet
    """Serves this node's requests to itself. Set once the APIs exist."""
    own_broker: Incarnation | None = None
    """The broker in this process, if there is one. Set when it is made."""
    on_bug: OnBug = raise_bug
    """The ``OnBug`` of changes that requests propose. The controller's own changes raise their bugs."""
    live_config: LiveConfig = field(init=False)
    heartbeats: BrokerHeartbeatManager = field(init=False)
    balance: LeaderBalancer = field(init=False)
    broadcast: MetadataBroadcast = field(init=False)
    activation: ControllerActivation = field(init=False)

    def __post_init__(self) -> None:
        self.live_config = LiveConfig(self._config, self._node.node_id)
        self.heartbeats = BrokerHeartbeatManager(self._node, self._config, self)
        self.balance = LeaderBalancer(self._node, self._config, self)
        self.broadcast = MetadataBroadcast(self._node, self._config, self)
        self.activation = ControllerActivation(
            self._node,
            self._config,
            self._loader,
            self._quorum,
            (self.heartbeats, self.balance, self.broadcast),
            lambda: self.on_activated(),
        )
        self._loader.subscribe(self.broadcast.published)
        self._loader.on_progress = self._progressed

    # State

    @property
    def _term(self) -> ControllerTerm | None:
        return self.activation.term

    @property
    def is_active(self) -> bool:
        """Whether this node plans and writes changes. A leader does so once the first record of its epoch is committed
        and loaded."""
        return self._term is not None

    @property
    def leader_id(self) -> int:
        """The quorum's leader, active or not, as far as this node knows, or -1."""
        return self._quorum.leader_id

    @property
    def epoch(self) -> int:
        """The quorum's epoch, as far as this node knows."""
        return self._quorum.epoch

    @property
    def image(self) -> MetadataImage:
        """The metadata that this node publishes."""
        return self._loader.image

    @property
    def latest(self) -> MetadataImage:
        """The metadata with all changes written so far, by which plans judge. It exists only while this node is
        active."""
        assert self._term is not None, "only the active controller knows the changes that are not committed"
        return self._term.latest

    @property
    def is_writing_transaction(self) -> bool:
        """Whether a transaction of this controller is open, which means that its End or Abort is not written yet."""
        return self._term is not None and self._term.in_transaction

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of this node's registration, or -1 before it is published."""
        broker = self.image.brokers.get(self._node.node_id)
        return -1 if broker is None else broker.broker_epoch

    def subscribe(self, listener: Listener) -> None:
        """Add a listener, which gets every delta and the image after it from the next publication on."""
        self._loader.subscribe(listener)

    # Changes

    def register_broker(self, registration: Registration, completed: Callable[[int | ApiError], None]) -> None:
        """Queue two changes, one right after the other. ``completed`` gets the broker epoch."""
        restart = IncarnationReplacement(registration, self.cluster_id, self.heartbeats, self.own_broker)
        self.append_write_event(restart, lambda _: None)  # The broker waits for the second change.
        self.append_write_event(BrokerRegistration(restart), completed)

    def append_write_event(
        self,
        operation: ControllerWriteOperation[OutcomeT],
        completed: Callable[[OutcomeT], None],
        on_bug: OnBug | None = None,
    ) -> None:
        """Queue a write operation. Its ``plan`` returns the records when its turn comes.

        ``completed`` gets the operation's outcome when the records are committed and published here. An operation
        without records completes when everything that was written before it is published. The outcome of a refused one
        is that of its error: the reason why nothing was written, or NOT_CONTROLLER if this node cannot know whether it
        was.

        ``on_bug`` is called for a bug of the plan. By default it is that of requests; the controller's own changes pass
        ``raise_bug``.
        """

        def respond(refused: ApiError | None) -> None:
            completed(operation.outcome(refused))

        term = self._term
        if term is None:  # Decision metadata-change-accepted
            respond(NOT_CONTROLLER)
            return
        plan_bug = self.on_bug if on_bug is None else on_bug
        term.enqueue(
            ControllerWriteEvent(
                operation.name, lambda: operation.plan(self._plan_context()), respond, operation.atomic, plan_bug
            )
        )

    def _plan_context(self) -> PlanContext:
        """Return the context for a plan whose turn has come."""
        assert self._term is not None, "plans run on the active controller only"
        return PlanContext(
            latest=self._term.latest,
            published=self.image,
            config=self.live_config.of(self._term.latest),
            spend=self._term.budget.spend,
            next_offset=self._loader.end_offset,
            for_topic_ids=self._node.random,
            for_placement=self._for_placement,
        )

    def _progressed(self) -> None:
        self.activation.progressed()
        if self._term is not None:
            self._term.complete_published()
            self.broadcast.progressed()


@dataclass(slots=True, eq=False)
class NodeToControllerChannelManager:
    """The channel to the leader of the quorum, which is or will be the active controller."""

    _node: NodeContext
    _config: BrokerConfig
    controller: QuorumController

    @property
    def has_leader(self) -> bool:
        return self.controller.leader_id != NO_CONTROLLER

    def send_request(
        self,
        api_key: int,
        api_version: int,
        body: object,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        """Send a request to the quorum's leader. One of the two callbacks follows, in a later event.

        ``failed`` is called if no leader is known, or if it does not respond within
        ``controller.quorum.request.timeout.ms``. It may have carried out the request nevertheless.
        """
        leader_id = self.controller.leader_id
        if leader_id == NO_CONTROLLER:
            self._node.after(0, failed)
        elif leader_id == self._node.node_id:
            self._node.after(0, lambda: self.controller.serve_locally(api_key, body, replied))
        else:
            timeout_ms = self._config.controller_quorum_request_timeout_ms
            channel = Channel.CONTROLLER if api_key in _CONTROLLER_CHANNEL_APIS else Channel.FORWARD
            self._node.ports.send(leader_id, channel, api_key, api_version, body, timeout_ms, replied, failed)


_CONTROLLER_CHANNEL_APIS = (ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.ASSIGN_REPLICAS_TO_DIRS)
