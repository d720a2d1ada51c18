"""FindCoordinator: tells which node keeps a group.

* The coordinator of a group is the leader of its partition of ``__consumer_offsets``.
* Where that topic is missing the active controller is asked to create it. Meanwhile, and where the partition has no
  leader, the answer is COORDINATOR_NOT_AVAILABLE.
* An unknown type of key gets INVALID_REQUEST.
* Unlike Kafka: transactions and share groups have no coordinator (COORDINATOR_NOT_AVAILABLE). The offsets topic gets at
  most as many replicas as there are brokers and voters.

Version notes:
* v4: one request may name several keys.

KIPs: 699, 932.
"""

from typing import Protocol

from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call
from reference_broker.apis.groups.offsets_topic_creation import CreatesOffsetsTopic, ask_to_create_offsets_topic
from reference_broker.apis.parts import HasMetadata, HasOutside
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.apis.sliced import Sliced, answer_in_slices
from reference_broker.coordination.partitioner import CHARACTERS_PER_UNIT, UNITS_PER_KEY, partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.groups.storage.topic import OFFSETS_TOPIC
from reference_broker.log.lookup import Work
from reference_broker.wire.errors import ErrorCode

GROUP = 0
KEY_TYPES = (GROUP, 1, 2)
"""Group, transaction, share."""

NOT_AVAILABLE = "The coordinator is not available."


class Needs(CreatesOffsetsTopic, HasMetadata, HasOutside, Protocol):
    """What this API uses of its broker."""


def handle(broker: Needs, call: Call, body: FindCoordinatorRequest) -> FindCoordinatorResponse | None:
    """One answer for each key, in the request's order (versions below 4 ask for exactly one)."""
    return answer_in_slices(broker, call, _answered(broker, call, body))


def _answered(broker: Needs, call: Call, body: FindCoordinatorRequest) -> Sliced[FindCoordinatorResponse]:
    work = Work()
    if body.key_type not in KEY_TYPES:
        problem = f"Unknown key type {body.key_type}."
        found = [_nobody(key, ErrorCode.invalid_request, problem) for key in body.coordinator_keys]
    elif body.key_type != GROUP:
        found = [_nobody(key, ErrorCode.coordinator_not_available, NOT_AVAILABLE) for key in body.coordinator_keys]
    else:
        found = []
        for key in body.coordinator_keys:
            found.append(_coordinator(broker, key, call.listener))
            if work.spend(UNITS_PER_KEY + len(key) // CHARACTERS_PER_UNIT):
                yield
    return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=tuple(found))


API = Api.of(FindCoordinatorRequest, handle)


def _coordinator(broker: Needs, group_id: str, listener: str) -> Coordinator:
    """As this broker tells its clients the metadata."""
    if not fits(group_id):
        return _nobody(group_id, ErrorCode.invalid_group_id, "No record can hold a group ID of this length.")
    cache = broker.metadata
    topic = cache.topics.get(OFFSETS_TOPIC)
    if topic is None:
        ask_to_create_offsets_topic(broker)
        return _nobody(group_id, ErrorCode.coordinator_not_available, NOT_AVAILABLE)
    leader = topic.partitions[partition_of(group_id, len(topic.partitions))].leader
    for each in cache.live_brokers():
        if each.broker_id == leader:
            host, port = each.address(listener)
            return Coordinator(
                key=group_id,
                node_id=BrokerId(leader),
                host=host,
                port=i32(port),
                error_code=ErrorCode.none,
                error_message="",
            )
    return _nobody(group_id, ErrorCode.coordinator_not_available, NOT_AVAILABLE)


def _nobody(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=BrokerId(-1), host="", port=i32(-1), error_code=error, error_message=message)
