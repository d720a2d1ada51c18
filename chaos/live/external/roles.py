"""The roles of external nodes, from Metadata and DescribeQuorum, in the form in which nodes of the reference broker
report them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kio.schema.types import TopicName

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import Address
from bench.fleet.negotiation import CONNECT_LIMIT_US
from bench.fleet.spec import address_of
from chaos.interceptor.roles import topic_of_roles
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import ApiKey
from scenarios.model import Scenario
from scenarios.vocabulary import NODE_ROLES

LOOK_EVERY_S = 0.2
CALL_LIMIT_US = 1_000_000
CLIENT_ID = "crucible-roles"
QUORUM_TOPIC = "__cluster_metadata"
QUORUM_VERSION = 1


@dataclass(frozen=True, slots=True)
class Office:
    """The leader in an epoch, by node ID, and the other replicas. A node that is cut off may report an old epoch."""

    epoch: int = -1
    leader: int = -1
    others: frozenset[int] = frozenset()


class RolesSeen:
    """Sends requests to one node after the other, in a thread.

    Nodes are numbered by their place in ``nodes`` (HOST:PORT without a proxy); ``ids`` are their IDs in the cluster.
    ``topic`` is the hot topic; empty if no fault targets a role in a partition. ``version`` is that of Metadata.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        ids: Sequence[int],
        voters: int,
        topic: str,
        version: int,
        lives: Callable[[int], bool],
    ) -> None:
        self._nodes = [address_of(node) for node in nodes]
        self._numbers = {node_id: number for number, node_id in enumerate(ids)}
        self._voters = voters
        self._topic = topic
        self._version = version
        self._lives = lives
        self._quorum = Office()
        self._partition = Office()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, name="roles", daemon=True)
        self._thread.start()

    def now(self) -> Mapping[int, str]:
        """Return the last known role of each node by its number."""
        return roles_of(self._numbers, self._voters, self._quorum, self._partition)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(5)

    def _look(self) -> None:
        turn = 0
        while not self._ending.wait(LOOK_EVERY_S):
            turn = (turn + 1) % len(self._nodes)
            if self._lives(turn):
                with suppress(TransportError):
                    self._fetch(self._nodes[turn])

    def _fetch(self, address: Address) -> None:
        """Fetch the partition first, because the response of the quorum waits for its leader."""
        with Connection.open(address.host, address.port, CONNECT_LIMIT_US, CLIENT_ID) as connection:
            if self._topic:
                wanted = bodies.metadata_request((self._topic,))
                metadata = connection.call(ApiKey.METADATA, self._version, wanted, CALL_LIMIT_US)
                self._partition = newer(self._partition, led_partition(metadata))
            quorum = connection.call(ApiKey.DESCRIBE_QUORUM, QUORUM_VERSION, _quorum_request(), CALL_LIMIT_US)
            self._quorum = newer(self._quorum, led_quorum(quorum))


def newer(known: Office, found: Office) -> Office:
    return found if found.epoch >= known.epoch else known


def led_partition(metadata: Any) -> Office:
    """Return the leader of the first partition of the topic in this response."""
    for each in (
        partition for topic in metadata.topics for partition in topic.partitions if partition.partition_index == 0
    ):
        return Office(int(each.leader_epoch), int(each.leader_id), frozenset(map(int, each.replica_nodes)))
    return Office()


def led_quorum(described: Any) -> Office:
    for each in (partition for topic in described.topics for partition in topic.partitions):
        return Office(int(each.leader_epoch), int(each.leader_id))
    return Office()


def roles_of(numbers: Mapping[int, int], voters: int, quorum: Office, partition: Office) -> dict[int, str]:
    """Return the role of each node by its number. ``numbers`` holds the numbers by IDs."""
    roles = {}
    for node_id, number in numbers.items():
        role = "leader" if node_id == quorum.leader else "follower" if number < voters else "observer"
        if node_id == partition.leader:
            role += " partition_leader"
        elif node_id in partition.others:
            role += " partition_follower"
        roles[number] = role
    return roles


def names_a_role(scenario: Scenario) -> bool:
    """Return whether a fault needs the role of a node."""
    named = [each for fault in scenario.faults for each in (fault.node, fault.match.role, *(fault.link or ()))]
    return any(each in NODE_ROLES and each != "any" for each in named)


def watched(
    scenario: Scenario,
    prefix: str,
    nodes: Sequence[str],
    ids: Sequence[int],
    voters: int,
    version: int,
    lives: Callable[[int], bool],
) -> RolesSeen | None:
    """Return the watcher of the roles that the scenario's faults name; None if they name none."""
    if not names_a_role(scenario):
        return None
    topic = topic_of_roles(scenario)
    return RolesSeen(nodes, ids, voters, f"{prefix}{topic}" if topic else "", version, lives)


def _quorum_request() -> object:
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest, PartitionData, TopicData
    from kio.static.primitive import i32

    topic = TopicData(topic_name=TopicName(QUORUM_TOPIC), partitions=(PartitionData(partition_index=i32(0)),))
    return DescribeQuorumRequest(topics=(topic,))
