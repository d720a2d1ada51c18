"""Opening of a log at a start: recovery, quarantine of damage, notes in the trace."""

from typing import Protocol

from reference_broker.log.config import LogConfig
from reference_broker.log.quarantine import LogDamaged, set_aside
from reference_broker.log.recovery import Recovery
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import Sliced


def open_log(disk: Disk, directory: str, config: LogConfig, now: Now, clean: bool) -> Sliced[UnifiedLog]:
    """Open a partition's log. Raise DiskError.

    After a ``clean`` shutdown bytes and index files are trusted. Otherwise segments from the recovery point on are read
    whole, the log is truncated at the first bad batch, and indexes are rebuilt. The high watermark starts at the log
    start offset. Damage of what was durable is kept aside, and the log is in quarantine.
    """
    while True:  # Each damage takes at least its segment away, so this ends.
        recovery = Recovery(disk, directory, config, now, clean)
        try:  # Decision log-damage
            recovered = yield from recovery.run()
        except LogDamaged as failure:
            set_aside(disk, directory, failure.damage, recovery.checkpoints.durable_end)
        else:
            return UnifiedLog.of(config, recovered, now)


def open_undamaged_log(disk: Disk, directory: str, config: LogConfig, now: Now, clean: bool) -> Sliced[UnifiedLog]:
    """Do what ``open_log`` does, but raise LogDamaged and leave the files as they are."""
    recovered = yield from Recovery(disk, directory, config, now, clean).run()
    return UnifiedLog.of(config, recovered, now)


class Notes(Protocol):
    def __call__(self, what: str, *fields: tuple[str, int | str]) -> None: ...


def note_recovery(log: UnifiedLog, note: Notes) -> None:
    for cut in log.recovered.cuts:
        note(
            "log_cut", ("file", cut.path), ("position", cut.position), ("bytes", cut.size_bytes), ("offset", cut.offset)
        )
    for path, why in log.recovered.damaged_snapshots:
        note("producer_snapshot_damaged", ("file", path), ("why", why))
    if log.recovered.snapshot:
        note("producer_snapshot_loaded", ("file", log.recovered.snapshot))
    if log.quarantine is not None:
        note(
            "log_quarantined",
            ("partition", log.directory),
            ("until", log.quarantine.until),
            ("why", log.quarantine.why),
        )
