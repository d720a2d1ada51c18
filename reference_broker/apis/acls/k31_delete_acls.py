"""DeleteAcls: removes the ACLs that match filters.

* Without an authorizer each filter gets SECURITY_DISABLED, as in Kafka. Tools that copy ACLs then go on without.
* Unlike Kafka: an authorizer cannot be configured, and nothing else of the request is looked at. Kafka closes the
  connection for kinds of resources, patterns, operations and permissions that do not exist.

KIPs: 140, 290.
"""

from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsFilterResult, DeleteAclsResponse

from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_fields
from reference_broker.controller.write_operations import NO_AUTHORIZER


def handle(_broker: object, _call: Call, body: DeleteAclsRequest) -> DeleteAclsResponse:
    """Return one error for each filter, in the order of the request."""
    result = DeleteAclsFilterResult(matching_acls=(), **error_fields(NO_AUTHORIZER))
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=(result,) * len(body.filters))


API = Api.of(DeleteAclsRequest, handle)
