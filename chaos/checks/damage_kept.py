from chaos.checks.check import Check
from chaos.sim.disk import SimDisk
from reference_broker.core.node import Node


class DamageKept(Check):
    """damage-kept: records of a stopped node that were damaged stay on its disk, under their own name or another one.

    They were durable, so they are no torn end of a log. Whoever repairs the node may need what is left of them.
    """

    guarantee = "damage-kept"

    def whole(self, at_us: int, incarnation: int, node: Node) -> None:  # noqa: ARG002
        disk = getattr(node.broker.disk, "inner", node.broker.disk)
        if not isinstance(disk, SimDisk) or not disk.damaged or not node.ready:
            return
        # Kafka: the files of a deleted topic are deleted.
        topics = node.broker.controller.image.topics
        kept = {content for _, content in disk.all_files()}
        for path, content in disk.damaged:
            if path.partition("/")[0].rpartition("-")[0] in topics and content not in kept:
                self.violated(
                    at_us, f"node {node.broker.node_id}: nothing holds any more what {path} was after its damage"
                )
