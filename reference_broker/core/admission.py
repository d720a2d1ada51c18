"""Which requests a node takes: by listener, by version, and before it is ready."""

from reference_broker.apis.listener_scopes import takes
from reference_broker.apis.records.k01_fetch import is_metadata_fetch
from reference_broker.apis.registry import drafts_of, serves
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Request
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey, api_name

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
"""Requests of other nodes to a controller, served also while its broker is not part of the cluster yet.

A fetch of the metadata log is served then, too. Clients begin with ApiVersions, which closes their connection, so that
they try another node or try again.
"""

FOLLOWERS_ASK = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS})
"""Requests that a replica sends to its leader."""


class Admission:
    """What a node with these settings takes, whatever its state."""

    def __init__(self, config: BrokerConfig) -> None:
        self._scopes = config.listener_plan().scopes
        self._drafts = drafts_of(config)

    def refusal(self, request: Request, listener: str) -> str:
        """Why the connection closes instead of an answer. Empty: the request is taken. ``listener`` is empty if the
        node has only one."""
        if listener and not takes(self._scopes[listener], request.api_key, request.body):
            return f"{api_name(request.api_key)} is not taken on the listener {listener}"
        if not self._serves(request):
            return f"{api_name(request.api_key)} version {request.api_version} is not served"
        return ""

    def _serves(self, request: Request) -> bool:
        """ApiVersions answers an unknown version itself (KIP-511); the request's body is then None."""
        return request.api_key == ApiKey.API_VERSIONS or (
            request.body is not None
            and serves(request.api_key, request.api_version)
            and (request.api_version < FIRST_DRAFT_VERSION or (request.api_key, request.api_version) in self._drafts)
        )


def is_taken_before_ready(request: Request) -> bool:
    """Whether a node serves this as soon as it takes part in the quorum, and while it leaves."""
    return _is_for_controller(request) or _is_of_a_follower(request)


def _is_of_a_follower(request: Request) -> bool:
    """Followers are served also while this node leaves, and before it knows that it was let in."""
    return request.api_key in FOLLOWERS_ASK and getattr(request.body, "replica_id", -1) >= 0


def _is_for_controller(request: Request) -> bool:
    if request.api_key == ApiKey.FETCH:
        return is_metadata_fetch(request.body)
    return request.api_key in BEFORE_READY
