"""A failing write during the bootstrap of an empty log: a single node recovers by itself, or ends where it cannot."""

from collections.abc import Sequence

import pytest

from reference_broker.core.events import Note
from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.metadata.features import METADATA_VERSION
from reference_broker.ports.disk import Buffer, DiskError, MemoryDisk
from reference_broker.quorum.node_files import QUORUM_STATE
from reference_broker.wire.errors import ErrorCode


class RefusesOne(MemoryDisk):
    """A disk that fails the ``nth`` append to the metadata log. The first one is the record that opens the epoch."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        if path.startswith("__cluster_metadata-0/") and path.endswith(".log"):
            self.left -= 1
            if self.left == 0:
                raise DiskError("no space left")
        return super().append(path, buffers)


class RefusesVotes(MemoryDisk):
    def write(self, path: str, data: Buffer) -> None:
        if path.startswith(QUORUM_STATE):
            raise DiskError("no space left")
        super().write(path, data)


def test_node_that_cannot_write_its_vote_ends() -> None:
    """The node must not act in an epoch that it may lose."""
    with pytest.raises(NodeFailed, match="no space left"):
        NodeWorld(RefusesVotes())


def test_single_leader_is_re_elected_after_failed_first_record() -> None:
    world = NodeWorld(RefusesOne(1))
    kinds = [dict(note.fields)["what"] for note in world.effects if isinstance(note, Note) and "written" in note.what]
    assert kinds == ["leader change"]
    assert world.node.broker.quorum.epoch == 2


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_node_is_re_elected_and_bootstraps_after_failed_write(nth: int) -> None:
    disk = RefusesOne(nth)
    world = NodeWorld(disk)
    assert disk.left < 0, "the fault did not strike"
    assert world.node.ready
    assert world.node.broker.loader.image.features["metadata.version"] == METADATA_VERSION
    assert world.node.broker.quorum.epoch == 2, "the first reign has ended"
    assert world.create("t").error_code == ErrorCode.none
