"""Admin requests that clients send to any broker, at one that is not the active controller: it asks that one for them.

Kafka's brokers forward all changes. Here only those whose clients do not look for the controller are passed on; the
others are answered NOT_CONTROLLER, upon which clients do look for it. An answer may be lost on either way, so a retry
follows; what is passed on has the same effect twice as once.
"""

from collections.abc import Callable

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.raft.channels import Channel

PEER_PREFIX = "node-"
"""What nodes call themselves to each other. Their requests are not passed on again, or two nodes that take each other
for the leader would do so without end."""


def passed_on(broker: Broker, call: Call, card: Card, body: object, failed: Callable[[], None]) -> bool:
    """True: the active controller is asked and its answer goes to the client. ``failed`` is called instead when none
    comes within ``controller.quorum.request.timeout.ms``. False: this node is it, or knows of no other."""
    controller = broker.controller
    leader_id = controller.leader_id
    if controller.is_active or leader_id in (-1, broker.node_id) or call.client_id.startswith(PEER_PREFIX):
        return False
    timeout_ms = broker.config.controller_quorum_request_timeout_ms
    broker.outside.send(
        leader_id, Channel.CONTROLLER, card.api_key, card.max_version, body, timeout_ms, call.respond, failed
    )
    return True
