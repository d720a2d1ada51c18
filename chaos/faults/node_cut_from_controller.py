"""The links between a node and the voters go silent in both directions. No heartbeat and no update of the node's
metadata gets through, while clients and other observers still reach the node."""

from chaos.faults.timed import silenced

begin = silenced
