"""Resolves roles and links when a fault begins: to nodes and proxies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random

from chaos.interceptor.roles import is_role
from chaos.live.links import Dialler, Link, Links
from scenarios.fault_kinds import FAULT_KINDS
from scenarios.model import Fault, NodeChoice
from scenarios.vocabulary import NODE_ROLES

DRAWN = ("follower", "observer", "partition_follower", "any")
"""Roles that several nodes can have at a time. One of them is drawn."""


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """The target of a fault."""

    fault: Fault
    """The fault, with a number instead of a role as its ``node``."""
    links: tuple[Link, ...]
    """The links that the fault affects."""
    label: str
    """Its name in the faults table."""
    role: str = ""
    """The role that the fault targeted; empty if none."""


class Roles:
    """The nodes' roles, as the nodes themselves report them. ``running`` returns whether a node's process lives."""

    def __init__(self, voters: int, total: int, random: Random, running: Callable[[int], bool]) -> None:
        self._voters = voters
        self._total = total
        self._random = random
        self._running = running
        self._leaders = _Leadership()
        self._partition_leaders = _Leadership()
        self._replicas: set[int] = set()
        """The nodes that reported a replica of the hot topic's first partition."""
        if total == 1:  # A single node reports no role.
            self.note(0, "leader partition_leader")

    def note(self, node: int, role: str) -> None:
        """Update a node's role (``chaos.interceptor.roles.role_of``) after it changed or the node started."""
        self._leaders.note(node, is_role(role, "leader"))
        leads = is_role(role, "partition_leader")
        self._partition_leaders.note(node, leads)
        if leads or is_role(role, "partition_follower"):
            self._replicas.add(node)

    def node(self, choice: NodeChoice, other_than: int | None = None) -> int | None:
        """Return the number of a node that has the role, or None if nobody has it now. Of several nodes one is drawn
        from the seed."""
        if isinstance(choice, int):
            return choice
        leader = self._leaders.holder(self._running)
        partition_leader = self._partition_leaders.holder(self._running)
        if choice in ("leader", "partition_leader"):
            return leader if choice == "leader" else partition_leader
        if (choice == "follower" and leader is None) or (choice == "partition_follower" and partition_leader is None):
            return None
        among = {
            "partition_follower": [node for node in sorted(self._replicas) if node != partition_leader],
            "follower": [node for node in range(self._voters) if node != leader],
            "observer": list(range(self._voters, self._total)),
            "any": list(range(self._total)),
        }[choice]
        found = [node for node in among if node != other_than and self._running(node)]
        return self._random.choice(found) if found else None

    def aim(self, fault: Fault, links: Links) -> FaultTarget | None:
        """Return the fault's target. None: no node has the role now; retry later."""
        if fault.link is not None:
            return self._aim_at_links(fault, list(fault.link), links)
        node = self.node(fault.node)
        if node is None:
            return None
        affected = tuple(link for link in links.by_name.values() if self._cuts_off(fault, node, link))
        return FaultTarget(replace(fault, node=node), affected, f"node-{node}", _role_in((fault.node,)))

    def _cuts_off(self, fault: Fault, node: int, link: Link) -> bool:
        """Return whether a fault of the node affects this link.

        A node that is cut from its controller loses its links to all voters, not only to the leader.
        """
        ends = (link.dialler, link.node)
        if node not in ends:
            return False
        cuts = FAULT_KINDS[fault.kind].cuts
        if cuts == "all":
            return True
        if cuts == "others":
            return fault.clients or link.dialler != "client"
        return cuts == "controller" and all(end in (node, *range(self._voters)) for end in ends)

    def _aim_at_links(self, fault: Fault, ends: list[NodeChoice], links: Links) -> FaultTarget | None:
        for place in sorted((0, 1), key=lambda place: ends[place] in DRAWN):  # A drawn end comes last and may differ.
            if ends[place] not in ("client", "all"):
                other = ends[1 - place]
                node = self.node(ends[place], other if isinstance(other, int) else None)
                if node is None:
                    return None
                ends[place] = node
        source, target = ends
        affected = tuple(
            link for link in links.by_name.values() if _is_end(source, link.dialler) and _is_end(target, link.node)
        )
        label = f"link {affected[0].name}" if len(affected) == 1 else f"links {source}>{target}"
        aimed = next((end for end in (target, source) if isinstance(end, int)), 0)
        return FaultTarget(replace(fault, node=aimed), affected, label, _role_in(fault.link or ()))


class _Leadership:
    """The nodes that reported that they lead, in that order. There may be several, because a stopped or isolated node
    does not know that another one leads."""

    def __init__(self) -> None:
        self._leaders: dict[int, None] = {}

    def note(self, node: int, leads: bool) -> None:
        """Record a node's report. A node that reports again that it leads keeps its place in the order."""
        if leads:
            self._leaders.setdefault(node)
        else:
            self._leaders.pop(node, None)

    def holder(self, running: Callable[[int], bool]) -> int | None:
        return next((node for node in reversed(self._leaders) if running(node)), None)


def _role_in(choices: Iterable[NodeChoice]) -> str:
    """Return the first role among the choices. A choice of any node, or of all, is no role."""
    return next((one for one in choices if isinstance(one, str) and one in NODE_ROLES and one != "any"), "")


def _is_end(wanted: NodeChoice, end: Dialler) -> bool:
    return wanted == end or (wanted == "all" and end != "client")
