"""DescribeAcls: the ACLs that match a filter.

* Without an authorizer the response is SECURITY_DISABLED, as in Kafka. Tools that copy ACLs then go on without.
* Unlike Kafka: an authorizer cannot be configured, and nothing else of the request is looked at. Kafka closes the
  connection for kinds of resources, patterns, operations and permissions that do not exist.

KIPs: 140, 290, 357.
"""

from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import DescribeAclsResponse

from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_fields
from reference_broker.controller.write_operations import NO_AUTHORIZER


def handle(_broker: object, _call: Call, _body: DescribeAclsRequest) -> DescribeAclsResponse:
    """Return the error and no ACL."""
    return DescribeAclsResponse(throttle_time=NO_THROTTLE, resources=(), **error_fields(NO_AUTHORIZER))


API = Api.of(DescribeAclsRequest, handle)
