"""Finds what a timed fault hits. Roles become nodes, and links become proxies, at the moment when the fault begins."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from chaos.live.links import Dialler, Link, Links
from chaos.roles import is_role
from scenarios.model import Fault, NodeChoice

DRAWN = ("follower", "observer", "partition_follower", "any")
"""Roles that several nodes have at a time."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault hits. The ``node`` of ``fault`` is a number now. ``links`` are those that it hits. ``told`` is for
    the faults table."""

    fault: Fault
    links: tuple[Link, ...]
    told: str


class Roles:
    """The nodes' roles, as the nodes themselves told. ``running`` says whether a node's process lives."""

    def __init__(self, voters: int, total: int, random: Random, running: Callable[[int], bool]) -> None:
        self._voters = voters
        self._total = total
        self._random = random
        self._running = running
        self._leaders = _Office()
        self._partition_leaders = _Office()
        self._replicas: set[int] = set()
        """Who told that it has a replica of the hot topic's first partition."""
        if total == 1:
            self._leaders.told(0, True)
            self._partition_leaders.told(0, True)

    def told(self, node: int, role: str) -> None:
        """A node's role (``chaos.roles.role_of``) has changed, or it has started."""
        if self._total == 1:
            return
        self._leaders.told(node, is_role(role, "leader"))
        leads = is_role(role, "partition_leader")
        self._partition_leaders.told(node, leads)
        if leads or is_role(role, "partition_follower"):
            self._replicas.add(node)

    @property
    def leader(self) -> int | None:
        """None: there is none now."""
        return self._leaders.holder(self._running)

    @property
    def partition_leader(self) -> int | None:
        """Who leads the first partition of the hot topic; None: nobody now."""
        return self._partition_leaders.holder(self._running)

    def node(self, choice: NodeChoice, other_than: int | None = None) -> int | None:
        """A number for a role; None where nobody has it now. Chances are drawn from the seed."""
        if isinstance(choice, int):
            return choice
        leader, partition_leader = self.leader, self.partition_leader
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

    def aim(self, fault: Fault, links: Links) -> Target | None:
        """None: nobody has the role now; ask again later."""
        if fault.link is not None:
            return self._aim_at_links(fault, links)
        node = self.node(fault.node)
        if node is None:
            return None
        hit: tuple[Link, ...] = ()
        if fault.kind == "node_isolated":
            hit = links_around(node, links, fault.clients)
        elif fault.kind == "node_cut_from_controller":
            hit = links_to_voters(node, self._voters, links)
        return Target(replace(fault, node=node), hit, f"node-{node}")

    def _aim_at_links(self, fault: Fault, links: Links) -> Target | None:
        assert fault.link is not None
        ends = _in_drawing_order(fault.link.source, fault.link.target)
        found: dict[bool, Dialler | str] = {}
        for is_source, choice in ends:
            other = found.get(not is_source)
            if choice in ("client", "all"):
                found[is_source] = str(choice)
                continue
            node = self.node(choice, other if isinstance(other, int) else None)
            if node is None:
                return None
            found[is_source] = node
        source, target = found[True], found[False]
        hit = self._expand(source, target, links)
        names = ", ".join(link.name for link in hit)
        told = f"link {names}" if len(hit) == 1 else f"links {source}>{target}"
        aimed = target if isinstance(target, int) else source
        return Target(replace(fault, node=aimed if isinstance(aimed, int) else 0), hit, told)

    def _expand(self, source: Dialler | str, target: Dialler | str, links: Links) -> tuple[Link, ...]:
        everyone = range(self._total)
        sources: list[Dialler] = (
            [source] if isinstance(source, int) else ["client"] if source == "client" else list(everyone)
        )
        targets = [target] if isinstance(target, int) else list(everyone)
        pairs = [(a, b) for a in sources for b in targets if a != b]
        found = [links.between(a, b) for a, b in pairs]
        return tuple(link for link in found if link is not None)


class _Office:
    """The nodes that told that they lead, in that order. A node that is stopped or cut off does not know of its
    successor."""

    def __init__(self) -> None:
        self._claimants: list[int] = []

    def told(self, node: int, leads: bool) -> None:
        if leads and node in self._claimants:
            return  # It tells of something else: that is no new claim.
        if node in self._claimants:
            self._claimants.remove(node)
        if leads:
            self._claimants.append(node)

    def holder(self, running: Callable[[int], bool]) -> int | None:
        alive = [node for node in self._claimants if running(node)]
        return alive[-1] if alive else None


def _in_drawing_order(source: NodeChoice, target: NodeChoice) -> list[tuple[bool, NodeChoice]]:
    """(is it the source, choice): what is certain first, so that what is drawn can be another."""
    ends: list[tuple[bool, NodeChoice]] = [(True, source), (False, target)]
    return sorted(ends, key=lambda end: end[1] in DRAWN)


def links_around(node: int, links: Links, clients: bool) -> tuple[Link, ...]:
    """All between this node and other nodes, both ways; with the clients' if asked for."""
    return tuple(
        link
        for link in links.by_name.values()
        if node in (link.dialler, link.node) and (clients or link.dialler != "client")
    )


def links_to_voters(node: int, voters: int, links: Links) -> tuple[Link, ...]:
    """Both ways between this node and each voter but itself, whichever of them leads the quorum now or later."""
    others = [each for each in range(voters) if each != node]
    found = [links.between(*ends) for each in others for ends in ((node, each), (each, node))]
    return tuple(link for link in found if link is not None)
