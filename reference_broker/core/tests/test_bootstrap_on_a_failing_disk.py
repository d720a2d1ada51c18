"""A disk that refuses one write while an empty log gets its first records: the node is alone and helps itself, or
ends where it cannot."""

from collections.abc import Sequence

import pytest

from reference_broker.core.events import Note
from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.metadata.features import METADATA_VERSION
from reference_broker.ports.disk import Buffer, DiskError, MemoryDisk
from reference_broker.quorum.node_files import QUORUM_STATE


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


class RefusesVotes(MemoryDisk):
    def write(self, path: str, data: Buffer) -> None:
        if path.startswith(QUORUM_STATE):
            raise DiskError("no space left")
        super().write(path, data)


def test_a_node_that_cannot_write_its_vote_ends() -> None:
    """It must not act in an epoch that it may forget."""
    with pytest.raises(NodeFailed, match="no space left"):
        NodeWorld(RefusesVotes())


def test_a_leader_that_is_alone_and_cannot_open_its_epoch_says_so_and_is_elected_again() -> None:
    world = NodeWorld(RefusesOne(1))
    kinds = [dict(note.fields)["what"] for note in world.effects if isinstance(note, Note) and "written" in note.what]
    assert kinds == ["leader change"]
    assert world.node.broker.quorum.epoch == 2


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_node_whose_first_record_or_bootstrap_was_refused_is_elected_again_and_bootstraps(nth: int) -> None:
    disk = RefusesOne(nth)
    world = NodeWorld(disk)
    assert disk.left < 0, "the fault did not strike"
    assert world.node.ready
    assert world.node.broker.loader.image.features["metadata.version"] == METADATA_VERSION
    assert world.node.broker.quorum.epoch == 2, "the first reign has ended"
    assert world.create("t").error_code == 0
