"""The common part of AlterConfigs and IncrementalAlterConfigs.

The broker that gets the request checks that it is the broker that the request names, since only that one may change its
own settings. The active controller checks everything else, and makes the change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.forwarding import comes_from_node, forward_or_append
from reference_broker.apis.responses import ApiError
from reference_broker.controller.planning.config_changes import ConfigChange, ConfigOutcomes, RequestedConfigs
from reference_broker.metadata.image import BROKER_RESOURCE
from reference_broker.wire.errors import ErrorCode

ResultT = TypeVar("ResultT")


def strange_broker(node_id: int, name: str) -> ApiError | None:
    """Return the reason why this broker neither describes nor alters the settings of that one. The empty name means all
    brokers."""
    if name in ("", str(node_id)):
        return None
    return ApiError(
        ErrorCode.invalid_request, f"Unexpected broker id, expected {node_id} or empty string, but received {name}"
    )


def alter(
    broker: Broker,
    call: Call,
    api_key: int,
    body: Any,
    wanted: Callable[[Any], RequestedConfigs],
    result: Callable[[Any, ApiError | None], ResultT],
    response: Callable[[Sequence[ResultT]], Any],
) -> None:
    """Respond later, with one result for each resource in the order of the request.

    ``wanted`` turns a resource of the request into a change, ``result`` makes the result of a resource, and
    ``response`` the whole response. Resources that are refused here are not sent to the active controller.
    """
    is_passed_on = comes_from_node(broker, call)
    refusals = [None if is_passed_on else _refusal(broker.node_id, resource) for resource in body.resources]
    accepted = tuple(resource for resource, refusal in zip(body.resources, refusals, strict=True) if refusal is None)

    def merged(others: Any) -> Any:
        if len(accepted) == len(refusals):
            return others
        results: Iterator[ResultT] = iter(others.responses)
        return response(
            [
                next(results) if refusal is None else result(resource, refusal)
                for resource, refusal in zip(body.resources, refusals, strict=True)
            ]
        )

    def response_of(outcomes: ConfigOutcomes) -> Any:
        return merged(response([result(one, why) for one, why in zip(accepted, outcomes, strict=True)]))

    if len(accepted) == 0 < len(refusals):
        call.respond(merged(response([])))
        return
    operation = ConfigChange([wanted(one) for one in accepted], body.validate_only)
    forward_or_append(broker, call, api_key, replace(body, resources=accepted), operation, response_of, merged)


def _refusal(node_id: int, resource: Any) -> ApiError | None:
    is_broker = resource.resource_type == BROKER_RESOURCE
    return strange_broker(node_id, resource.resource_name) if is_broker else None
