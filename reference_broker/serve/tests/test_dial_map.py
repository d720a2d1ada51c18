"""Addresses that a node connects to: fixed ones first, and registered ones for the other brokers."""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.node_ports import Channel
from reference_broker.serve.peers import dial_map, largest_reply_bytes


def test_addresses_are_of_voters_then_peers_then_registrations() -> None:
    config = BrokerConfig.parse(
        {
            "controller.quorum.voters": "1@voter:1,2@voter:2",
            "crucible.cluster.id": "cluster",
            "crucible.peers": "2@peer:2,3@peer:3",
        }
    )
    registered = {1: ("registered", 1), 3: ("registered", 3), 4: ("registered", 4)}
    find = dial_map(config, 1, registered.get)
    assert [find(number, Channel.RAFT) for number in (1, 2, 3, 4, 5)] == [
        ("voter", 1),
        ("voter", 2),
        ("peer", 3),
        ("registered", 4),
        None,
    ]


def test_controller_listener_sends_only_controller_requests_to_voter_addresses() -> None:
    config = BrokerConfig.parse(
        {
            "listeners": "PLAINTEXT://h:9092,CONTROLLER://h:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@voter:1,2@voter:2",
            "crucible.cluster.id": "cluster",
            "crucible.peers": "3@peer:3",
        }
    )
    find = dial_map(config, 1, {2: ("registered", 2)}.get)
    assert [find(2, channel) for channel in Channel] == [
        ("voter", 2) if channel in (Channel.RAFT, Channel.CONTROLLER, Channel.FORWARD) else ("registered", 2)
        for channel in Channel
    ]
    assert (find(3, Channel.RAFT), find(3, Channel.REPLICA)) == (None, ("peer", 3))


def test_registered_address_is_looked_up_at_each_connect() -> None:
    registered: dict[int, tuple[str, int]] = {}
    find = dial_map(BrokerConfig(), 1, registered.get)
    assert find(2, Channel.REPLICA) is None
    registered[2] = ("moved", 9)
    assert find(2, Channel.REPLICA) == ("moved", 9)


def test_reply_limit_is_follower_fetch_size_plus_one_batch() -> None:
    small = BrokerConfig.parse({"socket.request.max.bytes": "2000000"})
    assert largest_reply_bytes(small) > small.replica_fetch_response_max_bytes
    large = BrokerConfig.parse({"replica.fetch.response.max.bytes": "1000"})
    assert largest_reply_bytes(large) > large.socket_request_max_bytes
