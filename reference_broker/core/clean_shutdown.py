"""The mark of a clean end: Kafka's file ``.kafka_cleanshutdown``.

It is written when everything is synced. The next start that is not refused removes it before a log changes. Without it,
logs are recovered by scanning, and the controller removes the broker from the in-sync replicas, since it may have lost
acknowledged records (KIP-966).
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Ports
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE
from reference_broker.replication.syncing import sync_then

UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class LastEnd:
    """The end of the previous process."""

    clean: bool
    """Whether the mark existed."""
    broker_epoch: int = UNKNOWN_EPOCH
    """The broker epoch in the mark, or -1 if it has none."""


def read_mark(disk: Disk) -> LastEnd:
    """Read the mark. A mark that cannot be parsed is a clean end with an unknown broker epoch. Raise DiskError."""
    if not disk.exists(CLEAN_SHUTDOWN_FILE):  # Decision clean-shutdown-mark
        return LastEnd(clean=False)
    content = disk.read(CLEAN_SHUTDOWN_FILE, 0, disk.size(CLEAN_SHUTDOWN_FILE))
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        epoch = UNKNOWN_EPOCH
    return LastEnd(clean=True, broker_epoch=epoch if isinstance(epoch, int) else UNKNOWN_EPOCH)


def remove_mark(ports: Ports, disk: Disk, done: Callable[[], None]) -> None:
    """Remove the mark, and call ``done`` when that is durable. Only then a log may change. Raise DiskError."""
    if disk.exists(CLEAN_SHUTDOWN_FILE):
        disk.delete(CLEAN_SHUTDOWN_FILE)
        ports.sync((CLEAN_SHUTDOWN_FILE,), done)
    else:
        done()


def write_mark(disk: Disk, broker_epoch: int) -> str:
    """Write the mark, and return its path, which must be synced. Raise DiskError."""
    mark = {"version": 0, "brokerEpoch": broker_epoch}
    disk.write(CLEAN_SHUTDOWN_FILE, json.dumps(mark, separators=(",", ":")).encode() + b"\n")
    return CLEAN_SHUTDOWN_FILE


def sync_and_mark(
    ports: Ports, disk: Disk, logs: Callable[[], Iterable[UnifiedLog]], broker_epoch: int, done: Callable[[], None]
) -> None:
    """Make all ``logs()`` durable, then write the mark with ``broker_epoch``, then call ``done``.

    It syncs again until nothing is unsynced, since work in flight when the shutdown began may still append. There is no
    mark if a log is offline: the next start must recover it.
    """
    if any(log.is_offline for log in logs()):  # Decision clean-shutdown-logs
        done()
        return
    unsynced = []
    for log in logs():
        log.close_cleanly()
        if log.sync_point().paths:
            unsynced.append(log)
    if unsynced:  # Decision clean-shutdown-syncs
        sync_then(ports, unsynced, partial(sync_and_mark, ports, disk, logs, broker_epoch, done))
    else:
        ports.sync((write_mark(disk, broker_epoch),), done)
