"""Where a node finds the others, and how large their replies may be.

Voters are where ``controller.quorum.voters`` says. Brokers are where ``crucible.peers`` says, or else where they are
registered. If controllers have a listener of their own, the voters' addresses are only for what controllers are asked.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.channels import Channel

Address: TypeAlias = tuple[str, int]
"""Host and port."""

FindAddress: TypeAlias = Callable[[int, Channel], Address | None]
"""Finds where a node is dialled for a channel, or returns None if that is not known. It is called for each dial."""

TO_CONTROLLERS = (Channel.RAFT, Channel.CONTROLLER, Channel.FORWARD)

REPLY_OVERHEAD_BYTES = 16 << 20
"""What another node's reply may hold beside records: enough to tell of some 200,000 partitions."""


def largest_reply_bytes(config: BrokerConfig) -> int:
    """The limit for a reply of another node: what was asked for or, if larger, one batch, which came in a request.

    ``socket.request.max.bytes`` alone may be less than a follower asks for. The follower would then ask again for ever.
    """
    return max(config.replica_fetch_response_max_bytes, config.socket_request_max_bytes) + REPLY_OVERHEAD_BYTES


def dial_map(config: BrokerConfig, node_id: int, registered: Callable[[int], Address | None]) -> FindAddress:
    """``registered`` finds what a broker told the cluster about itself, as far as this node knows the metadata."""
    voters: Mapping[int, Address] = {each.node_id: (each.host, each.port) for each in config.voters(node_id)}
    peers: Mapping[int, Address] = {each.node_id: (each.host, each.port) for each in config.peers()}
    separate = bool(config.listener_plan().controllers)

    def find(peer: int, channel: Channel) -> Address | None:
        if separate and channel in TO_CONTROLLERS:
            return voters.get(peer)
        fixed = peers.get(peer) if separate else voters.get(peer) or peers.get(peer)
        return fixed or registered(peer)

    return find
