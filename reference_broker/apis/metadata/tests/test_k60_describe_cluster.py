"""DescribeCluster."""

import pytest
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.static.primitive import i8

from reference_broker.apis.metadata import k60_describe_cluster
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.wire.errors import ErrorCode


@pytest.mark.parametrize(("includes_operations", "operations"), [(False, -(2**31)), (True, 8096)])
def test_describe_cluster(includes_operations: bool, operations: int) -> None:
    world = AdminWorld()
    body = DescribeClusterRequest(
        include_cluster_authorized_operations=includes_operations, include_fenced_brokers=True
    )
    response = world.request(k60_describe_cluster, body)
    assert (response.error_code, response.cluster_id) == (ErrorCode.none, world.controller.cluster_id)
    assert response.cluster_authorized_operations == operations
    assert [(broker.broker_id, broker.port, broker.is_fenced) for broker in response.brokers] == [(1, 9092, False)]


@pytest.mark.parametrize(
    ("kind", "error"), [(2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)]
)
def test_describe_cluster_of_other_endpoint_type_returns_error(kind: int, error: ErrorCode) -> None:
    body = DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=i8(kind), include_fenced_brokers=False
    )
    response = AdminWorld().request(k60_describe_cluster, body)
    assert (response.error_code, response.brokers) == (error, ())
    assert response.endpoint_type == 1, "it returns the endpoint's own type, whatever was requested"
