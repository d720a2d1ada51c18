"""Admin requests that clients send to any broker, at one that is not the active controller: it asks that one for them.

As Kafka's brokers do (KIP-590), so that clients need not know who is the controller. NOT_CONTROLLER is the answer
where none is known or the one that was known does not answer: it may have acted. Clients try again then, and are told
what the first attempt did: that the topic exists, or is gone.
"""

from collections.abc import Callable
from typing import Protocol

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasConfig, HasController, HasNodeId, HasOutside
from reference_broker.ports.channels import Channel

PEER_PREFIX = "node-"
"""What nodes call themselves to each other. Their requests are not passed on again, or two nodes that take each other
for the leader would do so without end."""


class PassesOn(HasNodeId, HasController, HasConfig, HasOutside, Protocol):
    """What it takes to ask the active controller."""


def passed_on(broker: PassesOn, call: Call, api_key: int, body: object, failed: Callable[[], None]) -> bool:
    """True: the active controller is asked, in the client's version, and its answer goes to the client. ``failed`` is
    called instead when none comes within ``controller.quorum.request.timeout.ms``. False: this node is it, or knows of
    no other."""
    controller = broker.controller
    leader_id = controller.leader_id
    if controller.is_active or leader_id in (-1, broker.node_id) or call.client_id.startswith(PEER_PREFIX):
        return False
    timeout_ms = broker.config.controller_quorum_request_timeout_ms
    broker.outside.send(leader_id, Channel.FORWARD, api_key, call.api_version, body, timeout_ms, call.respond, failed)
    return True
