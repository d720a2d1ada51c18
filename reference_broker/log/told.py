"""What an operator is told of a log that was opened: each cut, and a quarantine."""

from typing import Protocol

from reference_broker.log.log_view import LogView


class Notes(Protocol):
    def __call__(self, what: str, *fields: tuple[str, int | str]) -> None: ...


def note_recovery(log: LogView, note: Notes) -> None:
    for cut in log.recovered.cuts:
        note(
            "log_cut", ("file", cut.path), ("position", cut.position), ("bytes", cut.size_bytes), ("offset", cut.offset)
        )
    if log.quarantine is not None:
        note(
            "log_quarantined",
            ("partition", log.directory),
            ("until", log.quarantine.until),
            ("why", log.quarantine.why),
        )
