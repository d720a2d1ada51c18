"""A leader with a snapshot, a follower without one, and steps of downloads for tests."""

from dataclasses import replace
from typing import Any

from reference_broker.quorum.snapshots.tests.snapshot_world import Replica, Transfer, content, filled
from reference_broker.quorum.values import Installed, OffsetAndEpoch
from reference_broker.wire.errors import Error, ErrorCode

CHUNK = 1000
CONFIG: dict[str, Any] = {"crucible_metadata_snapshot_fetch_max_bytes": str(CHUNK)}


def a_leader(topics: int = 5) -> Replica:
    replica = filled(Replica(), topics)
    replica.make_snapshot()
    return replica


def a_world(**config: str) -> tuple[Replica, OffsetAndEpoch, Replica, Transfer]:
    leader = a_leader()
    follower = Replica(node_id=2, **CONFIG | config)
    return leader, leader.store.ids[-1], follower, Transfer(leader, follower)


def started(pieces: int = 1, **config: str) -> tuple[Replica, OffsetAndEpoch, Replica, Transfer]:
    """Return the parts of ``a_world`` with the first ``pieces`` of the snapshot fetched and the next one requested."""
    leader, snapshot, follower, transfer = a_world(**config)
    transfer.begin(snapshot)
    for _ in range(pieces):
        transfer.deliver()
    return leader, snapshot, follower, transfer


def restart(transfer: Transfer, power_loss: bool = False) -> Transfer:
    """Kill the follower and restart it."""
    disk = transfer.follower.disk
    disk.crash_at = -1
    if power_loss:
        disk.power_loss()
    after = Transfer(transfer.leader, Replica(disk, node_id=2, **CONFIG), transfer.leadership.leader_id)
    after.bytes_sent = transfer.bytes_sent
    return after


def is_the_leaders(transfer: Transfer, snapshot: OffsetAndEpoch) -> None:
    leader, follower = transfer.leader, transfer.follower
    assert transfer.outcomes == [Installed(snapshot)]
    assert follower.bytes_of(snapshot) == leader.bytes_of(snapshot)
    assert (follower.log.start_offset, follower.log.end) == (snapshot.offset, snapshot)
    assert follower.names() == [follower.store.path(snapshot).rpartition("/")[2]], "leftovers"
    follower.load()
    assert content(follower.image) == content(leader.image)


def completes(transfer: Transfer, snapshot: OffsetAndEpoch) -> None:
    transfer.begin(snapshot)
    transfer.finish()
    is_the_leaders(transfer, snapshot)


def changed(body: Any, **values: Any) -> Any:
    """Return a changed FetchSnapshot response of either version."""
    one = replace(body.topics[0].partitions[0], **values)
    return replace(body, topics=(replace(body.topics[0], partitions=(one,)),))


def refusal(transfer: Transfer, error: Error) -> Any:
    return changed(transfer.response(), error_code=ErrorCode(int(error)), unaligned_records=b"")
