"""A disk that refuses one write while an empty log gets its first records: the node is alone and helps itself."""

from collections.abc import Sequence

import pytest

from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.ports.disk import Buffer, DiskError
from reference_broker.ports.memory_disk import MemoryDisk


class RefusesOne(MemoryDisk):
    """Refuses the ``nth`` append to the metadata log. The first one is the record that opens the epoch."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        if path.startswith("__cluster_metadata-0/") and path.endswith(".log"):
            self.left -= 1
            if self.left == 0:
                raise DiskError("no space left")
        return super().append(path, buffers)


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("nth", [2, 3, 4])
def test_a_node_whose_bootstrap_was_refused_is_elected_again_and_bootstraps(nth: int) -> None:
    disk = RefusesOne(nth)
    world = NodeWorld(disk)
    assert disk.left < 0, "the fault did not strike"
    assert world.node.ready
    assert world.node.broker.loader.image.features["metadata.version"] == 25
    assert world.node.broker.quorum.epoch == 2, "the first reign has ended"
    assert world.create("t").error_code == 0
