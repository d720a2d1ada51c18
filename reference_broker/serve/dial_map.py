"""Where a node finds the others: voters as the quorum is configured, brokers as ``crucible.peers`` says, or else where
they are registered; and how large their replies may be."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig

Address: TypeAlias = tuple[str, int]
"""Host and port."""

FindAddress: TypeAlias = Callable[[int], Address | None]
"""By node ID, asked at each dial; None: unknown."""

REPLY_OVERHEAD_BYTES = 16 << 20
"""What another node's reply may hold beside records: enough to tell of some 200,000 partitions."""


def largest_reply_bytes(config: BrokerConfig) -> int:
    """The limit for a reply of another node: what was asked for or, if larger, one batch, which came in a request.

    ``socket.request.max.bytes`` alone may be less than a follower asks for, and then it would ask for ever.
    """
    return max(config.replica_fetch_response_max_bytes, config.socket_request_max_bytes) + REPLY_OVERHEAD_BYTES


def dial_map(config: BrokerConfig, node_id: int, registered: FindAddress) -> FindAddress:
    """``registered``: what a broker told the cluster about itself, as far as this node knows the metadata."""
    fixed: Mapping[int, Address] = {
        each.node_id: (each.host, each.port) for each in (*config.peers(), *config.voters(node_id))
    }

    def find(peer: int) -> Address | None:
        return fixed.get(peer) or registered(peer)

    return find
