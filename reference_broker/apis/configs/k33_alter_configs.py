"""AlterConfigs: replaces all settings of topics. IncrementalAlterConfigs is the better way.

* Settings that the request does not name are removed.
* All good resources of a request are altered at once.
* The active controller answers once the change is committed and published there. Others pass the request on.
* Unlike Kafka: only topics can be altered. The settings of a broker are fixed at its start (INVALID_REQUEST).

KIPs: 133, 339.
"""

from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.request import AlterConfigsResource as Wanted
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse, AlterConfigsResponse
from kio.static.primitive import i8

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import PassesOn, propose
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, verdict
from reference_broker.controller.planning.config_changes import SET, ConfigChange, ConfigOutcomes, WantedConfigs
from reference_broker.wire.apis import ApiKey


def handle(broker: PassesOn, call: Call, body: AlterConfigsRequest) -> None:
    """Answers later, with one result for each resource in the order of the request."""

    def answer(refusals: ConfigOutcomes) -> AlterConfigsResponse:
        results = tuple(_result(one, why) for one, why in zip(body.resources, refusals, strict=True))
        return AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=results)

    change = ConfigChange([_wanted(one) for one in body.resources], body.validate_only)
    propose(broker, call, ApiKey.ALTER_CONFIGS, body, change, answer)


API = Api.of(AlterConfigsRequest, handle)


def _wanted(resource: Wanted) -> WantedConfigs:
    return WantedConfigs(
        resource=(resource.resource_type, resource.resource_name),
        steps=tuple((one.name, SET, one.value) for one in resource.configs),
        replaces_all=True,
    )


def _result(resource: Wanted, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
        **verdict(refusal),
    )
