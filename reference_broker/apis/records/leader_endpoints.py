"""The addresses of the leaders that an answer names, for clients that asked the wrong broker (KIP-951)."""

from collections.abc import Iterable

from reference_broker.apis.parts import HasController
from reference_broker.wire.fetch import NodeEndpoint


def endpoints_of(broker: HasController, leaders: Iterable[int], listener: str) -> list[NodeEndpoint]:
    """Returns the addresses of those leaders that are registered, on the listener that the client came to."""
    brokers = broker.controller.image.brokers
    known = [brokers[leader] for leader in leaders if leader in brokers]
    return [NodeEndpoint(one.broker_id, *one.address(listener), one.rack) for one in known]
