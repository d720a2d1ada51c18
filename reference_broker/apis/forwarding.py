"""Forwards admin requests to the active controller. Clients may send them to any broker.

Kafka's brokers do the same (KIP-590), so that clients need not know the controller. The error is NOT_CONTROLLER if no
controller is known or if it does not respond. It may have acted then. A client that retries sees what the first attempt
did, for example that the topic exists.

Unlike Kafka: the request is forwarded as it is, with its API key and version. Kafka wraps it in an Envelope request
with the client's principal and address (``ForwardingManager.forwardRequest``). There are no principals here.
"""

from collections.abc import Callable
from typing import TypeVar

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.controller.write_operations import NOT_CONTROLLER, ControllerWriteOperation
from reference_broker.metadata.identifiers import is_registered_node
from reference_broker.ports.node_ports import Channel

OutcomeT = TypeVar("OutcomeT")


def comes_from_node(broker: Broker, call: Call) -> bool:
    """Whether another node sent the request. It is not forwarded again, because two nodes that take each other for the
    leader would never end that."""
    return is_registered_node(call.client_id, broker.loader.image)


def forward_or_append(
    broker: Broker,
    call: Call,
    api_key: int,
    body: object,
    operation: ControllerWriteOperation[OutcomeT],
    response_of: Callable[[OutcomeT], object],
    completed: Callable[[object], object] = lambda response: response,
) -> None:
    """Append the operation that the client requests if this node is the active controller or knows no other node that
    is. A request that a node sent is never forwarded, so it is appended here, too.

    ``response_of`` turns the outcome into the response.

    Otherwise the request is forwarded to the active controller, in the client's version, and its response goes to the
    client, after ``completed`` has added what this node found. If none comes within
    ``controller.quorum.request.timeout.ms``, the client gets NOT_CONTROLLER.
    """

    def respond_with(outcome: OutcomeT) -> None:
        call.respond(response_of(outcome))

    respond = callback(call, respond_with)

    controller = broker.controller
    leader_id = controller.leader_id
    # Decision metadata-change-forwarded
    if controller.is_active or leader_id in (-1, broker.node_id) or comes_from_node(broker, call):
        controller.append_write_event(operation, respond)
        return
    broker.ports.send(
        leader_id,
        Channel.FORWARD,
        api_key,
        call.api_version,
        body,
        broker.config.controller_quorum_request_timeout_ms,
        callback(call, lambda response: call.respond(completed(response))),
        lambda: respond(operation.outcome(NOT_CONTROLLER)),
    )
