"""Finds the nodes and links that a fault means: numbers, or roles that are resolved when the fault strikes."""

from collections.abc import Sequence
from random import Random

from chaos.roles import plays, role_of
from chaos.sim.links import CLIENTS
from chaos.sim.machine import Machine
from scenarios.model import Link, NodeChoice

CLIENT = "client"
ALL = "all"


class Targets:
    """The first ``voters`` machines have a vote. Roles may speak of the first partition of ``topic``, if it is not
    empty."""

    def __init__(self, machines: Sequence[Machine], voters: int, topic: str = "") -> None:
        self._machines = machines
        self._voters = voters
        self._topic = topic

    def role(self, node_id: int) -> str:
        """Returns ``leader``, ``follower`` or ``observer``, and behind a space the node's part in the partition."""
        return role_of(self._machines[node_id].node, node_id < self._voters, self._topic)

    def node(self, choice: NodeChoice, random: Random) -> int | None:
        """Returns a node that fits, or None if there is none now. If several fit, one that lives is drawn."""
        if isinstance(choice, int):
            return choice
        found = [each.node_id for each in self._machines if each.alive and plays(self.role(each.node_id), choice, -1)]
        return random.choice(found) if found else None

    def links(self, link: Link, random: Random) -> list[tuple[int, int]] | None:
        """Returns (who dials, who is dialled) of all links that are meant, or None if no node fits one of the ends."""
        target = self._end(link.target, random, ())
        source = self._end(link.source, random, target if len(target) == 1 else ())
        return [(one, other) for one in source for other in target if one != other] or None

    def around(self, node: int, clients: bool) -> list[tuple[int, int]]:
        """Returns all links between a node and the others, and with ``clients`` the clients' link to it."""
        others = [each.node_id for each in self._machines if each.node_id != node]
        mine = [(node, each) for each in others] + [(each, node) for each in others]
        return [*mine, (CLIENTS, node)] if clients else mine

    def _end(self, choice: NodeChoice, random: Random, but: Sequence[int]) -> list[int]:
        if choice == CLIENT:
            return [CLIENTS]
        if choice == ALL:
            return [each.node_id for each in self._machines if each.node_id not in but]
        node = self.node(choice, random)
        return [] if node is None else [node]
