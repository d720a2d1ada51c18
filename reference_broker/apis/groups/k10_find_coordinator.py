"""FindCoordinator: returns the node that coordinates a group or a transactional ID.

* The coordinator of a group is the leader of its partition of ``__consumer_offsets``, that of a transactional ID the
  leader of its partition of ``__transaction_state``.
* If the topic is missing, the active controller is requested to create it. Meanwhile, and if the partition has no
  leader, the error is COORDINATOR_NOT_AVAILABLE.
* An unknown type of key gets INVALID_REQUEST. An empty ID has a coordinator, although no producer can take it.
* Unlike Kafka: share groups have no coordinator (COORDINATOR_NOT_AVAILABLE). The topics get at most as many replicas as
  there are brokers and voters.

Version notes:
* v1-v3: the message of a success is ``NONE``, as in Kafka.
* v4: one request may name several keys.
* v6: keys may be of share groups, as GROUP:TOPIC_ID:PARTITION.

KIPs: 699, 932.
"""

import re

from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.apis.topics.automatic_creation import request_coordinator_topic
from reference_broker.coordination.partitioner import CHARACTERS_PER_US, KEY_COST_US, partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.wire.errors import ErrorCode

GROUP = 0
TRANSACTION = 1
SHARE = 2
KEY_TYPES = (GROUP, TRANSACTION, SHARE)
_TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTION_TOPIC}

SEVERAL_KEYS_FROM = 4
SHARE_KEYS_FROM = 6
_TOPIC_ID = re.compile("[A-Za-z0-9_-]{22}")
"""16 bytes in Base64, as Kafka writes UUIDs."""
_PARTITION = re.compile("[+-]?[0-9]{1,10}")
MESSAGE_OF_SUCCESS = "NONE"
NOT_AVAILABLE = "The coordinator is not available."


def handle(broker: Broker, call: Call, body: FindCoordinatorRequest) -> None:
    """One result for each key, in the request's order (versions below 4 have exactly one)."""
    respond_in_slices(broker, call, _build_response(broker, call, body))


def _build_response(broker: Broker, call: Call, body: FindCoordinatorRequest) -> Sliced[FindCoordinatorResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    if body.key_type not in KEY_TYPES:
        problem = f"Unknown key type {body.key_type}."
        coordinators = [_nobody(key, ErrorCode.invalid_request, problem) for key in body.coordinator_keys]
    elif body.key_type == SHARE:
        coordinators = [_of_share_group(key, call.api_version) for key in body.coordinator_keys]
    else:
        message = MESSAGE_OF_SUCCESS if call.api_version < SEVERAL_KEYS_FROM else ""
        coordinators = []
        for key in body.coordinator_keys:
            coordinators.append(_coordinator(broker, body.key_type, key, call.listener, message))
            if work.spend(KEY_COST_US + len(key) // CHARACTERS_PER_US):
                yield
    return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=tuple(coordinators))


API = Api.of(FindCoordinatorRequest, handle)


def _of_share_group(key: str, api_version: int) -> Coordinator:
    """Kafka's SharePartitionKey.validate."""
    group, *topic_and_partition = key.split(":")
    is_key = (
        len(topic_and_partition) == 2
        and group.strip()
        and _TOPIC_ID.fullmatch(topic_and_partition[0])
        and _PARTITION.fullmatch(topic_and_partition[1])
    )
    if not is_key or api_version < SHARE_KEYS_FROM:
        return _nobody(key, ErrorCode.invalid_request, "This is no key of a share group's partition.")
    return _nobody(key, ErrorCode.coordinator_not_available, NOT_AVAILABLE)


def _coordinator(broker: Broker, key_type: int, key: str, listener: str, message: str) -> Coordinator:
    """Look up the coordinator in the metadata that this broker shows to clients."""
    if not fits(key):
        error = ErrorCode.invalid_group_id if key_type == GROUP else ErrorCode.invalid_request
        return _nobody(key, error, "No record can hold this ID.")
    cache = broker.metadata
    name = _TOPICS[key_type]
    topic = cache.topics.get(name)
    if topic is None:
        request_coordinator_topic(broker, name)
        return _nobody(key, ErrorCode.coordinator_not_available, NOT_AVAILABLE)
    leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
    for live_broker in cache.live_brokers():
        if live_broker.broker_id == leader:
            host, port = live_broker.address(listener)
            return Coordinator(
                key=key,
                node_id=BrokerId(leader),
                host=host,
                port=i32(port),
                error_code=ErrorCode.none,
                error_message=message,
            )
    return _nobody(key, ErrorCode.coordinator_not_available, NOT_AVAILABLE)


def _nobody(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=BrokerId(-1), host="", port=i32(-1), error_code=error, error_message=message)
