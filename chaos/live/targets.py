"""Whom a fault at a time hits: roles become nodes, and links become proxies, at the moment when it begins."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from chaos.live.links import Dialler, Link, Links
from scenarios.model import Fault, NodeChoice


@dataclass(frozen=True, slots=True)
class Target:
    """``fault``: its ``node`` is a number now. ``links``: those that it hits; ``told``: for the faults table."""

    fault: Fault
    links: tuple[Link, ...]
    told: str


class Roles:
    """Who is what, as the nodes themselves told. ``running``: whether a node's process lives (stopped or not)."""

    def __init__(self, voters: int, total: int, random: Random, running: Callable[[int], bool]) -> None:
        self._voters = voters
        self._total = total
        self._random = random
        self._running = running
        self._leaders: list[int] = []
        """In the order in which they told so: a leader that is stopped or cut off does not know of its successor."""
        if total == 1:
            self._leaders.append(0)

    def told(self, node: int, role: str) -> None:
        """A node's role has changed, or it has started."""
        if self._total == 1:
            return
        if node in self._leaders:
            self._leaders.remove(node)
        if role == "leader":
            self._leaders.append(node)

    @property
    def leader(self) -> int | None:
        """None: there is none now."""
        alive = [node for node in self._leaders if self._running(node)]
        return alive[-1] if alive else None

    def node(self, choice: NodeChoice, other_than: int | None = None) -> int | None:
        """A number for a role; None where nobody has it now. Chances are drawn from the seed."""
        if isinstance(choice, int):
            return choice
        leader = self.leader
        if choice == "leader":
            return leader
        if choice == "follower" and leader is None:
            return None
        among = {
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
        hit = links_around(node, links, fault.clients) if fault.kind == "node_isolated" else ()
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


def _in_drawing_order(source: NodeChoice, target: NodeChoice) -> list[tuple[bool, NodeChoice]]:
    """(is it the source, choice): what is certain first, so that what is drawn can be another."""
    ends: list[tuple[bool, NodeChoice]] = [(True, source), (False, target)]
    return sorted(ends, key=lambda end: end[1] in ("follower", "observer", "any"))


def links_around(node: int, links: Links, clients: bool) -> tuple[Link, ...]:
    """All between this node and other nodes, both ways; with the clients' if asked for."""
    return tuple(
        link
        for link in links.by_name.values()
        if node in (link.dialler, link.node) and (clients or link.dialler != "client")
    )
