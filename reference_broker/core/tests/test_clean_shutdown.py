"""The mark of a clean end: written, read, and harmless where it makes no sense."""

import pytest

from reference_broker.core.clean_shutdown import LastEnd, read_mark, write_mark
from reference_broker.ports.memory_disk import MemoryDisk
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE


def test_a_mark_tells_the_broker_epoch_of_that_life() -> None:
    disk = MemoryDisk()
    assert write_mark(disk, 41) == CLEAN_SHUTDOWN_FILE
    assert read_mark(disk) == LastEnd(clean=True, broker_epoch=41)
    disk.delete(CLEAN_SHUTDOWN_FILE)
    assert read_mark(disk) == LastEnd(clean=False, broker_epoch=-1)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":0}\n', b'{"version":0,"brokerEpoch":"x"}', b"[]", b"\xff"])
def test_a_mark_of_another_kind_is_a_clean_end_of_an_unknown_life(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write(CLEAN_SHUTDOWN_FILE, content)
    assert read_mark(disk) == LastEnd(clean=True, broker_epoch=-1)
