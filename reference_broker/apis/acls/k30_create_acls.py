"""CreateAcls: adds ACLs.

* Without an authorizer each entry gets SECURITY_DISABLED, as in Kafka. Tools that copy ACLs then go on without.
* Unlike Kafka: an authorizer cannot be configured, and nothing else of the request is looked at. Kafka closes the
  connection for kinds of resources, patterns, operations and permissions that do not exist.

KIPs: 140, 290.
"""

from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.create_acls.v3.response import AclCreationResult, CreateAclsResponse

from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_fields
from reference_broker.controller.write_operations import NO_AUTHORIZER


def handle(_broker: object, _call: Call, body: CreateAclsRequest) -> CreateAclsResponse:
    """Return one error for each ACL, in the order of the request."""
    result = AclCreationResult(**error_fields(NO_AUTHORIZER))
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=(result,) * len(body.creations))


API = Api.of(CreateAclsRequest, handle)
