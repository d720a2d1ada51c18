"""ACLs of a broker without an authorizer."""

import pytest
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.static.primitive import i8

from reference_broker.apis.acls import k29_describe_acls, k30_create_acls, k31_delete_acls
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import decode_response, encode_response


@pytest.mark.parametrize("version", [1, 3])
def test_acl_requests_without_authorizer_return_security_disabled(version: int) -> None:
    """The error codes that a running Kafka 4.1.1 without an authorizer returned, in the layout of each version."""
    creation = AclCreation(
        resource_type=i8(2), resource_name="t", principal="User:a", host="*", operation=i8(3), permission_type=i8(3)
    )
    match = DeleteAclsFilter(
        resource_type_filter=i8(1),
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=i8(1),
        permission_type=i8(1),
    )
    everything = DescribeAclsRequest(
        resource_type_filter=i8(1),
        resource_name_filter=None,
        pattern_type_filter=i8(1),
        principal_filter=None,
        host_filter=None,
        operation=i8(1),
        permission_type=i8(1),
    )
    response = AdminWorld().request(k29_describe_acls, everything)
    assert (response.error_code, response.resources) == (ErrorCode.security_disabled, ())
    response = AdminWorld().request(k30_create_acls, CreateAclsRequest(creations=(creation, creation)))
    assert [result.error_code for result in response.results] == [ErrorCode.security_disabled] * 2
    response = AdminWorld().request(k31_delete_acls, DeleteAclsRequest(filters=(match, match)))
    assert [result.error_code for result in response.filter_results] == [ErrorCode.security_disabled] * 2
    frame = b"".join(encode_response(31, version, 1, response))[4:]
    _, again = decode_response(31, version, memoryview(frame))
    assert again == response
