"""A broker's registration, heartbeats and leave (Kafka's BrokerLifecycleManager).

It registers with the active controller, reports its damaged replicas, sends heartbeats, and leaves.

A registered broker is fenced until its partitions are open and it knows its own registration. It learns its own state
from the metadata that it publishes, like every other node.

A broker reports which of its replicas are in no directory, because their logs are damaged (KIP-858). It does so after
it has opened its logs, and before it is unfenced. So a damaged replica that is still an eligible leader is not elected
with what is left of its log. The node's other replicas are not affected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from kio.schema.assign_replicas_to_dirs.v0.request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from kio.schema.assign_replicas_to_dirs.v0.response import AssignReplicasToDirsResponse
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_heartbeat.v2.response import BrokerHeartbeatResponse
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest, Feature, Listener
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i16, i32, i64, u16

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import Endpoint
from reference_broker.controller.controller import NodeToControllerChannelManager
from reference_broker.controller.planning.brokers import is_shut_down
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.features import supported_features
from reference_broker.metadata.identifiers import LOST_DIRECTORY, random_uuid, uuid_from_text
from reference_broker.metadata.image import BrokerImage, MetadataImage
from reference_broker.metadata.records import SECURITY_PROTOCOL_PLAINTEXT
from reference_broker.ports.coroutines import Wait, pause, run_coroutine
from reference_broker.ports.node_ports import NodeContext
from reference_broker.quorum.node_files import Identity
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.api_versions.v4 import request as versions_request
    from kio.schema.api_versions.v4 import response as versions_response
else:
    versions_request = LazySchema("api_versions.v4.request")
    versions_response = LazySchema("api_versions.v4.response")


FIRST_RETRY_MS = 50
LONGEST_RETRY_MS = 800
"""The pause between attempts that find no active controller. It doubles each time, and is shortened at random."""

NOT_REGISTERED = -1


class _State(Enum):
    NOT_STARTED = 0
    REGISTERING = 1
    REGISTERED = 2
    SHUTTING_DOWN = 3
    STOPPED = 4


@dataclass(slots=True, eq=False)
class BrokerLifecycleManager:
    """Registers this node's broker, keeps its session, and makes its controlled shutdown."""

    _node: NodeContext
    _config: BrokerConfig
    _identity: Identity
    _endpoints: tuple[Endpoint, ...]
    channel: NodeToControllerChannelManager
    """Also used by this node's APIs."""
    incarnation_id: bytes = field(init=False)
    registered_epoch: int = NOT_REGISTERED
    """The broker epoch of this incarnation, or -1 before it is registered."""
    previous_broker_epoch: int = NOT_REGISTERED
    """The broker epoch of the last incarnation if it stopped cleanly, and -1 otherwise (KIP-966). Set before
    ``start``."""
    on_registered: Callable[[], None] = lambda: None
    _state: _State = _State.NOT_STARTED
    _wants_unfenced: bool = False
    _in_flight: bool = False
    """Whether a request has no response yet."""
    _sends_at_once: bool = False
    """Whether the next request follows the one in flight without a pause."""
    _timer: int | None = None
    _retry_ms: int = FIRST_RETRY_MS
    _shutdown_completed: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.incarnation_id = random_uuid(self._node.random)
        self.channel.controller.subscribe(self._published)

    @property
    def is_unfenced(self) -> bool:
        """Whether the metadata of this node shows this incarnation as unfenced."""
        return self._knows_itself(self.channel.controller.image, fenced=False)

    @property
    def is_registered(self) -> bool:
        """Whether the metadata of this node has the registration of this incarnation."""
        image = self.channel.controller.image
        return self._knows_itself(image, fenced=False) or self._knows_itself(image, fenced=True)

    def start(self) -> None:
        """Begin to look for the active controller, and register with it."""
        assert self._state is _State.NOT_STARTED, "a broker's life begins once"
        self._state = _State.REGISTERING
        self._send_next()

    def want_unfenced(self) -> None:
        """Report to the controller, from now on, that this broker can serve: its partitions are open."""
        self._wants_unfenced = True
        if self._state is _State.REGISTERED:
            self._send_next()

    def shut_down(self, done: Callable[[], None]) -> None:
        """Make a controlled shutdown. ``done`` is called when this node has published that it leads nothing, or after
        ``controller.quorum.request.timeout.ms``."""
        before, self._state = self._state, _State.SHUTTING_DOWN
        self._shutdown_completed = done
        if before is not _State.REGISTERED:
            self._stop()
            return
        self._node.after(self._config.controller_quorum_request_timeout_ms * 1000, self._stop)
        self._send_next()

    def leader_changed(self, leader_id: int, epoch: int) -> None:  # noqa: ARG002 - the listener's signature
        """Send the next request to a new leader soon, and do not wait for the end of a long pause."""
        if leader_id >= 0:
            self._send_soon()

    def controller_activated(self) -> None:
        """Send the next request soon, because this node's own controller has become active."""
        self._send_soon()

    @property
    def _is_alive(self) -> bool:
        return self._state in (_State.REGISTERING, _State.REGISTERED, _State.SHUTTING_DOWN)

    def _send_next(self) -> None:
        """Send the request of this state. There is one request at a time."""
        self._cancel_timer()
        self._sends_at_once = self._in_flight
        if self._in_flight or not self._is_alive:
            return
        self._in_flight = True
        if self._state is _State.REGISTERING:
            self._send(ApiKey.BROKER_REGISTRATION, self._registration(), self._registered)
        else:
            self._send(ApiKey.BROKER_HEARTBEAT, self._heartbeat(), self._heartbeat_responded)

    def _send(self, api_key: ApiKey, body: object, replied: Callable[[object], None]) -> None:
        self.channel.send_request(api_key, VERSIONS[api_key][1], body, replied, self._failed)

    def _failed(self) -> None:
        self._in_flight = False
        self._retry()

    def _retry(self) -> None:
        """Retry after a random pause, so that brokers do not retry at the same time."""
        pause_ms, self._retry_ms = self._retry_ms, min(2 * self._retry_ms, LONGEST_RETRY_MS)
        self._send_after(pause_ms - self._node.random.randrange(pause_ms // 2))

    def _send_after(self, pause_ms: int) -> None:
        """Set the timer for the next request. It does not wait if something changed during the last request."""
        self._cancel_timer()
        if self._sends_at_once:
            self._sends_at_once, pause_ms = False, 0
        if self._is_alive:
            self._timer = self._node.after(pause_ms * 1000, self._send_next)

    def _send_soon(self) -> None:
        """Send a request now, or as soon as the request in flight has failed."""
        self._retry_ms = FIRST_RETRY_MS
        if self._in_flight:
            self._sends_at_once = True
        elif self._is_alive:
            self._send_after(0)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._node.ports.cancel_timer(self._timer)
            self._timer = None

    def _registered(self, response: object) -> None:
        assert isinstance(response, BrokerRegistrationResponse), f"a registration got {type(response).__name__}"
        self._in_flight = False
        # Decision broker-registration-accepted
        if response.error_code is not ErrorCode.none or self._state is not _State.REGISTERING:
            if response.error_code is not ErrorCode.not_controller:
                self._node.ports.note("registration_refused", ("error", int(response.error_code)))
            self._retry()
            return
        self.registered_epoch = response.broker_epoch
        self._state = _State.REGISTERED
        self._retry_ms = FIRST_RETRY_MS
        self._node.ports.note("broker_registered", ("epoch", self.registered_epoch))
        self._send_next()
        self.on_registered()

    def _heartbeat_responded(self, response: object) -> None:
        assert isinstance(response, BrokerHeartbeatResponse), f"a heartbeat got {type(response).__name__}"
        self._in_flight = False
        # Decision broker-registration-lost
        if response.error_code in _REGISTER_AGAIN and self._state is _State.REGISTERED:
            self._state, self.registered_epoch = _State.REGISTERING, NOT_REGISTERED
            self._retry()
        elif response.error_code is not ErrorCode.none:
            self._retry()
        elif self._state is _State.SHUTTING_DOWN:
            if response.should_shut_down:  # Decision broker-shutdown-granted
                self._stop()
            else:
                self._retry()
        elif response.is_fenced and self._wants_unfenced:
            self._retry()  # It had not caught up, or was not ready. The pause is short, because clients wait.
        else:
            self._retry_ms = FIRST_RETRY_MS
            self._send_after(self._config.broker_heartbeat_interval_ms)

    def _published(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Send a heartbeat soon in two cases: this broker's registration is published here, so it may be unfenced, or
        another broker leaves, which waits until all others have reported that they know. Stop if this broker's own
        shutdown is published."""
        if self._node.node_id not in delta.brokers:
            if self._state is _State.REGISTERED and any(_leaves(broker) for broker in delta.brokers.values()):
                self._send_soon()
            return
        if self._state is _State.REGISTERED and self._wants_unfenced and self._knows_itself(image, fenced=True):
            self._send_soon()
        elif self._state is _State.SHUTTING_DOWN:
            if self._is_gone(image):
                self._stop()
            else:
                self._send_soon()

    def _knows_itself(self, image: MetadataImage, fenced: bool) -> bool:
        broker = image.brokers.get(self._node.node_id)
        return broker is not None and broker.broker_epoch == self.registered_epoch and broker.fenced == fenced

    def _is_gone(self, image: MetadataImage) -> bool:
        return is_shut_down(image.brokers.get(self._node.node_id), self.registered_epoch)

    def _stop(self) -> None:
        completed, self._shutdown_completed = self._shutdown_completed, None
        self._state = _State.STOPPED
        self._cancel_timer()
        if completed is not None:
            completed()

    def _registration(self) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=BrokerId(self._node.node_id),
            cluster_id=self._identity.cluster_id,
            incarnation_id=UUID(bytes=self.incarnation_id),
            listeners=tuple(
                Listener(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=u16(endpoint.port),
                    security_protocol=i16(SECURITY_PROTOCOL_PLAINTEXT),
                )
                for endpoint in self._endpoints
            ),
            features=tuple(
                Feature(name=name, min_supported_version=i16(low), max_supported_version=i16(high))
                for name, low, high in supported_features(self._config)
            ),
            rack=self._config.broker_rack or None,
            log_dirs=(UUID(bytes=uuid_from_text(self._identity.directory_id)),),
            previous_broker_epoch=i64(self.previous_broker_epoch),
        )

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=BrokerId(self._node.node_id),
            broker_epoch=i64(self.registered_epoch),
            current_metadata_offset=i64(self.channel.controller.image.provenance.offset),
            want_fence=not self._wants_unfenced,
            want_shut_down=self._state is _State.SHUTTING_DOWN,
        )


_REGISTER_AGAIN = (ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered)


def _leaves(broker: BrokerImage | None) -> bool:
    return broker is not None and broker.in_controlled_shutdown and not broker.fenced


RETRY_MS = 200
MAX_REPLICAS: Final = 500
"""The number of replicas in one request. A controller refuses a request that has too many items. Kafka's limit is 2,250
(AssignReplicasToDirsRequest.MAX_ASSIGNMENTS_PER_REQUEST)."""

ReplicaKey: TypeAlias = tuple[bytes, int]
"""Topic ID and partition index."""


@dataclass(slots=True, eq=False)
class AssignmentsManager:
    """Reports to the controller which replicas of this node are in no directory, or in one again (KIP-858)."""

    _node: NodeContext
    _lifecycle: BrokerLifecycleManager
    directory: bytes
    """The ID of this node's only directory."""

    def report(self, replicas: Mapping[ReplicaKey, bool], done: Callable[[], None]) -> None:
        """Report for each replica whether it is lost, and call ``done`` at the end of the report.

        Each request has up to MAX_REPLICAS, and is retried until an active controller has made its changes. The report
        also ends if the metadata.version is too low for directories, or if the controller's ApiVersions do not have the
        API. Such a controller would close the connection.
        """
        run_coroutine(self._report(dict(replicas), done))

    async def _report(self, replicas: dict[ReplicaKey, bool], done: Callable[[], None]) -> None:
        while replicas:
            reported = dict(islice(replicas.items(), MAX_REPLICAS))
            response = await self._response(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, self._request(reported))
            if response is None:
                if await self._controller_lacks_api():
                    self._node.ports.note("lost_replicas_not_reported", ("replicas", len(replicas)))
                    break
                await pause(self._node.ports, RETRY_MS * 1000)
                continue
            assert isinstance(response, AssignReplicasToDirsResponse), f"directories got {response!r}"
            if response.error_code == ErrorCode.none:  # Decision directories-assigned
                replicas = {key: is_lost for key, is_lost in replicas.items() if key not in reported}
            elif response.error_code == ErrorCode.unsupported_version:
                break
            else:
                await pause(self._node.ports, RETRY_MS * 1000)
        done()

    async def _controller_lacks_api(self) -> bool:
        """Return whether the controller responds to ApiVersions, and does not list AssignReplicasToDirs."""
        response = await self._response(ApiKey.API_VERSIONS, VERSIONS[ApiKey.API_VERSIONS][1], _versions_request())
        if response is None:
            return False
        assert isinstance(response, versions_response.ApiVersionsResponse), f"ApiVersions got {response!r}"
        return not any(int(key.api_key) == ApiKey.ASSIGN_REPLICAS_TO_DIRS for key in response.api_keys)

    def _response(self, api_key: ApiKey, api_version: int, body: object) -> Wait[object | None]:
        """Send a request to the active controller, and wait for the response. It is None if the request failed."""
        send = self._lifecycle.channel.send_request
        return Wait(lambda resume: send(api_key, api_version, body, resume, lambda: resume(None)))

    def _request(self, replicas: Mapping[ReplicaKey, bool]) -> AssignReplicasToDirsRequest:
        return AssignReplicasToDirsRequest(
            broker_id=BrokerId(self._node.node_id),
            broker_epoch=i64(self._lifecycle.registered_epoch),
            directories=tuple(
                DirectoryData(id_=UUID(bytes=directory), topics=_topics(keys))
                for directory, keys in (
                    (LOST_DIRECTORY, [key for key, is_lost in replicas.items() if is_lost]),
                    (self.directory, [key for key, is_lost in replicas.items() if not is_lost]),
                )
                if keys
            ),
        )


def _versions_request() -> "versions_request.ApiVersionsRequest":
    return versions_request.ApiVersionsRequest(client_software_name="crucible", client_software_version="1")


def _topics(keys: Sequence[ReplicaKey]) -> tuple[TopicData, ...]:
    indexes: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        indexes.setdefault(topic_id, []).append(index)
    return tuple(
        TopicData(
            topic_id=UUID(bytes=topic_id),
            partitions=tuple(PartitionData(partition_index=i32(index)) for index in of_topic),
        )
        for topic_id, of_topic in indexes.items()
    )
