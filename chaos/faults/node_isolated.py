"""All links between a node and the other nodes go silent in both directions. With ``clients`` also the clients' link to
the node does."""

from chaos.faults.timed import silenced

begin = silenced
