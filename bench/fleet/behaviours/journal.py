"""The history of one client: its operations, the rows that belong to them, and since when it fetches each partition."""

from dataclasses import dataclass, field

from bench.fleet.behaviours.protocol import FleetAction, HistoryRow, Now, Record, ResponseReceived, TopicPartition
from reports.rows import AssignmentRow, OperationRow


@dataclass(slots=True)
class Operation:
    """An operation whose end is not recorded yet."""

    index: int
    f: str
    intended_us: int
    invoke_us: int  # -1 until it is sent
    node: int = -1
    session_id: int = 0
    session_epoch: int = -1
    partitions_sent: int = 0
    response_session_id: int = -1  # -1: no response to a fetch came
    response_partitions: int = -1  # number of partitions in the response; -1: none came


@dataclass(slots=True)
class Journal:
    """The operations of one client, and the actions of its current step."""

    process: str
    now: Now = field(default_factory=lambda: Now(0, 0))  # set before each event
    actions: list[FleetAction] = field(default_factory=list)
    """Actions for the driver in their order, with the rows to record."""
    begun: int = 0
    _open: dict[int, Operation] = field(default_factory=dict)

    def take_actions(self) -> list[FleetAction]:
        """Return the actions since the last call."""
        actions, self.actions = self.actions, []
        return actions

    def begin(self, f: str, intended_us: int | None = None, *, sent: bool = True) -> Operation:
        """Begin an operation that the history calls ``f``. ``intended_us`` is by default now."""
        now_us = self.now.mono_us
        operation = Operation(self.begun, f, now_us if intended_us is None else intended_us, now_us if sent else -1)
        self.begun += 1
        self._open[operation.index] = operation
        return operation

    def end(
        self,
        operation: Operation,
        kind: str,
        error: str | None = None,
        response: ResponseReceived | None = None,
        rows: tuple[HistoryRow, ...] = (),
    ) -> None:
        """End an operation as ok, fail or info. ``rows`` are the rows that belong to it."""
        del self._open[operation.index]
        row = self._row(operation, kind, error, response)
        self.actions.append(Record((row, *rows)))

    def record(self, *rows: HistoryRow) -> None:
        if rows:
            self.actions.append(Record(rows))

    def end_all(self, error: str) -> list[HistoryRow]:
        """End all open operations with unknown outcome, and return their rows."""
        rows: list[HistoryRow] = [self._row(operation, "info", error) for operation in self._open.values()]
        self._open.clear()
        return rows

    def _row(
        self, operation: Operation, kind: str, error: str | None = None, response: ResponseReceived | None = None
    ) -> OperationRow:
        ended_us = self.now.mono_us
        return OperationRow(
            self.process,
            operation.index,
            operation.f,
            kind,
            operation.intended_us,
            operation.invoke_us if operation.invoke_us >= 0 else ended_us,
            ended_us,
            operation.node,
            error,
            operation.session_id,
            operation.session_epoch,
            operation.response_session_id,
            operation.partitions_sent,
            operation.response_partitions,
            response.request_bytes if response is not None else 0,
            response.response_bytes if response is not None else 0,
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition that is fetched."""

    from_us: int
    from_offset: int  # the position at the beginning


@dataclass(slots=True)
class AssignmentBook:
    """Records each assignment when it ends."""

    journal: Journal
    running: dict[TopicPartition, Assignment] = field(default_factory=dict)  # assignments that have not ended

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """The partition is fetched from now on. Nothing changes if it was fetched before."""
        if partition not in self.running:
            self.running[partition] = Assignment(self.journal.now.mono_us, offset)

    def move(self, partition: TopicPartition, offset: int) -> None:
        """A seek ends one assignment and begins another."""
        if partition in self.running:
            self.end(partition)
            self.begin(partition, offset)

    def end(self, partition: TopicPartition) -> None:
        """The partition is not fetched any more."""
        if partition in self.running:
            self.journal.record(self._row(partition, self.journal.now.mono_us))

    def end_all(self, until_us: int) -> list[HistoryRow]:
        """End all running assignments and return their rows."""
        return [self._row(partition, until_us) for partition in list(self.running)]

    def _row(self, partition: TopicPartition, until_us: int) -> AssignmentRow:
        assigned = self.running.pop(partition)
        return AssignmentRow(self.journal.process, *partition, assigned.from_us, until_us, assigned.from_offset)
