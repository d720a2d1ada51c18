"""A broker that is not the active controller passes the admin requests of clients on to it, as in Kafka (KIP-590).

So clients need not know who is the controller. The answer is NOT_CONTROLLER if none is known, or if the known one does
not answer. It may have acted all the same. A client that tries again is told what the first attempt did: that the topic
exists, or is gone.
"""

from collections.abc import Callable
from typing import Protocol

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasConfig, HasController, HasLoader, HasNodeId, HasOutside
from reference_broker.metadata.node_names import is_registered_node
from reference_broker.ports.channels import Channel


def comes_from_node(broker: HasLoader, call: Call) -> bool:
    """Such a request is not passed on again, since two nodes that take each other for the leader would never stop."""
    return is_registered_node(call.client_id, broker.loader.image)


class PassesOn(HasNodeId, HasController, HasLoader, HasConfig, HasOutside, Protocol):
    """What a handler needs to ask the active controller."""


def passed_on(broker: PassesOn, call: Call, api_key: int, body: object, failed: Callable[[], None]) -> bool:
    """Passes the request on in the client's version, and the answer to the client. Returns False if this node is the
    active controller or knows of no other.

    ``failed`` is called if no answer comes within ``controller.quorum.request.timeout.ms``.
    """
    controller = broker.controller
    leader_id = controller.leader_id
    if controller.is_active or leader_id in (-1, broker.node_id) or comes_from_node(broker, call):
        return False
    timeout_ms = broker.config.controller_quorum_request_timeout_ms
    broker.outside.send(leader_id, Channel.FORWARD, api_key, call.api_version, body, timeout_ms, call.respond, failed)
    return True
