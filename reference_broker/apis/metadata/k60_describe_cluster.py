"""DescribeCluster: returns the brokers and the controller.

* Clients reach brokers only. A request for controllers gets MISMATCHED_ENDPOINT_TYPE, as from a Kafka broker.

Version notes:
* v2: the response has fenced brokers if ``include_fenced_brokers`` is set.

KIPs: 700, 919, 1073.
"""

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import CLUSTER_OPERATIONS, NO_THROTTLE, OPERATIONS_NOT_REQUESTED
from reference_broker.metadata.image import BrokerImage
from reference_broker.wire.errors import ErrorCode

BROKERS, CONTROLLERS = 1, 2


def handle(broker: Broker, call: Call, body: DescribeClusterRequest) -> DescribeClusterResponse:
    """The brokers come in the order of their IDs."""
    if body.endpoint_type == CONTROLLERS:
        return _refused(ErrorCode.mismatched_endpoint_type, "This is a broker's endpoint, not a controller's.")
    if body.endpoint_type != BROKERS:
        return _refused(ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {body.endpoint_type}.")
    brokers = _registered(broker) if body.include_fenced_brokers else broker.metadata.live_brokers()
    wants_operations = body.include_cluster_authorized_operations
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        cluster_id=broker.metadata.cluster_id,
        controller_id=BrokerId(broker.metadata.controller_id),
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=BrokerId(one.broker_id),
                host=host,
                port=i32(port),
                rack=one.rack,
                is_fenced=one.fenced,
            )
            for one in brokers
            for host, port in (one.address(call.listener),)
        ),
        cluster_authorized_operations=i32(CLUSTER_OPERATIONS if wants_operations else OPERATIONS_NOT_REQUESTED),
    )


API = Api.of(DescribeClusterRequest, handle)


def _registered(broker: Broker) -> tuple[BrokerImage, ...]:
    """All brokers of the image. The cache may not hold fenced ones, because the active controller sends live brokers
    only."""
    return tuple(one for _, one in sorted(broker.loader.image.brokers.items()))


def _refused(error: ErrorCode, message: str) -> DescribeClusterResponse:
    """Build a refusal. Its endpoint type is that of this endpoint, whatever was requested."""
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=message,
        endpoint_type=i8(BROKERS),
        cluster_id="",
        brokers=(),
    )
