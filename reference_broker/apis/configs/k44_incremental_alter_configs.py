"""IncrementalAlterConfigs: sets, deletes or extends settings of topics.

* The operations are SET and DELETE, for lists also APPEND and SUBTRACT.
* All good resources of a request are altered at once.
* Another node passes the request on to the active controller.
* Unlike Kafka: only topics can be altered. The settings of a broker are fixed at its start (INVALID_REQUEST).

KIPs: 339.
"""

from collections.abc import Mapping, Sequence

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
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
from reference_broker.apis.configs.config_changes import ConfigChanges
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, NOT_CONTROLLER, Refusal
from reference_broker.configuration.setting import Kind
from reference_broker.configuration.topic_config import BROKER_SYNONYMS, TOPIC_KEYS
from reference_broker.wire.apis import ApiKey

SET, DELETE, APPEND, SUBTRACT = range(4)
"""AlterConfigOp.OpType of Kafka."""


def handle(broker: Broker, call: Call, body: IncrementalAlterConfigsRequest) -> None:
    """Answers later. One result for each resource, in the request's order."""

    def answer(refusals: Sequence[Refusal | None]) -> None:
        results = tuple(_result(one, why) for one, why in zip(body.resources, refusals, strict=True))
        call.respond(IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=results))

    def wanted(resource: AlterConfigsResource, before: Mapping[str, str]) -> dict[str, str] | Refusal:
        return _wanted(broker, resource, before)

    if passed_on(
        broker, call, ApiKey.INCREMENTAL_ALTER_CONFIGS, body, lambda: answer([NOT_CONTROLLER] * len(body.resources))
    ):
        return
    entries = [((int(one.resource_type), str(one.resource_name)), one) for one in body.resources]
    ConfigChanges(broker, entries, wanted, body.validate_only).submit("alter configs", answer)


API = Api.of(IncrementalAlterConfigsRequest, handle)


def _wanted(broker: Broker, resource: AlterConfigsResource, before: Mapping[str, str]) -> dict[str, str] | Refusal:
    after = dict(before)
    seen: dict[str, None] = {}
    for config in resource.configs:
        if config.name in seen:
            return Refusal(ErrorCode.invalid_request, f"Setting {config.name} is given twice.")
        seen[config.name] = None
        problem = _apply(broker, config, after)
        if problem is not None:
            return problem
    return after


def _apply(broker: Broker, config: AlterableConfig, settings: dict[str, str]) -> Refusal | None:
    """Changes ``settings``, or says why not."""
    name, operation = config.name, config.config_operation
    if operation == DELETE:
        settings.pop(name, None)
        return None
    if config.value is None:
        return Refusal(ErrorCode.invalid_config, f"Null value not supported for : {name}")
    if operation == SET:
        settings[name] = config.value
        return None
    if operation not in (APPEND, SUBTRACT):
        return Refusal(ErrorCode.invalid_request, f"Unknown operation type {operation} for setting {name}.")
    key = TOPIC_KEYS.get(name)
    if key is None or key.kind is not Kind.LIST:
        return Refusal(ErrorCode.invalid_config, f"Setting {name} is no list: it can only be set or deleted.")
    current = settings.get(name, key.text(broker.config.value(BROKER_SYNONYMS[name])))
    settings[name] = ",".join(_combined(current, config.value, operation))
    return None


def _combined(current: str, value: str, operation: int) -> list[str]:
    parts = dict.fromkeys(part.strip() for part in current.split(",") if part.strip())
    for part in value.split(","):
        if operation == APPEND:
            parts[part.strip()] = None
        else:
            parts.pop(part.strip(), None)
    return list(parts)


def _result(resource: AlterConfigsResource, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
    )
