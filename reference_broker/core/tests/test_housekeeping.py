"""Periodic work on logs that this node does not lead."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from reference_broker.core.housekeeping import Housekeeping
from reference_broker.log.checkpoints import SYNCED_FILE
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import HOUSEKEPT_PARTITIONS_PER_SLICE, run_to_end
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partitions

START = Now(0, 1_700_000_000_000)
LATER = Now(3_600_000_000, START.wall_ms + 3_600_000)


def followed(index: int) -> UnifiedLog:
    """Return a follower's log with a batch of a producer."""
    config = LogConfig(producer_id_expiration_ms=60_000)
    log = run_to_end(open_log(MemoryDisk(), f"t-{index}", config, START, True))
    record = Record(timestamp_ms=START.wall_ms, key=None, value=b"v")
    log.append_replicated(START, build([record], producer_id=7, producer_epoch=0, base_sequence=0))
    return log


def test_idle_producers_of_followed_logs_expire_in_slices() -> None:
    logs = [followed(index) for index in range(HOUSEKEPT_PARTITIONS_PER_SLICE + 1)]
    broker: Any = SimpleNamespace(partitions=Partitions(), now=LATER)
    housekeeping = Housekeeping(broker, other_logs=lambda: logs)
    assert all(log.producers.by_id for log in logs)
    slices = housekeeping._forget_producers()
    next(slices)
    assert [bool(log.producers.by_id) for log in logs] == [False] * HOUSEKEPT_PARTITIONS_PER_SLICE + [True]
    assert list(slices) == []
    assert not any(log.producers.by_id for log in logs)


def test_recovery_points_are_written_in_slices_except_of_deleted_logs() -> None:
    """The directory of a deleted log may belong to another topic of the same name, whose records are not durable."""
    logs = [followed(index) for index in range(HOUSEKEPT_PARTITIONS_PER_SLICE + 2)]
    for log in logs:
        log.mark_synced(log.sync_point())
    synced: list[str] = []
    broker: Any = SimpleNamespace(
        partitions=Partitions(),
        quorum_node=SimpleNamespace(log=SimpleNamespace(log=logs[0])),
        ports=SimpleNamespace(sync=lambda paths, _: synced.extend(paths)),
    )
    slices = Housekeeping(broker, other_logs=lambda: logs)._checkpoint_synced()
    next(slices)
    assert [log.files.durable_end for log in logs] == [1] * HOUSEKEPT_PARTITIONS_PER_SLICE + [0, 0]
    deleted = logs.pop()
    assert list(slices) == [None]
    assert deleted.files.durable_end == 0
    assert [log.files.durable_end for log in logs] == [1] * len(logs)
    assert synced == [f"t-0/{SYNCED_FILE}", *(f"t-{index}/{SYNCED_FILE}" for index in range(len(logs)))]


def closed_by_age(log: UnifiedLog) -> UnifiedLog:
    log.config = LogConfig(segment_ms=60_000)
    assert log.roll_if_due(LATER)
    assert log.synced_offset == 0
    return log


@pytest.mark.parametrize("is_led", [True, False])
def test_segment_rolled_by_age_is_synced_at_next_round(is_led: bool) -> None:
    """The segment is neither deleted locally nor behind the recovery point before that (P-11)."""
    log = closed_by_age(followed(0))
    partitions = Partitions()
    if is_led:
        partitions.by_name["t", 0] = SimpleNamespace(  # type: ignore[assignment]
            topic="t", index=0, log=log, is_removed=False, followers=None, changed=lambda: None
        )
    synced: list[tuple[str, ...]] = []

    def sync(paths: tuple[str, ...], done: Callable[[], None]) -> None:
        synced.append(paths)
        done()

    broker: Any = SimpleNamespace(partitions=partitions, now=LATER, ports=SimpleNamespace(sync=sync))
    housekeeping = Housekeeping(broker, other_logs=lambda: () if is_led else [log])
    assert list(housekeeping._retention()) == []
    assert log.synced_offset == log.log_end_offset == 1
    assert not log.files.awaits_sync()
    assert list(housekeeping._retention()) == []
    assert len(synced) == 1, "once is enough"
