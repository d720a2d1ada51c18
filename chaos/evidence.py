"""One row of the faults table (reports.schema.FAULTS): the proof that a fault happened, and at which state."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Fields are the columns of ``reports.schema.FAULTS``, in their order. Times since the run's start."""

    name: str
    kind: str
    at_us: int
    until_us: int
    target: str
    hit: int
    client_id: str = ""
    api_key: int = -1
    session_id: int = 0
    session_epoch: int = -1
    detail: str = ""

    def values(self) -> tuple[str | int, ...]:
        """The row as the table's columns."""
        return astuple(self)
