"""Times until which faults affected nodes and links.

Some guarantees hold only for nodes that no fault has affected for some time: a leader stays leader, and a broker is not
fenced. The simulator records its faults here, by node and link.
"""

from dataclasses import dataclass, field

NEVER_US = -(1 << 62)
FOR_EVER_US = 1 << 62


@dataclass(slots=True)
class FaultTimes:
    """Times are microseconds of the run. While a fault lasts, its end is in the future."""

    nodes: dict[int, int] = field(default_factory=dict)
    """end of the last fault of each node"""
    links: dict[tuple[int, int], int] = field(default_factory=dict)
    """end of the last fault of each link, by the node that dials and the node that is dialled"""
    directories: dict[int, int] = field(default_factory=dict)
    """number of times that a fault has replaced each node's directory"""
    clock_jumps_us: int = 0
    """sum of the steps by which faults have set wall clocks of nodes ahead"""
    _ends: dict[int, int] = field(default_factory=dict)
    """end of the last fault of each node whose end is known. Its disk may be slow beyond its restart."""

    def directory(self, node_id: int) -> None:
        """Note that the node has another directory from now on: an empty or a much older one."""
        self.directories[node_id] = self.directories.get(node_id, 0) + 1

    def node(self, node_id: int, until_us: int) -> None:
        self.nodes[node_id] = max(self.nodes.get(node_id, NEVER_US), until_us)
        if until_us < FOR_EVER_US:
            self._ends[node_id] = max(self._ends.get(node_id, NEVER_US), until_us)

    def back(self, node_id: int, until_us: int) -> None:
        """Record that a node restarts."""
        self.nodes[node_id] = self._ends[node_id] = max(self._ends.get(node_id, NEVER_US), until_us)

    def link(self, source: int, target: int, until_us: int) -> None:
        """Note a fault of the link on which ``source`` dials ``target``."""
        pair = (source, target)
        self.links[pair] = max(self.links.get(pair, NEVER_US), until_us)

    def last_us(self) -> int:
        """Return the end of the last fault of any node or link between nodes."""
        of_links = (until_us for pair, until_us in self.links.items() if min(pair) >= 0)
        return max((*self.nodes.values(), *of_links), default=NEVER_US)

    def node_since(self, node_id: int, since_us: int) -> bool:
        """Return whether a fault touched the node at or after ``since_us``."""
        return self.nodes.get(node_id, NEVER_US) >= since_us

    def touches_since(self, node_id: int, since_us: int) -> bool:
        """Return whether a fault touched the node, or a link between it and any other node."""
        return self.node_since(node_id, since_us) or any(
            until_us >= since_us for pair, until_us in self.links.items() if node_id in pair and min(pair) >= 0
        )

    def between_since(self, one: int, other: int, since_us: int) -> bool:
        """Return whether a fault touched a link between the two, in either direction."""
        links = self.links
        return links.get((one, other), NEVER_US) >= since_us or links.get((other, one), NEVER_US) >= since_us
