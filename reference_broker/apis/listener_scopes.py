"""The requests that each listener of a node accepts.

Source: ``listeners`` of each request's schema in Kafka. A request that a listener does not take closes its connection,
as in Kafka. Kafka lets an authorizer refuse requests of brokers to each other on a client's listener; there is none
here, so the listener decides.
"""

from reference_broker.apis.records.k01_fetch import is_metadata_fetch
from reference_broker.configuration.listeners import Scope
from reference_broker.wire.apis import ApiKey

CONTROLLERS_ONLY = frozenset(
    {
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    }
)
"""Requests of nodes to controllers."""

CONTROLLERS_TOO = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
    }
)
"""Requests of clients that a listener of controllers takes, too. Brokers pass them on to it. (Kafka's takes
DescribeCluster as well, since KIP-919.)"""


def takes(scope: Scope, api_key: int, body: object) -> bool:
    """Whether a request is taken on this listener."""
    if api_key != ApiKey.FETCH:
        return takes_api(scope, api_key)
    if is_metadata_fetch(body):
        return scope.controllers
    return scope.brokers if getattr(body, "replica_id", -1) >= 0 else scope.clients


def takes_api(scope: Scope, api_key: int) -> bool:
    """Whether a request of the API may be taken on this listener. Of Fetch, it depends on the request."""
    if api_key in CONTROLLERS_ONLY:
        return scope.controllers
    if api_key == ApiKey.UPDATE_METADATA:
        return scope.brokers
    return scope.clients or (scope.controllers and api_key in CONTROLLERS_TOO)
