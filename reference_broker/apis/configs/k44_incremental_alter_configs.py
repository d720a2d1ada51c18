"""IncrementalAlterConfigs: sets, deletes or extends settings of topics and brokers.

* The operations are SET and DELETE, for lists also APPEND and SUBTRACT.
* All good resources of a request are altered at once.
* The active controller responds once the change is committed and published there. Others forward the request.
* A broker alters its own settings and those of all brokers (the empty name), as far as they can change while it runs.
* Unlike Kafka: broker loggers, client metrics and groups get INVALID_REQUEST. So do names of broker settings that begin
  like those of Kafka which are missing here (``metadata.broker_settings``).

KIPs: 226, 339.
"""

from collections.abc import Sequence

from kio.schema.incremental_alter_configs.v1.request import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kio.static.primitive import i8

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.configs.altering import alter
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.config_changes import RequestedConfigs
from reference_broker.wire.apis import ApiKey


def handle(broker: Broker, call: Call, body: IncrementalAlterConfigsRequest) -> None:
    """Respond later, with one result for each resource in the order of the request."""
    alter(broker, call, ApiKey.INCREMENTAL_ALTER_CONFIGS, body, _wanted, _result, _response)


API = Api.of(IncrementalAlterConfigsRequest, handle)


def _wanted(resource: AlterConfigsResource) -> RequestedConfigs:
    return RequestedConfigs(
        resource=(resource.resource_type, resource.resource_name),
        steps=tuple((config.name, config.config_operation, config.value) for config in resource.configs),
    )


def _result(resource: AlterConfigsResource, refusal: ApiError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
        **error_fields(refusal),
    )


def _response(results: Sequence[AlterConfigsResourceResponse]) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))
