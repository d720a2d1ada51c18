"""What is told of a log that was opened: each cut, a quarantine, and the snapshots of producers that were read."""

from typing import Protocol

from reference_broker.log.log_view import LogView


class Notes(Protocol):
    def __call__(self, what: str, *fields: tuple[str, int | str]) -> None: ...


def note_recovery(log: LogView, note: Notes) -> None:
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
