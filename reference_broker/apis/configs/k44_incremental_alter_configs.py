"""IncrementalAlterConfigs: sets, deletes or extends settings of topics.

* The operations are SET and DELETE, for lists also APPEND and SUBTRACT.
* All good resources of a request are altered at once.
* Another node passes the request on to the active controller.
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
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, NOT_CONTROLLER, Refusal
from reference_broker.controller.planning.config_changes import AlteredConfigs, ConfigOutcomes
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: IncrementalAlterConfigsRequest) -> None:
    """Answers later. One result for each resource, in the request's order."""

    def answer(refusals: ConfigOutcomes) -> None:
        results = tuple(_result(one, why) for one, why in zip(body.resources, refusals, strict=True))
        call.respond(IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=results))

    if passed_on(
        broker, call, ApiKey.INCREMENTAL_ALTER_CONFIGS, body, lambda: answer([NOT_CONTROLLER] * len(body.resources))
    ):
        return
    broker.controller.change_configs([_wanted(one) for one in body.resources], body.validate_only, answer)


API = Api.of(IncrementalAlterConfigsRequest, handle)


def _wanted(resource: AlterConfigsResource) -> AlteredConfigs:
    return AlteredConfigs(
        resource=(int(resource.resource_type), str(resource.resource_name)),
        steps=tuple((one.name, int(one.config_operation), one.value) for one in resource.configs),
    )


def _result(resource: AlterConfigsResource, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
    )
