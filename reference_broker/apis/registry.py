"""All APIs that a node serves: one module an API key, found here and nowhere else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from reference_broker.apis import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k10_find_coordinator,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k32_describe_configs,
    k33_alter_configs,
    k37_create_partitions,
    k44_incremental_alter_configs,
    k52_vote,
    k53_begin_quorum_epoch,
    k54_end_quorum_epoch,
    k55_describe_quorum,
    k57_update_features,
    k59_fetch_snapshot,
    k60_describe_cluster,
    k62_broker_registration,
    k63_broker_heartbeat,
    k64_unregister_broker,
    k67_allocate_producer_ids,
    k75_describe_topic_partitions,
)
from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card

MODULES: tuple[ModuleType, ...] = (
    k00_produce, k01_fetch, k02_list_offsets, k03_metadata, k10_find_coordinator, k18_api_versions,
    k19_create_topics, k20_delete_topics, k21_delete_records, k22_init_producer_id, k23_offset_for_leader_epoch,
    k32_describe_configs, k33_alter_configs, k37_create_partitions, k44_incremental_alter_configs, k52_vote,
    k53_begin_quorum_epoch, k54_end_quorum_epoch, k55_describe_quorum, k57_update_features, k59_fetch_snapshot,
    k60_describe_cluster, k62_broker_registration, k63_broker_heartbeat, k64_unregister_broker,
    k67_allocate_producer_ids, k75_describe_topic_partitions,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Api:
    """``handle(broker, call, body)`` returns the response, or None when it keeps the call to respond later."""

    card: Card
    handle: Callable[[Broker, Call, object], object | None]


def apis() -> Mapping[int, Api]:
    """By API key, in its order."""
    return {module.CARD.api_key: Api(module.CARD, module.handle) for module in MODULES}
