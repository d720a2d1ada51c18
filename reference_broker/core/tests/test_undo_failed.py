"""An append to a log fails, and so does its undo: the node ends, and the next start truncates the rest."""

from collections.abc import Sequence

import pytest

from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import NodeWorld, batch
from reference_broker.ports.disk import Buffer, MemoryDisk, UndoFailed
from reference_broker.wire.errors import ErrorCode


class TornDisk(MemoryDisk):
    """A disk whose next append to a file of the folder ``tears`` writes half of its bytes, and cannot be undone."""

    tears = ""

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        if not (self.tears and path.startswith(f"{self.tears}/") and path.endswith(".log")):
            return super().append(path, buffers)
        data = b"".join(buffers)
        super().append(path, [data[: len(data) // 2]])
        self.tears = ""
        raise UndoFailed(f"cannot undo a partial append to {path}")


@pytest.mark.parametrize("folder", ["t-0", "__cluster_metadata-0"])
def test_failed_undo_ends_node_without_losing_acknowledged_records(folder: str) -> None:
    disk = TornDisk()
    world = NodeWorld(disk)
    world.create("t")
    assert world.produce("t", 0, batch(b"kept")).error_code == ErrorCode.none
    disk.tears = folder
    with pytest.raises(NodeFailed, match="cannot undo a partial append to"):
        world.produce("t", 0, batch(b"torn")) if folder == "t-0" else world.create("u")
    again = NodeWorld(disk)
    assert again.log("t").log_end_offset == 1
    assert again.produce("t", 0, batch(b"later")).base_offset == 1
    assert again.create("u").error_code == ErrorCode.none
