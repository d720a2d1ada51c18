"""A broker that is not the active controller passes the admin requests of clients on to it, as in Kafka (KIP-590).

So clients need not know who is the controller. The answer is NOT_CONTROLLER if none is known, or if the known one does
not answer. It may have acted all the same. A client that tries again is told what the first attempt did: that the topic
exists, or is gone.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasConfig, HasController, HasLoader, HasNodeId, HasOutside
from reference_broker.controller.planning.change import Change
from reference_broker.controller.refusal import NOT_CONTROLLER
from reference_broker.metadata.node_names import is_registered_node
from reference_broker.ports.channels import Channel

OutcomeT = TypeVar("OutcomeT")


def comes_from_node(broker: HasLoader, call: Call) -> bool:
    """Such a request is not passed on again, since two nodes that take each other for the leader would never stop."""
    return is_registered_node(call.client_id, broker.loader.image)


class PassesOn(HasNodeId, HasController, HasLoader, HasConfig, HasOutside, Protocol):
    """What a handler needs to ask the active controller."""


def propose(
    broker: PassesOn,
    call: Call,
    api_key: int,
    body: object,
    change: Change[OutcomeT],
    answer: Callable[[OutcomeT], object],
) -> None:
    """Makes the change that the client asks for, if this node is the active controller or knows no other node that is.
    ``answer`` turns the outcome into the response.

    Otherwise the active controller is asked, in the client's version, and its answer goes to the client. If none comes
    within ``controller.quorum.request.timeout.ms``, the client gets NOT_CONTROLLER.
    """

    def respond(outcome: OutcomeT) -> None:
        call.respond(answer(outcome))

    controller = broker.controller
    leader_id = controller.leader_id
    if controller.is_active or leader_id in (-1, broker.node_id) or comes_from_node(broker, call):
        controller.propose(change, respond)
        return
    broker.outside.send(
        leader_id,
        Channel.FORWARD,
        api_key,
        call.api_version,
        body,
        broker.config.controller_quorum_request_timeout_ms,
        call.respond,
        lambda: respond(change.outcome(NOT_CONTROLLER)),
    )
