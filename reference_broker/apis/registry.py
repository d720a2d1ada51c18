"""All APIs that a node serves (Kafka's KafkaApis): the module of each API key, and the dispatch of a request
to its handler.

The versions of the APIs are those of ``wire.apis``. A module and the schemas that it needs load with the first request
of the API: all of them together cost a node a third of the processor time of its start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final, Generic, TypeVar

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.wire.apis import (
    DRAFTS,
    FETCH_TOMBSTONE_HORIZON,
    FIRST_DRAFT_VERSION,
    METADATA_EPOCH_DRAFTS,
    VERSIONS,
    ApiKey,
)

BodyT = TypeVar("BodyT")


@dataclass(frozen=True, slots=True)
class Api(Generic[BodyT]):
    """An API: the class of its requests and its handler. mypy checks that the two fit."""

    bodies: type[BodyT] | tuple[type[BodyT], ...]
    """The class of its requests, or a tuple of classes if private drafts have classes of their own."""
    bind: Callable[[Broker], Callable[[Call, BodyT], object | None]]
    """Makes the handler of one node, ``handler(call, body)``. The handler returns the response, or None if it keeps
    ``call`` to respond later."""

    @staticmethod
    def of(
        bodies: type[BodyT] | tuple[type[BodyT], ...], handle: Callable[[Broker, Call, BodyT], object | None]
    ) -> "Api[BodyT]":
        """Declare an API that keeps no state of its own between requests.

        ``handle`` names the few parts of the broker that it uses (``broker.py``).
        """
        return Api(bodies, lambda broker: partial(handle, broker))


MODULES: Final[Mapping[int, str]] = {
    ApiKey.PRODUCE: "records.k00_produce",
    ApiKey.FETCH: "records.k01_fetch",
    ApiKey.LIST_OFFSETS: "records.k02_list_offsets",
    ApiKey.METADATA: "metadata.k03_metadata",
    ApiKey.UPDATE_METADATA: "metadata.k06_update_metadata",
    ApiKey.OFFSET_COMMIT: "groups.k08_offset_commit",
    ApiKey.OFFSET_FETCH: "groups.k09_offset_fetch",
    ApiKey.FIND_COORDINATOR: "groups.k10_find_coordinator",
    ApiKey.JOIN_GROUP: "groups.k11_join_group",
    ApiKey.HEARTBEAT: "groups.k12_heartbeat",
    ApiKey.LEAVE_GROUP: "groups.k13_leave_group",
    ApiKey.SYNC_GROUP: "groups.k14_sync_group",
    ApiKey.DESCRIBE_GROUPS: "groups.k15_describe_groups",
    ApiKey.LIST_GROUPS: "groups.k16_list_groups",
    ApiKey.API_VERSIONS: "metadata.k18_api_versions",
    ApiKey.CREATE_TOPICS: "topics.k19_create_topics",
    ApiKey.DELETE_TOPICS: "topics.k20_delete_topics",
    ApiKey.DELETE_RECORDS: "records.k21_delete_records",
    ApiKey.INIT_PRODUCER_ID: "transactions.k22_init_producer_id",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "records.k23_offset_for_leader_epoch",
    ApiKey.ADD_PARTITIONS_TO_TXN: "transactions.k24_add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactions.k25_add_offsets_to_txn",
    ApiKey.END_TXN: "transactions.k26_end_txn",
    ApiKey.WRITE_TXN_MARKERS: "transactions.k27_write_txn_markers",
    ApiKey.TXN_OFFSET_COMMIT: "transactions.k28_txn_offset_commit",
    ApiKey.DESCRIBE_ACLS: "acls.k29_describe_acls",
    ApiKey.CREATE_ACLS: "acls.k30_create_acls",
    ApiKey.DELETE_ACLS: "acls.k31_delete_acls",
    ApiKey.DESCRIBE_CONFIGS: "configs.k32_describe_configs",
    ApiKey.ALTER_CONFIGS: "configs.k33_alter_configs",
    ApiKey.CREATE_PARTITIONS: "topics.k37_create_partitions",
    ApiKey.DELETE_GROUPS: "groups.k42_delete_groups",
    ApiKey.ELECT_LEADERS: "topics.k43_elect_leaders",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "configs.k44_incremental_alter_configs",
    ApiKey.OFFSET_DELETE: "groups.k47_offset_delete",
    ApiKey.VOTE: "quorum.k52_vote",
    ApiKey.BEGIN_QUORUM_EPOCH: "quorum.k53_begin_quorum_epoch",
    ApiKey.END_QUORUM_EPOCH: "quorum.k54_end_quorum_epoch",
    ApiKey.DESCRIBE_QUORUM: "quorum.k55_describe_quorum",
    ApiKey.ALTER_PARTITION: "brokers.k56_alter_partition",
    ApiKey.UPDATE_FEATURES: "brokers.k57_update_features",
    ApiKey.FETCH_SNAPSHOT: "quorum.k59_fetch_snapshot",
    ApiKey.DESCRIBE_CLUSTER: "metadata.k60_describe_cluster",
    ApiKey.DESCRIBE_PRODUCERS: "transactions.k61_describe_producers",
    ApiKey.BROKER_REGISTRATION: "brokers.k62_broker_registration",
    ApiKey.BROKER_HEARTBEAT: "brokers.k63_broker_heartbeat",
    ApiKey.UNREGISTER_BROKER: "brokers.k64_unregister_broker",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactions.k65_describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "transactions.k66_list_transactions",
    ApiKey.ALLOCATE_PRODUCER_IDS: "brokers.k67_allocate_producer_ids",
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: "brokers.k73_assign_replicas_to_dirs",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "metadata.k75_describe_topic_partitions",
}

_DRAFTS_ONLY: Final = (FIRST_DRAFT_VERSION, FIRST_DRAFT_VERSION)
SERVED: Final[Mapping[int, tuple[int, int]]] = {key: VERSIONS.get(key, _DRAFTS_ONLY)[:2] for key in MODULES}
"""The least and greatest version of each API, by API key. Private drafts (``wire.drafts``) lie outside."""


def serves(api_key: int, api_version: int) -> bool:
    """Whether requests of this version are served: a version in the range, or a private draft of the API."""
    versions = SERVED.get(api_key)
    return versions is not None and (versions[0] <= api_version <= versions[1] or (api_key, api_version) in DRAFTS)


def drafts_of(config: BrokerConfig) -> Mapping[tuple[int, int], str]:
    """Return the private drafts that a node with these settings knows, with the feature that announces each."""
    unknown = set() if config.crucible_metadata_epoch_enable else set(METADATA_EPOCH_DRAFTS)
    if not config.crucible_tombstone_horizon_enable:
        unknown.add((ApiKey.FETCH, FETCH_TOMBSTONE_HORIZON))
    return {draft: feature for draft, feature in DRAFTS.items() if draft not in unknown}


def load(api_key: int) -> Api[Any]:
    """Load the module of an API that is served, unless it is loaded already."""
    api = import_module(f"reference_broker.apis.{MODULES[api_key]}").API
    assert isinstance(api, Api), f"{MODULES[api_key]} declares no Api"
    return api


_Bound = tuple[Any, Callable[[Call, Any], object | None]]
"""The classes of an API's bodies, and its handler."""


@dataclass(slots=True)
class Dispatcher:
    """The dispatcher of one node, the only place that checks the class of a request's body.

    An API loads, and is bound to the node's parts, with its first request.
    """

    _broker: Broker
    _bound: dict[int, _Bound] = field(default_factory=dict)

    def dispatch(self, api_key: int, call: Call, body: object) -> None:
        """Respond to ``call`` now, unless the handler keeps it to respond later. The API must be one that is served."""
        bodies, handler = self._bound.get(api_key) or self._bind(api_key)
        assert isinstance(body, bodies), f"API {api_key} got a {type(body).__name__}"
        response = handler(call, body)
        if response is not None:
            call.respond(response)

    def _bind(self, api_key: int) -> _Bound:
        api = load(api_key)
        bound = self._bound[api_key] = (api.bodies, api.bind(self._broker))
        return bound
