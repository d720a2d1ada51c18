"""AlterConfigs: replaces all settings of topics and brokers. IncrementalAlterConfigs is the better way.

* Settings that the request does not name are removed.
* All good resources of a request are altered at once.
* The active controller responds once the change is committed and published there. Others forward the request.
* A broker alters its own settings and those of all brokers (the empty name), as far as they can change while it runs.
  It keeps names that Kafka does not know.
* Unlike Kafka: broker loggers, client metrics and groups get INVALID_REQUEST. So do names of broker settings that begin
  like those of Kafka which are missing here (``metadata.broker_settings``).

KIPs: 133, 226, 339.
"""

from collections.abc import Sequence

from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.request import AlterConfigsResource as Wanted
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse, AlterConfigsResponse
from kio.static.primitive import i8

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.configs.altering import alter
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.config_changes import SET, RequestedConfigs
from reference_broker.wire.apis import ApiKey


def handle(broker: Broker, call: Call, body: AlterConfigsRequest) -> None:
    """Respond later, with one result for each resource in the order of the request."""
    alter(broker, call, ApiKey.ALTER_CONFIGS, body, _wanted, _result, _response)


API = Api.of(AlterConfigsRequest, handle)


def _wanted(resource: Wanted) -> RequestedConfigs:
    return RequestedConfigs(
        resource=(resource.resource_type, resource.resource_name),
        steps=tuple((config.name, SET, config.value) for config in resource.configs),
        replaces_all=True,
    )


def _result(resource: Wanted, refusal: ApiError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
        **error_fields(refusal),
    )


def _response(results: Sequence[AlterConfigsResourceResponse]) -> AlterConfigsResponse:
    return AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))
