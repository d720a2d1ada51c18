"""The second cluster, to which a mirror copies. It is one node on the same network, which no fault strikes and no check
watches."""

from collections.abc import Sequence

from chaos.seeds import number_for
from chaos.sim.agenda import Agenda
from chaos.sim.machine import Machine, Watcher, nothing
from chaos.sim.network import Network
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.hooks import Hooks
from reference_broker.core.node import Node

CLUSTER_ID = "crucible-simulated-target"


def target_cluster(number: int, seed: int, agenda: Agenda, network: Network) -> Machine:
    """Builds the node. ``number`` follows those of the mirrored cluster's nodes, and determines the node's address."""
    config = BrokerConfig.parse({"crucible.cluster.id": CLUSTER_ID})

    def boot(machine: Machine) -> tuple[Node, Sequence[Hooks], Watcher]:
        host, port = network.address(number)
        random_seed = number_for(seed, f"node-{number}-{machine.incarnation}")
        return Node(number, config, machine.disk, random_seed, host, port), (), nothing

    machine = Machine(number, agenda, seed, boot, ended=_ended)
    network.add(machine)
    return machine


def _ended(machine: Machine, story: str) -> None:
    raise RuntimeError(f"the mirror's target, node {machine.node_id}, ended itself: {story}")
