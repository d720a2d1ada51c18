"""IncrementalAlterConfigs: sets, deletes, or adds to settings of topics (KIP-339)."""

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kio.static.primitive import i8

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, NOT_CONTROLLER, Refusal
from reference_broker.controller.planning.config_changes import AlteredConfigs, ConfigOutcomes
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    min_version=0,
    max_version=1,
    behaviour="SET, DELETE, and for lists APPEND and SUBTRACT. Another node passes it on to the active "
    "controller. All good resources of a request are altered at once.",
    simplifications="Only topics: the settings of brokers are fixed at their start (INVALID_REQUEST).",
    kips=(339,),
)


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers later. One result for each resource, in the request's order."""
    assert isinstance(body, IncrementalAlterConfigsRequest)

    def answer(refusals: ConfigOutcomes) -> None:
        results = tuple(_result(one, why) for one, why in zip(body.resources, refusals, strict=True))
        call.respond(IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=results))

    if passed_on(broker, call, CARD, body, lambda: answer([NOT_CONTROLLER] * len(body.resources))):
        return
    broker.controller.change_configs([_wanted(one) for one in body.resources], body.validate_only, answer)


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
