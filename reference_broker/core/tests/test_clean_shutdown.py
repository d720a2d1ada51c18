"""The clean-shutdown file: written, read, and harmless with unknown content."""

import pytest

from reference_broker.core.clean_shutdown import LastEnd, read_mark, write_mark
from reference_broker.core.events import SyncFailed
from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import NodeWorld, batch, produce_request
from reference_broker.ports.disk import MemoryDisk
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE
from reference_broker.wire.apis import ApiKey


def test_clean_shutdown_file_has_broker_epoch() -> None:
    disk = MemoryDisk()
    assert write_mark(disk, 41) == CLEAN_SHUTDOWN_FILE
    assert read_mark(disk) == LastEnd(clean=True, broker_epoch=41)
    disk.delete(CLEAN_SHUTDOWN_FILE)
    assert read_mark(disk) == LastEnd(clean=False, broker_epoch=-1)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":0}\n', b'{"version":0,"brokerEpoch":"x"}', b"[]", b"\xff"])
def test_clean_shutdown_file_with_other_content_has_no_broker_epoch(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write(CLEAN_SHUTDOWN_FILE, content)
    assert read_mark(disk) == LastEnd(clean=True, broker_epoch=-1)


@pytest.mark.parametrize("when", ["before the end", "in the end"])
def test_failed_sync_leaves_no_clean_shutdown_file(when: str) -> None:
    """Which of those bytes are on the disk is unknown. No later sync of the file ends either, whatever the driver
    reports
    about the others."""
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    world.create("u")
    world.hold_syncs = True
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch(), 1))
    if when == "in the end":
        world.shut_down()
    token, _ = next(sync for sync in world.syncs)
    world.syncs.popleft()
    with pytest.raises(NodeFailed, match="what is durable is unknown"):
        world.give(SyncFailed(token, "EIO"))
    world.shut_down()
    world.complete_syncs()
    world.hold_syncs = False
    world.advance(60_000)
    assert not world.node.stopped
    assert read_mark(world.disk) == LastEnd(clean=False)
