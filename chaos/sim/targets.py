"""Which nodes and links a fault means: numbers, or roles resolved at the moment when it strikes."""

from collections.abc import Sequence
from random import Random

from chaos.roles import plays, role_of
from chaos.sim.links import CLIENTS
from chaos.sim.machine import Machine
from scenarios.model import Link, NodeChoice

CLIENT = "client"
ALL = "all"


class Targets:
    """``voters``: how many of the machines, from 0 on, have a vote. ``topic``: of whose first partition roles speak;
    empty: of none."""

    def __init__(self, machines: Sequence[Machine], voters: int, topic: str = "") -> None:
        self._machines = machines
        self._voters = voters
        self._topic = topic

    def role(self, node_id: int) -> str:
        """``leader``, ``follower`` or ``observer``; behind a space what it is to the partition."""
        return role_of(self._machines[node_id].node, node_id < self._voters, self._topic)

    def node(self, choice: NodeChoice, random: Random) -> int | None:
        """None: nobody is that now. Of several that are, one that lives is drawn."""
        if isinstance(choice, int):
            return choice
        found = [each.node_id for each in self._machines if each.alive and plays(self.role(each.node_id), choice, -1)]
        return random.choice(found) if found else None

    def links(self, link: Link, random: Random) -> list[tuple[int, int]] | None:
        """(who dials, who is dialled) of all that are meant; None: one of the two ends is nobody now."""
        target = self._end(link.target, random, ())
        source = self._end(link.source, random, target if len(target) == 1 else ())
        return [(one, other) for one in source for other in target if one != other] or None

    def around(self, node: int, clients: bool) -> list[tuple[int, int]]:
        """All links of a node, and those of its clients."""
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
