"""Forged and replayed requests are rejected."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse

from chaos.checks.check import Check, CheckContext
from chaos.checks.pending_requests import PendingRequests
from chaos.faults.node_requests import BY_CLIENTS, FORGED, is_forged
from reference_broker.core.events import Closed, Effect, Event, Reply, Request
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from reference_broker.core.node import Node


INTERNAL = ("__consumer_offsets", "__transaction_state")


class ForgedRefused(Check):
    """forged-refused: a request with a wrong field that its receiver can detect gets an error, or no response.

    Kafka (KIP-595, KIP-631): a node responds with INCONSISTENT_CLUSTER_ID to a request of another cluster, with
    INCONSISTENT_VOTER_SET to one of a node that is no voter, and with STALE_BROKER_EPOCH to one of an earlier
    registration of a broker. This broker also rejects an epoch above the limit and a missing cluster ID
    (``docs/quorum.md``). The effect of such a request would depend on its time of arrival; its response does not.

    A client that adds partitions to its transaction gets TOPIC_AUTHORIZATION_FAILED for those of an internal topic,
    whether it exists or not (KafkaApis.handleAddPartitionsToTxnRequest). Any other error shows that the node checked
    something else first.
    """

    guarantee = "forged-refused"
    needs_one_node = True
    acts_on = (*sorted(FORGED), Closed)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[str]()
        """what each forged request is"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if type(event) is Request and event.api_key in FORGED and _is_forged(event):
            described = f"{api_name(event.api_key)} of {event.client_id.partition(':')[0]}"
            self._pending.add(node_id, event, described)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        if not self._pending:
            return
        for effect in effects:
            if type(effect) is Reply:
                forged = self._pending.pop(node_id, effect)
                if forged is not None and not refuses(effect.body):
                    self.violated(at_us, f"node {node_id} granted a forged request: {forged}")


def _is_forged(request: Request) -> bool:
    if request.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and request.api_version > BY_CLIENTS:
        return False  # A broker verifies or adds any partition (KIP-890).
    return is_forged(request.body)


def refuses(body: Any) -> bool:
    """Return whether a response rejects the forged request."""
    if not isinstance(body, AddPartitionsToTxnResponse):
        return has_error(body)
    return all(
        result.partition_error_code == ErrorCode.topic_authorization_failed
        for each in body.results_by_transaction
        for topic in each.topic_results
        if topic.name in INTERNAL
        for result in topic.results_by_partition
    )


def has_error(body: Any) -> bool:
    """Return whether a response, or any part of it, has an error code."""
    if isinstance(body, list | tuple):
        return any(has_error(each) for each in body)
    if not is_dataclass(body):
        return False
    return bool(getattr(body, "error_code", 0)) or any(has_error(getattr(body, field_.name)) for field_ in fields(body))
