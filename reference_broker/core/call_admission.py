"""Admission of requests: which ones a node serves, the call that an API handler gets, and the response if a bug stops
it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from reference_broker.apis.call import Call
from reference_broker.apis.listener_scopes import takes
from reference_broker.apis.records.k01_fetch import is_metadata_fetch
from reference_broker.apis.registry import drafts_of, serves
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Close, Effect, Reply, Request
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey, api_name
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import empty_response, has_error_code
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)

BEFORE_READY = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.ALTER_PARTITION,
        ApiKey.ELECT_LEADERS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_TOPICS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UPDATE_METADATA,
    }
)
"""Requests for the quorum, the controller or the metadata of a node. They are served also while its broker is not part
of the cluster yet. All are sent to a controller or a voter, except UPDATE_METADATA, which the controller sends to
brokers.

A fetch of the metadata log is served then, too. Clients begin with ApiVersions, which closes their connection, so that
they try another node or retry.
"""

SENT_BY_FOLLOWERS = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS})
"""Requests that a replica sends to its leader."""


class Admission:
    """The requests that a node with these settings serves, whatever its state."""

    def __init__(self, config: BrokerConfig) -> None:
        self._scopes = config.listener_plan().scopes
        self._drafts = drafts_of(config)

    def refusal(self, request: Request, listener: str) -> str:
        """Return why the connection closes instead of a response, or an empty string if the request is served.
        ``listener`` is empty if the node has only one."""
        if listener and not takes(self._scopes[listener], request.api_key, request.body):
            return f"{api_name(request.api_key)} is not taken on the listener {listener}"
        if not self._serves(request):
            return f"{api_name(request.api_key)} version {request.api_version} is not served"
        return ""

    def _serves(self, request: Request) -> bool:
        """Return whether the version is served. ApiVersions responds to an unknown version itself (KIP-511); the body
        is None."""
        return request.api_key == ApiKey.API_VERSIONS or (
            request.body is not None
            and serves(request.api_key, request.api_version)
            and (request.api_version < FIRST_DRAFT_VERSION or (request.api_key, request.api_version) in self._drafts)
        )


def is_taken_before_ready(request: Request) -> bool:
    """Return whether a node serves the request as soon as it takes part in the quorum, and while it leaves."""
    return _is_for_controller(request) or _is_of_a_follower(request)


def _is_of_a_follower(request: Request) -> bool:
    """Followers are served also while this node leaves, and before it knows that it is unfenced."""
    return request.api_key in SENT_BY_FOLLOWERS and getattr(request.body, "replica_id", -1) >= 0


def _is_for_controller(request: Request) -> bool:
    if request.api_key == ApiKey.FETCH:
        return is_metadata_fetch(request.body)
    return request.api_key in BEFORE_READY


NO_CONNECTION = -1


@dataclass(slots=True)
class LocalCall:
    """A request from this node's broker to its own controller."""

    client_id: str
    api_version: int
    _respond: Callable[[object], None]
    connection: int = NO_CONNECTION
    client_host: str = ""
    listener: str = ""
    closed: bool = False

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:  # noqa: ARG002
        assert not self.closed, "a local request has two responses"
        self.closed = True
        self._respond(body)

    def close(self, reason: str) -> None:
        raise AssertionError(f"our own request breaks the protocol: {reason}")

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Ignore ``forget``: there is no connection that could close."""

    def run(self, work: Callable[[], object]) -> bool:
        """Do the work. A bug in it costs the node, as there is no client."""
        work()
        return True


class ConnectionOrigin(NamedTuple):
    """The origin of a connection's requests: the peer's host, and the listener if the node has several."""

    host: str = ""
    listener: str = ""


UNKNOWN_ORIGIN = ConnectionOrigin()


class ActiveCall:
    """A client's request. It has at most one response; after its connection closed, ``respond`` does nothing."""

    __slots__ = (
        "_effects",
        "_failed",
        "_finished",
        "_forget",
        "_origin",
        "_request",
        "api_version",
        "client_id",
        "closed",
        "connection",
    )

    def __init__(
        self,
        request: Request,
        effects: list[Effect],
        finished: Callable[[int], None],
        failed: Callable[["ActiveCall", Request, Exception], None],
        origin: ConnectionOrigin = UNKNOWN_ORIGIN,
    ) -> None:
        self.connection = request.connection
        self.client_id = request.client_id
        self._origin = origin
        self.api_version = request.api_version
        self.closed = False
        self._request = request
        self._effects = effects
        self._finished = finished
        self._failed = failed
        self._forget: Callable[[], None] | None = None

    @property
    def client_host(self) -> str:
        return self._origin.host

    @property
    def listener(self) -> str:
        return self._origin.listener

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:
        """Send the response. ``api_version`` is the response's if it differs from the request's (ApiVersions)."""
        if self.closed:  # Decision response-after-close
            return
        request = self._request
        error = getattr(body, "error_code", 0)
        tag = request.tag if not error else request.tag._replace(error=int(error))
        version = request.api_version if api_version is None else api_version
        self._end(Reply(request.connection, request.correlation_id, request.api_key, version, body, tag))

    def close(self, reason: str) -> None:
        """Close the connection instead of responding: the peer broke the protocol."""
        if not self.closed:
            self._end(Close(self.connection, reason))

    def release_body(self) -> None:
        """Drop the request's body. The handler waits, and keeps what it still needs of it."""
        self._request = self._request._replace(body=None)

    def _end(self, effect: Effect) -> None:
        self.closed = True
        self._forget = None
        self._effects.append(effect)
        self._finished(self.connection)

    def on_closed(self, forget: Callable[[], None]) -> None:
        self._forget = forget

    def run(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except Exception as bug:
            self.fail(bug)
            return False
        return True

    def fail(self, bug: Exception) -> None:
        """End a request whose work raised ``bug``. Raise it again if it must not be contained."""
        forget, self._forget = self._forget, None
        self._failed(self, self._request, bug)
        if forget is not None:
            self.run(forget)

    def connection_closed(self) -> None:
        """The connection is gone."""
        self.closed = True
        forget, self._forget = self._forget, None
        if forget is not None:
            self.run(forget)


FAILED = ErrorCode.unknown_server_error


def failed_request(call: Call, request: Request) -> None:
    """Respond with UNKNOWN_SERVER_ERROR, as Kafka does. Close the connection if the response has no field for it.

    A produce with acks=0 has no response, so its connection closes, too. Do nothing if the call had its response before
    it failed.
    """
    if call.closed:
        return
    body = request.body
    if request.api_key == ApiKey.PRODUCE and isinstance(body, ProduceRequest) and body.acks != 0:
        call.respond(_produce_response(body))
    elif has_error_code(request.api_key, request.api_version):
        call.respond(empty_response(request.api_key, request.api_version, FAILED))
    else:
        call.close("a request failed because of a bug of ours")


def _produce_response(request: ProduceRequest) -> ProduceResponse:
    """Build a response with the error for each partition. Whether its records were written is unknown."""
    return ProduceResponse(
        [
            ProduceTopicResponse(
                topic.topic,
                topic.topic_id,
                [ProducePartitionResponse(partition.partition, int(FAILED)) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )
