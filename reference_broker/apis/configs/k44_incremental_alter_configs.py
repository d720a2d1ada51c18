"""IncrementalAlterConfigs: sets, deletes or extends settings of topics.

* The operations are SET and DELETE, for lists also APPEND and SUBTRACT.
* All good resources of a request are altered at once.
* The active controller answers once the change is committed and published there. Others pass the request on.
* Unlike Kafka: only topics can be altered. The settings of a broker are fixed at its start (INVALID_REQUEST).

KIPs: 339.
"""

from kio.schema.incremental_alter_configs.v1.request import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kio.static.primitive import i8

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import PassesOn, propose
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, verdict
from reference_broker.controller.planning.config_changes import ConfigChange, ConfigOutcomes, WantedConfigs
from reference_broker.wire.apis import ApiKey


def handle(broker: PassesOn, call: Call, body: IncrementalAlterConfigsRequest) -> None:
    """Answers later, with one result for each resource in the order of the request."""

    def answer(refusals: ConfigOutcomes) -> IncrementalAlterConfigsResponse:
        results = tuple(_result(one, why) for one, why in zip(body.resources, refusals, strict=True))
        return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=results)

    change = ConfigChange([_wanted(one) for one in body.resources], body.validate_only)
    propose(broker, call, ApiKey.INCREMENTAL_ALTER_CONFIGS, body, change, answer)


API = Api.of(IncrementalAlterConfigsRequest, handle)


def _wanted(resource: AlterConfigsResource) -> WantedConfigs:
    return WantedConfigs(
        resource=(resource.resource_type, resource.resource_name),
        steps=tuple((one.name, one.config_operation, one.value) for one in resource.configs),
    )


def _result(resource: AlterConfigsResource, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
        **verdict(refusal),
    )
